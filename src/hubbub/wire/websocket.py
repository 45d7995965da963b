"""WebSocket (RFC 6455): the handshake's answer and the frames, both sides. No I/O.

    byte 0   FIN RSV1 RSV2 RSV3 opcode(4)     opcode 0 continues, 1 text, 2 binary,
    byte 1   MASK length(7)                          8 close, 9 ping, 10 pong
             126: the length is the next 2 bytes; 127: the next 8
             MASK: the next 4 bytes, xored over the payload (a client must, a server must not)
             payload

The listener and our own client use it. Extensions are never agreed to, so a reserved bit is an
error. A server's frames depend on nothing but their payload: one can be sent to many.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterator
from typing import Final

from hubbub.errors import ProtocolError
from hubbub.wire.bytes import Gathering
from hubbub.wire.http import Request

try:
    from websockets.speedups import apply_mask  # C
except ImportError:
    from websockets.utils import apply_mask  # Python, ten times slower

TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
FIN: Final = 0x80
MASK: Final = 0x80

CLOSE_NORMAL: Final = 1000
CLOSE_PROTOCOL: Final = 1002
CLOSE_UNSUPPORTED: Final = 1003
CLOSE_NOT_TEXT: Final = 1007
CLOSE_TOO_BIG: Final = 1009

CONTROL_BYTES: Final = 125  # 5.5: a control frame's payload
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

# First bytes that may be: data frames, whole or in parts; control frames only whole (5.2, 5.5).
_FIRST: Final = frozenset((0x00, 0x01, 0x02, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8A))


def accept_key(key: str) -> str:
    """What `Sec-WebSocket-Accept` must say to a `Sec-WebSocket-Key`."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID).digest()).decode()


def handshake_response(request: Request, subprotocol: str = "") -> bytes:
    """The 101 that turns the connection into a WebSocket; extensions are declined by silence."""
    accept = accept_key(request.headers["sec-websocket-key"])
    confirmed = f"Sec-WebSocket-Protocol: {subprotocol}\r\n" if subprotocol else ""
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n{confirmed}\r\n"
    ).encode("latin-1")


def frame(payload: bytes, opcode: int = BINARY) -> bytes:
    """A whole message in one frame, as a server sends it."""
    return frame_head(len(payload), opcode) + payload


def frame_head(size: int, opcode: int = BINARY) -> bytes:
    """What stands before a payload of this size."""
    if size < 126:
        return bytes((FIN | opcode, size))
    if size < 0x10000:
        return bytes((FIN | opcode, 126)) + size.to_bytes(2, "big")
    return bytes((FIN | opcode, 127)) + size.to_bytes(8, "big")


def masked_frame(payload: bytes, opcode: int = BINARY) -> bytes:
    """The same as a client sends it: under a fresh random mask (5.3)."""
    plain = frame(payload, opcode)
    head = len(plain) - len(payload)
    mask = secrets.token_bytes(4)
    masked = apply_mask(payload, mask)
    return plain[:1] + bytes((plain[1] | MASK,)) + plain[2:head] + mask + masked


def close_frame(code: int = CLOSE_NORMAL) -> bytes:
    """A server's last frame."""
    return frame(code.to_bytes(2, "big"), CLOSE)


