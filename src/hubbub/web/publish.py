"""`POST /api/v1/publish`: messages as JSON lines, each published once however often they come.

    Hubbub-Batch: QUERY/BATCH/PARTITION     who sends: what was taken of it before is skipped
    Hubbub-First: N                         the first line is message N of the partition

How far a partition was taken is a retained row `$hub/taken/QUERY/PARTITION` in the same frame as
the messages: after a crash both are there or neither. It also keeps a checksum of the lines, so
that a sender whose messages come in another order when it repeats them is told so instead of
being believed. Each user has rows of its own, below $hub/taken/USER/, and cannot touch another's.
Of several processes the one that is sent to asks the others first: a sender that comes back comes
to any of them. One that is still at what it left says so, and it is to come again.

A body is kept as its lines, and each is decoded twice: to see that nothing is wrong with any, and
to publish it. All decoded at once they took twenty times their bytes. All bodies together work for
TURN_SECONDS in a turn of the loop.
The answer leaves when all is durable. docs/reference/http-api.md is the contract.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Final, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hubbub import schema
from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Whose, owner
from hubbub.core.limits import (
    HALF_SECONDS,
    PROPERTIES_BYTES,
    ROUTE_NAME_BYTES,
    USER_PROPERTIES,
)
from hubbub.core.link import Link
from hubbub.core.message import Message
from hubbub.core.quotas import SINKS
from hubbub.core.rights import verb_of
from hubbub.core.session import Session
from hubbub.core.topics import is_name, is_system, is_text
from hubbub.core.turns import Stint
from hubbub.runtime.rates import Rates, Toll
from hubbub.runtime.siblings import Siblings
from hubbub.schema import Row, column_of
from hubbub.web.guarded import ADMISSION, outdated, refused, session_of
from hubbub.web.numbers import number_in

TAKEN: Final = "$hub/taken/"
FAR, FORGET = "far", "forget"  # what processes of one hub ask one another
SLICE: Final = 500  # messages of one turn of the loop and one frame: some milliseconds
SLICE_BYTES: Final = 1 << 20
PROPERTIES_JSON: Final = 6 * PROPERTIES_BYTES  # every character of them may be six, as \u0041
QUORUM_SECONDS: Final = 1.0  # from one look at whether it may come at all to the next
LINES: Final = 10_000  # of a body
PIECE_SECONDS: Final = HALF_SECONDS / 3  # a body is not read, and not ended for being late
REMEMBERED: Final = 30 * 86_400 * 1_000_000  # microseconds after which a silent query is forgotten
PROTOCOL: Final = "http"

_BATCH: Final = re.compile(r"([^/]{1,200})/(\d{1,15})/(\d{1,9})", re.ASCII)
_FIRST: Final = "Hubbub-First"

Text = Annotated[str, Meta(max_length=8_192)]  # in UTF-8 no more than MQTT can carry


class Properties(Struct, frozen=True):
    """What of the properties of a message is a sender's to say."""

    user: list[tuple[Text, Text]] = []


class Topic(Struct, frozen=True):
    """What of a line is asked first; nothing else of it is made then."""

    topic: str

    def complaint(self) -> str:
        if not is_name(self.topic) or is_system(self.topic) or self.topic.startswith("$hub/"):
            return f"{self.topic!r} is no topic to publish to"
        return ""


_NONE: Final = msgspec.Raw(b"null")
_PROPERTIES: Final = msgspec.json.Decoder(Properties | None)


