"""The bytes between a client and its broker: over TCP or TLS, plain or in WebSocket frames.

`open_transport` connects. What is written during one turn of the loop leaves as one piece; what
arrives is given to a `Receiver`. Never looks into the bytes.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import ssl
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import SplitResult

from hubbub.client.stream import Stream
from hubbub.errors import ProtocolError, Refused, SettingError
from hubbub.wire.websocket import Frames, accept_key, masked_frame

HEAD_BYTES: Final = 16 * 1024  # of the answer to a WebSocket handshake
MESSAGE_BYTES: Final = 268_435_460  # the largest MQTT packet
SUBPROTOCOLS: Final = {3: "mqttv3.1", 4: "mqtt", 5: "mqtt"}


class Scheme(NamedTuple):
    """What a URL's scheme means."""

    port: int
    tls: bool
    websocket: bool


SCHEMES: Final = {
    "mqtt": Scheme(1883, False, False),
    "mqtts": Scheme(8883, True, False),
    "ws": Scheme(80, False, True),
    "wss": Scheme(443, True, True),
}


class Receiver(Protocol):
    """Who gets what arrives. `lost` comes once, last; without an error the peer just closed."""

    def feed(self, data: bytes) -> None: ...
    def lost(self, error: Exception | None) -> None: ...


def tls_context(
    cafile: str | Path | None = None,
    certfile: str | Path | None = None,
    keyfile: str | Path | None = None,
    insecure: bool = False,
) -> ssl.SSLContext:
    """TLS that trusts `cafile` (else the system's authorities) and shows the certificate, if any.

    `insecure`: the certificate may be of another host; without `cafile` it is not checked at all.
    SettingError if a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=cafile)
        if certfile is not None:
            context.load_cert_chain(certfile, keyfile)
    except (OSError, ssl.SSLError) as error:
        names = ", ".join(str(one) for one in (cafile, certfile, keyfile) if one is not None)
        raise SettingError(f"cannot use the certificates in {names}: {error}") from None
    if insecure:
        context.check_hostname = False
        if cafile is None:
            context.verify_mode = ssl.CERT_NONE
    return context


async def open_transport(
    url: SplitResult, level: int, tls: ssl.SSLContext | None, receiver: Receiver
) -> Transport:
    """Connect as the URL says. OSError if nobody answers, Refused if it speaks no WebSocket."""
    scheme = SCHEMES[url.scheme]
    host, port = url.hostname or "127.0.0.1", url.port or scheme.port
    kind = WebSocketTransport if scheme.websocket else Transport
    transport = kind(receiver)
    context = (tls or ssl.create_default_context()) if scheme.tls else None
    await asyncio.get_running_loop().create_connection(
        lambda: transport, host, port, ssl=context, server_hostname=host if context else None
    )
    try:
        await transport.begin(url, level)
    except BaseException:
        transport.abort()
        raise
    return transport


class Transport(Stream):
    """The bytes as they are. Of a closed one, writes are lost in silence: `lost` told it."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self._receiver = receiver
        self._end = asyncio.Event()

    # For the connection

    async def begin(self, url: SplitResult, level: int) -> None:
        """Whatever comes before the first MQTT packet."""

    async def ended(self) -> None:
        await self._end.wait()

    # Called by the loop

    def data_received(self, data: bytes) -> None:
        self._receiver.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._end.set()
        self._receiver.lost(error)


class WebSocketTransport(Transport):
    """The bytes in binary frames, after a handshake for the sub-protocol of MQTT."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(receiver)
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._frames = Frames(MESSAGE_BYTES, masked=False, binary_only=True)
        self._head = b""
        self._open: asyncio.Future[None] = self._loop.create_future()

    async def begin(self, url: SplitResult, level: int) -> None:
        assert self._socket is not None
        path = (url.path or "/mqtt") + (f"?{url.query}" if url.query else "")
        self._socket.write(
            f"GET {path} HTTP/1.1\r\nHost: {url.netloc.rpartition('@')[2]}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Key: {self._key}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOLS[level]}\r\n\r\n".encode()
        )
        await self._open

    def _wrapped(self, data: bytes) -> bytes:
        return masked_frame(data)

    def data_received(self, data: bytes) -> None:
        if not self._open.done():
            data = self._take_head(data)
        if data and self._open.done():
            self._take_frames(data)

    def _take_head(self, data: bytes) -> bytes:
        """Read on in the answer to the handshake; what came behind it."""
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        if not end:
            if len(self._head) > HEAD_BYTES:
                self._open.set_exception(Refused("the answer to the WebSocket handshake is no end"))
            return b""
        headers = {line.partition(":")[0].strip().lower(): line.partition(":")[2].strip()
                   for line in lines[1:]}  # fmt: skip
        accepted = headers.get("sec-websocket-accept") == accept_key(self._key)
        if lines[0].split(" ")[1:2] == ["101"] and accepted:
            self._open.set_result(None)
        else:
            self._open.set_exception(Refused(f"no WebSocket here: {lines[0][:100]}"))
        return rest

    def _take_frames(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._receiver.feed(message)
            failure = None
        except ProtocolError as error:
            failure = error
        replies, self._frames.replies = self._frames.replies, []
        if self._socket is not None and not self._socket.is_closing():
            self._socket.writelines(replies)
            if failure is not None or self._frames.closed:
                self._socket.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._open.done():
            self._open.set_exception(
                ConnectionError("the connection was closed during the WebSocket handshake")
            )
        super().connection_lost(error)
