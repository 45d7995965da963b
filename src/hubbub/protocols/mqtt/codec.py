"""MQTT packets: bytes to values and back. Called by the connection, the session and our client.

    byte 1    | type (4 bits)     | flags (4 bits)    |   PUBLISH: DUP, QoS (2 bits), RETAIN
    byte 2…5  | remaining length: 7 bits a byte, lowest first, high bit = more
    then      | variable header (in 5.0 with properties), payload

3.1, 3.1.1 and 5.0 are one grammar. What 5.0 added is optional in the makers (`properties` are
encoded bytes, b"" before 5.0) and asked for in the parsers (`v5`). Section numbers are those of
MQTT 3.1.1 where it has them. Malformed bytes raise PacketError. Never keeps state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hubbub.core.limits import CONNECT_PROPERTIES, PACKET_BYTES
from hubbub.protocols.mqtt import specification as specification
from hubbub.protocols.mqtt.fields import MAX_VARIABLE, check_properties, variable
from hubbub.protocols.mqtt.fields import NO_PROPERTIES as NO_PROPERTIES
from hubbub.protocols.mqtt.fields import PacketError as PacketError
from hubbub.protocols.mqtt.fields import Properties as Properties
from hubbub.protocols.mqtt.fields import Reader as Reader
from hubbub.protocols.mqtt.fields import string as string

CONNECT: Final = specification.CONNECT
CONNACK: Final = specification.CONNACK
PUBLISH: Final = specification.PUBLISH
PUBACK: Final = specification.PUBACK
PUBREC: Final = specification.PUBREC
PUBREL: Final = specification.PUBREL
PUBCOMP: Final = specification.PUBCOMP
SUBSCRIBE: Final = specification.SUBSCRIBE
SUBACK: Final = specification.SUBACK
UNSUBSCRIBE: Final = specification.UNSUBSCRIBE
UNSUBACK: Final = specification.UNSUBACK
PINGREQ: Final = specification.PINGREQ
PINGRESP: Final = specification.PINGRESP
DISCONNECT: Final = specification.DISCONNECT
AUTH: Final = specification.AUTH
NAMES: Final = specification.NAMES
FLAGS: Final = specification.FLAGS
VERSIONS: Final = specification.VERSIONS
V31: Final = specification.V31
V311: Final = specification.V311
V5: Final = specification.V5
BRIDGE: Final = 0x80  # in the protocol level before 5.0

# Connect return codes (3.2.2.3).
ACCEPTED: Final = 0
BAD_VERSION: Final = 1
BAD_IDENTIFIER: Final = 2
UNAVAILABLE: Final = 3
BAD_CREDENTIALS: Final = 4
NOT_AUTHORISED: Final = 5
RETURN_CODES: Final = (
    "accepted", "this protocol version is not spoken here", "this client id is not accepted",
    "the server is not available", "bad user name or password", "not authorised",
)  # fmt: skip

FAILURE: Final = 0x80  # in a SUBACK
MAX_LENGTH: Final = MAX_VARIABLE  # the remaining length
MAX_PACKET: Final = MAX_VARIABLE + 5  # with the byte of its type, and its length

PINGREQ_PACKET: Final = b"\xc0\x00"
PINGRESP_PACKET: Final = b"\xd0\x00"
DISCONNECT_PACKET: Final = b"\xe0\x00"

REPEATED: Final = (0x6A, 0x8A, 0xAA)  # PUBREL, SUBSCRIBE, UNSUBSCRIBE with the DUP that 3.1 had

# All packet ids, and all PUBACKs (and so on), one after the other: a run of them is one slice. They
# are made a column at a time: one by one they took 50 ms of each start, of a command too.
_HIGH: Final = b"".join(bytes((high,)) * 256 for high in range(256))
_LOW: Final = bytes(range(256)) * 256


def _each(head: bytes) -> bytes:
    size = len(head) + 2
    packets = bytearray(head + b"\0\0") * 65536
    packets[len(head) :: size] = _HIGH
    packets[len(head) + 1 :: size] = _LOW
    return bytes(packets)


IDS: Final = _each(b"")
PUBACKS: Final = _each(b"\x40\x02")
PUBRECS: Final = _each(b"\x50\x02")
PUBRELS: Final = _each(b"\x62\x02")
PUBCOMPS: Final = _each(b"\x70\x02")

length = variable  # the remaining length (2.2.3)


def packet(kind: int, body: bytes) -> bytes:
    """A whole packet with the flags its type demands."""
    return bytes((kind << 4 | FLAGS[kind],)) + variable(len(body)) + body


def packets(data: bytes, limit: int = MAX_PACKET) -> Iterator[tuple[int, int, int]]:
    """Where the whole packets in `data` lie: (start, start of the body, end)."""
    at = 0
    while True:
        body, end = extent(data, at, limit)
        if end < 0 or end > len(data):
            return
        yield at, body, end
        at = end


def too_large(size: int, limit: int) -> PacketError:
    reason = f"a packet of {size} bytes; at most {limit} are taken"
    return PacketError(reason, specification.TOO_LARGE)


def extent(data: bytes, at: int, limit: int = MAX_PACKET) -> tuple[int, int]:
    """Where the body of the packet at `at` begins and where it ends, maybe beyond `data`.

    (0, -1) while the length itself is not there yet.
    """
    size = shift = 0
    for body in range(at + 1, min(at + 5, len(data))):
        byte = data[body]
        size |= (byte & 127) << shift
        if byte < 128:
            end = body + 1 + size
            if end - at > limit:
                raise too_large(end - at, limit)
            return body + 1, end
        shift += 7
    if len(data) - at > 4:
        raise PacketError("a remaining length of more than four bytes")
    return 0, -1


def most(head: int, limit: int) -> int:
    """How large a packet may be that begins so, where a PUBLISH may have `limit` bytes."""
    return limit if head >> 4 == PUBLISH else min(limit, PACKET_BYTES)


def topic_of(data: bytes, body: int) -> bytes:
    """The topic of a PUBLISH whose body begins there."""
    return data[body + 2 : body + 2 + int.from_bytes(data[body : body + 2], "big")]


def topic_at(publish: bytes) -> tuple[int, int]:
    """Where the topic of a whole PUBLISH begins, with its length, and where it ends."""
    at = 2
    while publish[at - 1] > 127:
        at += 1
    return at, at + 2 + (publish[at] << 8 | publish[at + 1])


def publish_header(data: bytes, body: int, v5: bool) -> int:
    """Where the payload of the PUBLISH that begins `data` does; 0 while that is not there yet."""
    at = body + 2 + int.from_bytes(data[body : body + 2], "big") + 2 * (data[0] & 6 != 0)
    size = shift = 0
    known = len(data) >= body + 2 and not v5  # to have none
    while not known and shift < 28 and at < len(data):
        size |= (data[at] & 127) << shift
        known = data[at] < 128
        shift += 7
        at += 1
    check_properties("PUBLISH", size)
    return at + size if known and at + size <= len(data) else 0


def properties_size(data: bytes, at: int) -> tuple[int, int]:
    """How many bytes the properties have whose length stands at `at`, and where they begin."""
    size = shift = 0
    while data[at] > 127:
        size |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return size | data[at] << shift, at + 1


def publish(
    topic: bytes, payload: bytes, qos: int, retain: bool = False, packet_id: int = 0,
    dup: bool = False, properties: bytes = b"", apart: bool = False,
) -> bytes:  # fmt: skip
    """A PUBLISH; for QoS 1 and 2 with its packet id, which may be a placeholder of 0. If `apart`
    without its payload: what is written behind it.
    """
    identifier = IDS[2 * packet_id : 2 * packet_id + 2] if qos else b""
    said = len(topic).to_bytes(2, "big") + topic
    flags, begin = dup << 3 | qos << 1 | retain, identifier + properties
    return put_together(flags, said, begin, payload, apart)


def put_together(
    flags: int, topic: bytes, begin: bytes, payload: bytes, apart: bool = False
) -> bytes:
    """A PUBLISH of these flags; its topic lies behind its length, as in a packet, and what lies
    between topic and payload begins what follows: packet id and properties. If `apart` the
    payload is counted only.
    """
    size = len(topic) + len(begin) + len(payload)
    head = PUBLISH << 4 | flags
    start = bytes((head, size)) if size < 128 else bytes((head,)) + variable(size)
    return b"".join((start, topic, begin, b"" if apart else payload))


def publish_body(packet: Publish) -> bytes:
    """What comes behind the length of a PUBLISH that says this."""
    identifier = IDS[2 * packet.packet_id : 2 * packet.packet_id + 2] if packet.qos else b""
    properties = packet.properties.encode() if packet.properties is not None else b""
    return b"".join((string(packet.topic), identifier, properties, packet.payload))


def acknowledgement(kind: int, packet_id: int, code: int = 0, properties: bytes = b"") -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, or the UNSUBACK of 3.1.1; a code is 5.0's."""
    body = packet_id.to_bytes(2, "big")
    if code or properties:
        return packet(kind, body + bytes((code,)) + properties)
    return bytes((kind << 4 | FLAGS[kind], 2)) + body


