"""One connection to a switch: requests leave one behind the other, answers come in their order.

    ask ─▶ GET /ack/q/3 │ POST /request/q/me │ ─▶ hub
                 200 "" │ 200 [["q",4]]      │ ◀─

Whoever asks need not wait for the others. A request that may wait long (a transfer) needs a
channel of its own: what is behind it waits too. The HTTP is our own: a connection is a login,
which client libraries pool, share and reopen at will.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from typing import Final, NamedTuple, cast
from urllib.parse import SplitResult, unquote

from hubbub.errors import Refused

DEFAULT_PORT: Final = 8080
TLS_PORT: Final = 443
HEAD_BYTES: Final = 64 * 1024  # of an answer
CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 30.0  # beyond what a request is meant to wait: the hub or the way is dead


class Address(NamedTuple):
    """Where a hub is. `path` is that of a Unix socket, "" for `host` and `port`.

    `head` are the header lines that every request has, `shown` is for messages.
    """

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None
    head: bytes
    shown: str


def address_of(url: SplitResult, tls: ssl.SSLContext | None) -> Address:
    """`switch://[USER:PASSWORD@]HOST[:PORT]`, or `switch:///path` for a Unix socket."""
    secure = url.scheme in ("switchs", "https")
    unix = not url.netloc
    host = url.hostname or "127.0.0.1"
    port = url.port or (TLS_PORT if secure else DEFAULT_PORT)
    name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [f"host: {'localhost' if unix else name}", "user-agent: hubbub"]
    if url.username is not None:
        secret = f"{unquote(url.username)}:{unquote(url.password or '')}"
        lines.append(f"authorization: Basic {base64.b64encode(secret.encode()).decode()}")
    head = "\r\n".join((*lines, "content-length: ")).encode("latin-1")
    context = (tls or ssl.create_default_context()) if secure else None
    return Address(host, port, unquote(url.path) if unix else "", context, head,
                   unquote(url.path) if unix else name)  # fmt: skip


class Answer(NamedTuple):
    status: int
    body: bytes


class Stream(asyncio.Protocol):
    """The socket of a channel. `end` says why it is over."""

    def __init__(self, address: Address) -> None:
        self.end: Exception | None = None
        self._address = address
        self._waiting: deque[asyncio.Future[Answer]] = deque()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        # What leaves at the end of this turn.
        self._out: list[bytes] = []
        # What came: of an answer whose head was read, `_status` and the `_size` of its body.
        self._data = bytearray()
        self._status = 0
        self._size = 0

    def ask(self, method: str, target: str, body: bytes) -> asyncio.Future[Answer]:
        """Send a request; the future is its answer, or ConnectionError."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.end is not None:
            future.set_exception(self.end)
            return future
        if not self._out:
            self._loop.call_soon(self._flush)
        line = f"{method} {target} HTTP/1.1\r\n".encode()
        self._out.append(b"%b%b%d\r\n\r\n%b" % (line, self._address.head, len(body), body))
        self._waiting.append(future)
        return future

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(b"".join(out))

    def close(self, error: Exception) -> None:
        """The end. Whoever waits gets the error."""
        if self.end is not None:
            return
        self.end = error
        if self._transport is not None:
            self._transport.close()
        for future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check: uvloop's transports do not inherit asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        reason = f"the hub at {self._address.shown} closed the connection"
        self.close(error if isinstance(error, OSError) else ConnectionResetError(reason))

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            while self._complete():
                body = bytes(self._data[: self._size])
                del self._data[: self._size]
                answer, self._status = Answer(self._status, body), 0
                future = self._waiting.popleft()
                if not future.done():  # it may have been given up
                    future.set_result(answer)
        except (LookupError, ValueError):
            self.close(Refused(f"what answers at {self._address.shown} is no message-switch"))

    def _complete(self) -> bool:
        """Whether a whole answer is there; its head is read and taken away first."""
        if not self._status:
            end = self._data.find(b"\r\n\r\n", 0, HEAD_BYTES)
            if end < 0:
                if len(self._data) > HEAD_BYTES:
                    raise ValueError("an endless head")
                return False
            self._status, self._size = _head(self._data[:end].decode("latin-1"))
            del self._data[: end + 4]
        return len(self._data) >= self._size


def _head(text: str) -> tuple[int, int]:
    """The status and the length of the body."""
    first, *lines = text.lower().split("\r\n")
    headers = dict(line.split(":", 1) for line in lines if ":" in line)
    version, status = first.split(" ")[:2]
    if not version.startswith("http/1."):
        raise ValueError(f"expected HTTP/1.1, got {version!r}")
    return int(status), int(headers["content-length"])


class Unavailable(Refused):
    """Not now: the node that has the queue is away, or no quorum answers (503)."""


class Channel:
    """A logged-in connection, opened when first used and again after it broke.

    `greeting`: the paths it asks for first, the login and whatever the hub may have forgotten.
    """

    def __init__(self, address: Address, *greeting: str) -> None:
        self.greeting = [*greeting]
        self._address = address
        self._opening = asyncio.Lock()
        self._stream: Stream | None = None

    async def ask(self, method: str, target: str, body: bytes = b"", wait: float = 0.0) -> bytes:
        """The body of the answer, which may take `wait` seconds longer than usual.

        OSError if nobody answers, Refused if the hub says no. Nothing is asked twice.
        """
        async with self._opening:
            stream = await self._open()
        return await self._answer(stream, method, target, body, wait)

    async def open(self) -> None:
        """Connect and log in, if that is not done."""
        async with self._opening:
            await self._open()

    async def _open(self) -> Stream:
        if self._stream is not None and self._stream.end is None:
            return self._stream
        self._stream = stream = await self._connected()
        try:
            for path in self.greeting:
                await self._answer(stream, "GET", path, b"", 0.0)
        except BaseException:
            self.close()
            raise
        return stream

    async def _connected(self) -> Stream:
        address, loop = self._address, asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if address.path:
                    _, stream = await loop.create_unix_connection(
                        lambda: Stream(address), address.path, ssl=address.tls
                    )
                else:
                    _, stream = await loop.create_connection(
                        lambda: Stream(address), address.host, address.port, ssl=address.tls
                    )
        except TimeoutError:
            raise ConnectionError(f"{address.shown} does not answer") from None
        return stream

    async def _answer(
        self, stream: Stream, method: str, target: str, body: bytes, wait: float
    ) -> bytes:
        try:
            async with asyncio.timeout(wait + ANSWER_SECONDS):
                answer = await stream.ask(method, target, body)
        except TimeoutError:
            error = ConnectionError(f"the hub at {self._address.shown} does not answer any more")
            stream.close(error)
            raise error from None
        if answer.status != 200:
            text = answer.body.decode(errors="replace").strip()
            kind = Unavailable if answer.status == 503 else Refused
            raise kind(f"the hub answered {target} with {answer.status}: {text or 'no reason'}")
        return answer.body

    def close(self, error: Exception | None = None) -> None:
        """End the connection; whoever waits for an answer gets the error."""
        if self._stream is not None:
            self._stream.close(error or ConnectionAbortedError("this client was closed"))
            self._stream = None
