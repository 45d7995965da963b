"""The loop's own TLS, begun in the middle of a connection. Called by the listener.

The first byte of a connection says whether it speaks TLS, so that byte has been read when TLS
begins; `loop.start_tls` knows no such case. The constructor used here is the same in both loops,
and documented in neither; `tests/interop/test_tls.py` holds it.

OpenSSL has an alert for each reason to refuse a client; both loops throw it away and reset the
connection. Here it is sent, and the socket read until the client had time to read it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from hubbub.auth.keys import KeyedContext
from hubbub.core.limits import TLS_CLOSE_SECONDS, TLS_SECONDS
from hubbub.errors import ProtocolError
from hubbub.wire.http import looks_like_http, response

FIRST: Final = 0x16  # a TLS record with a handshake message (RFC 8446, 5.1)
REFUSED: Final = bytes.fromhex("15 0301 0002 02 28")  # the alert "handshake failure"
_RECORD_BYTES: Final = 1 << 14  # the longest; what says to be longer is left to OpenSSL


def first_record(data: bytes) -> bool:
    """Whether the first record is there whole: before that a handshake's buffers are not worth it.

    They are 190 KB with uvloop, and one byte is enough to ask for them.
    """
    size = int.from_bytes(data[3:5], "big")
    return len(data) >= 5 and (len(data) >= 5 + size or size > _RECORD_BYTES)


class Announcing(ssl.SSLObject):
    """The server's side of one connection; `tell` is given the alert of a handshake that fails.

    `identity`: whose key its client has, "" if it has none (`auth.keys`).
    """

    outgoing: ssl.MemoryBIO
    tell: Callable[[bytes], None]
    identity = ""

    def do_handshake(self) -> None:
        context = self.context
        if isinstance(context, KeyedContext):
            context.asking = self
        try:
            super().do_handshake()
            if isinstance(context, KeyedContext):
                context.shaken(self)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert:
                self.tell(alert)
            raise
        finally:
            if isinstance(context, KeyedContext):
                context.asking = None


class _Context:
    """What the loops need of a context, for one connection."""

    def __init__(self, context: ssl.SSLContext, tell: Callable[[bytes], None]) -> None:
        context.sslobject_class = Announcing
        self._context = context
        self._tell = tell

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **more: Any
    ) -> ssl.SSLObject:
        made = self._context.wrap_bio(incoming, outgoing, **more)
        assert isinstance(made, Announcing)
        made.outgoing, made.tell = outgoing, self._tell
        return made


def tls_protocol(
    inner: asyncio.Protocol, context: ssl.SSLContext, done: asyncio.Future[None],
    tell: Callable[[bytes], None],
) -> asyncio.BufferedProtocol:  # fmt: skip
    """The protocol that speaks TLS and has `inner` inside; `done` says how the handshake went."""
    loop = asyncio.get_running_loop()
    name = "uvloop.loop" if type(loop).__module__.startswith("uvloop") else "asyncio.sslproto"
    made = cast(Any, import_module(name)).SSLProtocol(
        loop, inner, _Context(context, tell), done, True,
        ssl_handshake_timeout=TLS_SECONDS, ssl_shutdown_timeout=TLS_CLOSE_SECONDS,
    )  # fmt: skip
    return cast(asyncio.BufferedProtocol, made)


def feed(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """What arrived before the protocol was there."""
    rest = memoryview(data)
    while rest:
        buffer = cast(bytearray, protocol.get_buffer(len(rest)))
        size = min(len(buffer), len(rest))
        buffer[:size] = rest[:size]
        protocol.buffer_updated(size)
        rest = rest[size:]


def reason_of(error: BaseException | None) -> str:
    """OpenSSL's reason without its file and line numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error or "") or "the peer went away"


def not_in_clear(data: bytes) -> ProtocolError:
    """What a TLS-only listener says to those who do not use it, in words they understand."""
    reply = b""
    if looks_like_http(data):
        reply = response(400, b"This port speaks TLS only: use https or wss.\n", close=True)
    return ProtocolError("no TLS, and tls.only is set here", reply)