def connack(session_present: bool, code: int, properties: bytes = b"") -> bytes:
    return packet(CONNACK, bytes((session_present, code)) + properties)


def suback(packet_id: int, codes: list[int], properties: bytes = b"") -> bytes:
    return packet(SUBACK, packet_id.to_bytes(2, "big") + properties + bytes(codes))


def unsuback(packet_id: int, codes: list[int], properties: bytes = NO_PROPERTIES) -> bytes:
    """Of 5.0, with a code for each filter."""
    return packet(UNSUBACK, packet_id.to_bytes(2, "big") + properties + bytes(codes))


def disconnect(code: int, properties: bytes = NO_PROPERTIES) -> bytes:
    """Of 5.0."""
    return packet(DISCONNECT, bytes((code,)) + properties)


def auth(code: int, properties: bytes = NO_PROPERTIES) -> bytes:
    return packet(AUTH, bytes((code,)) + properties)


class Publish(NamedTuple):
    """A PUBLISH, taken apart."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int
    properties: Properties | None = None


def parse_publish(head: int, body: bytes, v5: bool = False) -> Publish:
    qos = head >> 1 & 3
    if qos == 3:
        raise PacketError("a PUBLISH with QoS 3")
    reader = Reader(body, "PUBLISH")
    topic = reader.string("topic")
    packet_id = reader.packet_id() if qos else 0
    properties = reader.properties(PUBLISH) if v5 else None
    payload = body[reader.at :]
    dup = head & 8 == 8 and qos > 0  # what says so with QoS 0 is taken, as mosquitto has it
    return Publish(topic, payload, qos, head & 1 == 1, dup, packet_id, properties)


class Will(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: Properties | None = None


class Connect(NamedTuple):
    """A CONNECT (3.1). `version` is a value of VERSIONS; keep_alive in seconds, 0 = none.

    `properties` is None before 5.0. A `bridge` says so with the highest bit of the level, as
    mosquitto's do before 5.0: it must not be sent what it published itself.
    """

    version: str
    client: bytes
    clean: bool
    keep_alive: int
    will: Will | None
    user: bytes | None
    password: bytes | None
    properties: Properties | None = None
    bridge: bool = False


def parse_connect(body: bytes) -> Connect:
    """PacketError for malformed ones, with an answer only to versions that are not spoken."""
    reader = Reader(body, "CONNECT")
    name = reader.string("protocol name")
    level = reader.byte("protocol level")
    bridge = level in (BRIDGE | V31, BRIDGE | V311)
    version = VERSIONS.get((name, level & ~BRIDGE if bridge else level))
    if version is None:
        raise _unknown_version(name, level)
    try:
        return _parse_connect(reader, version, level == V5, bridge)
    except PacketError as error:
        if level == V5 and error.code == specification.TOO_LARGE:  # it is not malformed: it is told
            error.reply = connack(False, error.code, NO_PROPERTIES)
        raise


def _parse_connect(reader: Reader, version: str, v5: bool, bridge: bool) -> Connect:
    flags = reader.byte("connect flags")
    keep_alive = reader.u16("keep alive")
    old = version == "3.1"
    properties = reader.properties(CONNECT, CONNECT_PROPERTIES) if v5 else None
    client = reader.string("client id")
    if flags & 1 and not old:
        raise PacketError("a CONNECT with the reserved flag set")
    will = _parse_will(reader, flags, v5)
    # In 3.1 what a flag promises may be missing: the length of the packet counts more.
    user = reader.string("user name") if flags & 0x80 and (reader.more() or not old) else None
    secret = flags & 0x40 and (reader.more() or not old)
    if secret and user is None and not v5:
        raise PacketError("a CONNECT with a password and no user name")
    password = reader.blob("password") if secret else None
    reader.end()
    if properties is not None and specification.AUTH_DATA in properties.texts:
        if specification.AUTH_METHOD not in properties.texts:
            raise PacketError("a CONNECT with data for no method", specification.PROTOCOL)
    clean = flags & 2 == 2
    values = version, client, clean, keep_alive, will, user, password, properties, bridge
    return tuple.__new__(Connect, values)  # as rows are made: in a third of the time


def without_secrets(body: bytes, asked: Connect) -> bytes:
    """The packet of a CONNECT, but for what shows who it is: so it may be told to others."""
    out = bytearray(body)
    flags = 2 + int.from_bytes(body[:2], "big") + 1
    if asked.password is not None:  # it is the last thing (3.1.3.6)
        del out[len(out) - len(asked.password) - 2 :]
        out[flags] &= ~0x40
    properties = asked.properties
    if properties is not None and specification.AUTH_DATA in properties.texts:
        texts = {key: text for key, text in properties.texts.items()
                 if key != specification.AUTH_DATA}  # fmt: skip
        kept = Properties(properties.numbers, texts, properties.user, properties.subscriptions)
        begin, end = flags + 3, flags + 3 + len(properties.encode())
        out[begin:end] = kept.encode()
    return packet(CONNECT, bytes(out))


def _parse_will(reader: Reader, flags: int, v5: bool) -> Will | None:
    qos, retain = flags >> 3 & 3, flags & 0x20 != 0
    if not flags & 4:
        if qos or retain:
            raise PacketError("a CONNECT with will options and no will")
        return None
    if qos == 3:
        raise PacketError("a will of QoS 3")
    properties = reader.properties(specification.WILL) if v5 else None
    topic = reader.string("will topic")
    values = topic, reader.blob("will message"), qos, retain, properties
    return tuple.__new__(Will, values)


def _unknown_version(name: bytes, level: int) -> PacketError:
    code = specification.BAD_LEVEL
    if name not in (b"MQTT", b"MQIsdp"):
        return PacketError(f"a CONNECT of the protocol {name[:20]!r}; expected MQTT", code)
    # From level 5 on a client reads reason codes.
    reply = connack(False, code, NO_PROPERTIES) if level >= V5 else connack(False, BAD_VERSION)
    spoken = "3 (3.1), 4 (3.1.1) and 5 (5.0)"
    return PacketError(f"MQTT level {level} of {name.decode()}; spoken here: {spoken}", code, reply)


# Subscription options (MQTT 5.0, 3.8.3.1), above the two bits of QoS.
NO_LOCAL: Final = 0x04
AS_PUBLISHED: Final = 0x08
HANDLING_SHIFT: Final = 4  # retain handling: 0 send, 1 send if new, 2 do not send


class Subscribe(NamedTuple):
    """Filters with the options asked for: before 5.0 a QoS and nothing more."""

    packet_id: int
    wanted: list[tuple[bytes, int]]
    properties: Properties | None = None


def begin_subscribe(reader: Reader, v5: bool) -> Subscribe:
    """The packet, but for its filters: there may be very many, and `wish_of` is each."""
    packet_id = reader.packet_id()
    properties = reader.properties(SUBSCRIBE) if v5 else None
    if properties is not None and len(properties.subscriptions) > 1:
        raise PacketError("a SUBSCRIBE with two subscription identifiers", specification.PROTOCOL)
    if not reader.more():
        raise PacketError("a SUBSCRIBE without a topic filter", specification.PROTOCOL)
    return tuple.__new__(Subscribe, (packet_id, [], properties))


def wish_of(reader: Reader, v5: bool) -> tuple[bytes, int]:
    topic_filter = reader.string("topic filter")
    options = reader.byte("options")
    if options & 3 == 3 or options > (0x2F if v5 else 2):
        code = specification.MALFORMED if options & 0xC0 else specification.PROTOCOL
        raise PacketError(f"a SUBSCRIBE with the options {options:#04x}", code)
    return topic_filter, options


class Unsubscribe(NamedTuple):
    packet_id: int
    filters: list[bytes]
    properties: Properties | None = None


def begin_unsubscribe(reader: Reader, v5: bool) -> Unsubscribe:
    """The packet, but for its filters."""
    packet_id = reader.packet_id()
    properties = reader.properties(UNSUBSCRIBE) if v5 else None
    if not reader.more():
        raise PacketError("an UNSUBSCRIBE without a topic filter", specification.PROTOCOL)
    return Unsubscribe(packet_id, [], properties)


def parse_packet_id(kind: int, body: bytes) -> int:
    """The packet id of an acknowledgement before 5.0, which has nothing else."""
    reader = Reader(body, NAMES[kind])
    packet_id = reader.packet_id()
    reader.end()
    return packet_id


class Answer(NamedTuple):
    """PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK or UNSUBACK of 5.0, and CONNACK.

    `codes` has one code, or for SUBACK and UNSUBACK one for each filter. In a CONNACK
    `packet_id` is 1 if the session was present.
    """

    packet_id: int
    codes: bytes
    properties: Properties


def parse_answer(kind: int, body: bytes) -> Answer:
    """Of 5.0. What is left out at the end means success (MQTT 5.0, 3.4.2.1)."""
    reader = Reader(body, NAMES[kind])
    if kind == CONNACK:
        packet_id = reader.byte("flags")
        codes = bytes((reader.byte("reason code"),))
        properties = reader.properties(kind)
        reader.end()
    elif kind in (SUBACK, UNSUBACK):
        packet_id = reader.packet_id()
        properties = reader.properties(kind)
        codes = body[reader.at :]
    else:
        packet_id = reader.packet_id()
        codes, properties = _code_and_properties(reader, kind)
    for code in codes:
        _check_code(kind, code)
    return Answer(packet_id, codes, properties)


def parse_acknowledgement(kind: int, body: bytes, v5: bool) -> tuple[int, int]:
    """The packet id and the reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    if not v5 or len(body) == 2:
        return parse_packet_id(kind, body), specification.SUCCESS
    answer = parse_answer(kind, body)
    return answer.packet_id, answer.codes[0]


