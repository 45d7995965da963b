"""SMQ's messages as bytes: parse and build each of them. Used by the hub and by our client.

    raw socket      u16 length (counts itself)   u8 type   body
    WebSocket                                    u8 type   body      one message each

All numbers are unsigned and big-endian; names and payloads are any bytes. What has numbers in
front and at most one text behind is a line of `LAYOUTS`; only Connect is more:

    Connect     u8 version   [u16 largest write]   u8 n  uid[n]   u8 n  credentials[n]   info
                1 or 2       version 2 only        n >= 6

A *message* here is type and body, a *frame* is a message with its length. Knows no connection,
no hub and no state.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from hubbub.errors import ProtocolError

INIT: Final = 1
CONNECT: Final = 2
CONNACK: Final = 3
SUBSCRIBE: Final = 4
SUBACK: Final = 5
CREATE: Final = 6
CREATEACK: Final = 7
PUBLISH: Final = 8
UNSUBSCRIBE: Final = 9
DISCONNECT: Final = 11
PING: Final = 12
PONG: Final = 13
OBSERVE: Final = 14
UNOBSERVE: Final = 15
CHANGE: Final = 16
CREATESUB: Final = 17
CREATESUBACK: Final = 18
PUBFRAG: Final = 19


class Layout(NamedTuple):
    """A body: numbers, then the rest. `senders` says who may send it: C a client, H the hub."""

    name: str
    senders: str
    numbers: struct.Struct
    meaning: str


LAYOUTS: Final[dict[int, Layout]] = {
    INIT: Layout("Init", "H", struct.Struct(">BI"), "version, seed; the client's IP address"),
    CONNECT: Layout("Connect", "C", struct.Struct(">B"), "version; see above"),
    CONNACK: Layout("Connack", "H", struct.Struct(">BI"), "code, etid; text if it is refused"),
    SUBSCRIBE: Layout("Subscribe", "C", struct.Struct(""), "topic name"),
    SUBACK: Layout("Suback", "H", struct.Struct(">BI"), "0 or 1 = denied, tid; topic name"),
    CREATE: Layout("Create", "C", struct.Struct(""), "topic name"),
    CREATEACK: Layout("Createack", "H", struct.Struct(">BI"), "as Suback"),
    PUBLISH: Layout("Publish", "CH", struct.Struct(">III"), "tid, sender, subtid; payload"),
    UNSUBSCRIBE: Layout("Unsubscribe", "C", struct.Struct(">I"), "tid"),
    DISCONNECT: Layout("Disconnect", "CH", struct.Struct(""), "text"),
    PING: Layout("Ping", "CH", struct.Struct(""), ""),
    PONG: Layout("Pong", "CH", struct.Struct(""), ""),
    OBSERVE: Layout("Observe", "C", struct.Struct(">I"), "tid or etid"),
    UNOBSERVE: Layout("Unobserve", "C", struct.Struct(">I"), "tid or etid"),
    CHANGE: Layout("Change", "H", struct.Struct(">II"), "tid or etid, subscribers"),
    CREATESUB: Layout("Createsub", "C", struct.Struct(""), "sub-topic name"),
    CREATESUBACK: Layout("Createsuback", "H", struct.Struct(">BI"), "as Suback"),
    PUBFRAG: Layout("PubFrag", "C", struct.Struct(">III"), "tid or 0 = more, sender, subtid; part"),
}

# Status of Suback, Createack and Createsuback.
ACCEPTED: Final = 0
DENIED: Final = 1

# Codes of Connack.
BAD_CONNECT: Final = 1
UNAVAILABLE: Final = 2
BAD_CREDENTIALS: Final = 3
CERTIFICATE_REQUIRED: Final = 4
CERTIFICATE_REFUSED: Final = 5
DENIED_ACCESS: Final = 6

# Version 2 is the C clients'; it has a field more.
VERSION: Final = 1
VERSION_WITH_LIMIT: Final = 2

UID_BYTES: Final = 6  # at least
ADDRESS_BYTES: Final = 3  # C clients refuse a shorter Init
FRAME_BYTES: Final = 0xFFFF  # what the length can say
PUBLISH_HEAD: Final = 15  # a frame's bytes before the payload: length, type, three numbers
PAYLOAD_BYTES: Final = 0xFFF0  # the largest payload of a Publish frame
FRAGMENTED_BYTES: Final = PAYLOAD_BYTES - 13  # the largest sum of fragments

CORRUPT: Final = b"corrupt frame"  # Disconnect: the sender is not who the message says
RECONNECT: Final = b"reconnect"  # Disconnect: the same uid connected again


def message(kind: int, *numbers: int, rest: bytes = b"") -> bytes:
    """Type and body, as it goes over a WebSocket."""
    return bytes((kind,)) + LAYOUTS[kind].numbers.pack(*numbers) + rest


def framed(body: bytes) -> bytes:
    """A message with its length, as it goes over a raw socket. ValueError above 0xFFFF bytes."""
    size = len(body) + 2
    if size > FRAME_BYTES:
        raise ValueError(f"a frame has at most {FRAME_BYTES} bytes, this one would have {size}")
    return size.to_bytes(2, "big") + body


def numbers_of(kind: int, body: bytes) -> tuple[int, ...]:
    """The numbers that begin a body. ProtocolError if it is too short for them."""
    layout = LAYOUTS[kind]
    if len(body) < layout.numbers.size:
        raise ProtocolError(
            f"{layout.name} has at least {layout.numbers.size} bytes, this one {len(body)}"
        )
    return layout.numbers.unpack_from(body)


def rest_of(kind: int, body: bytes) -> bytes:
    """What follows the numbers: a name, a payload or a text."""
    return body[LAYOUTS[kind].numbers.size :]


def next_frame(data: bytes, at: int) -> int:
    """Where the frame at `at` ends; 0 while it is incomplete. ProtocolError below 3 bytes."""
    if len(data) - at < 2:
        return 0
    size = data[at] << 8 | data[at + 1]
    if size < 3:
        raise ProtocolError(f"a frame has at least 3 bytes, this one says {size}")
    return at + size if at + size <= len(data) else 0


class Connect(NamedTuple):
    """Who wants in. `largest` bounds single writes toward the client, 0 = no bound."""

    uid: bytes
    credentials: bytes
    info: bytes
    largest: int


def parse_connect(body: bytes) -> Connect:
    """The body of a Connect. A missing credentials field counts as empty, as it always has."""
    version = body[0] if body else 0
    if version not in (VERSION, VERSION_WITH_LIMIT):
        raise ProtocolError(f"Connect has version {version}, expected 1 or 2")
    at = 1
    largest = 0
    if version == VERSION_WITH_LIMIT:
        largest = int.from_bytes(body[1:3], "big")
        at = 3
    uid, at = _short(body, at, "uid")
    if len(uid) < UID_BYTES:
        raise ProtocolError(f"a uid has at least {UID_BYTES} bytes, this one {len(uid)}")
    credentials, at = _short(body, at, "credentials")
    return Connect(uid, credentials, body[at:], largest)


def _short(body: bytes, at: int, what: str) -> tuple[bytes, int]:
    """A text behind its u8 length, and where it ends."""
    if at >= len(body):
        return b"", at
    end = at + 1 + body[at]
    if end > len(body):
        raise ProtocolError(f"the {what} of Connect is cut off")
    return body[at + 1 : end], end


def build_connect(uid: bytes, credentials: bytes = b"", info: bytes = b"") -> bytes:
    """A Connect of version 1. ValueError if uid or credentials exceed 255 bytes."""
    return (
        bytes((CONNECT, VERSION, len(uid))) + uid + bytes((len(credentials),)) + credentials + info
    )
