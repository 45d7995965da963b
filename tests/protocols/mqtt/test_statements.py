"""Statements of the standards that no other test is about, each as a transcript.

What they hold is in their markers; conformance.py makes a page of it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.core import rights
from hubbub.core.gate import Credentials, Gate
from hubbub.core.rights import Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import string
from tests.protocols.mqtt.conversation import Device, Stage
from tests.protocols.mqtt.modern import Modern, told

NOT_TEXT = [b"\xff", b"\xed\xa0\x80", b"a\0b"]  # no UTF-8, a surrogate, U+0000
LASTING = told({spec.SESSION_EXPIRY: 100})


def connect(level: int, flags: int, *fields: bytes, name: bytes = b"MQTT") -> bytes:
    """A CONNECT whose payload is what the fields say; 5.0 has no properties."""
    properties = b"\0" if level == 5 else b""
    head = string(name) + bytes((level, flags, 0, 0)) + properties
    return codec.packet(codec.CONNECT, head + b"".join(fields))


def modern(stage: Stage, *packets: bytes) -> Modern:
    """A client of 5.0 that says these packets and no CONNECT of its own."""
    device = Modern.__new__(Modern)
    Device.__init__(device, stage)
    device.say(*packets)
    return device


def old(stage: Stage, *packets: bytes) -> Device:
    device = stage.silent()
    device.say(*packets)
    return device


class Refusing(Gate):
    """Lets nobody in, and says why; remembers who knocked."""

    def __init__(self, all_rights: Rights, reason: str) -> None:
        super().__init__(all_rights)
        self.reason = reason
        self.knocked: list[tuple[str, bytes]] = []

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        self.knocked.append((credentials.user, credentials.secret))
        done(None, self.reason)


# Strings, flags, lengths


@pytest.mark.holds(v5="1.5.4-3 4.7.3-4", v3="1.5.3-3 4.7.3-4")
def test_a_byte_order_mark_is_a_character() -> None:
    stage = Stage()
    for ann in (Modern(stage, "ann"), stage.device("old")):
        ann.hear()
        ann.subscribe("\ufeffa", 0)
        ann.publish("a")
        ann.publish("\ufeffa")
        assert ann.hear()[1:] == ["\ufeffa=x"]
        ann.far.hang_up("lost")


@pytest.mark.holds(
    v5="1.5.4-1 1.5.4-2 1.5.7-1 3.3.2-1 3.3.2-13 3.3.2-19 3.8.3-1 3.10.3-1 4.7.3-2",
)
@pytest.mark.parametrize("bad", NOT_TEXT)
def test_what_is_no_text_in_5_0(bad: bytes) -> None:
    user = [told(), told()]
    user[0].user, user[1].user = [(bad, b"v")], [(b"k", bad)]
    texts = [told(None, {key: bad}) for key in (spec.RESPONSE_TOPIC, spec.CONTENT_TYPE)]
    packets = [codec.publish(b"a", b"x", 0, properties=one.encode()) for one in user + texts]
    packets += [codec.publish(bad, b"x", qos, False, qos, properties=b"\0") for qos in (0, 1, 2)]
    packets += [codec.subscribe(1, [(bad, 0)], b"\0"), codec.unsubscribe(1, [bad], b"\0")]
    for packet in packets:
        device = Modern(Stage())
        device.say(packet)
        assert device.hear()[1:] in (["DISCONNECT 0x81"], ["DISCONNECT 0x90"]), packet
        assert device.far.closed


@pytest.mark.holds(v3="1.5.3-1 1.5.3-2 3.3.2-1 3.8.3-1 3.10.3-1 4.7.3-2")
@pytest.mark.parametrize("bad", NOT_TEXT)
def test_what_is_no_text_before_5_0(bad: bytes) -> None:
    packets = [codec.publish(bad, b"x", qos, False, qos) for qos in (0, 1, 2)]
    packets += [codec.subscribe(1, [(bad, 0)]), codec.unsubscribe(1, [bad])]
    for packet in packets:
        device = Stage().device()
        device.say(packet)
        assert device.hear() == ["CONNACK 0"]
        assert device.far.closed


@pytest.mark.holds(
    v5="1.5.4-1 1.5.4-2 3.1.3-4 3.1.3-11 3.1.3-12", v3="1.5.3-1 1.5.3-2 3.1.3-4 3.1.3-10 3.1.3-11"
)
@pytest.mark.parametrize("bad", NOT_TEXT)
def test_what_is_no_text_in_a_connect(bad: bytes) -> None:
    text, no_text = string(b"ann"), string(bad)
    for level, nothing in ((4, b""), (5, b"\0")):
        for packet in (
            connect(level, 2, no_text),
            connect(level, 2 | 4, text, nothing, no_text, text),
            connect(level, 2 | 0x80, text, no_text),
        ):
            device = modern(Stage(), packet)
            assert device.hear() == []
            assert device.far.closed


FLAGGED = [
    (kind, flags)
    for kind, right in spec.FLAGS.items()
    for flags in range(16)
    if flags != right and kind != codec.CONNECT
]


@pytest.mark.holds(
    v5="2.1.3-1 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1 3.15.1-1",
    v3="2.2.2-1 2.2.2-2 3.6.1-1 3.8.1-1 3.10.1-1 3.14.1-1",
)
@pytest.mark.parametrize(("kind", "flags"), FLAGGED)
def test_other_flags_are_malformed(kind: int, flags: int) -> None:
    body = {
        codec.SUBSCRIBE: b"\0\1\0\1a\0", codec.UNSUBSCRIBE: b"\0\1\0\1a", codec.PINGREQ: b"",
        codec.DISCONNECT: b"",
    }.get(kind, b"\0\1")  # fmt: skip
    packet = bytes((kind << 4 | flags, len(body))) + body
    device, before = Modern(Stage()), Stage().device()
    device.say(packet)
    before.say(packet)
    taken = kind not in (codec.CONNACK, codec.SUBACK, codec.UNSUBACK, codec.PINGRESP)
    assert device.hear()[1:] == [f"DISCONNECT {'0x81' if taken else '0x82'}"]
    assert before.hear() == ["CONNACK 0"]
    assert device.far.closed and before.far.closed


@pytest.mark.holds(v5="2.1.3-1 2.2.2-1 3.2.2-1 3.6.1-1", v3="2.2.2-1 3.6.1-1")
def test_the_bytes_that_the_hub_sends() -> None:
    """Each packet once, as it lies on the wire: flags, empty properties, nothing superfluous."""
    stage = Stage()
    stage.mqtt.receive_maximum, stage.mqtt.topic_alias_maximum = 7, 3
    ann = Modern(stage)
    assert ann.far.hear().hex() == "200e 00 00 0b 210007 2704000000 220003".replace(" ", "")
    ann.subscribe("a", 2)
    assert ann.far.hear().hex() == "9004 0005 00 02".replace(" ", "")
    ann.publish("a", b"x", 0)
    assert ann.far.hear().hex() == "3005 000161 00 78".replace(" ", "")
    ann.publish("a", b"x", 1, packet_id=9)
    assert ann.far.hear().hex() == "3207 000161 0001 00 78 4002 0009".replace(" ", "")
    ann.publish("a", b"x", 2, packet_id=9)
    assert ann.far.hear().hex() == "5002 0009 3407 000161 0002 00 78".replace(" ", "")
    ann.answer(codec.PUBREL, 9)
    ann.answer(codec.PUBREC, 2)
    assert ann.far.hear().hex() == "7002 0009 6202 0002".replace(" ", "")
    ann.unsubscribe("a")
    ann.say(codec.PINGREQ_PACKET)
    assert ann.far.hear().hex() == "b004 0006 00 00 d000".replace(" ", "")
    before = stage.device("old")
    before.subscribe("b", 1)
    before.publish("b", b"x", 1, packet_id=9)
    before.say(codec.unsubscribe(6, [b"b"]))
    words = "2002 0000 9003 0005 01 3206 000162 0001 78 4002 0009 b002 0006"
    assert before.far.hear().hex() == words.replace(" ", "")


# CONNECT and CONNACK


TEXT = string(b"a")


@pytest.mark.holds(
    v5="3.1.0-1 3.1.2-1 3.1.2-3 3.1.2-9 3.1.2-11 3.1.2-12 3.1.2-13 3.1.2-16 3.1.2-17 3.1.2-18 "
    "3.1.2-19 3.1.3-1 3.1.3-3 3.1.4-1 3.14.0-1"
)
@pytest.mark.parametrize(
    "packet",
    [
        connect(5, 2, TEXT, name=b"MQTU"),
        codec.publish(b"a", b"x", 0, properties=b"\0"),
        codec.disconnect(0),
        codec.auth(0),
        connect(5, 2 | 1, TEXT),
        connect(5, 2),
        connect(5, 2 | 4, TEXT),
        connect(5, 2 | 4, TEXT, b"\0", TEXT),
        connect(5, 2 | 4, b"\0", TEXT, TEXT),
        connect(5, 2 | 8, TEXT),
        connect(5, 2 | 4 | 0x18, TEXT, b"\0", TEXT, TEXT),
        connect(5, 2 | 0x20, TEXT),
        connect(5, 2, TEXT, TEXT),
        connect(5, 2 | 0x80, TEXT),
        connect(5, 2 | 0x80, TEXT, TEXT, TEXT),
        connect(5, 2 | 0xC0, TEXT, TEXT),
    ],
)
def test_what_is_no_connect_of_5_0(packet: bytes) -> None:
    device = modern(Stage(), packet)
    assert device.hear() == []
    assert device.far.closed


@pytest.mark.holds(v3="3.1.2-18 3.1.2-19 3.1.2-20 3.1.2-21 3.1.3-1 3.1.3-3")
@pytest.mark.parametrize(
    "packet",
    [
        connect(4, 2),
        connect(4, 2, TEXT, TEXT),
        connect(4, 2 | 0x80, TEXT),
        connect(4, 2 | 0x80, TEXT, TEXT, TEXT),
        connect(4, 2 | 0xC0, TEXT, TEXT),
        connect(4, 2 | 4, TEXT, TEXT),
    ],
)
def test_fields_that_are_missing_or_too_many(packet: bytes) -> None:
    device = old(Stage(), packet)
    assert device.hear() == []
    assert device.far.closed


@pytest.mark.holds(
    v5="3.1.2-17 3.1.2-19 3.1.3-1 3.1.3-8 3.1.4-2 3.1.4-6 3.2.2-6 3.2.2-7 4.13.2-1",
    v3="3.1.2-19 3.1.2-21 3.1.3-1 3.1.3-9 3.1.4-5 3.2.2-4 3.2.2-5",
)
@pytest.mark.parametrize(
    ("reason", "codes"),
    [(rights.BAD_CLIENT, (0x85, 2)), (rights.BAD_CREDENTIALS, (0x86, 4)), ("no", (0x87, 5))],
)
def test_after_a_refusal_nothing_is_taken(reason: str, codes: tuple[int, int]) -> None:
    stage = Stage()
    listener = stage.device("listener")
    listener.subscribe("#", 0)
    listener.hear()
    gate = stage.gate = Refusing(stage.broker.open, reason)
    fields = string(b"ann"), string(b"user"), string(b"secret")
    device = modern(
        stage, connect(5, 2 | 0xC0, *fields), codec.publish(b"a", b"x", 0, properties=b"\0")
    )
    before = old(stage, connect(4, 2 | 0xC0, *fields), codec.publish(b"a", b"x", 0))
    assert gate.knocked == [("user", b"secret")] * 2
    assert device.hear() == [f"CONNACK {codes[0]:#04x}"]
    assert before.hear() == [f"CONNACK {codes[1]}"]
    assert device.far.closed and before.far.closed
    assert listener.hear() == []


@pytest.mark.holds(v5="3.2.0-2")
def test_a_connection_has_one_connack_at_most() -> None:
    stage = Stage()
    for again in (connect(5, 2, b"ann"), connect(5, 2, b"bob")):
        ann = Modern(stage, "ann")
        ann.say(again)
        assert ann.hear() == ["CONNACK 0x00", "DISCONNECT 0x82"]
        assert ann.far.closed and "bob" not in stage.mqtt.sessions


@pytest.mark.holds(v5="3.1.2-4 3.1.3-2 3.1.4-4 3.1.4-5 3.2.2-2 3.2.2-3")
def test_a_clean_start_begins_anew() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, LASTING)
    ann.subscribe("a", 1)
    assert ann.hear() == ["CONNACK 0x00", "SUBACK 5: 0x01"]
    ann = Modern(stage, "ann", False, LASTING)
    assert ann.hear() == ["CONNACK 0x00 present"]
    assert Modern(stage, "bob", False, LASTING).hear() == ["CONNACK 0x00"]
    ann = Modern(stage, "ann", True, LASTING)
    ann.publish("a")
    assert ann.hear() == ["CONNACK 0x00"]


@pytest.mark.holds(v3="3.2.2-3 3.1.2-7")
def test_what_is_retained_belongs_to_no_session() -> None:
    stage = Stage()
    ann = stage.device("ann", clean=False)
    ann.publish("a", retain=True)
    assert ann.hear() == ["CONNACK 0"]
    stage.device("ann", clean=True).far.hang_up("lost")
    bob = stage.device("bob")
    bob.subscribe("a", 0)
    assert bob.hear() == ["CONNACK 0", "SUBACK 5: 0", "a=x retain"]


@pytest.mark.holds(v5="3.1.3-5")
def test_client_ids_of_letters_and_digits() -> None:
    for client in ("0", "abcdefghijklmnopqrstuvw", "ABCDEFGHIJKLMNOPQRSTUVW", "xyzXYZ0123456789"):
        assert Modern(Stage(), client).hear() == ["CONNACK 0x00"]


@pytest.mark.holds(v5="3.1.2-14 3.1.2-16 3.1.2-18", v3="3.1.2-12 3.1.2-16")
def test_a_will_is_retained_only_if_it_says_so() -> None:
    stage = Stage()
    listener = stage.device("listener")
    listener.subscribe("w", 0)
    listener.hear()
    for device in (
        Modern(stage, "new", will=codec.Will(b"w", b"gone", 0, False)),
        stage.device("old", will=codec.Will(b"w", b"gone", 0, False)),
    ):
        device.far.hang_up("lost")
        assert listener.hear() == ["w=gone"]
    assert stage.broker.state.retained == {}
    stage.device("none").far.hang_up("lost")
    assert listener.hear() == []


@pytest.mark.holds(v5="3.1.3-10 3.3.2-17 3.3.2-18")
def test_user_properties_of_a_will_keep_their_order() -> None:
    stage = Stage()
    properties = told({spec.WILL_DELAY: 5})
    properties.user = [(b"b", b"1"), (b"a", b"2"), (b"b", b"1")]
    will = codec.Will(b"w", b"gone", 1, False, properties)
    ann = Modern(stage, "ann")
    ann.subscribe("w", 0)
    ann.hear()
    Modern(stage, "cy", False, LASTING, will).far.hang_up("lost")
    stage.pass_time(6)
    stage.mqtt.wake(0)
    stage.tick()
    assert ann.hear() == ["w=gone b:1 a:2 b:1"]


@pytest.mark.holds(v5="3.1.2-24 3.1.2-29 3.2.2-19 3.4.2-2 3.5.2-2 3.14.2-3")
def test_reason_strings_only_where_they_fit() -> None:
    wrong = told({spec.PAYLOAD_FORMAT: 1})
    for most, said in ((30, False), (1_000, True)):
        stage = Stage()
        device = Modern(stage, properties=told({spec.MAXIMUM_PACKET: most}))
        device.hear()
        device.publish("a", b"\xff", 1, properties=wrong)
        device.publish("a", b"\xff", 2, packet_id=2, properties=wrong)
        device.say(b"\x00\x00")
        heard = device.far.hear()
        assert [b"payload format" in heard, b"reserved" in heard] == [said, said]
        assert all(end - start <= most for start, _, end in codec.packets(heard))
        stage.gate = Refusing(stage.broker.open, "no " * 20)
        device = Modern(stage, properties=told({spec.MAXIMUM_PACKET: most}))
        assert (b"no no no" in device.far.hear()) == said


@pytest.mark.holds(v5="3.1.2-24")
def test_who_cannot_take_a_connack() -> None:
    """The smallest has 16 bytes, and more if there is more to say."""
    for client, most, heard in (
        ("ann", 16, ["CONNACK 0x00"]), ("ann", 15, ["CONNACK 0x95"]), ("ann", 4, []),
        ("", 39, ["CONNACK 0x95"]),
    ):  # fmt: skip
        device = Modern(Stage(), client, properties=told({spec.MAXIMUM_PACKET: most}))
        assert device.hear() == heard
        assert device.far.closed == (heard != ["CONNACK 0x00"])


@pytest.mark.holds(v5="3.1.2-24")
def test_who_cannot_take_an_answer_about_so_many_filters() -> None:
    """20 bytes: 15 filters. What cannot be answered is not done."""
    stage = Stage()
    filters = [str(number) for number in range(16)]
    for count, heard in ((15, ["SUBACK", "UNSUBACK"]), (16, ["DISCONNECT 0x95"])):
        ann = Modern(stage, properties=told({spec.MAXIMUM_PACKET: 20}))
        ann.hear()
        ann.subscribe(*(wish for name in filters[:count] for wish in (name, 0)))
        ann.unsubscribe(*filters[:count])
        assert [word.split(" 5")[0].split(" 6")[0] for word in ann.hear()] == heard


# Messages


@pytest.mark.holds(v5="3.3.1-2 4.3.1-1", v3="3.3.1-2 4.3.1-1")
def test_qos_0_is_never_a_repetition() -> None:
    stage = Stage()
    ann, bob = Modern(stage, "ann"), stage.device("bob")
    ann.subscribe("a", 0)
    ann.hear()
    bob.publish("a", b"1", 1, dup=True)
    bob.publish("a", b"2", 0)
    assert ann.hear() == ["a=1", "a=2"]
    bob.say(b"\x38\x04\x00\x01ax")  # it is taken, as mosquitto has it, and not passed on so
    ann.say(b"\x38\x05\x00\x01a\x00x")
    assert ann.hear() == ["a=x", "a=x"]
    assert not bob.far.closed


@pytest.mark.holds(v5="3.3.1-8", v3="3.3.1-12")
def test_what_is_not_retained_leaves_the_retained_message_alone() -> None:
    stage = Stage()
    for device in (Modern(stage, "new"), stage.device("old")):
        device.publish("a", b"kept", retain=True)
        device.publish("a", b"live")
        device.publish("a", b"")
        device.publish("b", b"live")
        device.subscribe("#", 0)
        assert device.hear()[2:] == ["a=kept retain"]
        device.far.hang_up("lost")


@pytest.mark.holds(v5="3.3.2-3 3.2.2-10 4.7.1-2", v3="3.3.2-3 4.7.1-3")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_only_what_matches_comes(qos: int) -> None:
    stage = Stage()
    for ann in (Modern(stage, "ann"), stage.device("old")):
        ann.subscribe("+/b", qos, "c/#", qos, "d", qos)
        assert str(qos) in ann.hear()[1].partition(":")[2], "granted"
        for topic in ("a/b", "b", "a/b/c", "c", "c/x/y", "cc", "d", "d/e", "/b", "a/bb"):
            stage.device("bob").publish(topic)
        heard = [word.split("=")[0] for word in ann.hear()]
        assert heard == ["a/b", "c", "c/x/y", "d", "/b"]
        ann.far.hang_up("lost")


@pytest.mark.holds(v5="3.3.2-7 3.1.2-27")
def test_topic_aliases_end_with_the_connection() -> None:
    stage = Stage()
    wants = told({spec.SESSION_EXPIRY: 100, spec.TOPIC_ALIAS_MAXIMUM: 5})
    ann = Modern(stage, "ann", False, wants)
    ann.subscribe("a", 0)
    ann.publish("a", b"1", properties=told({spec.TOPIC_ALIAS: 1}))
    assert ann.hear()[2:] == ["a=1 topic-alias=1"]
    ann = Modern(stage, "ann", False, wants)
    ann.publish("a", b"2")
    assert ann.hear()[1:] == ["a=2 topic-alias=1"], "the topic is named again"
    ann.publish("", b"3", properties=told({spec.TOPIC_ALIAS: 1}))
    assert ann.hear() == ["DISCONNECT 0x82"]
    ann = Modern(stage, "ann", False, LASTING)
    ann.publish("a", b"4")
    ann.publish("a", b"5")
    assert ann.hear()[1:] == ["a=4", "a=5"]


@pytest.mark.holds(v5="3.3.4-10 4.9.0-2 4.9.0-3")
def test_a_full_window_stops_nothing_else() -> None:
    stage = Stage()
    ann = Modern(stage, properties=told({spec.RECEIVE_MAXIMUM: 1}))
    ann.subscribe("a", 2)
    for number in (1, 2):
        ann.publish("a", b"%d" % number, 2, packet_id=number)
    ann.hear()
    ann.publish("a", b"3")
    ann.subscribe("b", 0)
    ann.unsubscribe("b")
    ann.answer(codec.PUBREL, 1)
    ann.say(codec.PINGREQ_PACKET)
    assert ann.hear() == [
        "a=3", "SUBACK 5: 0x00", "UNSUBACK 6: 0x00", "PUBCOMP 1", "PINGRESP",
    ]  # fmt: skip


@pytest.mark.holds(v5="4.3.3-7")
def test_what_was_sent_with_qos_2_does_not_expire() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, LASTING)
    ann.subscribe("a", 2)
    bob = Modern(stage, "bob")
    for qos, packet_id in ((2, 1), (1, 2)):
        bob.publish("a", b"%d" % qos, qos, False, packet_id, False, told({spec.MESSAGE_EXPIRY: 5}))
    ann.far.hang_up("lost")
    bob.publish("a", b"unsent", 2, False, 3, False, told({spec.MESSAGE_EXPIRY: 5}))
    stage.pass_time(6)
    ann = Modern(stage, "ann", False, LASTING)
    assert ann.hear()[1:] == ["a=2 q2 #1 dup message-expiry-interval=0"]


@pytest.mark.holds(v5="4.3.3-9 4.3.3-13")
def test_the_exchange_of_a_publisher() -> None:
    stage = Stage()
    ann, bob = Modern(stage, "ann"), Modern(stage, "bob")
    ann.subscribe("a", 0)
    ann.hear(), bob.hear()
    bob.publish("a", b"\xff", 2, packet_id=1, properties=told({spec.PAYLOAD_FORMAT: 1}))
    bob.publish("a", b"new", 2, packet_id=1, properties=told({spec.MESSAGE_EXPIRY: 1}))
    stage.pass_time(5)
    bob.answer(codec.PUBREL, 1)
    assert bob.hear() == ["PUBREC 1 0x99", "PUBREC 1", "PUBCOMP 1"]
    assert ann.hear() == ["a=new message-expiry-interval=1"]


@pytest.mark.holds(v3="4.6.0-2 4.6.0-3")
def test_acknowledgements_come_in_order_though_the_disk_is_slow() -> None:
    """A QoS 2 message that was received already has its PUBREC at once: not before the others."""
    stage = Stage(prompt=False)
    bob = stage.device("bob")
    stage.sync()
    bob.hear()
    bob.say(*(codec.publish(b"a", b"x", 2, packet_id=n) for n in (5, 3)))
    assert bob.hear() == []
    bob.say(codec.publish(b"a", b"x", 2, packet_id=5, dup=True))
    bob.say(codec.publish(b"a", b"x", 1, packet_id=7), codec.publish(b"a", b"x", 2, packet_id=9))
    bob.say(codec.PINGREQ_PACKET)
    assert bob.hear() == ["PINGRESP"]
    stage.sync()
    assert bob.hear() == ["PUBREC 5", "PUBREC 3", "PUBREC 5", "PUBACK 7", "PUBREC 9"]


@pytest.mark.holds(v3="4.6.0-4")
def test_acknowledgements_come_in_order() -> None:
    stage = Stage()
    bob, ann = stage.device("bob"), stage.device("ann")
    ann.subscribe("a", 2)
    bob.say(*(codec.publish(b"a", b"x", 1, packet_id=n) for n in (5, 3, 9)))
    bob.say(*(codec.publish(b"a", b"x", 2, packet_id=n) for n in (5, 3, 9)))
    assert bob.hear()[1:] == [
        "PUBACK 5", "PUBACK 3", "PUBACK 9", "PUBREC 5", "PUBREC 3", "PUBREC 9",
    ]  # fmt: skip
    ann.hear()
    ann.answer(codec.PUBREC, 5, 4, 6)
    assert ann.hear() == ["PUBREL 5", "PUBREL 4", "PUBREL 6"]


# Topics and filters


@pytest.mark.holds(v5="4.7.1-1 4.7.1-2 4.7.3-1", v3="4.7.1-2 4.7.1-3 4.7.3-1")
@pytest.mark.parametrize("bad", ["a+", "+a", "a/b+/c", "++", "a#", "#/a", "a/#/b", "##", ""])
def test_what_is_no_filter(bad: str) -> None:
    device, before = Modern(Stage()), Stage().device()
    device.subscribe(bad, 0)
    before.subscribe(bad, 0)
    assert device.hear()[1:] == ["DISCONNECT 0x8f"]
    assert before.hear() == ["CONNACK 0"]
    assert device.far.closed and before.far.closed
    device, before = Modern(Stage()), Stage().device()
    device.unsubscribe(bad)
    before.say(codec.unsubscribe(6, [bad.encode()]))
    assert device.hear()[1:] == ["DISCONNECT 0x8f"]
    assert before.far.closed


@pytest.mark.holds(v5="4.7.3-3 4.7.3-4", v3="4.7.3-3 4.7.3-4")
def test_names_are_compared_as_they_are() -> None:
    stage = Stage()
    ann = stage.device()
    longest = "x" * 65_535
    names = ["a", "A", "/a", "a/", "a//b", "a/b", "\u00e9", "e\u0301", " a", "%61", longest]
    for name in names:
        ann.subscribe(name, 0)
    ann.hear()
    for name in names:
        ann.publish(name)
    assert [word.removesuffix("=x") for word in ann.hear()] == names
    ann.say(codec.unsubscribe(6, [b"a//b", b"A", b"/a/"]))
    for name in names:
        ann.publish(name)
    heard = [word.removesuffix("=x") for word in ann.hear()[1:]]
    assert heard == [name for name in names if name not in ("a//b", "A")]


@pytest.mark.holds(v5="3.10.4-5 3.11.3-1 3.12.4-1", v3="3.12.4-1")
def test_codes_of_an_unsuback_are_in_order() -> None:
    stage = Stage()
    ann, before = Modern(stage), stage.device("old")
    ann.subscribe("b", 0, "d", 0)
    ann.hear()
    ann.unsubscribe("a", "b", "c", "d")
    ann.say(codec.PINGREQ_PACKET)
    before.say(codec.PINGREQ_PACKET)
    assert ann.hear() == ["UNSUBACK 6: 0x11 0x00 0x11 0x00", "PINGRESP"]
    assert before.hear() == ["CONNACK 0", "PINGRESP"]


# Shared subscriptions


def members(stage: Stage, qos: int) -> tuple[Modern, Modern]:
    found = []
    for name in ("one", "two"):
        device = Modern(stage, name, False, LASTING)
        device.subscribe("$share/g/a", qos)
        device.hear()
        found.append(device)
    return found[0], found[1]


@pytest.mark.holds(v5="4.8.2-3")
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_member_gets_no_more_than_it_was_granted(granted: int) -> None:
    stage = Stage()
    one, two = members(stage, granted)
    for number in (1, 2):
        Modern(stage, "bob").publish("a", b"x", 2, packet_id=number)
    for device in (one, two):
        assert device.hear() == ["a=x" + (f" q{granted} #1" if granted else "")]


@pytest.mark.holds(v5="4.8.2-4 4.8.2-5")
def test_qos_2_is_completed_with_the_member_it_was_begun_with() -> None:
    stage = Stage()
    one, two = members(stage, 2)
    bob = Modern(stage, "bob")
    bob.publish("a", b"x", 2)
    chosen, other = (one, two) if one.hear() else (two, one)
    name = "one" if chosen is one else "two"
    chosen.far.hang_up("lost")
    assert other.hear() in ([], ["a=x q2 #1"])
    chosen = Modern(stage, name, False, LASTING)
    assert chosen.hear() == ["CONNACK 0x00 present", "a=x q2 #1 dup"]
    chosen.disconnect(0, told({spec.SESSION_EXPIRY: 0}))
    assert other.hear() == []


@pytest.mark.holds(v5="4.8.2-6 4.4.0-2")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_message_that_a_member_refuses_is_nobodys(qos: int) -> None:
    stage = Stage()
    one, two = members(stage, qos)
    Modern(stage, "bob").publish("a", b"x", qos)
    chosen, other = (one, two) if one.hear() else (two, one)
    other.hear()
    kind = codec.PUBACK if qos == 1 else codec.PUBREC
    chosen.say(codec.acknowledgement(kind, 1, spec.QUOTA))
    chosen.disconnect(0, told({spec.SESSION_EXPIRY: 0}))
    assert (chosen.hear(), other.hear()) == ([], [])


# Sessions and the end


@pytest.mark.holds(v5="4.1.0-1", v3="4.1.0-2")
def test_a_session_lasts_as_long_as_its_connection() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 1}), keep_alive=60)
    ann.subscribe("a", 1)
    ann.hear()
    stage.pass_time(50)
    stage.mqtt.wake(0)
    ann.publish("a", qos=1)
    assert ann.hear() == ["a=x q1 #1", "PUBACK 1"]


@pytest.mark.holds(v5="3.14.0-1 3.14.2-2 3.14.4-1 3.14.4-2 4.13.1-1")
def test_nothing_follows_a_disconnect() -> None:
    """The hub's own is the last, has no session expiry and ends the connection."""
    stage = Stage()
    ann = Modern(stage, properties=LASTING)
    ann.subscribe("a", 0)
    ann.hear()
    ann.say(
        b"\x00\x00",
        codec.publish(b"a", b"x", 0, properties=b"\0"),
        codec.PINGREQ_PACKET,
    )
    Modern(stage, "bob").publish("a")
    assert ann.hear() == ["DISCONNECT 0x81"]
    assert ann.far.closed


