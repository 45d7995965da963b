"""Tens of thousands in flight: what each answer costs, and that none is taken for another."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from hubbub.core.broker import Broker
from hubbub.core.session import Backlog
from hubbub.core.state import session_rows
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.numbering import ANSWERS, PACKET_IDS, in_order
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Device, Stage, restarted

MANY = 16_000
FEW = 500
TIMES = 4  # as long as in a small window may it take; what was linear took 10 to 20 times


def wide(window: int, lasting: bool, qos: int) -> tuple[Stage, Device]:
    """A hub with so many in flight to one client."""
    stage = Stage()
    stage.broker.inflight = window
    reader, sender = stage.device("bob", clean=not lasting), stage.device("ann")
    reader.subscribe("a", qos)
    fly(reader, sender, window, qos)
    return stage, reader


def fly(reader: Device, sender: Device, count: int, qos: int) -> None:
    for first in range(0, count, 100):
        ids = range(1, 1 + min(100, count - first))
        sender.say(*(codec.publish(b"a", b"x", qos, False, one) for one in ids))
        if qos == 2:
            sender.answer(codec.PUBREL, *ids)
        for far in (reader.far, sender.far):
            far.hear()


def backlog_of(broker: Broker) -> Backlog:
    found: Backlog = broker.sessions["mqtt", "bob"].backlog  # type: ignore[attr-defined]
    return found


def each(window: int, lasting: bool, qos: int, kinds: tuple[int, ...]) -> float:
    """Seconds for an answer, said by itself, to one of the newest."""
    _, reader = wide(window, lasting, qos)
    began = time.process_time()
    for kind in kinds:
        for one in range(window, window - FEW, -1):
            reader.answer(kind, one)
        reader.far.hear()
    return (time.process_time() - began) / FEW


def linear(measured: Callable[[int], float]) -> None:
    """Another try, where the machine was busy with others."""
    for _ in range(3):
        small, large = measured(FEW), measured(MANY)
        if large < TIMES * small:
            return
    raise AssertionError(f"{large:.6f} s, and {small:.6f} in a small window")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    ("qos", "kinds"), [(1, (codec.PUBACK,)), (2, (codec.PUBREC, codec.PUBCOMP))]
)
def test_an_answer_costs_the_same_in_a_large_window(
    lasting: bool, qos: int, kinds: tuple[int, ...]
) -> None:
    linear(lambda window: each(window, lasting, qos, kinds))


def test_what_was_received_is_read_back_and_kept_as_fast() -> None:
    def both(window: int) -> float:
        stage, reader = wide(window, True, 2)
        for one in range(1, window + 1):
            reader.answer(codec.PUBREC, one)
            if one % 100 == 0:
                reader.far.hear()
        began = time.process_time()
        state = folded(stage.log.rows).sessions["mqtt", "bob"]
        assert len(state.backlog.received) == len(list(session_rows(state))) - 2 - window
        return (time.process_time() - began) / window

    linear(both)


def test_who_comes_back_hears_at_once_what_it_may_release() -> None:
    """One by one these took 65 ms, and 60,000 were a turn of 0.24 s."""
    stage, reader = wide(MANY, True, 2)
    for one in range(1, MANY + 1):
        if one != 9:
            reader.answer(codec.PUBREC, one)
        if one % 100 == 0:
            reader.far.hear()
    packets = [codec.acknowledgement(codec.PUBREL, one) for one in range(1, MANY + 1)]
    packets[8] = codec.publish(b"a", b"x", 2, False, 9, True)
    took = []
    for _ in range(3):
        reader.far.hang_up()
        began = time.process_time()
        reader = stage.device("bob", clean=False)
        took.append(time.process_time() - began)
        assert reader.far.hear() == codec.connack(True, 0) + b"".join(packets)
    assert min(took) < 0.02


def test_a_bound_of_bytes_does_not_look_at_all_that_fly() -> None:
    def published(window: int) -> float:
        stage = Stage()
        stage.broker.inflight = 2 * window
        stage.broker.inflight_bytes = 1 << 30
        reader, sender = stage.device("bob"), stage.device("ann")
        reader.subscribe("a", 1)
        fly(reader, sender, window, 1)
        began = time.process_time()
        for one in range(FEW):
            sender.publish("a", qos=1, packet_id=one + 1)
        assert reader.far.hear() and backlog_of(stage.broker).bytes_in_flight() == window + FEW
        return (time.process_time() - began) / FEW

    linear(published)


@pytest.mark.parametrize(("seed", "lasting"), [(0, True), (1, True), (2, False)])
def test_packet_ids_wrap_with_very_many_in_flight_and_answers_in_any_order(
    seed: int, lasting: bool
) -> None:
    """The model: what waits for which answer, by packet id."""
    chance = random.Random(seed)
    window, stage = 60_000, Stage()
    stage.broker.inflight = window
    reader, sender = stage.device("bob", clean=not lasting), stage.device("ann")
    reader.subscribe("a", 2)
    waits: dict[int, int] = {}
    backlog, sent = backlog_of(stage.broker), 0
    for _ in range(4):
        count = min(window - (backlog.next - backlog.first), 40_000)
        fly(reader, sender, count, 2)
        waits |= {1 + number % PACKET_IDS: codec.PUBREC for number in range(sent, sent + count)}
        sent += count
        ids = list(waits)
        if chance.random() < 0.5:
            chance.shuffle(ids)
        ids = ids[: chance.randrange(len(ids))]
        while ids:
            piece = [ids.pop() for _ in range(min(len(ids), chance.choice((1, 50, 700))))]
            if chance.random() < 0.5:
                piece.sort()
            reader.say(*(codec.acknowledgement(waits[one], one) for one in piece))
            said = reader.far.hear()
            for one in piece:
                if waits[one] == codec.PUBCOMP:
                    del waits[one]
                    continue
                waits[one] = codec.PUBCOMP
                assert codec.acknowledgement(codec.PUBREL, one) in said
            assert backlog.next - backlog.first <= window
        known = {
            1 + number % PACKET_IDS: codec.PUBCOMP if number in backlog.received else codec.PUBREC
            for number in range(backlog.first, backlog.next)
            if backlog.holds(number)
        }
        assert known == waits
        if lasting:
            after = backlog_of(restarted(stage, from_snapshot=chance.random() < 0.5).broker)
            assert (after.first, list(after.entries)) == (backlog.first, list(backlog.entries))
            assert after.received == backlog.received


def test_a_run_of_answers_is_no_longer_than_it_is() -> None:
    for matching in (0, 1, 3, ANSWERS - 1, ANSWERS, ANSWERS + 1, 700, 5_000):
        for most in (0, 1, ANSWERS, 700, 5_000, 9_000):
            said = codec.PUBRECS[4 * 9 : 4 * (9 + matching)] + codec.PUBRECS[:40_000]
            found = in_order(b"?" + said, 1, codec.PUBRECS, 9, most)
            assert found <= min(matching, most)
            assert found == most or found > min(matching, most) // 9 or not matching
