"""The SMQ client itself: what a program calls, and the connection that is kept up behind it.

The hub knows numbers; the program says names. Numbers may be others after a reconnection (to
another hub, or a hub that lost its data), so everything is set up anew: sub-topics, topics,
subscriptions, observations. One task watches the connection, one hands messages to callbacks, in
order. Called by programs and by the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, Final, NamedTuple, cast
from urllib.parse import SplitResult

from hubbub.client.inbox import Inbox
from hubbub.client.smq.calls import Caller
from hubbub.client.smq.connection import Connection, Credentials
from hubbub.client.smq.message import SmqMessage
from hubbub.client.usage import (
    ERROR,
    NOTHING,
    Entered,
    Payload,
    failure,
    must_be_entered,
    payload_of,
    reply_of,
)
from hubbub.errors import CallTimeout, Refused, SettingError
from hubbub.protocols.smq import codec

log = logging.getLogger("hubbub.client.smq")

SELF: Final = "self"  # the topic that is our own number
QUEUE: Final = "$queue/"
REQUEST: Final = "request"  # the sub-topic that makes a message to `$queue/…` a request
CONCURRENT: Final = 100  # requests one `serve` works on at a time
IDLE_CALLERS: Final = 16  # connections kept for the next calls
FRAGMENT_BYTES: Final = 16 * 1024
NOBODY: Final = 0xFFFF_FFFF  # no hub gives this number away: ends fragments that lead nowhere

Callback = Callable[[SmqMessage], Awaitable[object] | object]
OnChange = Callable[[int, "str | int"], Awaitable[object] | object]
Handler = Callable[[SmqMessage], Awaitable[Payload] | Payload]


class Settings(NamedTuple):
    """What `connect` was told."""

    url: SplitResult
    client_id: str
    credentials: Credentials
    info: bytes
    reconnect: bool
    backoff: tuple[float, float]
    tls: ssl.SSLContext | None


class SmqClient(Entered):
    """A client of one hub, made by `connect`, to be entered with `async with`.

    `number` is this client's own, its etid: others publish to it. It changes when the client
    has to connect again. `dropped` counts messages that came faster than the program took them.
    """

    def __init__(self, settings: Settings) -> None:
        self.number = 0
        self.client_id = settings.client_id or f"hubbub-{secrets.token_hex(6)}"
        self._settings = settings
        self._name = settings.url.netloc.rpartition("@")[2]
        # The connection.
        self._connection: Connection | None = None
        self._pause = settings.backoff[0]
        self._change = asyncio.Event()
        self._error: Exception | None = None
        self._over = False
        self._entered = False
        self._tasks: list[asyncio.Task[None]] = []
        # What is set up again: topic -> sub-topic -> callback, and whom we observe.
        self._subscriptions: dict[str, dict[str, Callback | None]] = {}
        self._observed: dict[str | int, OnChange] = {}
        # What this connection knows of names and numbers.
        self._topics: dict[str, int] = {}
        self._subtopics: dict[str, int] = {}
        self._topic_names: dict[int, str] = {}
        self._subtopic_names: dict[int, str] = {}
        self._watched: dict[int, str | int] = {}
        # What arrived: for callbacks, and for `messages()`.
        self._called: Inbox[Callable[[], Any]] = Inbox()
        self._unread: Inbox[SmqMessage] = Inbox()
        self._sending = asyncio.Lock()  # fragments of two messages must not mix
        self._callers: list[Caller] = []

    # Life

    async def open(self) -> None:
        """Connect. OSError if nobody answers, Refused (with the hub's text) if it says no."""
        if self._tasks:
            return
        self._entered = True
        await self._connect()
        self._tasks.append(asyncio.create_task(self._keep_connected()))
        self._tasks.append(asyncio.create_task(self._call_back()))

    async def close(self) -> None:
        """Leave in order. `messages` ends after what was received."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        callers, self._callers = self._callers, []
        for caller in callers:
            await caller.connection.close()
        if self._connection is not None:
            await self._connection.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end(None)

    @property
    def dropped(self) -> int:
        return self._called.dropped + self._unread.dropped

    # The connection

    async def _connect(self) -> None:
        connection = Connection(self)
        await self._enter(connection, self.client_id)
        self.number = connection.number
        self._topics, self._subtopics, self._watched = {SELF: self.number}, {}, {}
        self._topic_names, self._subtopic_names = {self.number: SELF}, {}
        try:
            await self._set_up(connection)
        except BaseException:
            connection.abort()
            raise
        self._connection = connection
        self._change.set()

    async def _enter(self, connection: Connection, uid: str) -> None:
        settings = self._settings
        await connection.open(
            settings.url, settings.tls, uid.encode(), settings.credentials, settings.info
        )

    async def _set_up(self, connection: Connection) -> None:
        """Everything that the last connection had, and is still wanted when its turn comes."""
        for topic in list(self._subscriptions):
            for subtopic in list(self._subscriptions.get(topic, ())):
                await self._subtopic_number(connection, subtopic)
            if topic in self._subscriptions:
                await self._subscribe(connection, topic)
        for observed in list(self._observed):
            await self._observe(connection, observed)

    async def _keep_connected(self) -> None:
        try:
            while True:
                assert self._connection is not None
                error = await asyncio.shield(self._connection.over)
                self._connection = None
                # A Disconnect says: do not come back by yourself.
                if error is None or isinstance(error, Refused) or not self._settings.reconnect:
                    return self._end(error)
                log.warning("%s: %s; connecting again", self._name, error)
                await self._reconnect()
        except Exception as error:  # what the program's credentials raise, too
            self._end(error)

    async def _reconnect(self) -> None:
        """Try until it works, with growing pauses of random length."""
        shortest, longest = self._settings.backoff
        pause = shortest
        while True:
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, longest)
            try:
                return await self._connect()
            except (OSError, CallTimeout) as error:
                log.info("%s: %s", self._name, error)

    async def _connected(self) -> Connection:
        """The connection, once there is one."""
        must_be_entered(self._entered, "smq")
        while self._connection is None or self._connection.over.done():
            if self._over:
                raise self._error or ConnectionError("the SMQ client is closed")
            self._change.clear()
            await self._change.wait()
        return self._connection

    def _end(self, error: Exception | None) -> None:
        """There will be no connection any more: tell whoever waits."""
        if self._over:
            return
        self._over, self._error, self._connection = True, error, None
        self._unread.end(error)
        self._called.end(None)
        self._change.set()

    # Names

    async def create(self, topic: str) -> int:
        """The number of a topic, which is made if it is new. Refused if the hub says no."""
        return await self._topic_number(await self._connected(), topic)

    async def createsub(self, subtopic: str) -> int:
        """The number of a sub-topic; messages that carry it then show its name."""
        return await self._subtopic_number(await self._connected(), subtopic)

    async def _topic_number(self, connection: Connection, topic: str) -> int:
        number = self._topics.get(topic)
        if number is None:
            _check_sayable(topic)
            number = await connection.ask(codec.CREATE, topic)
        return number

    async def _subtopic_number(self, connection: Connection, subtopic: str) -> int:
        if not subtopic:
            return 0
        number = self._subtopics.get(subtopic)
        if number is None:
            _check_sayable(subtopic)
            number = await connection.ask(codec.CREATESUB, subtopic)
        return number

    # Publishing

    async def publish(
        self, topic: str | int, payload: Payload = b"", subtopic: str | int = "",
        *, json: object = NOTHING,
    ) -> None:  # fmt: skip
        """Publish to a topic by name, or to a number: a topic's, or another client's.

        `payload` is bytes or text (TypeError for a number), or `json` is sent as JSON.
        A payload has at most 65,520 bytes over a raw socket (ValueError). SMQ acknowledges no
        message: it may be lost with the connection. Without a connection it waits for one.
        """
        data = payload_of(payload, json)
        connection = await self._connected()
        # The common case, topics that are known, must not wait for anything.
        tid = topic if isinstance(topic, int) else self._topics.get(topic)
        if tid is None:
            tid = await self._topic_number(connection, cast("str", topic))
        subtid = subtopic if isinstance(subtopic, int) else self._subtopics.get(subtopic)
        if subtid is None:
            subtid = await self._subtopic_number(connection, cast("str", subtopic))
        await connection.send(
            codec.message(codec.PUBLISH, tid, connection.number, subtid, rest=data)
        )

    async def publish_parts(
        self, topic: str | int, parts: Iterable[bytes], subtopic: str | int = ""
    ) -> None:
        """Publish one message whose payload comes in parts, as PubFrag; 65,507 bytes at most.

        The hub puts them together. Needs a raw socket: over a WebSocket (SettingError) there is
        no need for it. ValueError if it becomes too large; then nobody gets anything.
        """
        if self._settings.url.scheme not in ("smq", "smqs"):
            raise SettingError("parts are for raw sockets (smq://, smqs://): join them and publish")
        connection = await self._connected()
        tid = topic if isinstance(topic, int) else await self._topic_number(connection, topic)
        if isinstance(subtopic, str):
            subtopic = await self._subtopic_number(connection, subtopic)
        async with self._sending:
            target, total = NOBODY, 0
            try:
                for piece in _pieces(parts):
                    total += len(piece)
                    if total > codec.FRAGMENTED_BYTES:
                        raise ValueError(
                            f"expected parts of {codec.FRAGMENTED_BYTES} bytes at most, in all"
                        )
                    await connection.send(
                        codec.message(codec.PUBFRAG, 0, connection.number, subtopic, rest=piece)
                    )
                target = tid
            finally:
                await connection.send(
                    codec.message(codec.PUBFRAG, target, connection.number, subtopic)
                )

    # Subscribing

    async def subscribe(
        self, topic: str, callback: Callback | None = None, subtopic: str = ""
    ) -> int:
        """Get what is published to a topic; no wildcards. Returns the topic's number.

        Several subscriptions to one topic differ by sub-topic; the one without is for all
        sub-topics that no other names. Messages go to `callback(message)`, plain or async, one
        after the other; without one, and where no sub-topic fits, they come out of `messages()`.
        The topic `self` is our own number. Refused if the hub says no, SettingError for wildcards.
        """
        _check_sayable(topic)
        _check_name(topic)
        connection = await self._connected()
        await self._subtopic_number(connection, subtopic)
        callbacks = self._subscriptions.setdefault(topic, {})
        before = callbacks.get(subtopic)
        callbacks[subtopic] = callback
        try:
            return await self._subscribe(connection, topic)
        except Refused:
            callbacks[subtopic] = before
            if set(callbacks.values()) == {None}:
                del self._subscriptions[topic]
            raise

    async def _subscribe(self, connection: Connection, topic: str) -> int:
        if topic == SELF:
            return connection.number
        return await connection.ask(codec.SUBSCRIBE, topic)

    async def unsubscribe(self, topic: str) -> None:
        """End every subscription to the topic, those of its sub-topics included."""
        if self._subscriptions.pop(topic, None) is not None and topic != SELF:
            connection = await self._connected()
            with contextlib.suppress(Refused):
                # Still being subscribed? Asking again is the same, and brings the number.
                number = self._topics.get(topic) or await connection.ask(codec.SUBSCRIBE, topic)
                connection.write(codec.message(codec.UNSUBSCRIBE, number))

    # Observing

    async def observe(self, observed: str | int, callback: OnChange) -> None:
        """Have `callback(count, observed)` called with a topic's subscribers, now and at changes.

        For the number of another client: nothing while it is connected, then 0, once.
        """
        connection = await self._connected()
        self._observed[observed] = callback
        await self._observe(connection, observed)

    async def _observe(self, connection: Connection, observed: str | int) -> None:
        if isinstance(observed, str):
            number = await self._topic_number(connection, observed)
        else:
            number = observed
        if observed in self._observed:  # and not unobserved meanwhile
            self._watched[number] = observed
            connection.write(codec.message(codec.OBSERVE, number))

    async def unobserve(self, observed: str | int) -> None:
        """End `observe`; nothing happens if there is none."""
        if self._observed.pop(observed, None) is not None:
            connection = await self._connected()
            number = self._topics.get(observed) if isinstance(observed, str) else observed
            if number is not None and self._watched.pop(number, None) is not None:
                connection.write(codec.message(codec.UNOBSERVE, number))

    # What arrives

    def named(self, ack: int, name: str, number: int) -> None:
        """Called by the connection."""
        if ack == codec.CREATESUBACK:
            self._subtopics[name] = number
            self._subtopic_names[number] = name
        else:
            self._topics[name] = number
            self._topic_names[number] = name

    def published(self, tid: int, sender: int, subtid: int, payload: bytes) -> None:
        """Called by the connection."""
        topic = self._topic_names.get(tid, "")
        subtopic = self._subtopic_names.get(subtid, "")
        shown = topic if topic not in ("", SELF) else f"$client/{tid}"
        message = SmqMessage(shown, payload, subtopic, sender, subtid)
        callbacks = self._subscriptions.get(topic, {})
        callback = callbacks.get(subtopic) or callbacks.get("")
        if callback is None:
            self._unread.put(message, len(payload))
        else:
            self._called.put(_Call(callback, message), len(payload))

    def changed(self, number: int, count: int) -> None:
        """Called by the connection."""
        observed = self._watched.get(number)
        if observed is None:
            return
        callback = self._observed[observed]
        if isinstance(observed, int):  # a client is gone once
            del self._watched[number], self._observed[observed]
        self._called.put(_Call(callback, count, observed), 0)

    async def _call_back(self) -> None:
        while (call := await self._called.take()) is not None:
            try:
                result = call()
                if isawaitable(result):
                    await result
            except Exception:
                log.exception("a callback failed")

    async def messages(self) -> AsyncIterator[SmqMessage]:
        """What no callback takes. Ends after `close`; raises what ended the client otherwise.

        Beyond 65,536 messages (or 64 MiB) that nobody took, the newer ones are dropped.
        """
        must_be_entered(self._entered, "smq")
        while (message := await self._unread.take()) is not None:
            yield message

    # Calls

    async def call(
        self, to: str | int, payload: Payload = b"", subtopic: str = "", timeout: float = 10.0,
        *, json: object = NOTHING,
    ) -> SmqMessage:  # fmt: skip
        """Ask a service (a topic, a queue `$queue/…`, or a client's number) and wait for its reply.

        A reply is what is published to the number that asked; of a client asked by its number,
        what that client publishes. SMQ has no other correlation, so each open call asks with a
        number, and a connection, of its own. CallTimeout after `timeout` seconds: what comes
        later finds nobody. CallFailed if the answer is that the service failed.
        """
        data = payload_of(payload, json)
        if isinstance(to, str) and to.startswith(QUEUE):
            subtopic = subtopic or REQUEST
        caller = self._callers.pop() if self._callers else None
        if caller is None or caller.connection.over.done():
            caller = await self._new_caller()
        try:
            async with asyncio.timeout(timeout):
                reply = await caller.call(to, data, subtopic)
        except BaseException as error:
            await caller.connection.close()
            if isinstance(error, TimeoutError):
                raise CallTimeout(f"no reply from {to} within {timeout:g} s") from None
            raise
        # A topic may have several services: their later answers must not meet the next call.
        one_service = isinstance(to, int) or to.startswith(QUEUE)
        if one_service and not self._over and len(self._callers) < IDLE_CALLERS:
            self._callers.append(caller)
        else:
            await caller.connection.close()
        return reply

    async def _new_caller(self) -> Caller:
        await self._connected()
        caller = Caller()
        await self._enter(caller.connection, f"{self.client_id[:240]}-{secrets.token_hex(6)}")
        return caller

    async def serve(self, topic: str, handler: Handler, subtopic: str = "") -> None:
        """Answer what comes to a topic or queue, up to 100 requests at a time, until cancelled.

        The reply of `handler(message)`, plain or async, goes to the sender under the sub-topic of
        the request. A handler that fails is logged, and is the answer, under the sub-topic
        `error`: the caller's call raises CallFailed, with the name of the error's class, or with
        the text of a CallFailed that the handler raised.
        """
        slots = asyncio.Semaphore(CONCURRENT)
        working: set[asyncio.Task[None]] = set()

        async def take(message: SmqMessage) -> None:
            await slots.acquire()
            task = asyncio.create_task(self._answer(handler, message))
            working.add(task)
            task.add_done_callback(working.discard)
            task.add_done_callback(lambda _: slots.release())

        await self.subscribe(topic, take, subtopic)
        try:
            await self._ended()
        finally:
            for task in working:
                task.cancel()
            if not self._over:
                await self.unsubscribe(topic)

    async def _answer(self, handler: Handler, message: SmqMessage) -> None:
        subtopic: str | int = message.subtid
        try:
            reply = await reply_of(handler(message))
        except Exception as error:
            log.exception("a request to %s failed", message.topic)
            reply, subtopic = failure(error), ERROR
        try:
            try:
                await self.publish(message.sender, reply, subtopic)
            except ValueError as error:  # else the queue waits for an answer, and holds others back
                log.error("an answer from %s was not sent: %s", message.topic, error)
                text = f"the answer of {len(reply)} bytes is too large for the service to send"
                await self.publish(message.sender, text, ERROR)
        except Exception:
            log.exception("a request to %s was not answered", message.topic)

    async def _ended(self) -> None:
        """Return, or raise the reason, when there will be no connection any more."""
        while not self._over:
            self._change.clear()
            await self._change.wait()
        if self._error is not None:
            raise self._error


class _Call:
    """A callback and what to call it with."""

    __slots__ = ("callback", "arguments")

    def __init__(self, callback: Callable[..., Any], *arguments: Any) -> None:
        self.callback = callback
        self.arguments = arguments

    def __call__(self) -> Any:
        return self.callback(*self.arguments)


def _pieces(parts: Iterable[bytes]) -> Iterable[bytes]:
    """The parts, none larger than a frame carries well."""
    for part in parts:
        for at in range(0, len(part), FRAGMENT_BYTES):
            yield part[at : at + FRAGMENT_BYTES]


def _check_sayable(name: str) -> None:
    """SettingError for what is no name of a topic or sub-topic, TypeError for what is no text."""
    if not isinstance(name, str):
        raise TypeError(f"a topic is str or its number, got {type(name).__name__} {name!r:.40}")
    if not name or "\0" in name:
        raise SettingError(f"expected a topic, not empty and without NUL, got {name[:80]!r}")


def _check_name(topic: str) -> None:
    """SMQ would take `a/#` for a name like any other, to which nobody publishes."""
    levels = topic.split("/")
    if "+" in levels or levels[-1] == "#":
        raise SettingError(
            f"SMQ has no wildcards, got {topic[:80]!r}: subscribe to each topic by its name, or "
            "with a client of hubbub.mqtt(…)"
        )
