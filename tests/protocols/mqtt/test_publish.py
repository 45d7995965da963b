"""Messages both ways: QoS 0, 1 and 2, packet ids, the window, repetitions, what is held."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.auth.acl import AclRights, Rule
from hubbub.core.gate import Credentials, Gate
from hubbub.core.rights import READ, WRITE, Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.session import MqttSession
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern, told
from tests.rights import ruled


def pair(stage: Stage, qos: int, clean: bool = True) -> tuple[Device, Device]:
    """Bob publishes, ann listens to a/#."""
    ann, bob = stage.device("ann", clean), stage.device("bob")
    ann.subscribe("a/#", qos)
    stage.sync()
    assert ann.hear() == ["CONNACK 0", f"SUBACK 5: {qos}"]
    bob.hear()
    return ann, bob


@pytest.mark.holds(
    v5="2.2.1-5 3.3.4-1 3.8.4-8 4.3.2-2 4.3.2-4 4.3.3-2 4.3.3-8",
    v3="2.3.1-6 3.3.4-1 3.8.4-6",
)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("wished", [0, 1, 2])
def test_the_lower_qos_counts(published: int, wished: int) -> None:
    stage = Stage()
    ann, bob = pair(stage, wished)
    bob.publish("a/b", qos=published, packet_id=77)
    qos = min(published, wished)
    assert ann.hear() == ["a/b=x" + (f" q{qos} #1" if qos else "")]
    assert bob.hear() == [[], ["PUBACK 77"], ["PUBREC 77"]][published]


@pytest.mark.holds(v5="4.3.2-4", v3="4.3.2-2")
def test_qos_1_is_acknowledged_when_it_is_durable_and_delivered_before() -> None:
    stage = Stage(prompt=False)
    ann, bob = pair(stage, 1)
    bob.publish("a/b", qos=1, packet_id=9)
    assert ann.hear() == ["a/b=x q1 #1"]
    assert bob.hear() == []
    stage.sync()
    assert bob.hear() == ["PUBACK 9"]


@pytest.mark.holds(v5="3.3.1-3 4.3.3-8 4.3.3-10 4.3.3-11", v3="3.3.1-3 4.3.3-2")
def test_qos_2_from_the_publisher() -> None:
    stage = Stage(prompt=False)
    ann, bob = pair(stage, 2)
    bob.publish("a/b", qos=2, packet_id=9)
    assert (ann.hear(), bob.hear()) == ([], []), "it carries a durable number: held"
    stage.sync()
    assert (ann.hear(), bob.hear()) == (["a/b=x q2 #1"], ["PUBREC 9"])
    bob.publish("a/b", qos=2, packet_id=9, dup=True)
    assert (ann.hear(), bob.hear()) == ([], ["PUBREC 9"])
    bob.publish("a/b", qos=2, packet_id=9)
    assert (ann.hear(), bob.hear()) == ([], ["PUBREC 9"]), "the id says it, not the flag (4.3.3)"
    bob.answer(codec.PUBREL, 9)
    bob.answer(codec.PUBREL, 9)
    assert bob.hear() == ["PUBCOMP 9", "PUBCOMP 9"]
    bob.answer(codec.PUBREL, 1234)
    assert bob.hear() == ["PUBCOMP 1234"]


@pytest.mark.holds(v5="4.3.3-3 4.3.3-4 4.3.3-5", v3="4.3.3-1")
def test_qos_2_to_the_subscriber() -> None:
    stage = Stage(prompt=False)
    ann, bob = pair(stage, 2, clean=False)
    bob.publish("a/b", qos=1, packet_id=1)
    bob.publish("a/b", qos=2, packet_id=2)
    stage.sync()
    assert ann.hear() == ["a/b=x q1 #1", "a/b=x q2 #2"]
    ann.answer(codec.PUBREC, 2)
    assert ann.hear() == [], "after PUBREL it never sends PUBLISH again: the row first"
    stage.sync()
    assert ann.hear() == ["PUBREL 2"]
    ann.answer(codec.PUBREC, 2)
    assert ann.hear() == ["PUBREL 2"]
    ann.answer(codec.PUBCOMP, 2)
    ann.answer(codec.PUBACK, 1)
    assert ann.hear() == []
    assert not stage.broker.state.sessions["mqtt", "ann"].backlog.entries
    assert [row.number for row in stage.log.rows if row.kind == b"ack"] == [1, 1]


