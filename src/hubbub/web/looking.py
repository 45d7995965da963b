"""What people look at one by one: topics with their rates, what is retained, a queue, a live topic.

    GET /api/v1/traffic?under=PREFIX      one level of the tree of topics, with estimated rates
    GET /api/v1/retained?topic=NAME       what is retained there
    GET /api/v1/tail?topic=NAME           what is published there from now on, as events (SSE)
    GET /api/v1/queue?name=NAME           the oldest messages of a queue, which stay in it
    DELETE /api/v1/queue/messages?name=NAME   empties it

Names and rates are for who may see the status. A payload is shown only to who may read its topic,
which is asked here, name by name. A tail is a client like any other, with one subscription.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator
from itertools import islice
from random import uniform
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, owner
from hubbub.core.limits import (
    LEVEL_BYTES,
    PEEKED_BYTES,
    SAMPLED_NAME,
    SHARE,
    TAIL_BYTES,
    TAILED,
    TAILED_BYTES,
    TAILS,
)
from hubbub.core.message import SPELLED, Encoding, Message, Run
from hubbub.core.queue import Queue
from hubbub.core.rights import CONSUME, DESTROY, RECEIVE, SUBSCRIBE
from hubbub.core.sampled import Seen, shortened
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import QUEUE, has_wildcard, is_name
from hubbub.schema import name_shown
from hubbub.web.guarded import (
    ADMISSION,
    TAIL,
    outdated,
    refused,
    session_of,
)
from hubbub.web.guarded import (
    QUEUE as QUEUE_PATH,
)
from hubbub.web.listing import LOOKED
from hubbub.web.numbers import number_in
from hubbub.web.publish import PROTOCOL, Inside
from hubbub.web.query import asked, sayable
from hubbub.web.together import Together

LEVEL: Final = 1_000  # entries of one level of the tree, the busiest of them, if nobody says
RETAINED_LOOKED: Final = 20_000  # names of one answer: the rest is found by going deeper
PEEKED: Final = 100  # messages of a queue at most
PURGED: Final = 500  # of one turn of the loop
ORDER_SECONDS: Final = 0.05  # from one look whether names are in order to the next, after a start
TAIL_SECONDS: Final = 0.1  # from one event to the next: what comes in between is one event
BEAT_SECONDS: Final = 1.0  # without a message a comment is sent, so that both ends know


class Branch:
    """What is below one name of a level: topics, messages, and the rate of all of them."""

    __slots__ = ("topics", "messages", "rate", "time", "retained", "own")

    def __init__(self) -> None:
        self.topics = 0
        self.messages = 0.0
        self.rate = 0.0
        self.time = 0
        self.retained = 0
        self.own = False  # there is a topic of exactly this name

    def add(self, seen: Seen) -> None:
        self.topics += 1
        self.messages += seen.messages
        self.rate += seen.rate
        self.time = max(self.time, seen.time)


class Looking:
    """These requests of one hub."""

    def __init__(self, hub: Inside, together: Together) -> None:
        self._hub = hub
        self._together = together
        together.deeds |= {"look": self._looked, "purge": self._purged}
        self._tails: set[Tail] = set()
        self._peeks = asyncio.Lock()  # a message may take a turn of the loop: one after the other

    @property
    def _broker(self) -> Broker:
        """The hub's, who gets another one when it starts."""
        return self._hub.broker

    def routes(self) -> list[Route]:
        return [
            Route("/api/v1/traffic", self.traffic),
            Route(TAIL, self.tail),
            Route(QUEUE_PATH + "/messages", self.purge, methods=["DELETE"]),
        ]

    def end(self) -> None:
        """The hub is stopping: nobody watches any more."""
        for tail in list(self._tails):
            tail.goodbye()

    async def traffic(self, request: Request) -> Response:
        given = asked(request)
        try:
            limit = number_in(given, "limit", 10_000) if "limit" in given else LEVEL
        except ValueError as error:
            return refused(400, str(error))
        under, search = given.get("under", ""), given.get("search", "").casefold()
        found = await self._level(under, search)
        busiest = _bounded(sorted(found.items(), key=_rank)[:limit])
        rows = [
            sayable({"name": name, "topics": one.topics, "messages": round(one.messages),
             "rate": round(one.rate, 3), "time": one.time, "retained": one.retained,
             "own": one.own})
            for name, one in busiest
        ]  # fmt: skip
        sampled = self._broker.sampled
        return JSONResponse({
            "under": name_shown(under), "levels": rows, "count": len(found),
            "part": round(sampled.part, 4), "topics": len(sampled.topics),
        })  # fmt: skip

    async def _level(self, under: str, search: str) -> dict[str, Branch]:
        """By the next part of their names: the topics below that prefix ("" or "a/b/").

        With a search by the whole rest of their names, if that is in it.
        """
        found: dict[str, Branch] = {}
        sampled = self._broker.sampled.topics
        for number, (name, seen) in enumerate(list(sampled.items()), 1):
            if name.startswith(under) and search in name[len(under) :].casefold():
                _branch(found, name, len(under), search != "").add(seen)
            if not number % LOOKED:
                await asyncio.sleep(0)
        while not self._broker.retained.in_order:
            await asyncio.sleep(ORDER_SECONDS)
        names = islice(self._broker.retained.below(under), RETAINED_LOOKED)
        looked = 0
        for name in names:
            if search in name[len(under) :].casefold():
                branch = _branch(found, name, len(under), search != "")
                branch.retained += 1
                branch.topics += shortened(name) not in sampled
            looked += 1 + len(name) // SAMPLED_NAME
            if looked > LOOKED:
                looked = 0
                await asyncio.sleep(0)
        return found

    async def retained(self, request: Request) -> Response:
        name, broker = asked(request).get("topic", ""), self._broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, RECEIVE, name):
            return refused(403, broker.refuse(asks, RECEIVE, name))
        kept = broker.state.retained.get(name)
        if kept is not None and kept.size > PEEKED_BYTES:  # reading it would stop all others
            said = {"topic": name_shown(name), "size": kept.size, "expires": kept.expires}
            return JSONResponse(said)
        async with self._peeks:
            message = broker.retained.look(name)
            await asyncio.sleep(0)
        if message is None:
            return refused(404, f"nothing is retained at {name[:100]!r}")
        return JSONResponse(spoken(message))

    # Queues

    async def queue(self, request: Request) -> Response:
        given, broker = asked(request), self._broker
        try:
            limit = number_in(given, "limit", PEEKED) if "limit" in given else 20
        except ValueError as error:
            return refused(400, str(error))
        name, asks = given.get("name", ""), session_of(request.scope[ADMISSION])
        if not broker.may(asks, CONSUME, QUEUE + name):
            return refused(403, broker.refuse(asks, CONSUME, QUEUE + name))
        done = await self._together.do("look", {"name": name, "limit": str(limit)}, asks)
        return done.answer(f"there is no queue {name[:100]!r}")

    async def _looked(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        name, limit = given["name"], int(given["limit"])
        queue = self._broker.state.queues.get(name)
        if queue is None:
            return None
        messages = await self._oldest(queue, limit)
        serving = [one.session.client for one in queue.consumers][:PEEKED]
        return sayable({
            "name": name, "count": len(queue.messages), "bytes": queue.bytes,
            "next": queue.next, "leased": len(queue.leased), "takers": queue.takers(),
            "serving": [name_shown(client) for client in serving],
            "bindings": [name_shown(one) for one in islice(queue.bindings, PEEKED)],
            "settings": queue.settings._asdict(), "messages": messages,
        })  # fmt: skip

    async def _oldest(self, queue: Queue, limit: int) -> list[dict[str, Any]]:
        """Nobody is shown more than TAILED_BYTES of one, but each is read whole: those that are
        no more than PEEKED_BYTES together, one a turn of the loop, whoever else asks.
        """
        shown, left = [], PEEKED_BYTES
        async with self._peeks:
            for seq, number, size in list(islice(queue.above(-1), limit)):
                message = None
                if size <= left:
                    left -= size
                    message = self._broker.log.look(seq)
                    await asyncio.sleep(0)
                said = spoken(message) if message is not None else {"size": size}
                shown.append({"number": number, "leased": number in queue.leased, **said})
        return shown

    async def purge(self, request: Request) -> Response:
        """What waits now is done with; what comes meanwhile stays. What somebody else takes or
        purges meanwhile is counted there.
        """
        name, broker = asked(request).get("name", ""), self._broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, DESTROY, QUEUE + name):
            return refused(403, broker.refuse(asks, DESTROY, QUEUE + name))
        done = await self._together.do("purge", {"name": name}, asks)
        return done.answer(f"there is no queue {name[:100]!r}")

    async def _purged(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        name, broker = given["name"], self._broker
        queue = broker.state.queues.get(name)
        if queue is None:
            return None
        purged = 0
        for at, number in enumerate(list(queue.messages), 1):
            purged += broker.queues.acknowledge(queue, number, asks)
            if not at % PURGED:
                self._hub.schedule()
                await asyncio.sleep(0)
        await self._together.managed(asks, "purge", QUEUE + name)
        return {"purged": purged}

    # One topic, live

    async def tail(self, request: Request) -> Response:
        name, broker = asked(request).get("topic", ""), self._broker
        admission: Admission = request.scope[ADMISSION]
        if not is_name(name) or has_wildcard(name) or name.startswith(QUEUE):
            return refused(400, f"{name[:100]!r} is no topic that can be watched: one, by its name")
        asks = session_of(admission)
        if not broker.may(asks, SUBSCRIBE, name):
            return refused(403, broker.refuse(asks, SUBSCRIBE, name))
        whose = asks.payer or owner("", request.client.host if request.client else "")
        if len(self._tails) >= TAILS:
            return refused(503, f"{TAILS} topics are watched already")
        own = sum(one.whose == whose for one in self._tails)
        if own >= TAILS // SHARE:
            return refused(429, f"{own} topics are watched by one user already")
        tail = Tail(admission, whose)
        self._tails.add(tail)
        broker.connect(tail, admission)
        broker.subscribe(Subscription(tail, name, 0, (SPELLED,) * 3, literal=True))
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = self._events(tail, admission, request)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _events(
        self, tail: Tail, admission: Admission, request: Request
    ) -> AsyncIterator[bytes]:
        """Until the browser goes, or its rights do."""
        reason = ""
        try:
            yield b": here\n\n"
            while not (tail.ended or await request.is_disconnected()):
                if not await tail.wait(BEAT_SECONDS):
                    yield b": still here\n\n"
                if outdated(admission) is not None:
                    yield b"event: over\ndata: {}\n\n"
                    break
                if tail.messages:
                    yield b"data: " + tail.taken() + b"\n\n"
                    # Each at its own time: all that were woken by one message are not one turn.
                    await asyncio.sleep(TAIL_SECONDS * uniform(0.75, 1.25))
        except ClientDisconnect:
            reason = "the page was closed"
        finally:
            self._tails.discard(tail)
            self._broker.disconnect(tail, reason)
            self._hub.schedule()


class _Shown(Encoding):
    """As a page shows them: a line of JSON for each, made once for all who watch. Those behind the
    first TAILED of a run are shown to nobody.
    """

    def encode(self, run: Run) -> bytes:
        return b"\n".join(_json(spoken(one)) for one in run.messages()[:TAILED])

    def decode(self, run: Run) -> list[Message]:
        raise AssertionError("nobody publishes so")


SHOWN: Final = _Shown()


class Tail(Session):
    """Who watches one topic. What is more than a page can show is counted, and not kept.

    `whose`: to whom it is put down. `messages`: a line of JSON each.
    """

    def __init__(self, admission: Admission, whose: str) -> None:
        super().__init__(PROTOCOL, f"page-{secrets.token_hex(6)}", admission.rights)
        self.whose = whose
        self.messages: deque[bytes] = deque()
        self.left_out = 0
        self._bytes = 0
        self.ended = False
        self._news = asyncio.Event()

    def deliver(self, run: Run, subscription: Subscription) -> None:
        before = len(self.messages)
        if before >= TAILED or self._bytes >= TAIL_BYTES:  # it was told so, and comes soon
            self.left_out += run.count
            return
        for line in run.seen_as(SHOWN).split(b"\n")[: TAILED - before]:
            if self._bytes < TAIL_BYTES:
                self.messages.append(line)
                self._bytes += len(line)
        self.left_out += run.count - (len(self.messages) - before)
        self._news.set()

    def goodbye(self, text: str = "") -> None:
        self.ended = True
        self._news.set()

    async def wait(self, seconds: float) -> bool:
        """False if nothing came within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def taken(self) -> bytes:
        """What came, as JSON in one line."""
        self._news.clear()
        messages, self.messages = self.messages, deque()
        out, self.left_out, self._bytes = self.left_out, 0, 0
        return b'{"messages":[%b],"left_out":%d}' % (b",".join(messages), out)


def spoken(message: Message) -> dict[str, Any]:
    """A message as JSON: its payload as text if it is UTF-8, else in base64; long ones are cut."""
    payload = message.payload
    shown, said = payload[:TAILED_BYTES], {}
    try:
        said["text"] = shown.decode()
    except UnicodeDecodeError as error:
        cut = len(payload) > len(shown) and error.start > len(shown) - 4
        if cut:
            said["text"] = shown[: error.start].decode()
        else:
            said["base64"] = base64.b64encode(shown).decode()
    names = {
        "topic": message.topic, "subtopic": message.subtopic, "client": message.client,
        "protocol": message.protocol, "content_type": message.content_type,
        "reply_to": message.reply_to,
    }  # fmt: skip
    return {
        **{key: name_shown(one) for key, one in names.items()}, **said, "size": len(payload),
        "qos": message.qos, "retain": message.retain, "time": message.time,
        "expires": message.expires,
    }  # fmt: skip


def _json(said: dict[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _branch(found: dict[str, Branch], name: str, start: int, whole: bool) -> Branch:
    """What that topic counts for on the level that begins there, or by its `whole` name."""
    end = -1 if whole else name.find("/", start)
    part = shortened(name[start:] if end < 0 else name[start:end])
    branch = found.get(part)
    if branch is None:
        branch = found[part] = Branch()
    branch.own = branch.own or end < 0
    return branch


def _bounded(busiest: list[tuple[str, Branch]]) -> list[tuple[str, Branch]]:
    """The first of them, whose names are not too much for one answer."""
    room = LEVEL_BYTES
    for number, (name, _) in enumerate(busiest):
        room -= len(name)
        if room < 0:
            return busiest[:number]
    return busiest


def _rank(item: tuple[str, Branch]) -> tuple[float, str]:
    """The busiest first."""
    return -item[1].rate, item[0]
