"""MQTT packets: bytes to values and back. Called by the connection, the session and our client.

    byte 1    | type (4 bits)     | flags (4 bits)    |   PUBLISH: DUP, QoS (2 bits), RETAIN
    byte 2…5  | remaining length: 7 bits a byte, lowest first, high bit = more
    then      | variable header, payload

Numbers are big-endian; a string is a u16 length and UTF-8. Section numbers are those of MQTT
3.1.1. Malformed bytes raise ProtocolError. Never keeps state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from hubbub.errors import ProtocolError

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14

NAMES: Final = (
    "reserved", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip

# Flags that each packet must carry (2.2.2); PUBLISH has its own.
FLAGS: Final = {
    CONNECT: 0, PUBACK: 0, PUBREC: 0, PUBREL: 2, PUBCOMP: 0, SUBSCRIBE: 2, UNSUBSCRIBE: 2,
    PINGREQ: 0, DISCONNECT: 0, CONNACK: 0, SUBACK: 0, UNSUBACK: 0, PINGRESP: 0,
}  # fmt: skip

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
MAX_LENGTH: Final = 268_435_455

VERSIONS: Final = {(b"MQIsdp", 3): "3.1", (b"MQTT", 4): "3.1.1"}

PINGREQ_PACKET: Final = b"\xc0\x00"
PINGRESP_PACKET: Final = b"\xd0\x00"
DISCONNECT_PACKET: Final = b"\xe0\x00"

# All packet ids, and all PUBACKs, one after the other: a run of them is one slice.
IDS: Final = b"".join(i.to_bytes(2, "big") for i in range(65536))
PUBACKS: Final = b"".join(b"\x40\x02" + i.to_bytes(2, "big") for i in range(65536))


def length(size: int) -> bytes:
    """The remaining length (2.2.3)."""
    if size < 128:
        return bytes((size,))
    out = bytearray()
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


def packet(kind: int, body: bytes) -> bytes:
    """A whole packet with the flags its type demands."""
    return bytes((kind << 4 | FLAGS[kind],)) + length(len(body)) + body


def packets(data: bytes, limit: int = MAX_LENGTH) -> Iterator[tuple[int, int, int]]:
    """Where the whole packets in `data` lie: (start, start of the body, end)."""
    at = 0
    while True:
        body, end = extent(data, at, limit)
        if end < 0 or end > len(data):
            return
        yield at, body, end
        at = end


def extent(data: bytes, at: int, limit: int = MAX_LENGTH) -> tuple[int, int]:
    """Where the body of the packet at `at` begins and where it ends, maybe beyond `data`.

    (0, -1) while the length itself is not there yet.
    """
    size = shift = 0
    for body in range(at + 1, min(at + 5, len(data))):
        byte = data[body]
        size |= (byte & 127) << shift
        if byte < 128:
            if size > limit:
                raise ProtocolError(f"a packet of {size} bytes; at most {limit} are taken")
            return body + 1, body + 1 + size
        shift += 7
    if len(data) - at > 4:
        raise ProtocolError("a remaining length of more than four bytes")
    return 0, -1


def string(text: bytes) -> bytes:
    if len(text) > 65_535:
        raise ValueError("MQTT strings have at most 65,535 bytes")
    return len(text).to_bytes(2, "big") + text


def publish(
    topic: bytes, payload: bytes, qos: int, retain: bool = False, packet_id: int = 0,
    dup: bool = False,
) -> bytes:  # fmt: skip
    """A PUBLISH; for QoS 1 and 2 with its packet id, which may be a placeholder of 0."""
    head = PUBLISH << 4 | dup << 3 | qos << 1 | retain
    identifier = IDS[2 * packet_id : 2 * packet_id + 2] if qos else b""
    size = 2 + len(topic) + len(identifier) + len(payload)
    return b"".join(
        (bytes((head,)), length(size), len(topic).to_bytes(2, "big"), topic, identifier, payload)
    )


def acknowledgement(kind: int, packet_id: int) -> bytes:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK."""
    return bytes((kind << 4 | FLAGS[kind], 2)) + packet_id.to_bytes(2, "big")


def connack(session_present: bool, code: int) -> bytes:
    return bytes((CONNACK << 4, 2, session_present, code))


def suback(packet_id: int, codes: list[int]) -> bytes:
    return packet(SUBACK, packet_id.to_bytes(2, "big") + bytes(codes))


class Publish(NamedTuple):
    """A PUBLISH, taken apart."""

    topic: bytes
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


def parse_publish(head: int, body: bytes) -> Publish:
    qos = head >> 1 & 3
    reader = Reader(body, "PUBLISH")
    topic = reader.string("topic")
    packet_id = reader.packet_id() if qos else 0
    if qos == 3:
        raise ProtocolError("a PUBLISH with QoS 3")
    if head & 8 and not qos:
        raise ProtocolError("a PUBLISH of QoS 0 that says it is a repetition")
    return Publish(topic, body[reader.at :], qos, head & 1 == 1, head & 8 == 8, packet_id)


class Will(NamedTuple):
    topic: bytes
    payload: bytes
    qos: int
    retain: bool


class Connect(NamedTuple):
    """A CONNECT (3.1). `version` is a value of VERSIONS; keep_alive in seconds, 0 = none."""

    version: str
    client: bytes
    clean: bool
    keep_alive: int
    will: Will | None
    user: bytes | None
    password: bytes | None