class Ending(NamedTuple):
    """A DISCONNECT or AUTH of 5.0."""

    code: int
    properties: Properties


def parse_ending(kind: int, body: bytes) -> Ending:
    """A DISCONNECT or AUTH; empty means success."""
    codes, properties = _code_and_properties(Reader(body, NAMES[kind]), kind)
    _check_code(kind, codes[0])
    return Ending(codes[0], properties)


def _code_and_properties(reader: Reader, kind: int) -> tuple[bytes, Properties]:
    code = reader.byte("reason code") if reader.more() else 0
    properties = reader.properties(kind) if reader.more() else Properties()
    reader.end()
    return bytes((code,)), properties


def _check_code(kind: int, code: int) -> None:
    reason = specification.REASONS.get(code)
    if reason is None or kind not in reason.packets:
        text = f"a {NAMES[kind]} with the reason code {code:#04x}"
        raise PacketError(text, specification.PROTOCOL)


def connect(
    client: bytes, clean: bool, keep_alive: int, will: Will | None = None,
    user: bytes | None = None, password: bytes | None = None,
    properties: Properties | None = None,
) -> bytes:  # fmt: skip
    """A CONNECT of 5.0 if there are `properties`, else of 3.1.1."""
    flags = clean << 1 | (user is not None) << 7 | (password is not None) << 6
    level, head = V311, b""
    if properties is not None:
        level, head = V5, properties.encode()
    tail = b""
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        if properties is not None:
            tail = (will.properties or Properties()).encode()
        tail += string(will.topic) + string(will.payload)
    for part in (user, password):
        if part is not None:
            tail += string(part)
    head = string(b"MQTT") + bytes((level, flags)) + keep_alive.to_bytes(2, "big") + head
    return packet(CONNECT, head + string(client) + tail)


def subscribe(packet_id: int, filters: list[tuple[bytes, int]], properties: bytes = b"") -> bytes:
    body = b"".join(string(name) + bytes((options,)) for name, options in filters)
    return packet(SUBSCRIBE, packet_id.to_bytes(2, "big") + properties + body)


def unsubscribe(packet_id: int, filters: list[bytes], properties: bytes = b"") -> bytes:
    body = b"".join(string(name) for name in filters)
    return packet(UNSUBSCRIBE, packet_id.to_bytes(2, "big") + properties + body)
