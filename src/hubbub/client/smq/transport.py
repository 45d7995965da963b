"""The bytes between a client and an SMQ hub: the HTTP request, then messages, raw or in frames.

    raw socket   GET … SimpleMQ: 1, SendSmqHttpResponse: true   <- 200   u16 length, message
    WebSocket    GET … Upgrade: websocket                       <- 101   one frame a message

What is written during one turn of the loop leaves as one piece. Never looks into a message.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import ssl
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol
from urllib.parse import SplitResult

from hubbub.client.stream import Stream
from hubbub.errors import ProtocolError, Refused
from hubbub.protocols.smq import codec
from hubbub.wire.bytes import Gathering
from hubbub.wire.websocket import Frames, accept_key, masked_frame

HEAD_BYTES: Final = 16 * 1024  # of the answer to our request
MESSAGE_BYTES: Final = 64 << 20  # over a WebSocket, what hubs of ours take

_HEAD: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: hubbub\r\nConnection: {connection}\r\n"
    "{more}\r\n"
)


class Scheme(NamedTuple):
    """What a URL's scheme means."""

    port: int
    tls: bool
    websocket: bool


SCHEMES: Final = {
    "smq": Scheme(8080, False, False),
    "smqs": Scheme(443, True, False),
    "smq+ws": Scheme(8080, False, True),
    "smq+wss": Scheme(443, True, True),
    "ws": Scheme(80, False, True),
    "wss": Scheme(443, True, True),
}


class Receiver(Protocol):
    """Who gets what arrives, type and body apart. `lost` comes once, last."""

    def opened(self, transport: Transport) -> None: ...
    def hear(self, kind: int, body: bytes) -> None: ...
    def lost(self, error: Exception | None) -> None: ...


async def open_transport(
    url: SplitResult, tls: ssl.SSLContext | None, receiver: Receiver
) -> Transport:
    """Connect as the URL says. OSError if nobody answers, Refused if it is no SMQ hub."""
    scheme = SCHEMES[url.scheme]
    host, port = url.hostname or "127.0.0.1", url.port or scheme.port
    context = (tls or ssl.create_default_context()) if scheme.tls else None
    framing = _WebSocket() if scheme.websocket else _Raw()
    _, transport = await asyncio.get_running_loop().create_connection(
        lambda: Transport(url, framing, receiver), host, port,
        ssl=context, server_hostname=host if context else None,
    )  # fmt: skip
    try:
        await transport.accepted
    except BaseException:
        transport.abort()
        raise
    return transport


class _Framing(Protocol):
    """How messages lie in the bytes."""

    @property
    def replies(self) -> list[bytes]: ...
    @property
    def closed(self) -> bool: ...
    def head(self, url: SplitResult) -> bytes: ...
    def accepts(self, head: str) -> bool: ...
    def wrap(self, message: bytes) -> bytes: ...
    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Raw:
    """Messages behind their lengths. Its end is the end of the socket."""

    closed = False

    def __init__(self) -> None:
        self.replies: list[bytes] = []
        self._gathering = Gathering()

    def head(self, url: SplitResult) -> bytes:
        return _head(url, "keep-alive", "SimpleMQ: 1\r\nSendSmqHttpResponse: true\r\n")

    def accepts(self, head: str) -> bool:
        return head.split(" ", 2)[1:2] == ["200"]

    def wrap(self, message: bytes) -> bytes:
        return codec.framed(message)

    def feed(self, received: bytes) -> Iterator[bytes]:
        data = self._gathering.add(received)
        if data is None:
            return
        at = 0
        while end := codec.next_frame(data, at):
            yield data[at + 2 : end]
            at = end
        need = int.from_bytes(data[at : at + 2], "big") if len(data) - at >= 2 else 2
        self._gathering.keep(data[at:], need)


class _WebSocket:
    """Messages in WebSocket frames."""

    def __init__(self) -> None:
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._frames = Frames(MESSAGE_BYTES, masked=False)

    @property
    def replies(self) -> list[bytes]:
        return self._frames.replies

    @property
    def closed(self) -> bool:
        return self._frames.closed

    def head(self, url: SplitResult) -> bytes:
        more = (
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {self._key}\r\n"
        )
        return _head(url, "Upgrade", more)

    def accepts(self, head: str) -> bool:
        return head.split(" ", 2)[1:2] == ["101"] and accept_key(self._key) in head

    def wrap(self, message: bytes) -> bytes:
        return masked_frame(message)

    def feed(self, data: bytes) -> Iterator[bytes]:
        return self._frames.feed(data)


def _head(url: SplitResult, connection: str, more: str) -> bytes:
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = url.netloc.rpartition("@")[2]
    return _HEAD.format(path=path, host=host, connection=connection, more=more).encode()


class Transport(Stream):
    """One socket. `accepted` is done when the hub agreed to speak SMQ.

    Of a closed one, writes are lost in silence: `lost` told it.
    """

    def __init__(self, url: SplitResult, framing: _Framing, receiver: Receiver) -> None:
        super().__init__()
        self._url = url
        self._framing = framing
        self._receiver = receiver
        self.accepted: asyncio.Future[None] = self._loop.create_future()
        self._head = b""
        self._failure: Exception | None = None

    # For the connection

    def write(self, message: bytes) -> None:
        """ValueError if a raw frame cannot carry it."""
        super().write(self._framing.wrap(message))

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._socket is not None
        self._socket.write(self._framing.head(self._url))

    def data_received(self, data: bytes) -> None:
        try:
            if not self.accepted.done():
                data = self._take_head(data)
            if data and self.accepted.done():
                self._take(data)
        except (ProtocolError, Refused) as error:
            self._failure = error
            self.abort()

    def _take_head(self, data: bytes) -> bytes:
        """Read on in the answer to our request; what came behind it."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        name = self._url.netloc.rpartition("@")[2]
        if not end:
            if len(self._head) > HEAD_BYTES:
                raise Refused(f"{name} is no SMQ hub: its answer has no end")
            return b""
        text = head.decode("latin-1")
        if not self._framing.accepts(text):
            raise Refused(f"{name} is no SMQ hub: {text.splitlines()[0][:100]}")
        self.accepted.set_result(None)
        self._receiver.opened(self)
        return rest

    def _take(self, data: bytes) -> None:
        try:
            for message in self._framing.feed(data):
                if message:
                    self._receiver.hear(message[0], message[1:])
        finally:
            assert self._socket is not None
            if self._framing.replies and not self._socket.is_closing():
                self._socket.writelines(self._framing.replies)
            self._framing.replies.clear()
        if self._framing.closed:
            self._socket.close()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        error = self._failure or error
        if not self.accepted.done():
            name = self._url.netloc.rpartition("@")[2]
            self.accepted.set_exception(error or ConnectionError(f"{name} answers no HTTP"))
        self._receiver.lost(error)