@pytest.mark.holds(v5="3.14.4-1 3.14.4-2")
def test_nothing_is_taken_after_a_disconnect() -> None:
    stage = Stage()
    listener = stage.device("listener")
    listener.subscribe("a", 0)
    listener.hear()
    Modern(stage).say(codec.disconnect(0), codec.publish(b"a", b"x", 0, properties=b"\0"))
    stage.device("old").say(codec.DISCONNECT_PACKET, codec.publish(b"a", b"x", 0))
    assert listener.hear() == []


@pytest.mark.holds(v5="4.12.0-6")
def test_without_a_method_there_is_no_word_of_one() -> None:
    assert Modern(Stage()).hear() == ["CONNACK 0x00"]


# Where a server may choose (1.5.4), and what mosquitto chooses: `interop/test_beside_mosquitto.py`


@pytest.mark.parametrize("v5", [False, True])
@pytest.mark.parametrize("bad", ["a\nb", "\x01", "a\x7f", "\x85", "\uffff", "\ufdd0", "\U0010fffe"])
def test_control_characters_in_names_end_the_connection(bad: str, v5: bool) -> None:
    def device() -> Device:
        return Modern(Stage()) if v5 else Stage().device()

    said, nothing = bad.encode(), b"\0" if v5 else b""
    for packet in (
        codec.publish(said, b"x", 1, packet_id=1, properties=nothing),
        codec.subscribe(5, [(b"good", 0), (said, 0)], nothing),
        codec.unsubscribe(6, [said], nothing),
    ):
        one = device()
        one.say(packet)
        assert one.far.closed
        assert "SUBACK" not in " ".join(one.hear())
    for packet in (
        connect(5 if v5 else 4, 2, string(bad.encode())),
        connect(5 if v5 else 4, 2 | 0x80, TEXT, string(bad.encode())),
        connect(5 if v5 else 4, 2 | 4, TEXT, b"\0" * v5, string(bad.encode()), TEXT),
    ):
        one = modern(Stage(), packet)
        assert one.hear() == [] and one.far.closed


@pytest.mark.parametrize("good", ["a b", "\ufeffa", "\u200b", "ü/\U0001f600", "\ue000", "\u2028"])
def test_other_characters_are_nobodys_business(good: str) -> None:
    ann = Stage().device()
    ann.subscribe(good, 0)
    ann.publish(good)
    assert ann.hear()[1:] == ["SUBACK 5: 0", f"{good}=x"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_its_own_copy_comes_after_the_pubrec_also_when_that_waits_for_the_disk(qos: int) -> None:
    stage = Stage(prompt=False)
    ann = stage.device("ann")
    stage.sync()
    ann.subscribe("a", qos)
    stage.sync()
    ann.hear()
    ann.publish("a", qos=2, packet_id=9)
    assert ann.hear() == []
    stage.sync()
    assert ann.hear() == ["PUBREC 9", "a=x" + f" q{qos} #1" * (qos > 0)]
    ann.answer(codec.PUBREL, 9)
    stage.sync()
    assert ann.hear() == ["PUBCOMP 9"]
