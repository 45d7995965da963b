"""Connections that an application's own web server hands to the hub: `Hub.connect`, `Hub.asgi`.

    aiohttp    the transport changes hands: our `Socket` becomes its protocol
    ASGI       there is no transport to hand over, so `AsgiTransport` looks like one that speaks
               WebSocket: frames on our side, `websocket.receive` and `websocket.send` on the other

Either way the socket is given the request head as if it had read it, and everything after that
(recognising, handshake, credentials, limits) is as on a port of the hub's own. Called by the hub.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final, cast

from hubbub.runtime.listener import Listener
from hubbub.runtime.socket import Socket
from hubbub.web import script
from hubbub.wire.websocket import Frames, masked_frame

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

# Of the head as it arrived; the body is read, and the connection is ours from here on.
_DROPPED: Final = frozenset((b"content-length", b"transfer-encoding"))
# What a WebSocket over HTTP/2 has no need to say.
_HANDSHAKE: Final = {
    b"upgrade": b"websocket",
    b"connection": b"Upgrade",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": b"AAAAAAAAAAAAAAAAAAAAAA==",
}
_NOT_SMQ: Final = "This is for SMQ clients and WebSockets.\n"
_POLICY: Final = 1008  # RFC 6455, 7.4.1


def is_smq(request: Any) -> bool:
    """Whether a web request comes from an SMQ client: its own header, or a WebSocket's.

    `request` is aiohttp's, Starlette's or an ASGI scope. For a URL that serves SMQ clients and an
    ordinary page.
    """
    if isinstance(request, MutableMapping) and "headers" in request:
        names = {name.lower() for name, _ in request["headers"]}
        return request["type"] == "websocket" or b"simplemq" in names
    return "simplemq" in request.headers or "sec-websocket-key" in request.headers


class Upgrades:
    """The way into one hub for connections that come through an application.

    `listener` is one without a port: it says what may be spoken, and who comes in.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    # aiohttp

    async def take(self, request: Any, argument: object) -> Any:
        """Take over a request of aiohttp; serve a WebSocket of Starlette to its end."""
        if hasattr(request, "scope"):
            await self.serve(request.scope, request.receive, request.send, argument)
            return None
        from aiohttp import web  # the application's, so it is there

        if not is_smq(request):
            if request.path.endswith(script.PATH):
                return web.Response(body=script.source(), headers=script.HEADERS)
            return web.Response(status=404, text=_NOT_SMQ)
        await request.read()  # a POST may have a body, which is for the application
        transport, lender = request.transport, request.protocol
        if transport is None:
            return web.Response()
        version = f"{request.version.major}.{request.version.minor}"
        head = _head(request.method, request.raw_path, request.raw_headers, version)
        secure = transport.get_extra_info("ssl_object") is not None
        # For aiohttp the connection is gone: it forgets it and writes no answer.
        lender.transport = None
        lender.connection_lost(None)
        self._begin(transport, secure, head, argument)
        return web.Response()

    # ASGI

    async def serve(
        self, scope: Scope, receive: Receive, send: Send, argument: object = None
    ) -> None:
        """Serve a WebSocket until it is closed, or `hubbub.js`; all else is answered 404."""
        if scope["type"] == "websocket":
            await receive()  # websocket.connect
            await self._serve_websocket(scope, receive, send, argument)
        elif scope["type"] == "http" and scope["path"].endswith(script.PATH):
            await _respond(send, 200, script.HEADERS, script.source())
        elif scope["type"] == "http":
            await _respond(send, 404, {"content-type": "text/plain"}, _NOT_SMQ.encode())

    async def _serve_websocket(
        self, scope: Scope, receive: Receive, send: Send, argument: object
    ) -> None:
        transport = AsgiTransport(scope.get("client"))
        secure = scope.get("scheme") == "wss"
        sock = self._begin(transport, secure, _websocket_head(scope), argument)
        try:
            if transport.status != "101":
                await send({"type": "websocket.close", "code": _POLICY})
                return
            await send({"type": "websocket.accept", "subprotocol": transport.subprotocol or None})
            await _first_of(transport.pump(send), _listen(sock, transport, receive))
        finally:
            sock.connection_lost(None)

    def _begin(
        self, transport: asyncio.Transport, secure: bool, head: bytes, argument: object
    ) -> Socket:
        """A socket of ours on that transport, which has read the head."""
        sock = Socket(self._listener, argument=argument)
        transport.set_protocol(cast(asyncio.BaseProtocol, sock))
        sock.connection_made(transport)
        sock.secure = secure
        sock.data_received(head)
        return sock