class Line(Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a body."""

    topic: str
    payload: str = ""
    base64: bytes = b""
    qos: int | float = 0  # JSON has one kind of number: 1.0 is 1
    retain: bool = False
    content_type: Text = ""
    reply_to: Text = ""
    correlation: Annotated[bytes, Meta(max_length=65_535)] = b""
    subtopic: Text = ""
    expires: Annotated[float, Meta(ge=0, le=2**32)] = 0.0
    properties: msgspec.Raw = _NONE  # decoded when their size is known to be small

    def user(self) -> list[tuple[str, str]]:
        """Its user properties, decoded anew. msgspec.DecodeError if they are something else."""
        found = _PROPERTIES.decode(self.properties)
        return found.user if found is not None else []

    def image(self) -> bytes:
        """The payload as it is published: a text may have more bytes than characters."""
        return self.base64 or self.payload.encode()

    def size(self) -> int:
        """How many bytes that is. Of a text that is ASCII, as most are, without making them."""
        text = self.payload
        return len(self.base64) or (len(text) if text.isascii() else len(text.encode()))

    def message(self, now: int) -> Message:
        expires = now + int(self.expires * 1_000_000) if self.expires else 0
        user = [list(pair) for pair in self.user()]
        return Message(
            self.topic, self.image(), int(self.qos), self.retain,
            subtopic=self.subtopic, content_type=self.content_type, reply_to=self.reply_to,
            correlation=self.correlation, properties={"user": user} if user else None,
            expires=expires,
        )  # fmt: skip

    def complaint(self, largest: int) -> str:
        """What is wrong with it, "" if nothing is: a client that is sent what MQTT forbids leaves,
        and is sent it again when it returns.
        """
        if self.qos not in (0, 1, 2):
            return f"qos: expected 0, 1 or 2, got {self.qos}"
        if memoryview(self.properties).nbytes > PROPERTIES_JSON:
            return f"properties of more than {PROPERTIES_JSON} bytes"
        user = self.user()
        if len(user) > USER_PROPERTIES:
            return f"{len(user)} user properties, expected no more than {USER_PROPERTIES}"
        if self.reply_to and not is_name(self.reply_to):
            return f"{self.reply_to!r} is no topic to answer to"
        if any(text and not is_text(text) for text in self._texts(user)):
            return "NUL in a text other than the payload"
        if self.size() > largest:
            return f"the payload is larger than limits.message_bytes = {largest}"
        return ""

    def _texts(self, user: list[tuple[str, str]]) -> Iterator[str]:
        yield self.content_type
        yield self.subtopic
        yield from chain.from_iterable(user)


_TOPIC: Final = msgspec.json.Decoder(Topic)
_LINE: Final = msgspec.json.Decoder(Line)


class Taken(NamedTuple):
    """How far a partition of a query was taken: the batch, its messages, a CRC of their lines.

    `whose`: to whom it is put down (`core.gate.owner`); a name that nobody checked is nobody's.
    """

    batch: int
    rows: int = 0
    crc: int = 0
    whose: str = ""


class Room(Protocol):
    """Where it is known what all connections make the hub keep."""

    def weigh(self, holder: Upload) -> None: ...
    def forget(self, holder: Upload) -> None: ...


class Upload:
    """A body that comes in, then its lines. `refusal`: why the rest of it is not waited for;
    `toll`: what it pays, if there are rates.
    """

    def __init__(self, whose: str) -> None:
        self.data = bytearray()
        self.lines: list[memoryview] = []
        self.kept = 0  # bytes of the lines
        self.refusal = ""
        self.toll: Toll | None = None
        self._whose = Whose.known(whose)

    def whose(self) -> Whose:
        return self._whose

    def weight(self, shared: set[int] | None = None) -> int:
        return len(self.data) + self.kept

    def crowd_out(self, reason: str) -> None:
        self.refusal = reason
        self.data, self.kept = bytearray(), 0
        self.lines.clear()

    async def pay(self, size: int) -> None:
        """Pay for what came, and wait until it may go on, but not for long (`runtime.rates`)."""
        if self.toll is not None and size:
            self.toll.spend(0, size)
            await self.toll.wait(PIECE_SECONDS)

    async def wait(self, messages: int) -> int:
        """Wait until some of so many may be published; how many, which are paid for then."""
        if self.toll is not None:
            messages = self.toll.at_once(messages)
            await self.toll.wait(messages=messages)
        return messages

    def spend(self, messages: int) -> None:
        """So many more were published than was thought; fewer are negative."""
        if self.toll is not None and messages:
            self.toll.spend(messages, 0)

    def split(self) -> None:
        """Into its lines, which lie where they came: to copy a large one takes as long as to read
        it. ValueError if they are too many.
        """
        data, self.data = self.data, bytearray()
        whole, at, count = memoryview(data), 0, 0
        while at < len(data):
            end = data.find(b"\n", at)
            end = end if end >= 0 else len(data)
            blank = at == end or (data[at : at + 1].isspace() and data[at:end].isspace())
            if not blank:
                self.lines.append(whole[at:end])
            at, count = end + 1, count + 1
            if count > LINES:
                raise ValueError(f"more than {LINES} lines in one request: send it in parts")
        self.kept = len(data)

    def half_since(self, now: float) -> float | None:
        """Its listener knows (`runtime.guests`)."""
        return None


class Inside(Protocol):
    """What publishing needs of the hub's node."""

    broker: Broker
    settings: Settings

    @property
    def waiting(self) -> Room: ...
    @property
    def rates(self) -> Rates: ...

    @property
    def siblings(self) -> Siblings | None: ...

    def schedule(self) -> None: ...


class Registry:
    """What was taken of every partition of every query; rows of the journal say it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, Taken] = {}
        self._again: dict[str, Taken] = {}  # of a partition that is sent again: what came of it
        self._clean()

    def of(self, name: str) -> Taken:
        """How far that partition is; nothing was taken of one that is not known."""
        found = self._known.get(name)
        if found is None:
            message = self._read(name)
            found = Taken(**json.loads(message.payload)) if message is not None else Taken(-1)
        return found

    def lacks(self, name: str, sender: Session) -> str:
        """Why one more is not remembered, "" if it is: of all, one user has a part at most."""
        if name in self._known:
            return ""
        return self._broker.quotas.lacks(SINKS, sender, len(self._known))

    def note(self, name: str, taken: Taken) -> None:
        """Write it down, in the frame of the rows made just before."""
        self._again.pop(name, None)
        self._know(name, taken)
        self._keep(name, json.dumps(taken._asdict()).encode())

    def adopt(self, name: str, taken: Taken) -> None:
        """Know what another process took; with the next lines it is a row here, too."""
        if (taken.batch, taken.rows) > self.of(name)[:2]:
            self._again.pop(name, None)
            self._know(name, taken)

    def differs(self, body: Body, known: Taken) -> bool:
        """Whether messages that are sent again are others than before.

        One CRC is known, of all that was taken. They come in several requests: what came so far
        is remembered, and the last of them tells, before anything new is taken. Of a sender that
        begins in their midst nothing can be said.
        """
        lines = body.raw[: known.rows - body.first]
        came = Taken(body.batch) if not body.first else self._again.pop(body.name, Taken(-1))
        if (came.batch, came.rows) != (body.batch, body.first):
            return False
        came = Taken(body.batch, body.first + len(lines), _crc(lines, came.crc))
        if came.rows < known.rows:
            self._again[body.name] = came
            return False
        return came.crc != known.crc

    def forget(self, place: str) -> int:
        """Let go of a query that is over; return how many of its partitions were known."""
        found = chain(self._broker.state.retained, self._known)
        names = {one for one in found if one.startswith(place) and "/" not in one[len(place) :]}
        for name in names:
            known = self._known.pop(name, None)
            self._again.pop(name, None)
            if known is not None:
                self._broker.quotas.give(SINKS, known.whose)
            self._keep(name, b"")
        return len(names)

    def _know(self, name: str, taken: Taken) -> None:
        if name not in self._known:
            self._broker.quotas.put_down(SINKS, taken.whose, 1)
        self._known[name] = taken

    def _read(self, name: str) -> Message | None:
        seq = self._broker.state.retained_seq(name)
        return self._broker.log.read(seq) if seq else None

    def _keep(self, name: str, payload: bytes) -> None:
        broker = self._broker
        expires = broker.clock.stamp() + REMEMBERED
        row = Row(
            0, 0, schema.PUBLISH, topic=column_of(name), retain=True, payload=payload,
            expires=expires,
        )  # fmt: skip
        broker.change(row)
        broker.retained.note(name)

    def _clean(self) -> None:
        """Forget queries nobody has heard of for long, and know the others."""
        now = self._broker.clock.stamp()
        for name in [one for one in self._broker.state.retained if one.startswith(TAKEN)]:
            message = self._read(name)
            if message is None or message.expires < now:
                self._keep(name, b"")
            else:
                self._know(name, Taken(**json.loads(message.payload)))


class Body(NamedTuple):
    """A body read: its lines, and what the headers say of them."""

    raw: list[memoryview]
    name: str  # where it is remembered, "" if it is not
    query: str
    batch: int
    first: int
    whose: str


class PublishApi:
    """Publishes for those who speak only HTTP."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._registry = Registry(inside.broker)
        self._at_work: list[str] = []  # the partitions of bodies that are being published
        self._turn = asyncio.Lock()  # whose body is worked on in this turn of the loop

    async def publish(self, request: Request) -> Response:
        """POST: publish the body."""
        largest = self._inside.settings.limits.message_bytes
        client = request.client
        address = client.host if client is not None else ""
        upload = Upload(request.scope[ADMISSION].owner or owner("", address))
        rates = self._inside.rates
        if rates.on:
            upload.toll = rates.toll(upload.whose().name, PROTOCOL, lambda: None)
        try:
            refusal = await self._receive(request, upload, 2 * largest)
            if refusal is not None:
                return refusal
            return await self._publish_body(request, upload, largest)
        finally:
            self._inside.waiting.forget(upload)
            if upload.toll is not None:
                rates.leave(upload.toll)

    async def _receive(self, request: Request, upload: Upload, most: int) -> Response | None:
        async for piece in request.stream():
            upload.data += piece
            await upload.pay(len(piece))
            if len(upload.data) > most:
                return refused(413, f"a body of more than {most} bytes; send it in parts")
            self._inside.waiting.weigh(upload)
            if upload.refusal:
                return refused(503, upload.refusal)
            late = outdated(request.scope[ADMISSION])
            if late is not None:
                return late
        return None

    async def _publish_body(self, request: Request, upload: Upload, largest: int) -> Response:
        admission: Admission = request.scope[ADMISSION]
        try:
            upload.split()
            body = _body(request, upload.lines, upload.whose().name)
            sender = session_of(admission, body.query)
            refusal = await self._check(upload, sender, largest)
        except ValueError as error:
            return refused(400, str(error))
        refusal = refusal or outdated(admission)
        if refusal is not None:
            return refusal
        self._at_work.append(body.name)  # before others are asked: of two at once neither is taken
        try:
            return await self._take(upload, body, sender, admission)
        finally:
            self._at_work.remove(body.name)

    async def _check(self, upload: Upload, sender: Session, largest: int) -> Response | None:
        """The answer if something is wrong with a line; then nothing of the body is taken."""
        broker, at, allowed = self._inside.broker, 0, set[str]()

        def may(topic: str) -> bool:
            found = topic in allowed or broker.may_publish(sender, topic)
            if found and len(topic) <= ROUTE_NAME_BYTES:
                allowed.add(topic)
            return found

        while at < len(upload.lines):
            async with self._turn:
                stint = Stint(broker.clock)
                while at < len(upload.lines):
                    complaint, topic = _complaint(upload.lines[at], largest, may)
                    if complaint:
                        return refused(400, f"line {at + 1}: {complaint}")
                    if topic:
                        return refused(403, broker.refuse(sender, verb_of(topic), topic))
                    at += 1
                    if stint.over():  # asked behind a line: the turn may be a long one of others
                        break
                await asyncio.sleep(0)
        return refused(503, upload.refusal) if upload.refusal else None

    async def forget(self, request: Request) -> Response:
        """DELETE: a query is over."""
        query = request.path_params["query"]
        asks = session_of(request.scope[ADMISSION])
        place, siblings = _place(asks.user, query), self._inside.siblings
        count, silent = self._registry.forget(place), list[int]()
        if siblings is not None:
            said = await siblings.say(dict.fromkeys(siblings.others, place.encode()), FORGET)
            count += sum(int(one) for one in said.values() if one)
            silent = [number for number in siblings.others if not said.get(number)]
        if count:  # or who may do nothing would fill the journal with it
            self._inside.broker.audit.managed(asks, "forget query", query)
        await self.safe()
        if silent:  # it would skip what a new query of that name sends
            return refused(503, f"process {silent[0]} does not answer: ask the same again later")
        return JSONResponse({"forgotten": count})

    async def far(self, name: bytes) -> bytes:
        """How far that partition was taken here: another process asks. b"" = ask again."""
        place = name.decode()
        if place in self._at_work:  # who sent that may have left it, and come again there
            return b""
        return await self._once_safe(json.dumps(self._registry.of(place)).encode())

    async def forget_here(self, place: bytes) -> bytes:
        """Another process has let go of a query. b"" = ask again."""
        return await self._once_safe(b"%d" % self._registry.forget(place.decode()))

    async def _once_safe(self, answer: bytes) -> bytes:
        try:
            await self.safe()
        except HTTPException:
            return b""
        return answer

    async def _ask_others(self, body: Body) -> Response | None:
        """How far the partition was taken there. Without all answers nobody can tell."""
        siblings = self._inside.siblings
        if siblings is None or not body.name:
            return None
        said = await siblings.say(dict.fromkeys(siblings.others, body.name.encode()), FAR)
        for number in siblings.others:
            if not said.get(number):
                why = f"process {number} does not say how far this is, or is at it just now"
                return refused(503, f"{why}: send the same again later")
            self._registry.adopt(body.name, Taken(*json.loads(said[number])))
        return None

    async def _take(
        self, upload: Upload, body: Body, sender: Session, admission: Admission
    ) -> Response:
        """Slice by slice, a turn of the loop for each; what was taken before is skipped."""
        taken = skipped = at = 0
        whole = len(body.raw)  # who is ended for all that it keeps has none then
        refusal = await self._ask_others(body)
        if refusal is None and body.name:
            refusal = self._unfit(body, sender)
        while at < len(body.raw) and refusal is None:
            paid = await upload.wait(min(SLICE, len(body.raw) - at))
            async with self._turn:
                known = self._registry.of(body.name) if body.name else Taken(-1)
                ahead = _ahead(body, known) - at
                if ahead > 0:
                    at, skipped = at + ahead, skipped + ahead
                    upload.spend(-paid)
                    continue
                count, refusal = self._publish(body, at, at + paid, known, sender)
                at, taken = at + count, taken + count
                await asyncio.sleep(0)
            upload.spend(count - paid)
            refusal = refusal or (outdated(admission) if at < len(body.raw) else None)
        if upload.refusal and at < whole:
            refusal = refused(503, f"{upload.refusal}; send the same again later")
        await self.safe()
        said = {"taken": taken, "skipped": skipped}
        return refusal or JSONResponse(said, headers=self._far(body))

    def _far(self, body: Body) -> dict[str, str]:
        """How far the partition is now: who sent less, or an older batch, can tell by it."""
        if not body.name:
            return {}
        known = self._registry.of(body.name)
        return {"hubbub-taken": f"{known.batch}/{known.rows}"}

    def _unfit(self, body: Body, sender: Session) -> Response | None:
        """Why these lines cannot follow what was taken, None if they can."""
        lacks = self._registry.lacks(body.name, sender)
        if lacks:
            return refused(507, f"{lacks}; DELETE queries that are over")
        known = self._registry.of(body.name)
        if body.batch < known.batch:
            return None
        rows = known.rows if body.batch == known.batch else 0
        if body.first > rows:
            return refused(409, f"message {rows} of this partition is to be next, not {body.first}")
        if body.first < rows and self._registry.differs(body, known):
            return refused(
                409,
                f"the first {rows} messages are not those that were taken before: this batch "
                "was computed anew with other rows, or in another order. Give its rows an "
                "order (sortWithinPartitions), or begin a new query",
            )
        return None

    def _publish(
        self, body: Body, start: int, stop: int, known: Taken, sender: Session
    ) -> tuple[int, Response | None]:
        """Publish a slice and note it, all in one frame; what cannot be taken now ends it."""
        broker = self._inside.broker
        stint = Stint(broker.clock)
        begun, now = broker.log.position + 1, broker.clock.stamp()
        lines = body.raw[start:stop]
        at, size, refusal = 0, 0, None
        while at < len(lines) and size < SLICE_BYTES:
            line = _LINE.decode(lines[at])
            refusal = _declined(broker, sender, line)
            if refusal is not None:
                break
            broker.post(line.message(now), sender)
            size += len(lines[at])
            at += 1
            if stint.over():  # behind one at least
                break
        if body.name and at:
            crc = known.crc if known.batch == body.batch else 0
            crc = _crc(lines[:at], crc)
            end = body.first + start + at
            self._registry.note(body.name, Taken(body.batch, end, crc, body.whose))
            broker.log.together(begun)
        self._inside.schedule()
        return at, refusal

    async def safe(self) -> None:
        """Wait until all rows made so far are durable; 503 if no quorum lets them be."""
        waiting, broker = _Waiting(), self._inside.broker
        link = Link(broker.outgoing, waiting)
        link.hold(b"\n")
        self._inside.schedule()
        while not (await asyncio.wait((waiting.done,), timeout=QUORUM_SECONDS))[0]:
            if broker.no_quorum:
                raise HTTPException(503, f"{broker.no_quorum}; it may be kept all the same")
        if not waiting.done.result():
            raise HTTPException(503, "another node has taken over; it may be kept all the same")


class _Waiting:
    """The transport of a link that carries nothing but the news that rows are durable."""

    def __init__(self) -> None:
        self.done = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        if not self.done.done():
            self.done.set_result(True)

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"")

    def close(self) -> None: ...

    def abort(self) -> None:
        if not self.done.done():
            self.done.set_result(False)

    def get_write_buffer_size(self) -> int:
        return 0