def parse_connect(body: bytes) -> Connect:
    """ProtocolError for malformed ones; a version we do not speak is answered as 3.1.2.2 says."""
    reader = Reader(body, "CONNECT")
    name = reader.string("protocol name")
    level = reader.byte("protocol level")
    version = VERSIONS.get((name, level))
    if version is None:
        raise _unknown_version(name, level)
    flags = reader.byte("connect flags")
    keep_alive = reader.u16("keep alive")
    client = reader.string("client id")
    if flags & 1:
        raise ProtocolError("a CONNECT with the reserved flag set")
    will = _parse_will(reader, flags)
    user = reader.string("user name") if flags & 0x80 else None
    if flags & 0x40 and user is None:
        raise ProtocolError("a CONNECT with a password and no user name")
    password = reader.blob("password") if flags & 0x40 else None
    reader.end()
    return Connect(version, client, flags & 2 == 2, keep_alive, will, user, password)


def _parse_will(reader: Reader, flags: int) -> Will | None:
    qos, retain = flags >> 3 & 3, flags & 0x20 != 0
    if not flags & 4:
        if qos or retain:
            raise ProtocolError("a CONNECT with will options and no will")
        return None
    if qos == 3:
        raise ProtocolError("a will of QoS 3")
    topic = reader.string("will topic")
    return Will(topic, reader.blob("will message"), qos, retain)


def _unknown_version(name: bytes, level: int) -> ProtocolError:
    if name not in (b"MQTT", b"MQIsdp"):
        return ProtocolError(f"a CONNECT of the protocol {name[:20]!r}; expected MQTT")
    # From level 5 on a client reads reason codes: 0x84, unsupported protocol version.
    reply = b"\x20\x03\x00\x84\x00" if level >= 5 else connack(False, BAD_VERSION)
    return ProtocolError(f"MQTT level {level}; spoken here: 3 (3.1) and 4 (3.1.1)", reply)


def parse_subscribe(body: bytes) -> tuple[int, list[tuple[bytes, int]]]:
    """The packet id, and filters with the QoS asked for (3.8)."""
    reader = Reader(body, "SUBSCRIBE")
    packet_id = reader.packet_id()
    wanted = []
    while reader.more():
        topic_filter = reader.string("topic filter")
        qos = reader.byte("requested QoS")
        if qos > 2:
            raise ProtocolError(f"a SUBSCRIBE that asks for QoS {qos}")
        wanted.append((topic_filter, qos))
    if not wanted:
        raise ProtocolError("a SUBSCRIBE without a topic filter")
    return packet_id, wanted


def parse_unsubscribe(body: bytes) -> tuple[int, list[bytes]]:
    reader = Reader(body, "UNSUBSCRIBE")
    packet_id = reader.packet_id()
    filters = []
    while reader.more():
        filters.append(reader.string("topic filter"))
    if not filters:
        raise ProtocolError("an UNSUBSCRIBE without a topic filter")
    return packet_id, filters


def parse_packet_id(kind: int, body: bytes) -> int:
    """The packet id of an acknowledgement, which has nothing else."""
    reader = Reader(body, NAMES[kind])
    packet_id = reader.packet_id()
    reader.end()
    return packet_id


def connect(
    client: bytes, clean: bool, keep_alive: int, will: Will | None = None,
    user: bytes | None = None, password: bytes | None = None,
) -> bytes:  # fmt: skip
    """A CONNECT of 3.1.1, as our client sends it."""
    flags = clean << 1 | (user is not None) << 7 | (password is not None) << 6
    tail = b""
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        tail = string(will.topic) + string(will.payload)
    for part in (user, password):
        if part is not None:
            tail += string(part)
    head = string(b"MQTT") + bytes((4, flags)) + keep_alive.to_bytes(2, "big")
    return packet(CONNECT, head + string(client) + tail)


def subscribe(packet_id: int, filters: list[tuple[bytes, int]]) -> bytes:
    body = b"".join(string(name) + bytes((qos,)) for name, qos in filters)
    return packet(SUBSCRIBE, packet_id.to_bytes(2, "big") + body)


def unsubscribe(packet_id: int, filters: list[bytes]) -> bytes:
    body = b"".join(string(name) for name in filters)
    return packet(UNSUBSCRIBE, packet_id.to_bytes(2, "big") + body)


class Reader:
    """Takes a packet's body apart; whatever is missing or too much is a ProtocolError."""

    __slots__ = ("body", "at", "name")

    def __init__(self, body: bytes, name: str) -> None:
        self.body = body
        self.at = 0
        self.name = name

    def more(self) -> bool:
        return self.at < len(self.body)

    def end(self) -> None:
        if self.more():
            raise ProtocolError(f"a {self.name} with {len(self.body) - self.at} bytes too many")

    def _take(self, size: int, what: str) -> bytes:
        taken = self.body[self.at : self.at + size]
        if len(taken) < size:
            raise ProtocolError(f"a {self.name} that ends inside its {what}")
        self.at += size
        return taken

    def byte(self, what: str) -> int:
        return self._take(1, what)[0]

    def u16(self, what: str) -> int:
        return int.from_bytes(self._take(2, what), "big")

    def packet_id(self) -> int:
        number = self.u16("packet id")
        if number == 0:
            raise ProtocolError(f"a {self.name} with packet id 0")
        return number

    def blob(self, what: str) -> bytes:
        return self._take(self.u16(what), what)

    def string(self, what: str) -> bytes:
        """UTF-8 without U+0000 (1.5.3)."""
        text = self.blob(what)
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError:
                raise ProtocolError(f"a {self.name} whose {what} is not UTF-8") from None
        if b"\0" in text:
            raise ProtocolError(f"a {self.name} whose {what} contains U+0000")
        return text
