"""A message-switch client on asyncio: call services by the name of their queue, and serve them.

    async with connect("switch://127.0.0.1:8080") as hub:
        await hub.serve("upper", handler)           # runs until cancelled
        reply = await hub.call("upper", b"hello")   # elsewhere

A token names the client and its transient reply queue. One connection asks; replies arrive on a
second one, where a request for them always waits; each `serve` has one more for the same reason.
After a lost connection they connect, log in and go on, so programs may start in any order; a
request may then arrive twice, as ever with message-switch. Reuses the hub's codec. The HTTP is
our own: the sockets are the sessions, which client libraries pool, share and reopen at will.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from hubbub.errors import CallTimeout, HubbubError, Refused
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.codec import Delivery, Wanted

T = TypeVar("T")

log = logging.getLogger("hubbub.client.switch")

Names = list[str]
Events = list[list[Any]]
Handler = Callable[[bytes], Awaitable[bytes]]

DEFAULT_PORT: Final = 8080
POLL_SECONDS: Final = 30.0  # as the original clients
RETRY_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 30.0  # how long the reply queue waits for a client that lost its hub
HEAD_BYTES: Final = 64 * 1024
CONCURRENT: Final = 100  # requests one service works on at a time

_count = itertools.count(1)


def connect(url: str, token: str = "") -> SwitchClient:
    """A client for `switch://HOST[:PORT]` or `http://…`, to be entered with `async with`.

    `token` should be its own in the hub; without one it is made of program and process.
    """
    return SwitchClient(url, token or _own_token())


def _own_token() -> str:
    program, number = Path(sys.argv[0]), next(_count)
    name = (program.parent.name if program.stem == "__main__" else program.stem) or "python"
    return f"{name}:{os.getpid()}" + (f".{number}" if number > 1 else "")


class _Socket:
    """One logged-in connection: a request, its answer, the next one.

    It opens itself when first used and after it broke, and then asks for `greeting`, paths of
    what the hub may have forgotten.
    """

    def __init__(self, url: str, token: str, *greeting: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or DEFAULT_PORT
        self._head = f"host: {self._host}:{self._port}\r\nuser-agent: hubbub\r\ncontent-length: "
        login = f"{codec.target('login', token)}?grace={GRACE_SECONDS:g}"
        self._greeting = (login, *greeting)
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def get(self, operation: str, *arguments: str) -> bytes:
        return await self.ask("GET", codec.target(operation, *arguments), b"")

    async def post(self, body: bytes, operation: str, *arguments: str) -> bytes:
        return await self.ask("POST", codec.target(operation, *arguments), body)

    async def ask(self, method: str, target: str, body: bytes) -> bytes:
        """The body of the answer; a connection that turns out to be dead is tried once anew."""
        async with self._turn:
            if self._streams is not None:
                with contextlib.suppress(ConnectionError):
                    return await self._exchange(method, target, body)
            await self.open()
            return await self._exchange(method, target, body)

    async def open(self) -> None:
        """Connect and log in. OSError if nobody answers, Refused if the hub says no."""
        self.close()
        self._streams = await asyncio.open_connection(self._host, self._port, limit=HEAD_BYTES)
        for path in self._greeting:
            await self._exchange("GET", path, b"")

    async def _exchange(self, method: str, target: str, body: bytes) -> bytes:
        assert self._streams is not None
        reader, writer = self._streams
        head = f"{method} {target} HTTP/1.1\r\n{self._head}{len(body)}\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            status, answer = await _read_answer(reader)
        except BaseException as error:
            self.close()  # also when cancelled: the answer would be taken for the next one's
            if isinstance(error, asyncio.IncompleteReadError):
                raise ConnectionResetError(f"the hub closed {self._host}:{self._port}") from error
            raise
        if status != 200:
            raise Refused(f"{target} was answered {status}: {answer.decode(errors='replace')}")
        return answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if ": " in line)
        status, size = int(first.split(" ")[1]), int(headers["content-length"])
    except (asyncio.LimitOverrunError, LookupError, ValueError) as error:
        raise Refused("what answers there is no message-switch") from error
    return status, await reader.readexactly(size)


class SwitchClient:
    """One client of a hub; `token` is its name there and that of its reply queue.

    What cannot be done raises OSError (nobody answers) or Refused (the hub says no).
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self.token = token
        self._requests = _Socket(url, token)
        self._events: asyncio.Task[None] | None = None
        self._replies: dict[tuple[str, int], asyncio.Future[bytes]] = {}
        self._calling = 0
        self._early: dict[tuple[str, int], bytes] = {}

    async def __aenter__(self) -> SwitchClient:
        await self._requests.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave; the reply queue goes too."""
        if self._events is not None:
            self._events.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._events
            self._events = None
            with contextlib.suppress(OSError, Refused):
                await self.destroy(self.token)
        self._requests.close()

    # Calls

    async def call(self, queue: str, body: bytes, timeout: float | None = None) -> bytes:
        """Send a request and return its reply. CallTimeout after `timeout` seconds.

        The queue begins if nobody serves it yet. The request stays in it after a time-out.
        """
        try:
            async with asyncio.timeout(timeout):
                return await self._call(queue, body)
        except TimeoutError:
            raise CallTimeout(f"nobody answered from {queue} within {timeout:g} s") from None

    async def _call(self, queue: str, body: bytes) -> bytes:
        if self._events is None:
            await self._begin_receiving()
        self._calling += 1
        try:
            sent = await _insist(lambda: self._send(queue, body))
            if sent in self._early:
                return self._early.pop(sent)
            reply = self._replies[sent] = asyncio.get_running_loop().create_future()
        finally:
            self._finish_sending()
        try:
            return await self._reply(reply)
        finally:
            del self._replies[sent]

    async def _send(self, queue: str, body: bytes) -> tuple[str, int]:
        await self.create(queue)
        sent = codec.sent_id(await self._requests.post(body, "request", queue, self.token))
        if sent is None:
            raise Refused(f"the queue {queue} was destroyed before the request reached it")
        return sent

    async def _reply(self, reply: asyncio.Future[bytes]) -> bytes:
        """The reply, or what became of receiving replies."""
        assert self._events is not None
        await asyncio.wait((reply, self._events), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            await self._events
            raise Refused("this client was closed")
        return reply.result()

    def _finish_sending(self) -> None:
        """What came early for nobody who is still sending was for nobody."""
        self._calling -= 1
        if not self._calling:
            self._early.clear()

    async def _begin_receiving(self) -> None:
        """Make the reply queue, then wait at it as long as this client lives."""
        socket = _Socket(self.url, self.token, codec.target("transient", self.token))
        receiving = _consume(socket, self.token, lambda reply: self._hand_over(socket, reply))
        self._events = asyncio.create_task(receiving)
        await self._requests.get("transient", self.token)

    async def _hand_over(self, socket: _Socket, delivery: Delivery) -> None:
        waiting = self._replies.get(delivery.answers) if delivery.answers else None
        if waiting is not None and not waiting.done():
            waiting.set_result(delivery.payload)
        elif self._calling and delivery.answers:
            self._early[delivery.answers] = delivery.payload
        else:
            log.info("%s:%d is a reply nobody waits for", delivery.queue, delivery.number)
        await socket.get("ack", delivery.queue, str(delivery.number))

    # Services

    async def serve(self, queue: str, handler: Handler, concurrent: bool = False) -> None:
        """Answer what comes into the queue, until cancelled.

        The reply is sent, then the request acknowledged. If the handler fails that is logged
        and the request stays, to be seen in the diagnostics and tried again by the next one who
        serves. `concurrent` works on several requests at a time.
        """
        socket = _Socket(self.url, self.token, codec.target("persistent", queue))
        slots = asyncio.Semaphore(CONCURRENT if concurrent else 1)
        working: dict[int, asyncio.Task[None]] = {}

        async def take(delivery: Delivery) -> None:
            if delivery.number in working:
                return  # the connection was lost meanwhile, the work was not
            await slots.acquire()
            working[delivery.number] = asyncio.create_task(work(delivery))

        async def work(delivery: Delivery) -> None:
            try:
                await self._answer(delivery, handler)
            finally:
                del working[delivery.number]
                slots.release()

        try:
            await _consume(socket, queue, take)
        finally:
            for task in working.values():
                task.cancel()

    async def _answer(self, delivery: Delivery, handler: Handler) -> None:
        name, number = delivery.queue, str(delivery.number)
        try:
            reply = await handler(delivery.payload)
            if delivery.reply_to:
                target = ("response", delivery.reply_to, name, number)
                await _insist(lambda: self._requests.post(reply, *target))
            await _insist(lambda: self.ack(name, delivery.number))
        except HubbubError as error:
            log.error("request %s:%s was not answered and stays: %s", name, number, error)
        except Exception:
            log.exception("request %s:%s was not answered and stays", name, number)

    # Queues and topics

    async def create(self, queue: str) -> None:
        """Make a queue that stays; nothing happens if it exists."""
        await self._requests.get("persistent", queue)

    async def destroy(self, queue: str) -> None:
        """End a queue with all it holds."""
        await self._requests.get("destroy", queue)

    async def ack(self, queue: str, number: int) -> None:
        """A message is done with; the queue forgets it."""
        await self._requests.get("ack", queue, str(number))

    async def list(self, prefix: str = "", all: bool = False) -> Names:
        """The names of the queues that somebody reads, or of all."""
        kind = () if all else ("alive",)
        names: Names = codec.loaded(await self._requests.get("list", *kind, prefix))
        return names

    async def diagnostics(self) -> dict[str, Any]:
        """Every queue and what waits in it, as the hub answers `GET /`."""
        answer: dict[str, Any] = codec.loaded(await self._requests.get(""))
        return answer

    async def events(self, after: int = -1, timeout: float = POLL_SECONDS) -> Events:
        """The last events at the queues, `[number, event]`; waits for one above `after`."""
        body = await self._requests.get("trace", str(after), f"{timeout:.16g}")
        events: Events = codec.loaded(body)["events"]
        return events

    async def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False) -> None:
        """Publish to a topic of the hub; the message is safe when this returns (`qos` >= 1)."""
        options = f"?qos={qos}&retain={int(retain)}"
        await self._requests.ask("POST", codec.target("publish", topic) + options, payload)

    async def bind(self, queue: str, topic_filter: str) -> None:
        """Whatever is published to matching topics enters the queue from now on."""
        await self._requests.post(topic_filter.encode(), "bind", queue)

    async def unbind(self, queue: str, topic_filter: str) -> None:
        await self._requests.post(topic_filter.encode(), "unbind", queue)


async def _insist(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until somebody answers: the hub may be restarting."""
    while True:
        try:
            return await ask()
        except OSError as error:
            log.info("no hub (%s); trying again", error)
            await asyncio.sleep(RETRY_SECONDS)


async def _consume(
    socket: _Socket, queue: str, take: Callable[[Delivery], Awaitable[None]]
) -> None:
    """Take the messages of a queue, oldest first, through lost connections.

    After one everything unacknowledged is taken again: the hub may have been another one.
    """
    cursor = codec.FIRST
    try:
        while True:
            wanted = codec.transfer_body(Wanted(cursor, POLL_SECONDS, (queue,)))
            try:
                deliveries, cursor = codec.deliveries_of(await socket.post(wanted, "transfer"))
                for delivery in deliveries:
                    await take(delivery)
            except OSError as error:
                log.info("lost the hub (%s); trying again", error)
                cursor = codec.FIRST
                await asyncio.sleep(RETRY_SECONDS)
    finally:
        socket.close()
