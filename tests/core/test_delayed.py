"""`$delayed/<seconds>/<topic>`: when it comes, what survives, and what is no delay."""

from __future__ import annotations

import pytest

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.context import LAGGING_BYTES
from hubbub.core.limits import GROUP_BYTES
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.quotas import DELAYED
from hubbub.core.session import Silent
from hubbub.core.topics import DELAY_SECONDS, delayed_topic
from hubbub.schema import REFUSED, changes_state
from tests.core.recording import (
    Ear,
    Hasty,
    Recording,
    StillClock,
    folded,
    recording,
    settle,
    snapshot,
)
from tests.rights import ruled


def later(broker: Broker, seconds: float) -> None:
    assert isinstance(broker.clock, StillClock)
    broker.clock.seconds += seconds
    broker.delays.wake()


def test_it_comes_when_it_is_due() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a/#", 2))
    broker.post(Message("$delayed/60/a/b", b"second", 1))
    broker.post(Message("$delayed/5/a/c", b"first"))
    assert ear.hear() == []
    later(broker, 4.9)
    assert ear.hear() == []
    later(broker, 0.1)
    assert ear.hear() == [("a/c", b"first", 0)]
    later(broker, 100)
    assert ear.hear() == [("a/b", b"second", 1)]
    assert broker.state.delayed == {}


def test_who_subscribes_later_gets_it_too() -> None:
    broker, _ = recording()
    broker.post(Message("$delayed/5/a", b"x", 1))
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    later(broker, 5)
    assert ear.hear() == [("a", b"x", 0)]


def test_it_may_be_retained_then() -> None:
    broker, log = recording()
    broker.post(Message("$delayed/5/a", b"x", 1, retain=True))
    assert (broker.state.retained, folded(log.rows).retained) == ({}, {})
    later(broker, 5)
    assert list(broker.state.retained) == ["a"] == list(folded(log.rows).retained)


def test_it_may_enter_a_queue() -> None:
    broker, _ = recording()
    broker.post(Message("$delayed/5/$queue/jobs", b"x", 1))
    later(broker, 5)
    assert list(broker.queues.named("jobs").messages) == [0]


def test_a_restart_changes_nothing() -> None:
    """From the rows, and from a snapshot, which keeps the time and whether to retain."""
    broker, log = recording(record="durable")
    broker.post(Message("$delayed/60/a", b"x", 1, retain=True))
    broker.post(Message("$delayed/5/b", b"y"))
    later(broker, 5)
    assert all(changes_state(row) for row in log.rows if row.topic.startswith(b"$delayed/"))
    state = broker.state
    assert state.delayed == {1: int((1000 + 60) * 1e6)} == folded(log.rows).delayed
    short = snapshot(state, log.rows)
    assert folded(short).delayed == state.delayed
    assert folded(short).retained == {}

    restarted, _ = recording()
    restarted.log, restarted.state = log, folded(short)
    restarted.recover([])
    ear = Ear(restarted, "ann")
    restarted.subscribe(ear.wish("#", 2))
    later(restarted, 59.9)
    assert ear.hear() == []
    later(restarted, 0.1)
    assert ear.hear() == [("a", b"x", 1)]
    assert list(restarted.state.retained) == ["a"]


def test_in_memory_it_stays_until_it_is_due() -> None:
    broker = Broker(clock := StillClock(), Log(clock), "none")
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    broker.post(Message("$delayed/5/a", b"x"))
    later(broker, 5)
    assert ear.hear() == [("a", b"x", 0)]


@pytest.mark.parametrize(
    "name",
    [
        "$delayed/", "$delayed/5", "$delayed/5/", "$delayed/0/a", "$delayed/-1/a", "$delayed/x/a",
        "$delayed/1.5/a", "$delayed/٥/a", "$delayed/4294968/a", "$delayed/5/$SYS/x",
        "$delayed/5/$client/7", "$delayed/5/$delayed/5/a", "$delayed/5/a/+",
    ],
)  # fmt: skip
def test_what_is_no_delay_is_dropped(name: str) -> None:
    broker, log = recording()
    broker.post(Message(name, b"x", 1))
    assert broker.metrics.dropped == {"not allowed": 1}
    assert [row.kind for row in log.rows] == [REFUSED]


