"""CONNECT: what is accepted, what is refused and how, who is taken over."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.core.gate import Credentials, Gate
from hubbub.core.rights import Rights
from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.conversation import Stage


def connect_packet(
    name: bytes = b"MQTT", level: int = 4, flags: int = 2, client: bytes = b"ann", rest: bytes = b""
) -> bytes:
    body = codec.string(name) + bytes((level, flags, 0, 0)) + codec.string(client) + rest
    return codec.packet(codec.CONNECT, body)


@pytest.mark.holds(v3="3.1.3-5 3.1.4-4")
def test_both_versions_are_welcome() -> None:
    stage = Stage()
    for name, level in ((b"MQTT", 4), (b"MQIsdp", 3)):
        device = stage.silent()
        device.say(connect_packet(name, level, client=b"a client id of more than 23 characters"))
        assert device.hear() == ["CONNACK 0"]


@pytest.mark.holds(
    v5="3.1.2-2",
    v3=(
        "2.2.2-2 3.1.0-1 3.1.2-1 3.1.2-2 3.1.2-3 3.1.2-9 3.1.2-11 3.1.2-13 3.1.2-14 3.1.2-15 "
        "3.1.2-22 3.1.3-8 3.1.4-1 3.2.2-4 3.2.2-5 3.2.2-6"
    ),
)
@pytest.mark.parametrize(
    ("packet", "answer"),
    [
        (connect_packet(level=3), "20020001"),
        (connect_packet(name=b"MQIsdp", level=4), "20020001"),
        (connect_packet(level=6), "2003008400"),
        (connect_packet(flags=0, client=b""), "20020002"),
        (connect_packet(b"MQIsdp", 3, client=b""), "20020002"),
        (connect_packet(name=b"AMQP"), ""),
        (connect_packet(flags=3), ""),
        (connect_packet(flags=2 | 0x20), ""),
        (connect_packet(flags=2 | 0x08), ""),
        (connect_packet(flags=2 | 4 | 0x18, rest=codec.string(b"w") * 2), ""),
        (connect_packet(flags=2 | 4, rest=codec.string(b"w/+") * 2), ""),
        (connect_packet(flags=2 | 4, rest=codec.string(b"w")), ""),
        (connect_packet(flags=2 | 0x40, rest=codec.string(b"secret")), ""),
        (connect_packet(rest=b"more"), ""),
        (b"\x11" + connect_packet()[1:], ""),
        (codec.PINGREQ_PACKET, ""),
        (codec.publish(b"a", b"x", 0), ""),
        (codec.connack(False, 0), ""),
    ],
)
def test_what_is_refused(packet: bytes, answer: str) -> None:
    stage = Stage()
    device = stage.silent()
    device.say(packet)
    assert device.far.hear().hex() == answer
    assert device.far.closed
    assert device.far.reason
    assert stage.broker.clients == {}


@pytest.mark.parametrize(
    ("flags", "rest", "asked"),
    [
        (0x82, b"", (None, None)),
        (0xC2, b"", (None, None)),
        (0xC2, codec.string(b"user"), (b"user", None)),
        (0xC2, codec.string(b"user") + codec.string(b"secret"), (b"user", b"secret")),
        (0x03, b"", (None, None)),
    ],
)
def test_in_3_1_flags_may_promise_what_is_missing(
    flags: int, rest: bytes, asked: tuple[bytes | None, bytes | None]
) -> None:
    packet = connect_packet(b"MQIsdp", 3, flags, rest=rest)
    found = codec.parse_connect(packet[2:])
    assert (found.user, found.password) == asked
    with pytest.raises(codec.PacketError):
        codec.parse_connect(connect_packet(b"MQIsdp", 3, 0x42, rest=codec.string(b"secret"))[2:])


def test_3_1_says_dup_when_it_repeats_and_hears_of_no_failure() -> None:
    """A PUBREL, SUBSCRIBE or UNSUBSCRIBE may say DUP; later versions reserve the bit."""
    said = [
        b"\x8a" + codec.subscribe(5, [(b"a", 1), (b"$client/9", 2)])[1:],
        b"\x6a\x02\x00\x07",
        b"\xaa" + codec.unsubscribe(6, [b"a"])[1:],
    ]
    stage = Stage()
    device = stage.silent()
    for _ in (False, True):
        device.say(connect_packet(b"MQIsdp", 3, 0), *said)
        heard = ["CONNACK 0", "SUBACK 5: 1 2", "PUBCOMP 7", "UNSUBACK 6"]
        assert device.hear() == heard, "no session present either, it is no word of 3.1"
        assert list(stage.mqtt.sessions["ann"].subscriptions) == []
        device.far.hang_up("lost")
        device = stage.silent()
    for packet in said:
        device = stage.device()
        device.say(packet)
        assert device.far.closed
    device = stage.silent()
    device.say(connect_packet(b"MQIsdp", 3), b"\x83" + said[0][1:])
    assert device.far.closed


@pytest.mark.holds(v3="3.1.0-2")
def test_a_second_connect_ends_the_connection() -> None:
    stage = Stage()
    device = stage.device()
    device.say(connect_packet())
    assert device.far.closed
    assert device.far.reason == "a second CONNECT"
    assert stage.broker.clients == {}


@pytest.mark.holds(
    v3=(
        "1.5.3-1 2.2.2-2 2.3.1-1 3.3.1-4 3.3.2-2 3.6.1-1 3.8.1-1 3.8.3-3 3.8.3-4 3.10.1-1 "
        "3.10.3-2 3.14.1-1 4.7.1-1 4.7.1-2 4.7.3-1 4.8.0-1"
    ),
)
@pytest.mark.parametrize(
    "packet",
    [
        b"\x40\x02\x00\x00",
        b"\x41\x02\x00\x01",
        b"\x60\x02\x00\x01",
        b"\x80\x06\x00\x01\x00\x01a\x00",
        b"\x82\x02\x00\x01",
        b"\x82\x06\x00\x00\x00\x01a\x00",
        b"\x82\x06\x00\x01\x00\x01a\x03",
        b"\x82\x06\x00\x01\x00\x01a\x04",
        b"\x82\x08\x00\x01\x00\x03a#b\x00",
        b"\x82\x05\x00\x01\x00\x00\x00",
        b"\xa0\x05\x00\x01\x00\x01a",
        b"\xa2\x02\x00\x01",
        b"\xc1\x00",
        b"\xe1\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x20\x02\x00\x00",
        b"\xd0\x00",
        b"\x30\x00",
        b"\x30\x02\x00\x00",
        b"\x30\x04\x00\x02a#",
        b"\x30\x04\x00\x02\xff\xff",
        b"\x30\x03\x00\x05a",
        b"\x36\x06\x00\x01a\x00\x01x",
        b"\x32\x05\x00\x01a\x00\x00",
        b"\x34\x05\x00\x01a\x00\x00",
        b"\x32\x04\x00\x01a\x00",
        b"\x30\xff\xff\xff\xff\x01",
    ],
    ids=bytes.hex,
)
def test_what_a_client_may_not_say(packet: bytes) -> None:
    stage = Stage()
    other, device = stage.device("bob"), stage.device("ann")
    other.subscribe("#", 2)
    other.hear()
    device.say(packet)
    assert device.far.closed
    assert device.far.reason
    assert other.hear() == []
    assert not other.far.closed


def test_after_an_error_nothing_more_is_taken() -> None:
    """Its last acknowledgement still waits for the disk, so the socket is open a little longer."""
    stage = Stage(prompt=False)
    other, device = stage.device("bob"), stage.device("ann")
    other.subscribe("#", 0)
    stage.sync()
    assert (other.hear(), device.hear()) == (["CONNACK 0", "SUBACK 5: 0"], ["CONNACK 0"])
    device.say(codec.publish(b"a", b"1", 1, packet_id=1), b"\x00\x00")
    assert not device.far.closed
    device.say(codec.publish(b"a", b"2", 0))
    assert other.hear() == ["a=1"]
    stage.sync()
    assert device.hear() == ["PUBACK 1"]
    assert device.far.closed


def test_an_oversized_packet_ends_the_connection_before_it_is_there() -> None:
    stage = Stage()
    stage.mqtt.message_bytes = 1000
    device = stage.device()
    device.publish("a", bytes(900))
    assert not device.far.closed
    device.say(b"\x30" + codec.length(1001))
    assert device.far.closed
    assert "1004 bytes" in (device.far.reason or "")


@pytest.mark.holds(v3="3.1.3-6")
def test_anonymous_clients_get_names_of_their_own() -> None:
    stage = Stage()
    for _ in range(3):
        device = stage.silent()
        device.say(connect_packet(client=b""))
        assert device.hear() == ["CONNACK 0"]
    assert len(stage.broker.clients) == 3


@pytest.mark.holds(v3="3.1.2-4 3.1.3-2 3.1.4-2 3.2.2-2")
def test_takeover_keeps_the_session_and_the_address() -> None:
    stage = Stage()
    first = stage.device("ann", clean=False)
    first.subscribe("a", 1)
    number = stage.mqtt.sessions["ann"].number
    second = stage.device("ann", clean=False)
    assert first.far.closed
    assert "another connection" in first.far.link.reason
    assert second.hear() == ["CONNACK 0 present"]
    assert stage.mqtt.sessions["ann"].number == number
    second.publish("a")
    assert second.hear() == ["a=x"]
    second.say(codec.DISCONNECT_PACKET)
    second.far.hang_up()
    stage.device("ann", clean=False)
    assert stage.mqtt.sessions["ann"].number != number, "after a close it is new"


@pytest.mark.holds(v3="3.1.2-6")
def test_takeover_of_a_clean_session_forgets_it() -> None:
    stage = Stage()
    first = stage.device("ann")
    first.subscribe("a", 1)
    second = stage.device("ann")
    assert (first.far.closed, second.hear()) == (True, ["CONNACK 0"])
    second.publish("a")
    assert second.hear() == []
    assert stage.log.kinds().count("disconnect") == 1


@pytest.mark.holds(v3="3.1.2-6 3.1.4-3 3.2.2-1")
def test_a_clean_connect_ends_the_lasting_session() -> None:
    stage = Stage()
    device = stage.device("ann", clean=False)
    assert device.hear() == ["CONNACK 0"]
    device.subscribe("a", 1)
    device.say(codec.DISCONNECT_PACKET)
    assert stage.device("ann", clean=True).hear() == ["CONNACK 0"]
    assert stage.broker.state.sessions == {}
    assert stage.log.kinds()[-2:] == ["end", "connect"]
    assert stage.device("ann", clean=False).hear() == ["CONNACK 0"]
    stage.device("bob").publish("a", qos=1)
    assert not stage.broker.state.sessions["mqtt", "ann"].backlog.entries


class Porter(Gate):
    """Decides when the test says so."""

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        self.asked, self.done = credentials, done


def test_the_gate_may_think_while_bytes_wait() -> None:
    stage = Stage()
    stage.gate = porter = Porter(stage.broker.open)
    device = stage.silent()
    device.say(
        codec.connect(b"ann", True, 0, None, b"user", b"secret"), codec.subscribe(5, [(b"a", 1)])
    )
    device.publish("a")
    assert device.hear() == []
    assert (porter.asked.client, porter.asked.user, porter.asked.secret) == (
        "ann", "user", b"secret",
    )  # fmt: skip
    porter.done(stage.broker.open, "")
    assert device.hear() == ["CONNACK 0", "SUBACK 5: 1", "a=x"]


def test_the_gate_may_refuse() -> None:
    stage = Stage()
    stage.gate = porter = Porter(stage.broker.open)
    device = stage.device()
    porter.done(None, "nobody knows ann")
    assert device.hear() == ["CONNACK 5"]
    assert device.far.closed
    assert "nobody knows ann" in device.far.link.reason
    late = stage.device("bob")
    late.far.hang_up()
    porter.done(stage.broker.open, "")
    assert stage.broker.clients == {}


@pytest.mark.holds(v5="3.2.0-1", v3="3.2.0-1")
def test_nothing_is_delivered_before_a_held_connack() -> None:
    stage = Stage(prompt=False)
    device = stage.device("ann", clean=False)
    device.subscribe("a", 1)
    stage.sync()
    device.hear()
    device.far.hang_up("lost")
    stage.device("bob").publish("a", qos=1)
    device = stage.device("ann", clean=False)
    assert device.hear() == []
    stage.sync()
    assert device.hear() == ["CONNACK 0 present", "a=x q1 #1"]
