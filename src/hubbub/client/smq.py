"""A client that speaks SMQ, for programs: publish, subscribe, observe, and write to one another.

    async with connect("smq://127.0.0.1:8080") as client:
        await client.subscribe("greetings")
        await client.publish("greetings", b"hello")
        async for message in client.messages():
            await client.publish(message.sender, b"got it")

It talks to any SMQ hub, over a raw socket or a WebSocket. It does not reconnect: when the
connection is lost, `messages` raises.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Final, NamedTuple, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from hubbub.errors import CallTimeout, ProtocolError, Refused
from hubbub.protocols.smq import codec
from hubbub.wire.websocket import Frames, accept_key, masked_frame

PORT: Final = 8080
ANSWER_SECONDS: Final = 10.0  # until the hub has answered
PING_SECONDS: Final = 120.0  # what other clients use; keeps a path through routers open
UNREAD_MESSAGES: Final = 10_000  # then the socket is read no further
READ_BYTES: Final = 64 * 1024

_HEAD: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: hubbub\r\nConnection: {connection}\r\n"
    "{more}\r\n"
)


class SmqMessage(NamedTuple):
    """One message as it came.

    `topic` is the name of a subscription of ours, or `$client/<number>` if it was sent to us
    alone; `sender` the number to answer to; `subtopic` a name this client knows, or "".
    """

    topic: str
    payload: bytes
    subtopic: str
    sender: int


def connect(
    url: str,
    *,
    client_id: str = "",
    credentials: str = "",
    info: str = "",
    websocket: bool = False,
) -> SmqClient:
    """A client of the hub at `smq://[USER:PASSWORD@]HOST[:PORT][/PATH]`, to be entered.

    `client_id` has 6 to 255 bytes and should be unique; without it, it is random. Entering
    raises OSError if nobody answers, Refused (with the hub's text) if the hub says no.
    """
    return SmqClient(urlsplit(url), client_id, credentials, info, websocket)


class _Transport(Protocol):
    """What lies between SMQ messages and the socket."""

    def head(self, url: SplitResult) -> bytes: ...
    def check(self, head: str) -> bool: ...
    def wrap(self, message: bytes) -> bytes: ...
    def feed(self, data: bytes) -> Iterator[bytes]: ...
    def replies(self) -> list[bytes]: ...
    @property
    def closed(self) -> bool: ...


class _Raw:
    """Messages behind their lengths. Its end is the end of the socket."""

    closed = False

    def __init__(self) -> None:
        self._rest = b""

    def head(self, url: SplitResult) -> bytes:
        return _head(url, "keep-alive", "SimpleMQ: 1\r\nSendSmqHttpResponse: true\r\n")

    def check(self, head: str) -> bool:
        return head.split(" ", 2)[1:2] == ["200"]

    def wrap(self, message: bytes) -> bytes:
        return codec.framed(message)

    def feed(self, data: bytes) -> Iterator[bytes]:
        data, at = self._rest + data, 0
        while end := codec.next_frame(data, at):
            yield data[at + 2 : end]
            at = end
        self._rest = data[at:]

    def replies(self) -> list[bytes]:
        return []


class _WebSocket:
    """Messages in WebSocket frames."""

    def __init__(self) -> None:
        self._key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._frames = Frames(codec.FRAME_BYTES * 1024, masked=False)

    def head(self, url: SplitResult) -> bytes:
        more = (
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {self._key}\r\n"
        )
        return _head(url, "Upgrade", more)

    def check(self, head: str) -> bool:
        return head.split(" ", 2)[1:2] == ["101"] and accept_key(self._key) in head

    def wrap(self, message: bytes) -> bytes:
        return masked_frame(message)

    def feed(self, data: bytes) -> Iterator[bytes]:
        return self._frames.feed(data)

    def replies(self) -> list[bytes]:
        replies, self._frames.replies = self._frames.replies, []
        return replies

    @property
    def closed(self) -> bool:
        return self._frames.closed


def _head(url: SplitResult, connection: str, more: str) -> bytes:
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    host = url.netloc.rpartition("@")[2]
    return _HEAD.format(path=path, host=host, connection=connection, more=more).encode()


class SmqClient:
    """One connection to an SMQ hub. `number` is this client's own: others publish to it."""

    def __init__(
        self, url: SplitResult, client_id: str, credentials: str, info: str, websocket: bool
    ) -> None:
        self.number = 0
        # What the hub is told.
        self._url = url
        self._uid = (client_id or f"hubbub-{secrets.token_hex(6)}").encode()
        if not credentials and url.username is not None:
            credentials = f"{unquote(url.username)}:{unquote(url.password or '')}"
        self._credentials = credentials.encode()
        self._info = info.encode()
        # The socket.
        self._transport: _Transport = _WebSocket() if websocket else _Raw()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # What is known: names by number, numbers by name (for each kind of ack).
        self._topics: dict[int, str] = {}
        self._subtopics: dict[int, str] = {}
        self._numbers: dict[tuple[int, str], int] = {}
        # Who waits: for acks by kind and name, for changes by number, for messages.
        self._acks: dict[tuple[int, str], list[asyncio.Future[int]]] = {}
        self._changes: dict[int, list[asyncio.Queue[int]]] = {}
        self._inbox: asyncio.Queue[SmqMessage | None] = asyncio.Queue(UNREAD_MESSAGES)
        self._entered: asyncio.Future[int] | None = None
        self._end: Exception | None = None

    # The connection

    async def __aenter__(self) -> SmqClient:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._open()
        except TimeoutError:
            await self._shut()
            raise ConnectionError(
                f"{self._url.netloc}: no answer within {ANSWER_SECONDS:g} s; is it an SMQ hub?"
            ) from None
        except BaseException:
            await self._shut()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _open(self) -> None:
        host = self._url.hostname or "127.0.0.1"
        reader, writer = await asyncio.open_connection(host, self._url.port or PORT)
        self._reader, self._writer = reader, writer
        writer.write(self._transport.head(self._url))
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise ConnectionError(f"{self._url.netloc} answers no HTTP") from error
        if not self._transport.check(head):
            raise Refused(f"{self._url.netloc} is no SMQ hub: {head.splitlines()[0]}")
        self._entered = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._ping())]
        self.number = await self._entered

    async def close(self) -> None:
        """Leave in order. `messages` ends after what was received."""
        if self._writer is not None and self._end is None:
            try:
                await self._send(codec.message(codec.DISCONNECT))
            except ConnectionError:
                pass  # the hub was faster
        await self._shut()

    async def _shut(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._finish(None)

    async def _send(self, message: bytes) -> None:
        if self._writer is None or self._end is not None:
            raise self._end or ConnectionError("the SMQ client is closed")
        self._writer.write(self._transport.wrap(message))
        await self._writer.drain()

    async def _read(self) -> None:
        assert self._reader is not None and self._writer is not None
        try:
            while not self._transport.closed and (data := await self._reader.read(READ_BYTES)):
                for message in self._transport.feed(data):
                    if message:
                        await self._take(message[0], message[1:])
                self._writer.writelines(self._transport.replies())
            self._finish(ConnectionError("the hub closed the connection"))
        except (OSError, Refused, ProtocolError) as error:
            self._finish(error)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            await self._send(codec.message(codec.PING))

    def _finish(self, error: Exception | None) -> None:
        """Nothing more will come: tell whoever waits."""
        self._end = self._end or error
        for future in (self._entered, *(one for many in self._acks.values() for one in many)):
            if future is not None and not future.done():
                future.set_exception(error or ConnectionError("the SMQ client was closed"))
        self._acks.clear()
        if not self._inbox.full():
            self._inbox.put_nowait(None)

    # What the hub says

    async def _take(self, kind: int, body: bytes) -> None:
        if kind == codec.PUBLISH:
            await self._inbox.put(self._message(body))
        elif kind in _ACKS:
            self._take_ack(kind, body)
        elif kind == codec.CHANGE:
            number, count = codec.numbers_of(kind, body)
            for changes in self._changes.get(number, ()):
                changes.put_nowait(count)
        elif kind == codec.INIT:
            await self._send(codec.build_connect(self._uid, self._credentials, self._info))
        elif kind == codec.CONNACK:
            self._take_connack(body)
        elif kind == codec.PING:
            await self._send(codec.message(codec.PONG))
        elif kind == codec.DISCONNECT:
            text = body.decode("utf-8", "replace")
            raise Refused(f"the hub ended the connection: {text or 'it gave no reason'}")

    def _message(self, body: bytes) -> SmqMessage:
        tid, sender, subtid = codec.numbers_of(codec.PUBLISH, body)
        topic = self._topics.get(tid) or f"$client/{tid}"
        payload = codec.rest_of(codec.PUBLISH, body)
        return SmqMessage(topic, payload, self._subtopics.get(subtid, ""), sender)

    def _take_connack(self, body: bytes) -> None:
        code, number = codec.numbers_of(codec.CONNACK, body)
        if code:
            text = codec.rest_of(codec.CONNACK, body).decode("utf-8", "replace")
            raise Refused(f"the hub refused the connection ({code}): {text or 'no reason given'}")
        if self._entered is not None and not self._entered.done():
            self._entered.set_result(number)

    def _take_ack(self, kind: int, body: bytes) -> None:
        status, number = codec.numbers_of(kind, body)
        name = codec.rest_of(kind, body).decode("utf-8", "surrogateescape")
        waiting = self._acks.get((kind, name), [])
        while waiting and waiting[0].done():  # given up
            waiting.pop(0)
        if not waiting:
            return
        future = waiting.pop(0)
        if status:
            future.set_exception(Refused(f"the hub refused {_ACKS[kind]} {name!r}"))
            return
        names = self._subtopics if kind == codec.CREATESUBACK else self._topics
        names[number] = name
        future.set_result(number)

    # What a program does

    async def _ask(self, kind: int, ack: int, name: str) -> int:
        """Send a name and wait for its number."""
        raw = name.encode("utf-8", "surrogateescape")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._acks.setdefault((ack, name), []).append(future)
        try:
            await self._send(codec.message(kind, rest=raw))
            async with asyncio.timeout(ANSWER_SECONDS):
                number = await future
        except TimeoutError:
            raise CallTimeout(
                f"no answer about {_ACKS[ack]} {name!r} within {ANSWER_SECONDS:g} s"
            ) from None
        finally:
            future.cancel()
        self._numbers[ack, name] = number
        return number

    async def create(self, topic: str) -> int:
        """The number of a topic, which is made if it is new. Refused if the hub says no."""
        known = self._numbers.get((codec.CREATEACK, topic))
        return known or await self._ask(codec.CREATE, codec.CREATEACK, topic)

    async def create_sub(self, subtopic: str) -> int:
        """The number of a sub-topic; messages that carry it then show its name."""
        known = self._numbers.get((codec.CREATESUBACK, subtopic))
        return known or await self._ask(codec.CREATESUB, codec.CREATESUBACK, subtopic)

    async def publish(self, topic: str | int, payload: bytes, subtopic: str = "") -> None:
        """Publish to a topic by name, or to a number: a topic's, or another client's.

        A payload has at most 65,520 bytes over a raw socket (ValueError). SMQ acknowledges no
        message: it may be lost with the connection.
        """
        number = await self.create(topic) if isinstance(topic, str) else topic
        sub = await self.create_sub(subtopic) if subtopic else 0
        await self._send(codec.message(codec.PUBLISH, number, self.number, sub, rest=payload))

    async def subscribe(self, topic: str) -> int:
        """Get what is published to a topic; no wildcards. Returns the topic's number."""
        return await self._ask(codec.SUBSCRIBE, codec.SUBACK, topic)

    async def unsubscribe(self, topic: str) -> None:
        number = self._numbers.get((codec.SUBACK, topic))
        if number is not None:
            await self._send(codec.message(codec.UNSUBSCRIBE, number))

    async def observe(self, topic: str | int) -> AsyncIterator[int]:
        """The number of subscribers of a topic, now and after each change.

        For the number of another client: nothing while it is connected, then 0, once.
        """
        number = await self.create(topic) if isinstance(topic, str) else topic
        changes: asyncio.Queue[int] = asyncio.Queue()
        self._changes.setdefault(number, []).append(changes)
        try:
            await self._send(codec.message(codec.OBSERVE, number))
            while True:
                yield await changes.get()
        finally:
            self._changes[number].remove(changes)
            if not self._changes[number] and self._end is None and self._writer is not None:
                await self._send(codec.message(codec.UNOBSERVE, number))

    async def messages(self) -> AsyncIterator[SmqMessage]:
        """What arrives. Ends after `close`; raises ConnectionError or Refused when it is lost.

        Read them: after 10,000 unread ones nothing more is read from the hub, no answer either.
        """
        while True:
            if self._inbox.empty() and (self._end is not None or self._writer is None):
                break
            message = await self._inbox.get()
            if message is not None:
                yield message
        if self._end is not None:
            raise self._end


_ACKS: Final = {
    codec.SUBACK: "the topic",
    codec.CREATEACK: "the topic",
    codec.CREATESUBACK: "the sub-topic",
}