def test_the_longest() -> None:
    assert delayed_topic(f"$delayed/{DELAY_SECONDS}/a/b") == (DELAY_SECONDS, "a/b")


def test_permission_is_that_of_the_topic() -> None:
    broker, _ = recording()
    sender = Silent("test", "bob", ruled("write mine"))
    broker.post(Message("$delayed/5/mine", b"x"), sender)
    broker.post(Message("$delayed/5/yours", b"x"), sender)
    assert len(broker.state.delayed) == 1
    assert broker.metrics.dropped == {"not allowed": 1}


def test_what_expires_before_is_dropped() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    broker.post(Message("$delayed/5/a", b"x", 1, expires=int(1004e6)))
    later(broker, 5)
    assert ear.hear() == []
    assert (broker.metrics.dropped, broker.state.delayed) == ({"expired": 1}, {})


def test_their_number_is_bounded() -> None:
    broker, _ = recording()
    broker.quotas.most[DELAYED] = 2
    for _ in range(3):
        broker.post(Message("$delayed/5/a", b"x"))
    assert len(broker.state.delayed) == 2
    assert broker.metrics.dropped == {"too many delayed": 1}


def test_very_many_come_in_turns_and_not_in_many_seconds() -> None:
    """100,000 that were due in one second took 25, a thousand a look; and each look took long."""
    broker = Broker(clock := Hasty(), Log(clock), "none")
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a", 2))
    for number in range(3_000):
        broker.post(Message("$delayed/5/a", b"%d" % number))
    later(broker, 5)
    heard = ear.hear()
    assert 0 < len(heard) < 100
    later(broker, 0)
    assert ear.hear() == []  # that goes on already
    assert settle(broker) > 10
    heard += ear.hear()
    assert [payload for _, payload, _ in heard] == [b"%d" % number for number in range(3_000)]
    assert broker.state.delayed == {}


class Slow(Recording):
    """Beside its rows from the number `since` on so many bytes wait for the disk."""

    since = 0
    others = 0

    @property
    def pending_bytes(self) -> int:
        return self.others + sum(len(row.payload) for row in self.rows[self.since :])


def test_they_come_no_faster_than_the_disk_takes_them_and_that_fast_beside_others() -> None:
    """20,000 of 10 KB, a user's fifth, waited in memory to be written, and all others for 1 s. But
    others may publish for hours as fast as the disk is.
    """
    log = Slow(clock := StillClock())
    broker, part = Broker(clock, log, "all"), 4
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    for number in range(5 * part):
        broker.post(Message("$delayed/5/a", b"%d" % number + bytes(GROUP_BYTES // 2 // part), 1))
    log.since, log.others = len(log.rows), LAGGING_BYTES + 1
    later(broker, 5)
    assert len(ear.hear()) == 1 and settle(broker) == 0
    for _ in range(2):
        log.since = len(log.rows)
        for call in broker.written():
            call()
        assert len(ear.hear()) == part
    later(broker, 0.25)
    for call in broker.to_try_again():  # a disk that hangs
        call()
    assert len(ear.hear()) == 1
    log.since, log.others = len(log.rows), 0
    for call in broker.written():
        call()
    assert len(ear.hear()) == 3 * part - 2
    assert broker.state.delayed == {} and broker.written() == []


def test_subscribing_to_what_waits_shows_nothing() -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("$delayed/#", 2))
    broker.post(Message("$delayed/5/a", b"x", 1))
    assert ear.hear() == []


def test_the_clock_is_the_only_one_who_knows() -> None:
    """With the machine's clock: a delay of a second is not over at once."""
    broker = Broker(clock := Clock(), Log(clock), "none")
    broker.post(Message("$delayed/1/a", b"x"))
    broker.delays.wake()
    assert len(broker.state.delayed) == 1