@pytest.mark.holds(v5="4.3.2-5 4.3.3-12", v3="4.3.2-2 4.3.3-2")
def test_a_publisher_reuses_its_packet_id() -> None:
    stage = Stage()
    ann, bob = pair(stage, 0)
    for _ in range(3):
        bob.publish("a/b", qos=1, packet_id=7)
        bob.publish("a/b", qos=2, packet_id=7)
        bob.answer(codec.PUBREL, 7)
    assert bob.hear() == ["PUBACK 7", "PUBREC 7", "PUBCOMP 7"] * 3
    assert ann.hear() == ["a/b=x"] * 6


@pytest.mark.holds(v5="2.2.1-4 4.3.2-1 4.3.3-1 4.9.0-1", v3="2.3.1-4")
@pytest.mark.parametrize("qos", [1, 2])
def test_packet_ids_count_from_1_and_the_window_is_kept(qos: int) -> None:
    stage = Stage()
    stage.broker.inflight = 20
    ann, bob = pair(stage, qos)
    for number in range(25):
        bob.publish("a/b", b"%d" % number, 1, packet_id=number + 1)
    assert ann.hear() == [f"a/b={number} q1 #{number + 1}" for number in range(20)]
    ann.answer(codec.PUBACK, 2)
    assert ann.hear() == [], "the window ends 20 after the oldest open one"
    ann.answer(codec.PUBACK, 1)
    assert ann.hear() == ["a/b=20 q1 #21", "a/b=21 q1 #22"]
    ann.answer(codec.PUBACK, *range(3, 23))
    assert ann.hear() == ["a/b=22 q1 #23", "a/b=23 q1 #24", "a/b=24 q1 #25"]


def test_a_run_of_publishes_is_delivered_whole() -> None:
    stage = Stage()
    stage.broker.inflight = 20
    ann, bob = pair(stage, 1)
    bob.say(*(codec.publish(b"a/b", b"%d" % n, 1, packet_id=n + 500) for n in range(9)))
    assert bob.hear() == [f"PUBACK {n + 500}" for n in range(9)]
    assert ann.hear() == [f"a/b={n} q1 #{n + 1}" for n in range(9)]
    ann.answer(codec.PUBACK, *range(1, 10))
    bob.say(*(codec.publish(b"a/b", b"%02d" % n, 1, packet_id=n + 1) for n in range(30)))
    assert bob.hear() == [f"PUBACK {n + 1}" for n in range(30)]
    assert ann.hear() == [f"a/b={n:02} q1 #{n + 10}" for n in range(20)]
    ann.answer(codec.PUBACK, *range(10, 30))
    assert ann.hear() == [f"a/b={n:02} q1 #{n + 10}" for n in range(20, 30)]


@pytest.mark.holds(v5="2.2.1-4 4.3.2-1 4.3.3-1", v3="2.3.1-4")
@pytest.mark.parametrize("wished", [1, 2])
@pytest.mark.parametrize("clean", [True, False])
def test_packet_ids_wrap_after_65535(clean: bool, wished: int) -> None:
    stage = Stage()
    ann, bob = pair(stage, wished, clean)
    backlog = stage.mqtt.sessions["ann"].backlog
    backlog.first = backlog.sent = backlog.tried = 65_530
    bob.say(*(codec.publish(b"a/b", b"%d" % n, 1, packet_id=n + 1) for n in range(9)))
    ids = [65_531, 65_532, 65_533, 65_534, 65_535, 1, 2, 3, 4]
    assert ann.hear() == [f"a/b={n} q1 #{packet_id}" for n, packet_id in enumerate(ids)]
    ann.answer(codec.PUBACK, *ids)
    assert (backlog.first, len(backlog.entries)) == (65_539, 0)
    bob.publish("a/b", qos=1)
    assert ann.hear() == ["a/b=x q1 #5"]


@pytest.mark.holds(v5="4.6.0-5 4.6.0-6", v3="4.6.0-5 4.6.0-6")
@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([b"", b"1", b"22"])), max_size=40),
    st.booleans(),
)
def test_every_message_arrives_once_in_order(
    messages: list[tuple[int, bytes]], whole: bool
) -> None:
    """One topic, one publisher: the order of each QoS is kept, however the bytes are joined."""
    stage = Stage()
    ann, bob = pair(stage, 2)
    packets = [
        codec.publish(b"a/b", b"%d:" % number + payload, qos, packet_id=number + 1)
        for number, (qos, payload) in enumerate(messages)
    ]
    for part in [packets] if whole else [[packet] for packet in packets]:
        bob.say(*part)
    bob.say(*(codec.acknowledgement(codec.PUBREL, n + 1) for n in range(len(messages))))
    heard = ann.hear()
    while ann.open:
        ann.answer_one()
        heard += ann.hear()
    seen = [word for word in heard if word.startswith("a/b=")]
    for qos in range(3):
        expected = [
            f"a/b={number}:{payload.decode()}"
            for number, (one, payload) in enumerate(messages)
            if one == qos
        ]
        mark = f" q{qos} " if qos else ""
        found = [word.split(" ")[0] for word in seen if (mark in word if qos else " q" not in word)]
        assert found == expected