class AsgiTransport(asyncio.Transport):
    """Looks like a socket with a WebSocket client behind it; an ASGI server is there instead.

    `status` and `subprotocol` are what the hub answered to the handshake ("" = nothing yet).
    """

    def __init__(self, client: Iterable[Any] | None) -> None:
        super().__init__({"peername": tuple(client) if client else ("", 0)})
        self.status = self.subprotocol = ""
        self.readable = asyncio.Event()
        self.readable.set()
        self._protocol: asyncio.BaseProtocol | None = None
        self._frames = Frames(sys.maxsize, masked=False)
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._size = 0
        self._closing = False

    async def pump(self, send: Send) -> None:
        """Send what was written, until the hub closes."""
        while (message := await self._messages.get()) is not None:
            await send({"type": "websocket.send", "bytes": message})
            self._size -= len(message)
            if not self._size and isinstance(self._protocol, asyncio.Protocol):
                self._protocol.resume_writing()
        await send({"type": "websocket.close", "code": 1000})

    # What the hub's side calls

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.status:
            head, _, data = bytes(data).partition(b"\r\n\r\n")
            self._take_answer(head.decode("latin-1"))
        if self.status != "101":
            return
        for message in self._frames.feed(bytes(data)):
            self._messages.put_nowait(message)
            self._size += len(message)
        if self._frames.closed:
            self.close()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _take_answer(self, head: str) -> None:
        lines = head.split("\r\n")
        self.status = lines[0].split(" ")[1]
        for line in lines[1:]:
            name, _, value = line.partition(": ")
            if name == "Sec-WebSocket-Protocol":
                self.subprotocol = value

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._messages.put_nowait(None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._size

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The server has its own."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def pause_reading(self) -> None:
        self.readable.clear()

    def resume_reading(self) -> None:
        self.readable.set()


async def _respond(send: Send, status: int, headers: dict[str, str], body: bytes) -> None:
    """One whole answer; what HEAD must not have, the server leaves out."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    pairs.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


async def _listen(sock: Socket, transport: AsgiTransport, receive: Receive) -> None:
    """Feed what the client sends, as fast as the hub reads."""
    while (event := await receive())["type"] == "websocket.receive":
        data = event.get("bytes")
        sock.data_received(masked_frame(data if data is not None else event["text"].encode()))
        await transport.readable.wait()


async def _first_of(*coroutines: Any) -> None:
    """Run them until one ends; what it raises is raised."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _websocket_head(scope: Scope) -> bytes:
    given = {name.lower(): value for name, value in scope["headers"]}
    path = scope.get("raw_path") or scope["path"].encode("ascii", "replace")
    query = scope.get("query_string", b"")
    target = path + (b"?" + query if query else b"")
    return _head("GET", target.decode("latin-1"), (_HANDSHAKE | given).items())


def _head(method: str, target: str, headers: Headers, version: str = "1.1") -> bytes:
    """A request head as bytes, for the socket to read."""
    lines = [f"{method} {target} HTTP/{version}".encode("latin-1")]
    lines += [name + b": " + value for name, value in headers if name.lower() not in _DROPPED]
    return b"\r\n".join(lines) + b"\r\n\r\n"
