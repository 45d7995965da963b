"""One connection to an SMQ hub: the handshake, questions and their acks, pings.

It knows numbers and bytes; what the names mean to the program is the client's business. Made by
the client (and by a call, for itself alone), never used again once it is over.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import SplitResult, unquote

from hubbub.client.smq.transport import Transport, open_transport
from hubbub.errors import CallTimeout, ProtocolError, Refused
from hubbub.protocols.smq import codec

ANSWER_SECONDS: Final = 10.0  # until the hub has answered
PING_SECONDS: Final = 120.0  # what other clients use; keeps a path through routers open

# What may not be known before the seed is: (seed, our address as the hub sees it) -> credentials.
Credentials = Callable[[int, str], bytes | str]

_ASKS: Final = {
    codec.SUBSCRIBE: (codec.SUBACK, "the topic"),
    codec.CREATE: (codec.CREATEACK, "the topic"),
    codec.CREATESUB: (codec.CREATESUBACK, "the sub-topic"),
}
_ACKS: Final = {ack: what for ack, what in _ASKS.values()}


def credentials_of(url: SplitResult, given: str | bytes | Credentials) -> Credentials:
    """What to show, always as a callable; without any, the user and password of the URL."""
    if not given and url.username is not None:
        given = f"{unquote(url.username)}:{unquote(url.password or '')}"
    if isinstance(given, str | bytes):
        fixed = given
        return lambda seed, address: fixed
    return given


class Hearer(Protocol):
    """Who gets what comes. `named` comes before any message that has the number."""

    def named(self, ack: int, name: str, number: int) -> None: ...
    def published(self, tid: int, sender: int, subtid: int, payload: bytes) -> None: ...
    def changed(self, number: int, count: int) -> None: ...


class Connection:
    """`number` is our own in the hub. `over` is done with the reason, None if we closed it."""

    def __init__(self, hearer: Hearer) -> None:
        loop = asyncio.get_running_loop()
        self.number = 0
        self.over: asyncio.Future[Exception | None] = loop.create_future()
        self._hearer = hearer
        self._transport: Transport | None = None
        self._connect: Callable[[int, str], bytes] | None = None
        self._entered: asyncio.Future[int] = loop.create_future()
        self._acks: dict[tuple[int, str], list[asyncio.Future[int]]] = {}
        self._pong = asyncio.Event()
        self._pings: asyncio.Task[None] | None = None
        self._end: Exception | None = None
        self._closing = False

    # Life

    async def open(
        self, url: SplitResult, tls: ssl.SSLContext | None,
        uid: bytes, credentials: Credentials, info: bytes,
    ) -> None:  # fmt: skip
        """Connect and be let in. OSError if nobody answers, Refused if the hub says no."""

        def connect(seed: int, address: str) -> bytes:
            shown = credentials(seed, address)
            return codec.build_connect(uid, _bytes(shown), info)

        self._connect = connect
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await open_transport(url, tls, self)
                self.number = await self._entered
        except TimeoutError:
            self.abort()
            name = url.netloc.rpartition("@")[2]
            raise ConnectionError(
                f"{name}: no answer within {ANSWER_SECONDS:g} s; is it an SMQ hub?"
            ) from None
        except BaseException:
            self.abort()
            raise
        self._pings = asyncio.create_task(self._ping())

    async def close(self) -> None:
        """Leave in order."""
        if self._transport is not None and not self.over.done():
            self._closing = True
            self._transport.write(codec.message(codec.DISCONNECT))
            self._transport.close()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await asyncio.shield(self.over)
            except TimeoutError:
                self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What a client does

    async def send(self, message: bytes) -> None:
        self.write(message)
        assert self._transport is not None
        await self._transport.written()

    def write(self, message: bytes) -> None:
        if self._transport is None or self.over.done():
            raise self._end or ConnectionError("the connection is closed")
        self._transport.write(message)

    async def ask(self, kind: int, name: str) -> int:
        """Send a name and wait for its number. Refused if the hub says no, else CallTimeout."""
        ack, what = _ASKS[kind]
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._acks.setdefault((ack, name), []).append(future)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                raw = name.encode("utf-8", "surrogateescape")
                await self.send(codec.message(kind, rest=raw))
                return await future
        except TimeoutError:
            raise CallTimeout(
                f"no answer about {what} {name!r} within {ANSWER_SECONDS:g} s"
            ) from None
        finally:
            future.cancel()

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            self._pong.clear()
            self.write(codec.message(codec.PING))
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._pong.wait()
            except TimeoutError:
                self._end = ConnectionError(f"no answer to a ping within {ANSWER_SECONDS:g} s")
                self.abort()

    # Called by the transport

    def opened(self, transport: Transport) -> None:
        self._transport = transport

    def hear(self, kind: int, body: bytes) -> None:
        if kind == codec.PUBLISH:
            tid, sender, subtid = codec.numbers_of(kind, body)
            self._hearer.published(tid, sender, subtid, body[12:])
        elif kind in _ACKS:
            self._hear_ack(kind, body)
        elif kind == codec.CHANGE:
            number, count = codec.numbers_of(kind, body)
            self._hearer.changed(number, count)
        elif kind == codec.INIT:
            self._hear_init(body)
        elif kind == codec.CONNACK:
            self._hear_connack(body)
        elif kind == codec.PING:
            self.write(codec.message(codec.PONG))
        elif kind == codec.PONG:
            self._pong.set()
        elif kind == codec.DISCONNECT:
            text = body.decode("utf-8", "replace")
            raise Refused(f"the hub ended the connection: {text or 'it gave no reason'}")

    def lost(self, error: Exception | None) -> None:
        if self._pings is not None:
            self._pings.cancel()
        if not self._closing:
            self._end = self._end or error or ConnectionError("the hub closed the connection")
        cause = self._end or ConnectionError("the SMQ client was closed")
        waiting = [self._entered, *(one for many in self._acks.values() for one in many)]
        for future in waiting:
            if not future.done():
                future.set_exception(cause)
                future.exception()  # whoever waits hears it; nobody need wait
        if not self.over.done():
            self.over.set_result(self._end)

    def _hear_init(self, body: bytes) -> None:
        version, seed = codec.numbers_of(codec.INIT, body)
        if version != codec.VERSION:
            raise ProtocolError(f"the hub speaks version {version} of SMQ, expected 1")
        address = codec.rest_of(codec.INIT, body).decode("latin-1")
        assert self._connect is not None
        self.write(self._connect(seed, address))

    def _hear_connack(self, body: bytes) -> None:
        code, number = codec.numbers_of(codec.CONNACK, body)
        if code:
            text = codec.rest_of(codec.CONNACK, body).decode("utf-8", "replace")
            raise Refused(f"the hub refused the connection ({code}): {text or 'no reason given'}")
        if not self._entered.done():
            self._entered.set_result(number)

    def _hear_ack(self, kind: int, body: bytes) -> None:
        """The answer is the same for all who asked the same."""
        status, number = codec.numbers_of(kind, body)
        name = codec.rest_of(kind, body).decode("utf-8", "surrogateescape")
        if not status:
            self._hearer.named(kind, name, number)
        for future in self._acks.pop((kind, name), []):
            if future.done():  # given up
                continue
            if status:
                future.set_exception(Refused(f"the hub refused {_ACKS[kind]} {name!r}"))
            else:
                future.set_result(number)


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else bytes(text)
