"""What a program does with a switch: calls, services, and looking at queues.

    requests ──── everything that is answered at once
    replies ───── a transfer that always waits at this client's reply queue
    a service ─── one more for each `serve`

All log in under one token. After a lost connection they connect, log in and go on; what is not
acknowledged is then taken again, so a request may arrive twice, as ever with message-switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from hubbub.client.switch.channel import Address, Channel, Unavailable
from hubbub.client.switch.service import Handler, Reply, Service
from hubbub.client.usage import NOTHING, Entered, Payload, failed, payload_of
from hubbub.errors import CallTimeout, Refused, SettingError
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.codec import Delivery, Wanted

T = TypeVar("T")
Names = list[str]
Settings = dict[str, object]
Event = dict[str, object]
Events = list[tuple[int, Event]]
Id = tuple[str, int]

log = logging.getLogger("hubbub.client.switch")

POLL_SECONDS: Final = 30.0  # as the original clients
RETRY_SECONDS: Final = 0.5
WITHDRAW_SECONDS: Final = 2.0  # whoever gave up waiting does not wait for that
GRACE_SECONDS: Final = 30.0  # how long the reply queue waits for a client that lost its hub


class Transferred(NamedTuple):
    """What a transfer brought, oldest first. `next` is the cursor to go on from."""

    messages: list[Delivery]
    next: str


class SwitchClient(Entered):
    """One client of a hub; `token` is its name there and that of its reply queue.

    What cannot be done raises OSError (nobody answers) or Refused (the hub says no).
    """

    def __init__(self, address: Address, token: str) -> None:
        self.token = token
        self._address = address
        self._login = f"{codec.target('login', token)}?grace={GRACE_SECONDS:g}"
        self._requests = Channel(address, self._login)
        self._idle: list[Channel] = []
        # Calls: who waits for which reply, and replies that came before their request's id.
        self._replies: asyncio.Task[None] | None = None
        self._waiting: dict[Id, asyncio.Future[Delivery]] = {}
        self._sending = 0
        self._early: dict[Id, Delivery] = {}
        # Whether the hub does not answer, and the program was told.
        self._away = False

    async def open(self) -> None:
        """Connect and log in. OSError if nobody answers, Refused if the hub says no."""
        await self._requests.open()

    async def close(self) -> None:
        """Leave; the reply queue goes too. Calls that still wait raise Refused."""
        if self._replies is not None:
            self._replies.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, Refused):
                await self._replies
            self._replies = None
            with contextlib.suppress(OSError, Refused):
                await self.destroy(self.token)
        for channel in (self._requests, *self._idle):
            channel.close()

    # Asking

    async def _ask(self, method: str, target: str, body: bytes = b"") -> bytes:
        """Ask, and once more if the connection broke: it may have been idle for too long."""
        try:
            return await self._requests.ask(method, target, body)
        except ConnectionError:
            return await self._requests.ask(method, target, body)

    async def _get(self, operation: str, *arguments: str) -> bytes:
        return await self._ask("GET", codec.target(operation, *arguments))

    @contextlib.asynccontextmanager
    async def _apart(self) -> AsyncIterator[Channel]:
        """A channel for one request that may wait long."""
        channel = self._idle.pop() if self._idle else Channel(self._address, self._login)
        try:
            yield channel
        except BaseException:
            channel.close()  # the hub must not go on waiting for us
            raise
        self._idle.append(channel)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until somebody answers: the hub may be restarting."""
        while True:
            try:
                answer = await ask()
            except OSError as error:
                await self._missed(error)
            else:
                self._found()
                return answer

    async def _missed(self, error: OSError | Unavailable) -> None:
        if not self._away:
            self._away = True
            lost = not isinstance(error, Unavailable)
            text = "lost the hub at %s (%s)" if lost else "the hub at %s cannot now (%s)"
            log.warning(f"{text}; trying again", self._address.shown, error)
        await asyncio.sleep(RETRY_SECONDS)

    def _found(self) -> None:
        if self._away:
            self._away = False
            log.warning("the hub at %s is there again", self._address.shown)

    # Calls

    async def call(
        self, queue: str, body: Payload = b"", timeout: float | None = None,
        *, json: object = NOTHING, keep: bool = True,
    ) -> bytes:  # fmt: skip
        """Send a request and return its reply. CallTimeout after `timeout` seconds.

        `body` is bytes or text (TypeError for a number), or `json` is sent as JSON.

        The queue begins if nobody serves it yet. The request stays in it after a time-out; with
        `keep=False` a queue that this call made goes again if nobody has come to it by then. A
        hub that goes away and comes back does not end the call. CallFailed if the service
        failed, or if the request is too large for all who serve it.
        """
        data = payload_of(body, json)
        try:
            async with asyncio.timeout(timeout):
                return await self._call(queue, data, keep)
        except TimeoutError:
            raise CallTimeout(f"nobody answered from {queue} within {timeout:g} s") from None

    async def _call(self, queue: str, body: bytes, keep: bool) -> bytes:
        if self._replies is None:
            await self._begin_receiving()
        self._sending += 1
        try:
            sent, made = await self._insist(lambda: self._send(queue, body, self.token))
            if sent in self._early:
                return _reply_of(self._early.pop(sent))
            reply = self._expect(sent)
        finally:
            self._finish_sending()
        try:
            return await self._reply(reply)
        finally:
            if self._waiting.get(sent) is reply:
                del self._waiting[sent]
            if made and not keep and not reply.done():
                await self._withdraw(sent)

    async def _withdraw(self, sent: Id) -> None:
        """Nobody waits for it; a hub that is away, or that does not know how, keeps it."""
        with contextlib.suppress(OSError, Refused):
            async with asyncio.timeout(WITHDRAW_SECONDS):
                await self._ask("POST", codec.target("withdraw", sent[0], str(sent[1])))

    def _expect(self, sent: Id) -> asyncio.Future[Delivery]:
        before = self._waiting.get(sent)
        if before is not None and not before.done():
            queue, number = sent
            before.set_exception(Refused(f"the hub forgot {queue}:{number}; it keeps no journal"))
        self._waiting[sent] = asyncio.get_running_loop().create_future()
        return self._waiting[sent]

    async def _reply(self, reply: asyncio.Future[Delivery]) -> bytes:
        """The reply, or what became of receiving replies."""
        replies = self._replies
        if replies is not None:
            await asyncio.wait((reply, replies), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done():
            if replies is not None and not replies.cancelled():
                await replies
            raise Refused("this client was closed")
        return _reply_of(reply.result())

    def _finish_sending(self) -> None:
        """What came early for nobody who is still sending was for nobody."""
        self._sending -= 1
        if not self._sending:
            self._early.clear()

    async def _begin_receiving(self) -> None:
        """Make the reply queue, then wait at it as long as this client lives."""
        make = codec.target("transient", self.token)
        self._requests.greeting.append(make)
        channel = Channel(self._address, self._login, make)
        receiving = self._consume(channel, self.token, lambda reply: self._take(channel, reply))
        self._replies = asyncio.create_task(receiving)
        await self._insist(lambda: self._ask("GET", make))

    async def _take(self, channel: Channel, delivery: Delivery) -> None:
        """Give a reply to who waits for it."""
        waiting = self._waiting.get(delivery.answers) if delivery.answers else None
        if waiting is not None and not waiting.done():
            waiting.set_result(delivery)
        elif self._sending and delivery.answers:
            self._early[delivery.answers] = delivery
        else:
            log.info("%s:%d is a reply nobody waits for", delivery.queue, delivery.number)
        await channel.ask("GET", codec.target("ack", delivery.queue, str(delivery.number)))

    # Services

    async def serve(self, queue: str, handler: Handler, concurrent: int = 1) -> None:
        """Answer what comes into the queue, until cancelled.

        The reply is sent, then the request acknowledged. If the handler fails that is logged,
        and is the answer: the caller's call raises CallFailed, with the name of the error's class,
        or with the text of a CallFailed that the handler raised. What asks for no reply stays in
        the queue then, to be seen in the diagnostics and tried again by the next one who serves.
        At most `concurrent` requests are worked on at a time.
        """
        if concurrent < 1:
            raise SettingError(f"expected concurrent to be 1 or more, got {concurrent}")
        channel = Channel(self._address, self._login, codec.target("persistent", queue))
        service = Service(channel, handler, concurrent, self._respond)
        try:
            await self._consume(channel, queue, service.take)
        finally:
            service.cancel()

    async def respond(
        self, request: Delivery, reply: Payload = b"", *, json: object = NOTHING,
        error: bool = False,
    ) -> None:  # fmt: skip
        """Answer a request that a transfer brought, then acknowledge it.

        `error`: the reply says why there is none; the call raises CallFailed with it. After an
        OSError take the request again before you answer: the hub may be another one.
        """
        await self._respond(request, Reply(payload_of(reply, json), error))

    async def _respond(self, request: Delivery, reply: Reply) -> None:
        queue, number = request.queue, str(request.number)
        if request.reply_to:
            target = codec.target("response", request.reply_to, queue, number)
            # A switch that does not know `error` takes it for a reply, as the original says it.
            await self._requests.ask("POST", target + "?error=1" * reply.error, reply.payload)
        await self._requests.ask("GET", codec.target("ack", queue, number))

    async def _consume(
        self, channel: Channel, queue: str, take: Callable[[Delivery], Awaitable[None]]
    ) -> None:
        """Take the messages of a queue, oldest first, through lost connections, also of the queue's
        node to the hub.

        After one everything unacknowledged is taken again: the hub may have been another one.
        """
        cursor = codec.FIRST
        try:
            while True:
                try:
                    messages, cursor = await _transfer(channel, (queue,), cursor, POLL_SECONDS)
                    for delivery in messages:
                        await take(delivery)
                except (OSError, Unavailable) as error:
                    cursor = codec.FIRST
                    await self._missed(error)
                else:
                    self._found()
        finally:
            channel.close()

    # Messages

    async def send(
        self, queue: str, body: Payload = b"", reply_to: str = "", *, json: object = NOTHING
    ) -> Id:
        """Put a message into a queue, which begins if it does not exist; return its id.

        With `reply_to`, the name of a queue, it is a request: the response comes there. It is
        safe when this returns.
        """
        return (await self._send(queue, payload_of(body, json), reply_to))[0]

    async def _send(self, queue: str, data: bytes, reply_to: str) -> tuple[Id, bool]:
        """The id, and whether the queue was made for it."""
        target = codec.target("request", queue, reply_to)
        sent = codec.sent_id(await self._ask("POST", target, data))
        if sent is not None:
            return sent, False
        await self.create(queue)
        sent = codec.sent_id(await self._ask("POST", target, data))
        if sent is None:
            raise Refused(f"the queue {queue} was destroyed before the message reached it")
        return sent, True

    async def transfer(
        self, queues: str | Sequence[str], after: str = codec.FIRST, timeout: float = POLL_SECONDS
    ) -> Transferred:
        """The messages of one or several queues above a cursor; wait for one if there is none.

        Nothing is taken out of the queues: `ack` or `respond` does that. After `timeout` seconds
        the answer is empty. The cursor is the `next` of the last transfer from the same queues.
        """
        names = (queues,) if isinstance(queues, str) else tuple(queues)
        async with self._apart() as channel:
            return await _transfer(channel, names, after, timeout)

    async def ack(self, queue: str, number: int) -> bool:
        """A message is done with; the queue forgets it. False if it was not there."""
        return await self._was_there("ack", queue, str(number))

    # Queues and topics

    async def create(self, queue: str, transient: bool = False) -> None:
        """Make a queue; nothing happens if it exists. A `transient` one goes with this client."""
        await self._get("transient" if transient else "persistent", queue)

    async def configure(
        self, queue: str, *, max_messages: int | None = None, max_bytes: int | None = None,
        expires: float | None = None, lease: float | None = None,
        max_deliveries: int | None = None, dead_letter: str | None = None,
    ) -> Settings:  # fmt: skip
        """Bound a queue, and say what becomes of its messages; it begins if it does not exist.

        `expires` and `lease` are seconds, `dead_letter` the name of a queue; 0 and "" take a
        setting back, what is None stays as it is (docs/reference/queues.md). Returns all of them.
        """
        wanted = {
            "max_messages": max_messages, "max_bytes": max_bytes, "expires": expires,
            "lease": lease, "max_deliveries": max_deliveries, "dead_letter": dead_letter,
        }  # fmt: skip
        given = {name: value for name, value in wanted.items() if value is not None}
        body = json.dumps(given).encode() if given else b""
        answer: Settings = codec.loaded(
            await self._ask("POST", codec.target("create", queue), body)
        )
        return answer

    async def destroy(self, queue: str) -> bool:
        """End a queue with all it holds. False if there was none."""
        return await self._was_there("destroy", queue)

    async def _was_there(self, operation: str, *arguments: str) -> bool:
        """A switch that does not know `tell` answers with nothing, which means nothing."""
        return await self._ask("GET", codec.target(operation, *arguments) + "?tell=1") != b"0"

    async def list(self, prefix: str = "", all: bool = False) -> Names:
        """The names of the queues that somebody reads, or of all."""
        kind = () if all else ("alive",)
        names: Names = codec.loaded(await self._get("list", *kind, prefix))
        return names

    async def publish(
        self, topic: str, payload: Payload = b"", qos: int = 0, retain: bool = False,
        *, json: object = NOTHING,
    ) -> None:  # fmt: skip
        """Publish to a topic of the hub; the message is safe when this returns (`qos` >= 1)."""
        options = f"?qos={qos}&retain={int(retain)}"
        data = payload_of(payload, json)
        await self._ask("POST", codec.target("publish", topic) + options, data)

    async def bind(self, queue: str, topic_filter: str) -> None:
        """Whatever is published to matching topics enters the queue from now on."""
        await self._ask("POST", codec.target("bind", queue), topic_filter.encode())

    async def unbind(self, queue: str, topic_filter: str) -> None:
        """What is published to that filter enters the queue no more."""
        await self._ask("POST", codec.target("unbind", queue), topic_filter.encode())

    # Looking

    async def diagnostics(self) -> dict[str, object]:
        """Every queue and what waits in it, as the hub answers `GET /`; `readers` are those that
        are here, which the original does not know.
        """
        answer: dict[str, object] = codec.loaded(await self._ask("GET", "/?readers=1"))
        return answer

    async def trace(self, after: int = -1, timeout: float = POLL_SECONDS) -> Events:
        """The last events at the queues, each with its number; waits for one above `after`."""
        target = codec.target("trace", str(after + 1), f"{timeout:.16g}")
        async with self._apart() as channel:
            body = await channel.ask("GET", target, wait=timeout)
        return [(number, event) for number, event in codec.loaded(body)["events"]]

    async def events(self) -> AsyncIterator[Event]:
        """The last events at the queues and all that follow, through lost connections."""
        last = -1
        while True:
            try:
                found = await self.trace(last)
            except OSError as error:
                last = -1  # a hub that was restarted counts anew
                await self._missed(error)
                continue
            self._found()
            for number, event in found:
                last = number
                yield event

    async def shutdown(self) -> None:
        """End the hub, if it lets this client."""
        await self._requests.ask("POST", codec.target("shutdown"))


def _reply_of(delivery: Delivery) -> bytes:
    """What was answered; CallFailed if that is why there is no answer."""
    if delivery.error:
        raise failed(delivery.payload)
    return delivery.payload


async def _transfer(
    channel: Channel, queues: tuple[str, ...], after: str, timeout: float
) -> Transferred:
    body = codec.transfer_body(Wanted(after, timeout, queues))
    answer = await channel.ask("POST", codec.target("transfer"), body, max(timeout, 0.0))
    return Transferred(*codec.deliveries_of(answer))