class Frames:
    """The receiving side: bytes in, whole messages out, however they were split.

    `max_bytes` bounds a message. `masked`: the peer is a client. `any_text`: what comes as text
    need not be UTF-8 (5.6 says it must, programs that never look say otherwise). `binary_only`: no
    text is taken. `replies` are frames that the peer is owed (pongs, the answer to its close, the
    close that says why we end): the caller writes them as they are and clears the list. `closed`:
    nothing more will come of this peer. `left`: steps that the caller is still to take, of
    no more than `left_bytes`.
    """

    __slots__ = (
        "closed", "left", "left_bytes", "replies", "_max_bytes", "_masked", "_any_text",
        "_binary_only", "_gathering", "_opcode", "_message",
    )  # fmt: skip

    def __init__(
        self, max_bytes: int, masked: bool = True, any_text: bool = False, binary_only: bool = False
    ) -> None:
        self.closed = False
        self.left: Iterator[bytes | None] | None = None
        self.left_bytes = 0
        self.replies: list[bytes] = []
        self._max_bytes = max_bytes
        self._masked = masked
        self._any_text = any_text
        self._binary_only = binary_only
        # What arrived of a frame that is not complete.
        self._gathering = Gathering()
        # The data message whose fragments are coming in; opcode 0 = none.
        self._opcode = 0
        self._message = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The payloads of the data messages that became complete, text and binary alike.

        What the peer must not send raises ProtocolError, after the messages before it were
        given out; the close frame that tells the peer is then the last of `replies`.
        """
        for message in self.steps(data):  # compiled, a generator expression is made at once
            if message is not None:
                yield message

    def steps(self, data: bytes) -> Iterator[bytes | None]:
        """The same frame by frame, for who stops between two: None where no message is complete."""
        gathered = self._gathering.add(data)
        if gathered is None:
            return
        data = gathered
        at = 0
        end = len(data)
        need = 2
        while end - at >= need and not self.closed:
            first = data[at]
            size = data[at + 1] & 0x7F
            body = at + 2
            if size >= 126:
                body = at + (4 if size == 126 else 10)
                if body > end:
                    need = body - at
                    break
                size = self._long_size(data[at + 2 : body])
            self._check(first, data[at + 1], size)
            if self._masked:
                body += 4
            if body + size > end:
                need = body + size - at
                break
            payload = data[body : body + size]
            if self._masked:
                payload = apply_mask(payload, data[body - 4 : body])
            at = body + size
            if first == FIN | BINARY:
                yield payload
            elif first & 0x08:
                self._control(first & 0x0F, payload)
                yield None
            else:
                yield self._take() if self._gather(first, payload) else None
        if at < end and not self.closed:
            self._gathering.keep(data[at:], need)

    def waiting(self) -> int:
        """How many bytes of a message are here whose rest is not."""
        return self._gathering.size + len(self._message) + self.left_bytes

    def missing(self) -> int:
        """How many bytes of the frame that has begun are not here."""
        return self._gathering.missing

    def _long_size(self, digits: bytes) -> int:
        size = int.from_bytes(digits, "big")
        if size < (126 if len(digits) == 2 else 0x10000) or size >> 63:
            # 5.2: the shortest form that can say it, and the highest bit is 0.
            raise self._error(CLOSE_PROTOCOL, f"a frame length of {size} in {len(digits)} bytes")
        return size

    def _check(self, first: int, second: int, size: int) -> None:
        """Refuse a frame by its head, before its payload is waited for."""
        if first not in _FIRST:
            raise self._error(CLOSE_PROTOCOL, f"a frame that begins with {first:#04x}")
        if (second & MASK != 0) != self._masked:
            wanted = "masked" if self._masked else "unmasked"
            raise self._error(CLOSE_PROTOCOL, f"expected {wanted} frames (RFC 6455, 5.1)")
        if first & 0x08:
            if size > CONTROL_BYTES:
                raise self._error(CLOSE_PROTOCOL, f"a control frame of {size} bytes")
        elif self._binary_only and first & 0x0F == TEXT:
            raise self._error(CLOSE_UNSUPPORTED, "a text message where only binary ones are spoken")
        elif (first & 0x0F == 0) != (self._opcode != 0):
            raise self._error(CLOSE_PROTOCOL, "a fragment that continues nothing, or is missing")
        elif len(self._message) + size > self._max_bytes:
            raise self._error(CLOSE_TOO_BIG, f"a message of more than {self._max_bytes} bytes")

    def _gather(self, first: int, payload: bytes) -> bool:
        """Add a fragment; True when its message is complete."""
        if self._opcode == 0:
            self._opcode = first & 0x0F
        self._message += payload
        return first & FIN != 0

    def _take(self) -> bytes:
        message = bytes(self._message)
        if self._opcode == TEXT and not self._any_text:
            self._check_text(message)
        self._opcode = 0
        self._message = bytearray()
        return message

    def _check_text(self, text: bytes) -> None:
        try:
            text.decode()
        except UnicodeDecodeError:
            raise self._error(CLOSE_NOT_TEXT, "text that is not UTF-8") from None

    def _control(self, opcode: int, payload: bytes) -> None:
        if opcode == PING:
            self._reply(payload, PONG)
        elif opcode == CLOSE:
            if payload:
                self._check_close(payload)
            self.closed = True
            self._reply(payload[:2], CLOSE)

    def _check_close(self, payload: bytes) -> None:
        code = int.from_bytes(payload[:2], "big")
        # 7.4: codes that may be sent, and those of libraries and applications.
        known = 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999
        if len(payload) < 2 or not known:
            raise self._error(CLOSE_PROTOCOL, f"a close frame with the code {code}")
        self._check_text(payload[2:])

    def _reply(self, payload: bytes, opcode: int) -> None:
        # A reply is masked when we are the client, whose peer sends unmasked.
        self.replies.append((frame if self._masked else masked_frame)(payload, opcode))

    def _error(self, code: int, reason: str) -> ProtocolError:
        self.closed = True
        self._reply(code.to_bytes(2, "big"), CLOSE)
        return ProtocolError(f"WebSocket: {reason}")
