"""The MQTT client itself: what a program calls, and the connection that is kept up behind it.

One task watches the connection and makes a new one when it is lost; one hands messages to
callbacks, in order. Everything that waits goes on waiting meanwhile, and is told when there will
be no connection any more. Called by programs and by the command line.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import SplitResult

from hubbub.client.inbox import Inbox
from hubbub.client.mqtt import packets
from hubbub.client.mqtt.buffer import Buffer
from hubbub.client.mqtt.connection import ALIASES, Connection
from hubbub.client.mqtt.message import FAILED, Limits, Message, User, Will, answer_in
from hubbub.client.mqtt.packets import Exchange, Opening, Options, Refusal
from hubbub.client.mqtt.sayable import check_message, checked_filter, checked_qos, checked_topic
from hubbub.client.mqtt.session import Arrival, Session
from hubbub.client.mqtt.subscriptions import Callback, Subscription, Subscriptions
from hubbub.client.mqtt.transport import open_transport
from hubbub.client.usage import (
    NOTHING,
    Entered,
    Payload,
    failure,
    must_be_entered,
    payload_of,
    reply_of,
)
from hubbub.errors import CallTimeout, HubbubError, Refused, SettingError
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import specification

log = logging.getLogger("hubbub.client.mqtt")

CONNECT_SECONDS: Final = 10.0  # until the broker has said yes
CLOSE_SECONDS: Final = 5.0  # until what was written last has left
OWN: Final = "$client/"  # at a hub: a topic of our own, for direct messages
CONCURRENT: Final = 100  # requests one `serve` works on at a time
REDIRECTIONS: Final = 3

Handler = Callable[[Message], Awaitable[Payload] | Payload]
Pairs = Mapping[str, str] | Iterable[tuple[str, str]]


class Settings(NamedTuple):
    """What `connect` was told."""

    url: SplitResult
    level: int  # 0: the newest that the broker speaks
    client_id: str
    clean: bool
    keep_alive: int
    will: Will | None
    user: str | None
    password: bytes | None
    session_expiry: int
    receive_maximum: int
    window: int
    reconnect: bool
    backoff: tuple[float, float]
    buffer: Path | None
    tls: ssl.SSLContext | None
    exchange: Callable[[], Exchange] | None


class MqttClient(Entered):
    """A client of one broker, made by `connect`, to be entered with `async with`.

    `session_present`: the broker had kept the session. `version` is the one that is spoken,
    `limits` what the broker said of itself; all three are of the last connection.
    """

    def __init__(self, settings: Settings) -> None:
        self.session_present = False
        self.version = ""
        self.limits = Limits()
        self.client_id = settings.client_id or f"hubbub-{secrets.token_hex(6)}"
        self._settings = settings
        self._url = settings.url
        self._level = settings.level
        self._name = settings.url.netloc.rpartition("@")[2]
        # The connection, and what outlives it.
        self._connection: Connection | None = None
        self._session = Session(settings.window, self._arrived)
        self._buffer: Buffer | None = None
        self._subscriptions = Subscriptions()
        self._before = False
        self._since = 0.0  # when the connection was accepted
        self._pause = settings.backoff[0]
        self._change = asyncio.Event()
        self._error: Exception | None = None
        self._over = False
        self._entered = False
        # Messages for callbacks, messages for `messages()`, replies by correlation.
        self._called: Inbox[Arrival] = Inbox()
        self._unread: Inbox[Arrival] = Inbox()
        self._calls: dict[tuple[str, bytes], asyncio.Future[Message]] = {}
        self._numbers = itertools.count(secrets.randbits(48))
        self._reply_filter = ""
        self._tasks: list[asyncio.Task[None]] = []

    # Life

    async def open(self) -> None:
        """Connect. OSError if nobody answers, Refused with the broker's reason if it says no.

        With a buffer an absent broker is no error: what is published waits in the file.
        """
        if self._tasks:
            return
        self._entered = True
        if self._settings.buffer is not None:
            self._buffer = Buffer(self._settings.buffer)
            self._session.keep_in(self._buffer)
        try:
            await self._connect()
        except OSError:
            if self._buffer is None:
                raise
        except BaseException:
            await self.close()
            raise
        self._tasks.append(asyncio.create_task(self._keep_connected()))
        self._tasks.append(asyncio.create_task(self._call_back()))

    async def close(self) -> None:
        """Say goodbye (so that no will is published) and close. `messages` ends after the rest.

        Messages of QoS 1 and 2 that are still under way raise ConnectionError where they were
        published, or stay in the buffer: `flush` first if they must arrive now.
        """
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        connection = self._connection
        if connection is not None:
            connection.close()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.ended()
            except TimeoutError:
                connection.abort(ConnectionError("the broker reads no more"))
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end(None)
        if self._buffer is not None:
            await self._buffer.close()
            self._buffer = None

    # The connection

    async def _connect(self) -> None:
        """Connect, in the newest version that the broker speaks."""
        for _ in range(REDIRECTIONS):
            try:
                return await self._connect_as(self._level or 5)
            except Refusal as refusal:
                if refusal.code in packets.MOVED and refusal.reference:
                    self._go_to(refusal.reference)
                elif self._may_go_back() and refusal.code in (1, specification.BAD_LEVEL):
                    return await self._connect_as(4)
                else:
                    raise
        raise Refused(f"sent to another server {REDIRECTIONS} times; {self._name} is the last")

    def _may_go_back(self) -> bool:
        return self._settings.level == 0 and self._level != codec.V311

    async def _connect_as(self, level: int) -> None:
        connection = Connection(self._opening(level), self._session, self._attach)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                tls = self._settings.tls
                connection.open(await open_transport(self._url, level, tls, connection))
                await connection.accepted
        except TimeoutError:
            raise ConnectionError(
                f"{self._name}: no answer within {CONNECT_SECONDS:g} s; is it an MQTT broker?"
            ) from None
        finally:
            if self._connection is not connection:
                connection.abort(ConnectionError("given up"))

    def _opening(self, level: int) -> Opening:
        settings = self._settings
        # A session that outlives its connection is kept over a reconnection, also a clean one.
        keeps = self._before and level >= 5 and settings.session_expiry > 0
        return Opening(
            level, self.client_id, settings.clean and not keeps, settings.keep_alive,
            settings.will, settings.user, settings.password, settings.session_expiry,
            settings.receive_maximum, ALIASES,
            exchange=settings.exchange() if settings.exchange is not None else None,
        )  # fmt: skip

    def _go_to(self, reference: str) -> None:
        """Another server, `host[:port]` (MQTT 5, 4.11); of several the first."""
        place = reference.split(" ")[0]
        log.info("%s sends us to %s", self._name, place)
        self._url = self._url._replace(netloc=place)
        self._name = place

    def _attach(self, connection: Connection, present: bool) -> None:
        """The broker has accepted: go on where the last connection ended."""
        self._connection = connection
        self._level = connection.level
        self._before = True
        self._since = asyncio.get_running_loop().time()
        self.session_present = present
        self.version = packets.VERSIONS[connection.level]
        self.limits = connection.limits
        self._give_up_calls(connection.limits.response_information)
        # Subscriptions first: what we send again may be for ourselves.
        self._subscriptions.attach(self._session, connection, present)
        # 3.1 does not say whether the session is present; a lasting one is.
        lasting = connection.level == codec.V31 and not self._settings.clean
        self._session.attach(connection, present or lasting)
        self._wake()

    async def _keep_connected(self) -> None:
        try:
            while True:
                if self._connection is not None:
                    error = await asyncio.shield(self._connection.over)
                    self._connection = None
                    self._session.detach()
                    if error is None or not self._may_return(error):
                        return self._end(error)
                    log.warning("%s: %s; connecting again", self._name, error)
                await self._reconnect()
        except (HubbubError, OSError) as error:
            self._end(error)

    def _may_return(self, error: Exception) -> bool:
        # Who was taken over and came back would take over in turn, and so on for ever.
        taken_over = isinstance(error, Refusal) and error.code == specification.TAKEN_OVER
        return self._settings.reconnect and not taken_over

    async def _reconnect(self) -> None:
        """Try until it works, with growing pauses of random length.

        A connection that did not last (it may be lost over and over for the same reason) does
        not make the pauses short again.
        """
        shortest, longest = self._settings.backoff
        if asyncio.get_running_loop().time() - self._since > longest:
            self._pause = shortest
        while True:
            await asyncio.sleep(self._pause * random.uniform(0.5, 1))
            self._pause = min(2 * self._pause, longest)
            try:
                return await self._connect()
            except (OSError, Refused) as error:
                if not self._may_return(error):
                    raise
                log.info("%s: %s", self._name, error)

    async def _connected(self) -> Connection:
        """The connection, once there is one."""
        must_be_entered(self._entered, "mqtt")
        while self._connection is None or self._connection.over.done():
            self._check_open()
            self._change.clear()
            await self._change.wait()
        return self._connection

    def _check_open(self) -> None:
        must_be_entered(self._entered, "mqtt")
        if self._over:
            raise self._error or ConnectionError("the MQTT client is closed")

    def _wake(self) -> None:
        self._change.set()

    def _end(self, error: Exception | None) -> None:
        """There will be no connection any more: tell whoever waits."""
        if self._over:
            return
        self._over, self._error, self._connection = True, error, None
        cause = error or ConnectionError("the MQTT client was closed")
        self._session.end(cause)
        self._subscriptions.end(cause)
        self._unread.end(error)
        self._called.end(None)
        for future in self._calls.values():
            if not future.done():
                future.set_exception(cause)
        self._wake()

    # Publishing

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        json: object = NOTHING,
        content_type: str = "",
        response_topic: str = "",
        correlation: bytes = b"",
        expiry: int | None = None,
        user: Pairs = (),
        text: bool = False,
    ) -> None:
        """Publish; returns when it is written (QoS 0) or safe (1 and 2).

        Safe is: acknowledged by the broker, or in the buffer if there is one. While there is no
        connection it waits; if the caller gives up meanwhile, QoS 1 and 2 are sent nevertheless.
        `payload` is bytes or text (TypeError for a number), or `json` is sent as JSON. The others
        are MQTT 5's: `expiry` in seconds, `user` pairs of texts, `text` = the payload is UTF-8.
        SettingError for what cannot be said, Refused if the broker says no.
        """
        message = Message(
            checked_topic(topic), payload_of(payload, json), checked_qos(qos), retain,
            content_type, response_topic, correlation, expiry, _pairs(user), text,
        )  # fmt: skip
        check_message(message)
        if qos:
            self._check_open()
            await self._session.publish(message)
            return
        connection = await self._connected()
        objection = connection.objection(message)
        if objection is not None:
            raise objection
        connection.publish(message)
        await connection.written()

    async def flush(self) -> None:
        """Return when the broker has acknowledged every message of QoS 1 and 2."""
        self._check_open()
        await self._session.flushed()

    @property
    def unfinished(self) -> int:
        """How many messages of QoS 1 and 2 the broker has not acknowledged."""
        return self._session.unfinished

    async def ping(self) -> None:
        """Return when the broker has answered."""
        await (await self._connected()).ping()

    # Subscribing

    async def subscribe(
        self,
        topic_filter: str,
        qos: int = 0,
        callback: Callback | None = None,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> int:
        """Subscribe; returns the QoS that the broker grants, Refused if it grants none.

        Messages go to `callback(message)`, plain or async, one after the other; without one
        they come out of `messages()`. The subscription is made again when the broker has lost
        it. The options are MQTT 5's (3.8.3.1); `retain_handling` 1: retained messages only if
        the subscription is new, 2: none.
        """
        options = Options(checked_qos(qos), no_local, retain_as_published, retain_handling)
        connection = await self._connected()
        if connection.level < 5 and options[1:] != Options()[1:]:
            raise SettingError("no_local and retain options of a subscription need MQTT 5")
        wanted = Subscription(checked_filter(topic_filter), options, callback)
        self._subscriptions.add(wanted, self._session, connection)
        return await wanted.answer

    async def unsubscribe(self, topic_filter: str) -> None:
        """End a subscription; returns when the broker has answered."""
        connection = await self._connected()
        await self._subscriptions.remove(topic_filter, self._session, connection)

    def on(self, topic_filter: str, callback: Callback) -> None:
        """Have what matches go to `callback`, without subscribing.

        For a session that the broker kept: call it before the client is entered, and the
        messages that waited there find their callbacks.
        """
        self._subscriptions.listen(checked_filter(topic_filter), callback)

    async def messages(self) -> AsyncIterator[Message]:
        """Messages that no callback took, as they come, until `close`.

        One counts as received (and is acknowledged) when it is handed out. Raises
        ConnectionError or Refused when the connection is lost for good.
        """
        must_be_entered(self._entered, "mqtt")
        while (arrival := await self._unread.take()) is not None:
            self._session.taken(arrival)
            yield arrival.message

    @property
    def waiting(self) -> int:
        """How many messages wait for `messages()`."""
        return len(self._unread)

    @property
    def dropped(self) -> int:
        """How many messages of QoS 0 were thrown away because nobody took them in time."""
        return self._unread.dropped + self._called.dropped

    def _arrived(self, arrival: Arrival) -> None:
        message = arrival.message
        call = self._calls.get((message.topic, message.correlation))
        if call is not None and not call.done():
            call.set_result(message)
            self._session.taken(arrival)
        else:
            called = self._subscriptions.callbacks(message)
            inbox = self._called if called else self._unread
            inbox.put(arrival, len(message.payload), must=message.qos > 0)

    async def _call_back(self) -> None:
        """Hand messages to their callbacks, in order; then they are acknowledged."""
        while (arrival := await self._called.take()) is not None:
            message = arrival.message
            for callback in self._subscriptions.callbacks(message):
                try:
                    result = callback(message)
                    if isawaitable(result):
                        await result
                except Exception:
                    log.exception("a callback for %s failed", message.topic)
            self._session.taken(arrival)

    # Requests and replies

    async def call(
        self,
        topic: str,
        payload: Payload = b"",
        timeout: float | None = 30.0,
        qos: int = 1,
        *,
        json: object = NOTHING,
        content_type: str = "",
        expiry: int | None = None,
        user: Pairs = (),
        text: bool = False,
    ) -> Message:
        """Publish a request and return the reply. MQTT 5 only (4.10).

        CallTimeout if none comes within `timeout` seconds (None: it waits for ever), CallFailed if
        the answer is that the service failed, ConnectionError if a hub was lost meanwhile and knows
        us by another number now. The others are those of `publish`.
        """
        correlation = next(self._numbers).to_bytes(8, "big")
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        key = "", correlation
        try:
            async with asyncio.timeout(timeout):
                key = await self._reply_topic(), correlation
                self._calls[key] = reply
                await self.publish(
                    topic, payload, qos, json=json, content_type=content_type, user=user,
                    response_topic=key[0], correlation=correlation, expiry=expiry, text=text,
                )  # fmt: skip
                return answer_in(await reply)
        except TimeoutError:
            raise CallTimeout(f"no reply from {topic} within {timeout:g} s") from None
        finally:
            self._calls.pop(key, None)

    async def _reply_topic(self) -> str:
        """Where replies to us go; we are subscribed to it."""
        while True:
            connection = await self._connected()
            if connection.level < 5:
                raise SettingError(f"a call needs MQTT 5; {self._name} speaks {self.version}")
            topic = wanted = f"reply/{self.client_id}"
            information = connection.limits.response_information
            if information.startswith(OWN):
                topic, wanted = information, f"{OWN}self"
            elif information:  # 3.2.2.3.15: the beginning of one that we may use
                topic = wanted = f"{information.rstrip('/')}/{self.client_id}"
            if wanted == self._reply_filter:
                return topic
            await self.subscribe(wanted, 0, _late)  # perhaps by another connection, so look again
            self._reply_filter = wanted

    def _give_up_calls(self, address: str) -> None:
        """A hub has let us in under this address: what is answered to an older one reaches nobody.
        """
        for (topic, _), reply in self._calls.items():
            if topic.startswith(OWN) and topic != address and not reply.done():
                text = "the connection was lost, and the address for the answer with it; ask again"
                reply.set_exception(ConnectionError(f"{self._name}: {text}"))
                reply.exception()  # who calls may still wait for something else, and give up there

    async def serve(self, topic_filter: str, handler: Handler, qos: int = 1) -> None:
        """Answer requests with what `handler(message)`, plain or async, returns. MQTT 5 only.

        Runs until it is cancelled or the client closed. A handler that fails is logged, and is the
        answer: the caller's call raises CallFailed, with the name of the error's class, or with
        the text of a CallFailed that the handler raised.
        """
        places = asyncio.Semaphore(CONCURRENT)
        async with asyncio.TaskGroup() as tasks:

            async def take(message: Message) -> None:
                await places.acquire()
                task = tasks.create_task(self._answer(handler, message))
                task.add_done_callback(lambda _: places.release())

            await self.subscribe(topic_filter, qos, take)
            try:
                await self._ended()
            finally:
                if not self._over:
                    self._subscriptions.remove(topic_filter, self._session, self._connection)

    async def _ended(self) -> None:
        while not self._over:
            self._change.clear()
            await self._change.wait()
        if self._error is not None:
            raise self._error

    async def _answer(self, handler: Handler, request: Message) -> None:
        user: User = ()
        try:
            reply = await reply_of(handler(request))
        except Exception as error:
            log.exception("a request to %s failed", request.topic)
            reply, user = failure(error), (FAILED,)
        try:
            if request.response_topic:
                await self.publish(
                    request.response_topic, reply, request.qos,
                    correlation=request.correlation, user=user,
                )  # fmt: skip
        except Exception:
            log.exception("a request to %s was not answered", request.topic)


def _late(message: Message) -> None:
    log.info("a reply on %s came too late", message.topic)


def _pairs(user: Pairs) -> tuple[tuple[str, str], ...]:
    return tuple(user.items()) if isinstance(user, Mapping) else tuple(user)
