"""The codec: what it makes it takes apart again, split anywhere, and garbage is only refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.protocols.mqtt import codec, specification
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.whole import parse_subscribe, parse_unsubscribe

TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)
STRINGS = TEXT.map(str.encode)
IDS = st.integers(1, 65_535)
BYTES = st.binary(max_size=300)

PUBLISHES = st.builds(
    lambda topic, payload, qos, retain, packet_id, dup: codec.Publish(
        topic, payload, qos, retain, dup and qos > 0, packet_id if qos else 0
    ),
    STRINGS, BYTES, st.integers(0, 2), st.booleans(), IDS, st.booleans(),
)  # fmt: skip
WILLS = st.one_of(
    st.none(),
    st.builds(codec.Will, STRINGS, BYTES, st.integers(0, 2), st.booleans(), st.none()),
)


def made(packet: codec.Publish) -> bytes:
    topic, payload, qos, retain, dup, packet_id, _ = packet
    return codec.publish(topic, payload, qos, retain, packet_id, dup)


@pytest.mark.holds(v5="2.2.1-2", v3="2.3.1-5")
@given(PUBLISHES)
def test_publish(packet: codec.Publish) -> None:
    data = made(packet)
    ((start, body, end),) = codec.packets(data)
    assert (start, end) == (0, len(data))
    assert codec.parse_publish(data[0], data[body:end]) == packet


@given(
    STRINGS, st.booleans(), st.integers(0, 65_535), WILLS,
    st.one_of(st.none(), st.tuples(STRINGS, st.one_of(st.none(), BYTES))),
)  # fmt: skip
def test_connect(
    client: bytes, clean: bool, keep_alive: int, will: codec.Will | None,
    login: tuple[bytes, bytes | None] | None,
) -> None:  # fmt: skip
    user, password = login or (None, None)
    data = codec.connect(client, clean, keep_alive, will, user, password)
    ((_, body, end),) = codec.packets(data)
    assert codec.parse_connect(data[body:end]) == codec.Connect(
        "3.1.1", client, clean, keep_alive, will, user, password
    )


@given(
    STRINGS, st.booleans(), st.integers(0, 65_535), WILLS, STRINGS, BYTES, st.booleans(), BYTES,
    st.booleans(),
)  # fmt: skip
def test_a_connect_without_its_secrets_says_all_else(
    client: bytes, clean: bool, alive: int, will: codec.Will | None, user: bytes, password: bytes,
    v5: bool, proof: bytes, shows: bool,
) -> None:  # fmt: skip
    properties = codec.Properties({specification.SESSION_EXPIRY: 7}) if v5 else None
    if properties is not None:
        properties.user = [(b"name", b"value")]
        if shows:
            properties.texts = {
                specification.AUTH_METHOD: b"SCRAM", specification.AUTH_DATA: proof
            }  # fmt: skip
        if will is not None:
            will = will._replace(properties=codec.Properties({specification.WILL_DELAY: 3}))
    secret = password if shows or not v5 else None
    packet = codec.connect(client, clean, alive, will, user, secret, properties)
    ((_, at, end),) = codec.packets(packet)
    asked = codec.parse_connect(packet[at:end])
    told = codec.without_secrets(packet[at:end], asked)
    ((_, at, end),) = codec.packets(told)
    if properties is not None:
        properties.texts.pop(specification.AUTH_DATA, None)
    assert codec.parse_connect(told[at:end]) == asked._replace(
        password=None, properties=properties
    )
    assert told == codec.connect(client, clean, alive, will, user, None, properties)


@given(IDS, st.lists(st.tuples(STRINGS, st.integers(0, 2)), min_size=1, max_size=5))
def test_subscribe_and_unsubscribe(packet_id: int, wishes: list[tuple[bytes, int]]) -> None:
    data = codec.subscribe(packet_id, wishes)
    ((_, body, end),) = codec.packets(data)
    assert parse_subscribe(data[body:end]) == (packet_id, wishes, None)
    names = [name for name, _ in wishes]
    data = codec.unsubscribe(packet_id, names)
    ((_, body, end),) = codec.packets(data)
    assert parse_unsubscribe(data[body:end]) == (packet_id, names, None)


@pytest.mark.parametrize("kind", [codec.PUBACK, codec.PUBREC, codec.PUBREL, codec.PUBCOMP])
@given(packet_id=IDS)
def test_acknowledgements(kind: int, packet_id: int) -> None:
    data = codec.acknowledgement(kind, packet_id)
    assert data[0] == kind << 4 | codec.FLAGS[kind]
    assert codec.parse_packet_id(kind, data[2:]) == packet_id


@pytest.mark.holds(v5="1.5.5-1")
@pytest.mark.parametrize(
    ("size", "encoded"),
    [
        (0, "00"), (127, "7f"), (128, "8001"), (16_383, "ff7f"), (16_384, "808001"),
        (2_097_151, "ffff7f"), (2_097_152, "80808001"), (codec.MAX_LENGTH, "ffffff7f"),
    ],
)  # fmt: skip
def test_remaining_length(size: int, encoded: str) -> None:
    """The table of 2.2.3."""
    assert codec.length(size).hex() == encoded
    body = 1 + len(encoded) // 2
    assert codec.extent(b"\x30" + codec.length(size), 0) == (body, body + size)


def test_a_length_of_five_bytes_is_malformed() -> None:
    assert codec.extent(b"\x30\x80\x80\x80", 0) == (0, -1)
    with pytest.raises(ProtocolError, match="four bytes"):
        codec.extent(b"\x30\x80\x80\x80\x80", 0)


def test_a_packet_over_the_limit_is_refused_before_it_came() -> None:
    with pytest.raises(ProtocolError, match="at most 1000"):
        codec.extent(b"\x30" + codec.length(1001), 0, 1000)


@given(st.lists(PUBLISHES, max_size=4), st.data())
def test_a_stream_split_anywhere_is_the_same_stream(
    packets: list[codec.Publish], data: st.DataObject
) -> None:
    """What another client hears does not depend on how the bytes of the sender were cut."""
    sent = b"".join(
        made(one._replace(topic=b"t/" + one.topic.replace(b"+", b"").replace(b"#", b"")))
        for one in packets
        if one.qos < 2
    )
    heard = []
    for cuts in ([], data.draw(st.lists(st.integers(0, len(sent)), max_size=6))):
        stage = Stage("none")
        receiver, sender = stage.device("bob"), stage.device("ann")
        receiver.subscribe("t/#", 0)
        receiver.far.hear()
        edges = [0, *sorted(cuts), len(sent)]
        for start, end in zip(edges, edges[1:], strict=False):
            if end > start:
                sender.say(sent[start:end])
        heard.append((receiver.far.hear(), sender.far.hear()))
    assert heard[0] == heard[1]


PARSERS = (
    codec.parse_connect,
    parse_subscribe,
    parse_unsubscribe,
    lambda body: codec.parse_packet_id(codec.PUBACK, body),
    lambda body: codec.parse_publish(0x30, body),
    lambda body: codec.parse_publish(0x3D, body),
)


@pytest.mark.parametrize("parse", PARSERS)
@given(body=st.binary(max_size=60))
def test_garbage_is_a_protocol_error_or_nothing(parse: object, body: bytes) -> None:
    assert callable(parse)
    try:
        parse(body)
    except ProtocolError as error:
        assert error.reason


@given(data=st.binary(max_size=200))
def test_a_connection_survives_garbage(data: bytes) -> None:
    stage = Stage()
    for prefix in (b"", codec.connect(b"ann", True, 0)):
        device = stage.silent()
        device.say(prefix + data)
        assert device.far.closed in (True, False)


@given(data=st.data())
def test_a_connection_survives_packets_with_a_wrong_byte(data: st.DataObject) -> None:
    """Nearly right is harder than garbage. The others never notice."""
    stage = Stage()
    other = stage.device("bob")
    other.subscribe("a/#", 1)
    other.hear()
    packets = bytearray(
        codec.connect(b"ann", False, 60, codec.Will(b"w", b"x", 1, True), b"user", b"secret")
        + codec.subscribe(7, [(b"a/+", 1), (b"b", 2)])
        + codec.publish(b"a/b", b"x", 1, packet_id=1) * 3
        + codec.publish(b"b", b"y", 2, packet_id=2)
        + codec.acknowledgement(codec.PUBREL, 2)
        + codec.unsubscribe(8, [b"b"])
        + codec.PINGREQ_PACKET
    )
    at = data.draw(st.integers(0, len(packets) - 1))
    packets[at] = data.draw(st.integers(0, 255))
    stage.silent().say(bytes(packets))
    other.say(codec.PINGREQ_PACKET)
    assert other.hear()[-1] == "PINGRESP"


@pytest.mark.holds(v5="1.5.4-1 1.5.4-2")
@pytest.mark.parametrize("text", [b"a\0b", b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_strings_are_utf_8_without_null(text: bytes) -> None:
    """1.5.3; U+D800 and an overlong null are not UTF-8 either."""
    with pytest.raises(ProtocolError):
        codec.Reader(codec.string(text), "PUBLISH").string("topic")


def test_a_string_has_at_most_65535_bytes() -> None:
    assert len(codec.string(bytes(65_535))) == 65_537
    with pytest.raises(ValueError, match="65,535"):
        codec.string(bytes(65_536))