def _crc(lines: list[memoryview], crc: int) -> int:
    for line in lines:
        crc = zlib.crc32(line, crc)
    return crc


def _ahead(body: Body, known: Taken) -> int:
    """How many lines of the body were taken before."""
    if not body.name or body.batch > known.batch:
        return 0
    if body.batch < known.batch:
        return len(body.raw)
    return min(max(known.rows - body.first, 0), len(body.raw))


def _declined(broker: Broker, sender: Session, line: Line) -> Response | None:
    """Why that cannot be taken now. Of QoS 1 and 2 the answer is a promise, whoever wants it."""
    if line.qos and broker.no_quorum:
        return refused(503, f"{broker.no_quorum}; send the same again later")
    lacks = _lacks(broker, sender, line)
    return refused(507, f"{lacks}; send the same again later") if lacks else None


def _lacks(broker: Broker, sender: Session, line: Line) -> str:
    """Why a bound or the disk would lose it, "" if none does."""
    if line.reply_to and (lacks := broker.replies.lacks(sender)):
        return lacks
    route = broker.route(sender, line.topic)
    size = line.size()
    return broker.lacks_room(sender, route, 1, line.retain and size > 0, int(line.qos), size)


def _place(user: str, query: str) -> str:
    """How the names begin under which the partitions of a query are remembered."""
    owner = f"{quote(user, safe='')}/" if user else ""
    return f"{TAKEN}{owner}{query}/"


def _body(request: Request, lines: list[memoryview], whose: str) -> Body:
    """The lines with what the headers say of them. ValueError says what is wrong."""
    given = request.headers.get("hubbub-batch")
    if given is None:
        return Body(lines, "", "", 0, 0, whose)
    found = _BATCH.fullmatch(given)
    if found is None or not is_name(found[1]):
        raise ValueError(f"Hubbub-Batch: expected QUERY/BATCH/PARTITION, got {given!r}")
    first = number_in(request.headers, _FIRST) if _FIRST in request.headers else 0
    query, batch, partition = found.groups()
    name = f"{_place(request.scope[ADMISSION].user, query)}{int(partition)}"
    return Body(lines, name, query, int(batch), first, whose)


def _complaint(line: memoryview, largest: int, may: Callable[[str], bool]) -> tuple[str, str]:
    """What is wrong with a line ("" = nothing), and the topic to which it may not be published."""
    try:
        topic = _TOPIC.decode(line)
        complaint = topic.complaint()
        if complaint:
            return complaint, ""
        if not may(topic.topic):
            return "", topic.topic
        return _LINE.decode(line).complaint(largest), ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error), ""
