"""Sessions that last: what they keep while the client is away, and how it comes again."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hubbub.core.broker import Broker
from hubbub.core.gate import Gate
from hubbub.core.limits import LONG_BYTES, TURN_FETCHED_BYTES
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.schema import ACK
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.rights import ruled


def away(stage: Stage, *wishes: str | int) -> None:
    """A lasting session of ann that subscribed and left."""
    ann = stage.device("ann", clean=False)
    ann.subscribe(*wishes)
    ann.say(codec.DISCONNECT_PACKET)
    ann.far.hang_up()


@pytest.mark.holds(v5="4.5.0-1", v3="3.1.2-4 3.1.2-5 4.1.0-1 4.5.0-1 4.6.0-6")
def test_what_came_meanwhile_waits_in_order() -> None:
    stage = Stage()
    away(stage, "a/#", 2)
    bob = stage.device("bob")
    for number, qos in enumerate((1, 0, 2, 1)):
        bob.publish("a/b", b"%d" % number, qos, packet_id=number + 1)
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a/b=0 q1 #1", "a/b=2 q2 #2", "a/b=3 q1 #3"]


@pytest.mark.holds(v5="3.3.1-1 4.3.2-3 4.4.0-1 4.6.0-1", v3="3.3.1-1 4.3.2-1 4.4.0-1 4.6.0-1")
def test_what_was_not_acknowledged_is_repeated_with_dup() -> None:
    stage = Stage()
    bob, ann = stage.device("bob"), stage.device("ann", clean=False)
    ann.subscribe("a", 1)
    for number in range(3):
        bob.publish("a", b"%d" % number, 1, packet_id=number + 1)
    ann.answer(codec.PUBACK, 2)
    ann.far.hang_up("lost")
    bob.publish("a", b"3", 1)
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=0 q1 #1 dup", "a=2 q1 #3 dup", "a=3 q1 #4"]
    ann.answer(codec.PUBACK, 1, 3, 4)
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present"]


@pytest.mark.holds(v5="4.3.3-3 4.3.3-5 4.3.3-6 4.4.0-1", v3="4.3.3-1 4.4.0-1")
def test_qos_2_goes_on_where_it_was() -> None:
    stage = Stage()
    bob, ann = stage.device("bob"), stage.device("ann", clean=False)
    ann.subscribe("a", 2)
    bob.publish("a", b"0", 2, packet_id=1)
    bob.publish("a", b"1", 2, packet_id=2)
    ann.answer(codec.PUBREC, 1)
    ann.far.hang_up("lost")
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "PUBREL 1", "a=1 q2 #2 dup"]
    ann.answer(codec.PUBREC, 2)
    ann.answer(codec.PUBCOMP, 1, 2)
    assert ann.hear() == ["PUBREL 2"]
    assert not stage.broker.state.sessions["mqtt", "ann"].backlog.entries


@pytest.mark.holds(v5="4.3.3-10 4.3.3-12", v3="4.3.3-2")
def test_a_lasting_publisher_repeats_without_a_second_copy() -> None:
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob", clean=False)
    ann.subscribe("a", 0)
    bob.publish("a", qos=2, packet_id=7)
    bob.far.hang_up("lost")
    bob = stage.device("bob", clean=False)
    bob.publish("a", qos=2, packet_id=7, dup=True)
    bob.answer(codec.PUBREL, 7)
    assert bob.hear() == ["CONNACK 0 present", "PUBREC 7", "PUBCOMP 7"]
    bob.publish("a", qos=2, packet_id=7)
    assert ann.hear()[2:] == ["a=x", "a=x"]


@given(
    st.lists(st.sampled_from([1, 1, 1, 2]), min_size=1, max_size=12),
    st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=8), max_size=6),
    st.booleans(),
)
@example([1, 1, 1], [[1], [0, 1, 2]], False)
def test_the_journal_hears_of_each_acknowledgement(
    levels: list[int], answered: list[list[int]], in_order: bool
) -> None:
    """They come one by one and together, in order and not, and the rows say what is left."""
    stage = Stage()
    reader, writer = stage.device("reader", clean=False), stage.device("writer")
    reader.subscribe("t", 2)
    for number, qos in enumerate(levels, 1):
        writer.publish("t", b"x" * number, qos, packet_id=number)
    kinds = [codec.PUBACK if qos == 1 else codec.PUBREC for qos in levels]
    reader.hear()
    done: set[int] = set()
    for piece in answered:
        chosen = dict.fromkeys(n for n in (sorted(piece) if in_order else piece) if n < len(kinds))
        reader.say(*(codec.acknowledgement(kinds[n], n + 1) for n in chosen))
        live = stage.broker.state.sessions["mqtt", "reader"].backlog
        again = folded(stage.log.rows).sessions["mqtt", "reader"].backlog
        assert again.first == live.first
        assert (list(again.entries), again.bytes) == (list(live.entries), live.bytes)
        assert again.received == live.received
        done |= {n for n in chosen if levels[n] == 1}
        assert sum(row.number for row in stage.log.rows if row.kind == ACK) == len(done)


def test_an_offline_backlog_is_bounded() -> None:
    stage = Stage()
    stage.broker.backlog_messages = 3
    away(stage, "a", 1)
    bob = stage.device("bob")
    for number in range(5):
        bob.publish("a", b"%d" % number, 1, packet_id=number + 1)
    bob.say(*(codec.publish(b"a", b"y", 1, packet_id=n + 1) for n in range(4)))
    assert stage.broker.metrics.dropped == {"backlog full": 6}
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=0 q1 #1", "a=1 q1 #2", "a=2 q1 #3"]
    ann.answer(codec.PUBACK, 1, 2, 3)
    bob.publish("a", b"z", 1)
    assert ann.hear() == ["a=z q1 #4"]


def test_an_offline_backlog_is_bounded_by_bytes_too() -> None:
    stage = Stage()
    stage.broker.backlog_bytes = 10
    away(stage, "a", 1)
    bob = stage.device("bob")
    bob.publish("a", b"eleven byte", 1)
    bob.publish("a", b"0", 1)
    assert stage.broker.metrics.dropped == {"backlog full": 1}, "one may wait whatever its size"
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=eleven byte q1 #1"]
    ann.answer(codec.PUBACK, 1)
    ann.far.hang_up("lost")
    bob.say(*(codec.publish(b"a", b"%03d" % n, 1, packet_id=n + 1) for n in range(5)))
    assert stage.broker.metrics.dropped == {"backlog full": 3}
    for from_snapshot in (False, True):
        after = restarted(stage, from_snapshot)
        assert after.mqtt.sessions["ann"].backlog.bytes == 9
        ann = after.device("ann", clean=False)
        assert len(ann.hear()) == 4
        ann.answer_one()
        assert after.mqtt.sessions["ann"].backlog.bytes == 6


def test_a_slow_client_without_a_session_is_bounded_by_bytes_too() -> None:
    stage = Stage()
    stage.broker.backlog_bytes, stage.broker.inflight = 25, 20
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("a", 1)
    bob.say(*(codec.publish(b"a", b"1", 1, packet_id=n + 1) for n in range(20)))
    bob.say(*(codec.publish(b"a", b"1", 1, packet_id=n + 1) for n in range(3)))
    bob.publish("a", b"too long", 1)
    assert stage.broker.metrics.dropped == {"backlog full": 1}
    ann.answer(codec.PUBACK, *range(1, 24))
    assert stage.mqtt.sessions["ann"].backlog.bytes == 0


@pytest.mark.holds(v5="3.3.1-1", v3="3.3.1-1")
@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("from_snapshot", [True, False])
def test_a_restart_does_not_forget_what_was_sent_before(crash: bool, from_snapshot: bool) -> None:
    """A crash leaves open how much was sent: all that fits into the window may be repeated."""
    stage = Stage()
    ann, bob = stage.device("ann", clean=False), stage.device("bob")
    ann.subscribe("a", 1)
    bob.publish("a", b"0", 1)
    if not crash:
        ann.far.hang_up("lost")
        bob.publish("a", b"1", 1)
    stage = restarted(stage, from_snapshot)
    ann = stage.device("ann", clean=False)
    later = [] if crash else ["a=1 q1 #2"]
    assert ann.hear() == ["CONNACK 0 present", "a=0 q1 #1 dup", *later]


def test_a_long_backlog_comes_a_window_at_a_time() -> None:
    stage = Stage()
    away(stage, "a", 1)
    bob = stage.device("bob")
    bob.say(*(codec.publish(b"a", b"%02d" % n, 1, packet_id=n + 1) for n in range(50)))
    ann = stage.device("ann", clean=False)
    heard = ann.hear()[1:]
    while ann.open:
        ann.answer_one()
        heard += ann.hear()
    assert heard == [f"a={n:02} q1 #{n + 1}" for n in range(50)]


@pytest.mark.holds(v5="3.1.2-23", v3="4.1.0-1")
def test_after_a_restart_it_is_as_if_nothing_had_happened() -> None:
    for from_snapshot in (False, True):
        stage = Stage()
        away(stage, "a/#", 2)
        bob = stage.device("bob", clean=False)
        for number in range(3):
            bob.publish("a/b", b"%d" % number, 2, packet_id=number + 1)
        ann = stage.device("ann", clean=False)
        ann.answer(codec.PUBREC, 1)
        ann.answer(codec.PUBCOMP, 1)
        ann.answer(codec.PUBREC, 2)
        stage.tick()

        stage = restarted(stage, from_snapshot)
        bob = stage.device("bob", clean=False)
        bob.publish("a/b", b"2", 2, packet_id=3, dup=True)
        assert bob.hear() == ["CONNACK 0 present", "PUBREC 3"]
        ann = stage.device("ann", clean=False)
        again = "a/b=2 q2 #3 dup"  # perhaps it was on its way
        assert ann.hear() == ["CONNACK 0 present", "PUBREL 2", again]
        ann.answer(codec.PUBCOMP, 2)
        bob.publish("a/c", b"new", 1)
        ann.answer(codec.PUBREC, 3)
        ann.answer(codec.PUBCOMP, 3)
        assert ann.hear() == ["a/c=new q1 #4", "PUBREL 3"]


def test_messages_that_memory_lost_are_counted() -> None:
    """Nothing is recorded, and what was kept for ann had to go."""
    stage = Stage("none")
    stage.broker = Broker(stage.clock, Log(stage.clock), "none")
    stage.mqtt = Mqtt(stage.broker)
    away(stage, "a", 1)
    bob = stage.device("bob")
    bob.publish("a", b"0", 1)
    bob.publish("a", b"1", 1)
    kept = stage.broker.log._kept
    del kept[min(kept)]
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=1 q1 #2"]
    assert stage.broker.metrics.dropped == {"gone": 1}
    ann.answer(codec.PUBACK, 2)
    assert not stage.broker.state.sessions["mqtt", "ann"].backlog.entries


# The will


def will(qos: int = 1, retain: bool = False, topic: bytes = b"will") -> codec.Will:
    return codec.Will(topic, b"gone", qos, retain)


def mourner(stage: Stage) -> Device:
    device = stage.device("mourner")
    device.subscribe("#", 2, "$x", 0)
    device.hear()
    return device


@pytest.mark.holds(v5="3.1.2-7 3.1.2-8 3.1.2-15", v3="3.1.2-8 3.1.2-17")
def test_the_will_is_published_when_the_connection_is_lost() -> None:
    stage = Stage()
    bob = mourner(stage)
    for clean in (True, False):
        stage.device("ann", clean, will=will(retain=True)).far.hang_up("")
        (heard,) = bob.hear()
        assert heard.startswith("will=gone q1")
        bob.answer_one()
    late = stage.device("late")
    late.subscribe("will", 0)
    assert late.hear()[2:] == ["will=gone retain"]
    row = next(row for row in stage.log.rows if row.kind == b"publish")
    assert (row.client, row.retain, row.qos) == (b"ann", True, 1)


def test_the_will_is_published_after_an_error_and_a_takeover() -> None:
    stage = Stage()
    bob = mourner(stage)
    stage.device("ann", will=will(0)).say(b"\x00\x00")
    assert bob.hear() == ["will=gone"]
    stage.device("ann", will=will(0))
    stage.device("ann")
    assert bob.hear() == ["will=gone"]


@pytest.mark.holds(v5="3.1.2-10 3.14.4-3", v3="3.1.2-10 3.14.4-3")
def test_no_will_after_disconnect() -> None:
    stage = Stage()
    bob = mourner(stage)
    ann = stage.device("ann", will=will())
    ann.say(codec.DISCONNECT_PACKET)
    ann.far.hang_up("lost")
    assert bob.hear() == []


@pytest.mark.holds(v5="3.1.2-8", v3="3.1.2-8")
def test_the_will_is_published_when_the_hub_stops() -> None:
    """The client did not say that it goes."""
    stage = Stage()
    bob = mourner(stage)
    ann = stage.device("ann", will=will(0))
    ann.far.connection.goodbye()
    ann.far.hang_up("the hub is stopping")
    assert bob.hear() == ["will=gone"]
    assert stage.broker.state.wills == {}


@pytest.mark.holds(v5="3.1.2-8", v3="3.1.2-8")
@pytest.mark.parametrize("record", ["all", "durable"])
@pytest.mark.parametrize("clean", [True, False])
def test_the_will_of_who_was_here_when_the_hub_crashed(record: str, clean: bool) -> None:
    before = Stage(record)
    away(before, "will", 1)
    before.device("cy", clean, will=will(1, retain=True))
    before.device("left", will=will()).say(codec.DISCONNECT_PACKET)
    for from_snapshot in (False, True):
        stage = restarted(before, from_snapshot)
        stage.mqtt.wake(0)
        assert stage.device("ann", clean=False).hear() == ["CONNACK 0 present", "will=gone q1 #1"]
        assert list(stage.broker.state.retained) == ["will"]
        assert stage.broker.state.wills == {}


def test_a_will_that_the_client_may_not_publish_is_not_kept() -> None:
    stage = Stage()
    bob = mourner(stage)
    stage.gate = Gate(ruled("read #"))
    stage.device("cy", will=will(0))
    assert (stage.broker.state.wills, stage.broker.metrics.dropped) == ({}, {"not allowed": 1})
    restarted(stage)
    assert bob.hear() == []


@pytest.mark.holds(v5="3.1.2-10", v3="3.1.2-10")
def test_a_will_belongs_to_one_connection() -> None:
    stage = Stage()
    bob = mourner(stage)
    stage.device("ann", clean=False, will=will(0)).say(codec.DISCONNECT_PACKET)
    stage.device("ann", clean=False).far.hang_up("lost")
    assert bob.hear() == []
    assert stage.broker.state.sessions["mqtt", "ann"].will is None


def test_a_retained_will_on_a_name_of_the_hub_is_only_delivered() -> None:
    stage = Stage()
    bob = stage.device("bob")
    bob.subscribe("$hub/x", 0)
    bob.hear()
    stage.device("ann", will=will(0, True, b"$hub/x")).far.hang_up("lost")
    assert bob.hear() == ["$hub/x=gone"]
    assert stage.broker.state.retained == {}
    assert folded(stage.log.rows).retained == {}


# Keep-alive


@pytest.mark.holds(v5="3.1.2-22", v3="3.1.2-24")
def test_silence_ends_it_after_one_and_a_half_times_the_keep_alive() -> None:
    stage = Stage()
    bob = mourner(stage)
    ann = stage.device("ann", keep_alive=10, will=will(0))
    assert ann.wake() == stage.still.seconds + 15
    stage.pass_time(14.5)
    ann.wake()
    assert not ann.far.closed
    ann.say(codec.PINGREQ_PACKET)
    assert ann.hear()[1:] == ["PINGRESP"]
    stage.pass_time(14.5)
    ann.wake()
    assert not ann.far.closed
    stage.pass_time(0.5)
    ann.wake()
    assert ann.far.closed
    assert "keep alive" in ann.far.link.reason
    assert bob.hear() == ["will=gone"]


def test_half_a_packet_is_no_sign_of_life() -> None:
    """A client that dribbles would be there for ever, and its will never published."""
    stage = Stage()
    ann = stage.device("ann", keep_alive=10)
    packet = codec.publish(b"a", bytes(900), 0)
    for byte in packet[:15]:
        stage.pass_time(1)
        ann.say(bytes((byte,)))
        ann.wake()
    assert ann.far.closed


def test_a_long_packet_takes_its_time() -> None:
    """As mosquitto has it: while more than 1,000 bytes are missing, each part of them is heard."""
    stage = Stage()
    ann = stage.device("ann", keep_alive=10)
    packet = codec.publish(b"a", bytes(LONG_BYTES + 100), 0)
    parts = [packet[:20], packet[20:40], packet[40:60]]
    for part in parts:
        stage.pass_time(14)
        ann.say(part)
        ann.wake()
        assert not ann.far.closed
    ann.say(packet[60:200])
    stage.pass_time(14)
    ann.say(packet[200:210])
    stage.pass_time(1)
    ann.wake()
    assert ann.far.closed


def test_without_keep_alive_it_may_be_silent_for_ever() -> None:
    stage = Stage()
    ann = stage.device("ann", keep_alive=0)
    assert ann.wake() == float("inf")


def test_a_connect_has_to_come_in_time() -> None:
    stage = Stage()
    device = stage.silent()
    stage.pass_time(29)
    device.wake()
    assert not device.far.closed
    stage.pass_time(1)
    device.wake()
    assert device.far.closed
    assert "no CONNECT" in device.far.link.reason


@pytest.mark.pure
@pytest.mark.parametrize("qos", [1, 2])
def test_who_catches_up_reads_so_much_in_a_turn(qos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message lay in a frame of its own: a client that came back held all others up."""
    stage = Stage()
    away(stage, "a", 2)
    bob = stage.device("bob")
    for number in range(100):
        bob.publish("a", b"%d" % number, qos, packet_id=number + 1)
    reads, read = [0], stage.broker.log.read

    def counted(seq: int) -> Message | None:
        reads[-1] += 1
        return read(seq)

    monkeypatch.setattr(stage.log, "read", counted)
    monkeypatch.setattr(stage.log, "fetched", lambda: sum(reads) * TURN_FETCHED_BYTES // 10)
    ann = stage.silent()
    ann.far.connection.feed(codec.connect(b"ann", False, 0))
    while stage.broker.unsettled:
        reads.append(0)
        stage.still.seconds += 1
        stage.broker.clock.turned = stage.still.seconds
        unsettled, stage.broker.unsettled = stage.broker.unsettled, []
        for session in unsettled:
            session.settle()
    expected = [f"a={number} q{qos} #{number + 1}" for number in range(100)]
    assert ann.hear() == ["CONNACK 0 present", *expected] and max(reads) <= 12