@pytest.mark.holds(v5="3.3.4-2", v3="3.3.5-1")
def test_a_message_reaches_an_overlapping_subscriber_once() -> None:
    stage = Stage()
    ann, bob = pair(stage, 0)
    ann.subscribe("a/b", 1, "a/+", 2, "#", 0)
    assert ann.hear() == ["SUBACK 5: 1 2 0"]
    bob.publish("a/b", qos=1)
    assert ann.hear() == ["a/b=x q1 #1"]


def test_what_it_never_sent_cannot_be_acknowledged() -> None:
    stage = Stage()
    ann, bob = pair(stage, 1)
    ann.answer(codec.PUBACK, 1)
    ann.answer(codec.PUBCOMP, 1)
    bob.publish("a/b", qos=1)
    assert ann.hear() == ["a/b=x q1 #1"]
    ann.answer(codec.PUBACK, 2, 65_535, 20)
    session: MqttSession = stage.mqtt.sessions["ann"]
    assert session.backlog.in_flight() == 1
    ann.answer(codec.PUBACK, 1, 1)
    assert session.backlog.in_flight() == 0
    assert not ann.far.closed


def test_a_slow_consumer_loses_qos_0_and_keeps_qos_1() -> None:
    stage = Stage()
    ann, bob = pair(stage, 1)
    ann.far.link.choked = True
    stage.broker.patience.seconds = 0  # else so little would still be written
    bob.publish("a/b", b"0")
    bob.publish("a/b", b"1", qos=1)
    assert ann.hear() == []
    ann.far.link.choked = False
    ann.far.connection.drained()
    assert ann.hear() == ["a/b=1 q1 #1"]
    assert stage.mqtt.sessions["ann"].dropped == {"slow consumer": 1}
    assert stage.broker.metrics.dropped == {"slow consumer": 1}


def test_a_backlog_is_bounded_and_counted() -> None:
    stage = Stage("none")
    stage.broker.backlog_messages, stage.broker.inflight = 25, 20
    ann, bob = pair(stage, 1)
    for number in range(30):
        bob.publish("a/b", b"%d" % number, 1, packet_id=number + 1)
    assert len(ann.hear()) == 20
    ann.answer(codec.PUBACK, *range(1, 21))
    assert ann.hear() == [f"a/b={number} q1 #{number + 1}" for number in range(20, 25)]
    assert stage.mqtt.sessions["ann"].dropped == {"backlog full": 5}


@pytest.mark.holds(v5="4.13.1-1", v3="4.8.0-1")
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    ("qos", "kinds"),
    [
        (1, [codec.PUBREC]),
        (1, [codec.PUBCOMP]),
        (2, [codec.PUBACK]),
        (2, [codec.PUBCOMP]),
        (2, [codec.PUBREC, codec.PUBACK]),
    ],
)
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(
    qos: int, kinds: list[int], lasting: bool
) -> None:
    stage = Stage()
    ann, bob = stage.device("ann", not lasting), stage.device("bob")
    ann.subscribe("a", 2)
    bob.publish("a", b"first", qos=1)
    bob.publish("a", qos=qos, packet_id=2)
    bob.answer(codec.PUBREL, 2)
    ann.hear()
    ann.answer(codec.PUBACK, 1)
    for kind in kinds:
        assert not ann.far.closed
        ann.answer(kind, 2)
    assert ann.far.closed
    assert "for a message that waits for a " in ann.far.link.reason
    modern = Modern(stage, "eve")
    modern.subscribe("a", 2)
    bob.publish("a", qos=qos, packet_id=3)
    bob.answer(codec.PUBREL, 3)
    modern.hear()
    for kind in kinds:
        modern.answer(kind, 1)
    assert modern.hear()[-1] == "DISCONNECT 0x82" and modern.far.closed


def test_a_run_of_acknowledgements_is_looked_at_one_by_one_where_qos_2_is_between() -> None:
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("a", 2)
    for number, qos in ((1, 1), (2, 2), (3, 1)):
        bob.publish("a", qos=qos, packet_id=number)
    bob.answer(codec.PUBREL, 2)
    assert ann.hear()[-3:] == ["a=x q1 #1", "a=x q2 #2", "a=x q1 #3"]
    ann.answer(codec.PUBACK, 1, 3)
    assert not ann.far.closed
    assert len(stage.mqtt.sessions["ann"].backlog.entries) == 2
    ann.answer(codec.PUBACK, 2)
    assert ann.far.closed


