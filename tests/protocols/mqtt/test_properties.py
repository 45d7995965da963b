"""Every property in every packet that may carry it, and every reason code: there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.errors import ProtocolError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import PacketError, Properties, Reader
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern
from tests.protocols.mqtt.whole import parse_subscribe, parse_unsubscribe

PACKETS = [*range(1, 17)]
TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)
STRINGS = TEXT.map(str.encode)
MOST = {spec.BYTE: 255, spec.U16: 65_535, spec.U32: 2**32 - 1, spec.VARIABLE: codec.MAX_LENGTH}
COUNT = {spec.BYTE, spec.U16, spec.U32, spec.VARIABLE}


def allowed(packet: int, kinds: set[str]) -> list[int]:
    return [
        key
        for key, known in spec.PROPERTIES.items()
        if packet in known.packets and known.type in kinds
    ]


@st.composite
def properties(draw: st.DrawFn, packet: int) -> Properties:
    found = Properties()
    keys = st.sampled_from(allowed(packet, COUNT) or [0])
    for key in draw(st.lists(keys, unique=True)):
        if not key:
            continue
        known = spec.PROPERTIES[key]
        number = draw(st.integers(known.least, min(known.most, MOST[known.type])))
        if key == spec.SUBSCRIPTION_ID:
            found.subscriptions.append(number)
        else:
            found.numbers[key] = number
    texts = allowed(packet, {spec.STRING, spec.BINARY})
    for key in draw(st.lists(st.sampled_from(texts), unique=True)) if texts else ():
        binary = spec.PROPERTIES[key].type == spec.BINARY
        found.texts[key] = draw(st.binary(max_size=20) if binary else STRINGS)
    if spec.USER_PROPERTY in allowed(packet, {spec.PAIR}):
        found.user = draw(st.lists(st.tuples(STRINGS, STRINGS), max_size=3))
    return found


@pytest.mark.parametrize("packet", PACKETS, ids=spec.NAMES[1:])
@given(data=st.data())
def test_properties_there_and_back(packet: int, data: st.DataObject) -> None:
    made = data.draw(properties(packet))
    encoded = made.encode()
    reader = Reader(encoded + b"rest", "packet")
    assert reader.properties(packet) == made
    assert reader.body[reader.at :] == b"rest"
    assert str(made)
    for cut in range(len(encoded)):
        with pytest.raises(PacketError):
            Reader(encoded[:cut], "packet").properties(packet)


@pytest.mark.parametrize("packet", PACKETS, ids=spec.NAMES[1:])
def test_a_property_is_refused_where_it_may_not_be(packet: int) -> None:
    """Malformed (2.2.2.2), though twice the same is a protocol error."""
    for key, known in spec.PROPERTIES.items():
        if packet in known.packets:
            continue
        value = {spec.STRING: b"\0\0", spec.BINARY: b"\0\0", spec.PAIR: bytes(4)}.get(known.type)
        value = value or {spec.U16: b"\0\1", spec.U32: b"\0\0\0\1"}.get(known.type, b"\1")
        with pytest.raises(PacketError) as error:
            Reader(bytes((1 + len(value), key)) + value, "packet").properties(packet)
        assert error.value.code == spec.MALFORMED


@pytest.mark.parametrize("key", spec.PROPERTIES, ids=lambda key: spec.PROPERTIES[key].name)
def test_what_may_come_once_and_within_which_bounds(key: int) -> None:
    known = spec.PROPERTIES[key]
    packet = min(known.packets)
    counts = known.type in COUNT
    one = Properties({key: known.least or 1}) if counts else Properties(texts={key: b""})
    if known.type == spec.PAIR or key == spec.SUBSCRIPTION_ID:
        return
    body = one.encode()[1:]
    with pytest.raises(PacketError) as error:
        Reader(bytes((2 * len(body),)) + body * 2, "packet").properties(packet)
    assert error.value.code == spec.PROTOCOL
    for number in (known.least - 1, known.most + 1) if known.type in COUNT else ():
        if 0 <= number <= MOST[known.type]:
            with pytest.raises(PacketError) as error:
                Reader(Properties({key: number}).encode(), "packet").properties(packet)
            assert error.value.code == spec.PROTOCOL


@pytest.mark.holds(v5="1.5.5-1")
@given(size=st.integers(0, codec.MAX_LENGTH))
def test_variable_integers(size: int) -> None:
    assert Reader(codec.length(size), "packet").variable("number") == size


@pytest.mark.parametrize("bad", ["8080808001", "ffffffffff", "80", "8100", "808000"])
def test_variable_integers_that_are_none(bad: str) -> None:
    with pytest.raises(PacketError):
        Reader(bytes.fromhex(bad), "packet").variable("number")


ACKS = [codec.PUBACK, codec.PUBREC, codec.PUBREL, codec.PUBCOMP]


@pytest.mark.holds(v5="3.2.2-8 3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1 3.9.3-2 3.11.3-2")
@pytest.mark.parametrize("kind", [*ACKS, codec.SUBACK, codec.UNSUBACK, codec.CONNACK])
@given(data=st.data(), packet_id=st.integers(1, 65_535))
def test_answers(kind: int, data: st.DataObject, packet_id: int) -> None:
    codes = [code for code, reason in spec.REASONS.items() if kind in reason.packets]
    code = data.draw(st.sampled_from(codes))
    said = data.draw(properties(kind))
    if kind == codec.CONNACK:
        packet_id = packet_id % 2
        packet = codec.connack(packet_id == 1, code, said.encode())
    elif kind == codec.SUBACK:
        packet = codec.suback(packet_id, [code, code], said.encode())
    elif kind == codec.UNSUBACK:
        packet = codec.unsuback(packet_id, [code, code], said.encode())
    else:
        packet = codec.acknowledgement(kind, packet_id, code, said.encode())
    ((start, body, end),) = codec.packets(packet)
    count = 2 if kind in (codec.SUBACK, codec.UNSUBACK) else 1
    answer = codec.parse_answer(kind, packet[body:end])
    assert answer == (packet_id, bytes([code]) * count, said)


@pytest.mark.holds(v5="3.4.2-1 3.5.2-1 3.6.2-1 3.7.2-1")
@pytest.mark.parametrize("kind", [*ACKS, codec.DISCONNECT, codec.AUTH])
@pytest.mark.parametrize("code", range(256))
def test_reason_codes_that_a_packet_does_not_have(kind: int, code: int) -> None:
    known = code in spec.REASONS and kind in spec.REASONS[code].packets
    try:
        if kind in ACKS:
            codec.parse_answer(kind, b"\0\1" + bytes((code,)))
        else:
            codec.parse_ending(kind, bytes((code,)))
    except PacketError as error:
        assert not known and error.code == spec.PROTOCOL
    else:
        assert known


# As 3.14.2.1 and 3.15.2.1 have them; 2.4 names 0x8c, bad authentication method, for the first too.
CODES = {
    codec.DISCONNECT: bytes.fromhex(
        "00 04 80 81 82 83 87 89 8b 8c 8d 8e 8f 90 93 94 95 96 97 98 99 9a 9b 9c 9d 9e 9f a0 a1 a2"
    ),
    codec.AUTH: bytes.fromhex("00 18 19"),
}


@pytest.mark.holds(v5="3.14.2-1 3.15.2-1")
@pytest.mark.parametrize("kind", CODES)
def test_the_reason_codes_of_endings(kind: int) -> None:
    taken = bytearray()
    for code in range(256):
        try:
            codec.parse_ending(kind, bytes((code,)))
        except PacketError as error:
            assert error.code == spec.PROTOCOL
        else:
            taken.append(code)
    assert taken == CODES[kind]


@pytest.mark.parametrize("kind", CODES)
@given(data=st.data())
def test_endings(kind: int, data: st.DataObject) -> None:
    code, said = data.draw(st.sampled_from(CODES[kind])), data.draw(properties(kind))
    packet = (codec.disconnect if kind == codec.DISCONNECT else codec.auth)(code, said.encode())
    ((_, body, end),) = codec.packets(packet)
    assert codec.parse_ending(kind, packet[body:end]) == (code, said)
    assert codec.parse_ending(kind, b"") == (0, Properties())


@given(
    STRINGS, st.booleans(), st.integers(0, 65_535), properties(codec.CONNECT),
    st.one_of(
        st.none(),
        st.builds(
            codec.Will, STRINGS, st.binary(max_size=20), st.integers(0, 2), st.booleans(),
            properties(spec.WILL),
        ),
    ),
    st.one_of(st.none(), STRINGS), st.one_of(st.none(), st.binary(max_size=20)),
)  # fmt: skip
def test_connect(
    client: bytes, clean: bool, keep_alive: int, said: Properties, will: codec.Will | None,
    user: bytes | None, password: bytes | None,
) -> None:  # fmt: skip
    if spec.AUTH_DATA in said.texts:
        said.texts.setdefault(spec.AUTH_METHOD, b"m")
    data = codec.connect(client, clean, keep_alive, will, user, password, said)
    ((_, body, end),) = codec.packets(data)
    assert codec.parse_connect(data[body:end]) == codec.Connect(
        "5.0", client, clean, keep_alive, will, user, password, said
    )


@given(STRINGS, st.binary(max_size=50), st.integers(0, 2), properties(codec.PUBLISH))
def test_publish(topic: bytes, payload: bytes, qos: int, said: Properties) -> None:
    data = codec.publish(topic, payload, qos, False, 7 if qos else 0, False, said.encode())
    ((_, body, end),) = codec.packets(data)
    packet = codec.parse_publish(data[0], data[body:end], True)
    assert (packet.topic, packet.payload, packet.qos, packet.properties) == (
        topic, payload, qos, said
    )  # fmt: skip


@given(st.lists(st.tuples(STRINGS, st.integers(0, 0x2F).filter(lambda n: n & 3 != 3)), min_size=1))
def test_subscribe(wishes: list[tuple[bytes, int]]) -> None:
    said = Properties(subscriptions=[7])
    data = codec.subscribe(3, wishes, said.encode())
    ((_, body, end),) = codec.packets(data)
    assert parse_subscribe(data[body:end], True) == (3, wishes, said)


MODERN = (
    lambda body: parse_subscribe(body, True),
    lambda body: parse_unsubscribe(body, True),
    lambda body: codec.parse_publish(0x32, body, True),
    lambda body: codec.parse_answer(codec.PUBACK, body),
    lambda body: codec.parse_ending(codec.DISCONNECT, body),
    lambda body: codec.parse_connect(b"\0\4MQTT\5" + body),
)


@pytest.mark.parametrize("parse", MODERN)
@given(body=st.binary(max_size=60))
def test_garbage_is_a_protocol_error_or_nothing(parse: object, body: bytes) -> None:
    assert callable(parse)
    try:
        parse(body)
    except ProtocolError as error:
        assert error.reason


@given(data=st.data())
def test_a_connection_survives_packets_with_a_wrong_byte(data: st.DataObject) -> None:
    """Nearly right is harder than garbage. The others never notice."""
    stage = Stage()
    other = Modern(stage, "bob")
    other.subscribe("a/#", 1, identifier=3)
    other.hear()
    said = Properties(
        {spec.MESSAGE_EXPIRY: 9, spec.TOPIC_ALIAS: 1}, {spec.RESPONSE_TOPIC: b"r"}, [(b"k", b"v")]
    )
    will = codec.Will(b"w", b"x", 1, True, Properties({spec.WILL_DELAY: 5}))
    packets = bytearray(
        codec.connect(b"ann", False, 60, will, b"u", b"s", Properties({spec.SESSION_EXPIRY: 9}))
        + codec.subscribe(7, [(b"a/+", 0x1D), (b"$share/g/b", 2)], b"\2\x0b\5")
        + codec.publish(b"a/b", b"x", 1, False, 1, False, said.encode()) * 3
        + codec.publish(b"", b"y", 2, False, 2, False, Properties({spec.TOPIC_ALIAS: 1}).encode())
        + codec.acknowledgement(codec.PUBREL, 2, 0, b"\0")
        + codec.unsubscribe(8, [b"b"], b"\0")
        + codec.disconnect(spec.WITH_WILL)
    )
    at = data.draw(st.integers(0, len(packets) - 1))
    packets[at] = data.draw(st.integers(0, 255))
    stage.silent().say(bytes(packets))
    stage.pass_time(20)
    stage.mqtt.wake(0)
    other.say(codec.PINGREQ_PACKET)
    assert other.hear()[-1] == "PINGRESP"