@pytest.mark.parametrize("v5", [False, True])
def test_upgraded_messages_come_with_the_qos_of_each_subscription(v5: bool) -> None:
    """`upgrade_outgoing_qos` of mosquitto: at once, later, retained, as a will, after a crash."""
    stage = Stage()
    stage.broker.counts_as = (2, 2, 2)
    bob: Device = Modern(stage, "bob") if v5 else stage.device("bob")
    low, high = stage.device("low"), stage.device("high", False)
    low.subscribe("a", 0)
    high.subscribe("a", 1)
    low.hear()
    high.hear()
    bob.publish("a", b"1")
    bob.publish("a", b"2", retain=True)
    assert low.hear() == ["a=1", "a=2"]
    assert high.hear() == ["a=1 q1 #1", "a=2 q1 #2"]
    high.far.hang_up("lost")
    bob.publish("a", b"3")
    late = stage.device("late")
    late.subscribe("a", 2)
    assert late.hear()[1:] == ["SUBACK 5: 2", "a=2 q2 #1 retain"]
    mourned = stage.device("ann", will=codec.Will(b"a", b"will", 0, False))
    mourned.far.hang_up("lost")
    assert late.hear() == ["a=will q2 #2"]
    after = restarted(stage)
    assert after.device("high", False).hear()[1:] == [
        "a=1 q1 #1 dup", "a=2 q1 #2 dup", "a=3 q1 #3", "a=will q1 #4",
    ]  # fmt: skip


# Large ones, before they are whole


class Ruled(Gate):
    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        done(ruled("readwrite mine"), "")


@pytest.mark.parametrize("cut", [10, 17, 30, 5_000])
def test_a_large_message_that_is_not_allowed_is_answered_before_its_payload(cut: int) -> None:
    stage = Stage()
    stage.gate = Ruled(stage.broker.open)
    ann = Modern(stage)
    ann.hear()
    properties = told(k="v").encode()
    whole = codec.publish(b"theirs", bytes(1 << 20), 1, False, 1, False, properties)
    ann.say(whole[:cut])
    ann.say(whole[cut : cut + 100])
    assert ann.hear() == ["PUBACK 1 0x87"]
    for at in range(cut + 100, len(whole), 100_000):
        ann.say(whole[at : at + 100_000])
        assert ann.far.connection.waiting() == 0
    ann.publish("mine", qos=1, packet_id=2)
    assert ann.hear() == ["PUBACK 2 0x10"]
    assert stage.broker.metrics.dropped == {"not authorised": 1}


@pytest.mark.parametrize("cut", [1, 7, 9, 12, 200])
def test_a_large_message_that_is_allowed_comes_whole(cut: int) -> None:
    stage = Stage()
    ann, bob = Modern(stage), stage.device("bob")
    bob.subscribe("a/b", 0)
    bob.hear()
    whole = codec.publish(b"a/b", b"y" * 300_000, 0, properties=b"\0") + codec.PINGREQ_PACKET
    for at in range(0, len(whole), max(cut, 1000 * (cut == 1))):
        ann.say(whole[at : at + max(cut, 1000 * (cut == 1))])
    assert bob.hear() == ["a/b=" + "y" * 300_000]
    assert ann.hear()[-1] == "PINGRESP"


@pytest.mark.parametrize("retain", [False, True])
def test_a_large_message_is_asked_about_by_the_rules_of_now(retain: bool) -> None:
    """It was refused there before: taken for refused still, it would be published empty."""
    stage = Stage()
    stage.gate = Ruled(stage.broker.open)
    ann = Modern(stage)
    stage.gate = Gate(stage.broker.open)
    bob = stage.device("bob")
    bob.subscribe("theirs", 0)
    bob.hear()
    ann.publish("theirs", qos=1)
    assert ann.hear()[1:] == ["PUBACK 1 0x87"]
    [session] = [one for one in stage.broker.clients.values() if one.client == "ann"]
    assert isinstance(session.rights, AclRights)
    session.rights.follow([Rule(READ | WRITE, "#")])
    stage.broker.rules_changed()
    whole = codec.publish(b"theirs", b"y" * 100_000, 1, retain, 2, False, b"\0")
    for at in range(0, len(whole), 30_000):
        ann.say(whole[at : at + 30_000])
    assert [len(word) for word in bob.hear()] == [len("theirs=") + 100_000]
    assert ann.hear() == ["PUBACK 2"]
