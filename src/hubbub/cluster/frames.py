"""The bytes between nodes.

    frame    "HBC" version, CRC-32 of the rest | boot, life, seq, name of the node | pieces
    piece    length, record        records are arrays of MessagePack, the first item is their kind

`boot` is when the node started, `life` when it met the one it speaks to, `seq` counts the frames
of a life; a frame to all has life 0. A frame of another version, a damaged one and one that is
not ours are `Foreign`. Names are bytes: they may be no UTF-8. No I/O.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta, Struct

from hubbub.core.limits import (
    CLUSTER_BUSY_SECONDS,
    CLUSTER_FRAME_BYTES,
    CLUSTER_KEPT_BYTES,
    CLUSTER_MORE,
    CLUSTER_NAMES,
    CLUSTER_RUN,
    CLUSTER_SLICE,
    CLUSTER_WHOLE,
    CLUSTER_WHOLE_BYTES,
    KIB,
)
from hubbub.core.log import MEMORY

MAGIC: Final = b"HBC"
VERSION: Final = 5
_HEAD: Final = struct.Struct(">3sBI")
_ORIGIN: Final = struct.Struct(">QQQB")
_LENGTH: Final = struct.Struct(">I")

_NAME: Final = re.compile("[A-Za-z0-9_-]{1,60}")  # as the setting cluster.name
Time = Annotated[int, Meta(ge=0, lt=1 << 62)]
Number = Annotated[int, Meta(ge=0, lt=1 << 32)]
Qos = Annotated[int, Meta(ge=0, le=2)]
Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,60}$")]
Many: Final = Meta(max_length=CLUSTER_WHOLE)
Estate = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,60}(@[0-9]{1,19})?$")]


class Foreign(Exception):
    """A frame that is not taken; the text says why."""


class Beat(Struct, array_like=True, tag=0):
    """It is there. `stamp` is what its clock says, `version` its program's.

    `place`: HOST:PORT for clients that another node sends away, "" = for none. `stopped`: which
    message stopped its stream last, which says what its own estate is; `waits`: whether that had
    another one, whose heir is not known. `busy`: for so many seconds more than ever it may say
    nothing, and is not dead. `born`: since when its directory is that of a node of this name, 0 =
    one of a version that does not say so. `keeps`: what its journal does, as a level of
    `core.log`; who says so reads a `Kept` of several messages, 0 = such a version.
    """

    version: str
    stamp: int
    place: Annotated[str, Meta(pattern="^[!-~]{0,255}$")] = ""
    stopped: Time = 0
    waits: bool = False
    busy: Annotated[int, Meta(ge=0, le=CLUSTER_BUSY_SECONDS)] = 0
    born: Time = 0
    keeps: Annotated[int, Meta(ge=0, le=MEMORY)] = 0


class Wants(Struct, array_like=True, tag=1):
    """Somebody of the estate subscribes to this filter now, and nobody did before, or nobody who
    lasts.

    `kept`: whether messages of QoS 1 and 2 are kept for it, as for sessions there that last.
    """

    estate: Estate
    filter: bytes
    literal: bool
    kept: bool


class Leaves(Struct, array_like=True, tag=2):
    estate: Estate
    filter: bytes
    literal: bool


class Came(Struct, array_like=True, tag=3):
    """A client connected there, under a number that nobody else has; since when."""

    number: Number
    protocol: str
    client: bytes
    since: int


class Left(Struct, array_like=True, tag=4):
    """It is gone; `since`: when it had come there, 0 = nobody minds. `whose`: a digest of to whom
    it is put down there, "" = nobody says.
    """

    number: Number
    since: Time = 0
    whose: Annotated[str, Meta(max_length=16)] = ""


class Holding(Struct, array_like=True):
    """What holds of one estate that the node has: its filters, and what lasts in it. `generation`:
    how many nodes had it before.
    """

    estate: Estate
    generation: Annotated[int, Meta(ge=0, lt=1 << 32)]
    wants: Annotated[list[tuple[bytes, bool, bool]], Many]
    lasts: Annotated[list[tuple[str, bytes, Time]], Many]


class Whole(Struct, array_like=True, tag=5):
    """All that holds of the node now; what is not in it is over. `number`: the hub's own.

    `answers`: the question that it answers, 0 = nobody asked. `left`: clients that were at any node
    and are gone, and when they had come: who was away knows an earlier connection of them at most.
    """

    answers: int
    number: Number
    clients: Annotated[list[tuple[Number, str, bytes, int]], Many]
    watches: Annotated[list[bytes], Many]
    holdings: Annotated[list[Holding], Meta(max_length=CLUSTER_NAMES)]
    left: Annotated[list[tuple[str, bytes, Time]], Many] = []


class Ask(Struct, array_like=True, tag=6):
    """Say all of that, and what is retained."""

    question: int


class Rest(Struct, array_like=True):
    """A message that is more than its payload; `properties` are JSON."""

    payload: bytes
    subtopic: bytes
    content_type: bytes
    reply_to: bytes
    correlation: bytes
    expires: Time
    properties: bytes


class Said(Struct, array_like=True, tag=7):
    """Messages of one sender to one topic. `group`: for one member of this group, "" = for all.

    `payloads` are one behind the other, `count` of them, all of the same length; or, where there
    is more than payloads, they are in `rests` with all else. `stamp`: of a retained message, when
    it was published; `again`: it is told to who missed it.
    """

    sender: Number
    protocol: str
    client: bytes
    topic: bytes
    group: bytes
    qos: Qos
    retain: bool
    asks: bool
    payloads: bytes
    count: Annotated[int, Meta(ge=1, le=CLUSTER_RUN)]
    rests: Annotated[list[Rest], Meta(max_length=CLUSTER_RUN)]
    stamp: Time
    node: str
    again: bool

    def goes_on(self, other: Said) -> bool:
        """Whether the other one differs in its payloads alone, and both are short."""
        count, size = self.count + other.count, len(self.payloads) + len(other.payloads)
        same = (self.sender, self.topic, self.qos, self.client, self.protocol, self.group) == (
            other.sender, other.topic, other.qos, other.client, other.protocol, other.group
        )  # fmt: skip
        plain = not (self.rests or other.rests or self.retain or other.retain)
        even = len(self.payloads) * other.count == len(other.payloads) * self.count
        return same and plain and even and count <= CLUSTER_SLICE and size <= CLUSTER_KEPT_BYTES


def joined(all_said: Iterable[Said]) -> Iterator[Said]:
    """The same messages, several of one author to one name in one."""
    last: Said | None = None
    for said in all_said:
        if last is not None and last.goes_on(said):
            last.payloads += said.payloads
            last.count += said.count
            continue
        if last is not None:
            yield last
        last = said
    if last is not None:
        yield last


class Part(Struct, array_like=True, tag=8):
    """A piece of a record that is larger than a frame may be."""

    last: bool
    data: bytes


class Shut(Struct, array_like=True, tag=9):
    """End every connection, as `Hub.shutdown` does."""

    text: str | None


class Bye(Struct, array_like=True, tag=10):
    """The node stops."""


class Watch(Struct, array_like=True, tag=11):
    """Say how many clients a publish to this name reaches there, now and when it changes."""

    name: bytes
    on: bool


class Count(Struct, array_like=True, tag=12):
    name: bytes
    count: Annotated[int, Meta(ge=0)]


class Kept(Struct, array_like=True, tag=13):
    """Messages that are kept for an estate until they are `Taken`. `number`: of the last one, those
    before it have the ones below; `previous`: of the one before all of these. `origin`: the estate
    in which they were published, whose numbers these are. `passed`: they are in no journal there.

    Numbers rise from one message to the next; 0 is before all of them.
    """

    estate: Estate
    origin: Estate
    number: Time
    previous: Time
    said: Said
    passed: bool = False


class Taken(Struct, array_like=True, tag=14):
    """The journal there has what was kept for that estate, up to this number of the origin's."""

    estate: Estate
    origin: Estate
    number: Time


class Lasts(Struct, array_like=True, tag=15):
    """A session of the estate lasts, since that time."""

    estate: Estate
    protocol: str
    client: bytes
    since: Time


class Over(Struct, array_like=True, tag=16):
    """A session of it that lasted is no more; `since`: when that began, 0 = nobody says."""

    estate: Estate
    protocol: str
    client: bytes
    since: Time = 0


class Anew(Struct, array_like=True, tag=17):
    """A client began anew elsewhere at that time: what lasts of it there from before is over."""

    protocol: str
    client: bytes
    since: Time


class Way(Struct, array_like=True, tag=18):
    """A connection whose client was let in here goes on there, where its session is at home.

    `place`: the listener here, `level`: what its answers promise, `mount`: what its names begin
    with; `proved`: the user is who it says; `lines`: what its token lets it do, None if the rules
    say that. `said` is what the client began with, without secrets; `proof`: for its welcome.
    """

    way: Number
    protocol: str
    client: bytes
    user: bytes
    proved: bool
    address: str
    port: int
    secure: bool
    certificate: bytes
    place: str
    level: int
    mount: bytes
    lines: list[str] | None
    said: bytes
    proof: bytes


class Carried(Struct, array_like=True, tag=19):
    """Bytes of such a connection, for its `home` or its client. `whole`: none wait behind them."""

    way: Number
    home: bool
    whole: bool
    data: bytes


class Room(Struct, array_like=True, tag=20):
    """There is room for so many bytes more, from its `home` or from its client's node. `messages`:
    so many more were published of what came.
    """

    way: Number
    home: bool
    count: Annotated[int, Meta(ge=0, le=1 << 24)]
    messages: Annotated[int, Meta(ge=0, le=1 << 24)]


class Closed(Struct, array_like=True, tag=21):
    """Such a connection is over: said to its `home`, or to its client's node. 0: all of both."""

    way: Number
    home: bool
    reason: str


class More(Struct, array_like=True, tag=26):
    """Where that would be long to read: a part of all that holds, the first is 1, of so many."""

    number: Annotated[int, Meta(ge=1)]
    of: Annotated[int, Meta(ge=1, le=CLUSTER_MORE)]
    whole: Whole


class Heir(Struct, array_like=True, tag=22):
    """What was the dead node's up to the message `at` of its stream has been taken over."""

    dead: Name
    at: Time


class Holds(Struct, array_like=True, tag=23):
    """The estate is at the node now, as the first of so many, and one."""

    estate: Estate
    generation: Annotated[int, Meta(ge=0, lt=1 << 32)]


class Deposed(Struct, array_like=True, tag=25):
    """To a node that does not know so: its stream was stopped by that message, and another one has
    what it had.
    """

    at: Time


class Released(Struct, array_like=True, tag=24):
    """Nothing is left of the estate, which was at the node."""

    estate: Estate


class Removed(Struct, array_like=True, tag=27):
    """A node was removed for good, at that time: nothing of before is heard of it, or waits for it.
    Nodes of before do not read it.
    """

    node: Name
    at: Time


class Remains(Struct, array_like=True, tag=28):
    """How much there is of a node that is away, as far as the sender knows: what lasts there, and
    what waits for it. `asks`: the other one is to say so.
    """

    node: Name
    asks: bool
    sessions: Annotated[int, Meta(ge=0)] = 0
    queues: Annotated[int, Meta(ge=0)] = 0
    messages: Annotated[int, Meta(ge=0)] = 0


class Takes(Struct, array_like=True, tag=30):
    """So many messages of a queue that is at home at the receiver may be at the sender's consumers
    at once; with 0 all that are there are lent no more. `turn` is said again with each. In another
    turn what was lent before is so no more, but for `kept`: the ids of those that are there still.
    """

    queue: bytes
    room: Annotated[int, Meta(ge=0, le=10_000)]
    turn: Number
    kept: Annotated[list[Time], Meta(max_length=10_000)] = []


class Lent(Struct, array_like=True, tag=31):
    """A message of a queue, under its id there, for one of the receiver's consumers. `returns`: it
    may come back (`Takes`), False = of a version that does not read that. `named`: of one that was
    told what comes back, not what stays: each would take the other's word for its opposite.
    """

    queue: bytes
    number: Time
    turn: Number
    said: Said
    named: bool = False
    returns: bool = False


class Done(Struct, array_like=True, tag=32):
    """It was acknowledged."""

    queue: bytes
    number: Time


class Permits(Struct, array_like=True, tag=40):
    """What of the permissions that are managed while hubs run was changed, when and where: entries
    of `hubbub.auth.entries`, key, stamp, node and value. All there are, with all else that holds.
    """

    entries: list[tuple[tuple[str, ...], Time, str, str]]


class Question(Struct, array_like=True, tag=41):
    """One of the processes of a hub asks another one what it is doing, or to do something.

    `given`: what that is about, as who asks and who answers understand it.
    """

    number: int
    what: str
    given: bytes = b""


class Answer(Struct, array_like=True, tag=42):
    """A piece of one, in order: it is there when all pieces are `whole` bytes."""

    number: int
    data: bytes
    whole: int


Record = (
    Beat | Wants | Leaves | Came | Left | Whole | Ask | Said | Part | Shut | Bye | Watch | Count
    | Kept | Taken | Lasts | Over | Anew | Way | Carried | Room | Closed | Heir | Holds | Released
    | Deposed | More | Permits | Question | Answer | Takes | Lent | Done | Removed | Remains
)  # fmt: skip

# Kinds of records that may be as long as a message, and of those what others know of.
LONG: Final = frozenset(
    kind.__struct_config__.tag for kind in (Said, Kept, Lent, Permits, Answer)
)  # fmt: skip

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder[Record](Record)


class Frame(NamedTuple):
    node: str
    boot: int
    life: int
    seq: int
    records: list[Record]


def digest(whose: str) -> str:
    """What stands for it where only whether it is the same matters."""
    return blake2b(whose.encode(errors="replace"), digest_size=8).hexdigest() if whose else ""


def piece(record: Record) -> bytes:
    data = _encode(record)
    return _LENGTH.pack(len(data)) + data


def frame(node: str, boot: int, life: int, seq: int, pieces: bytes) -> bytes:
    name = node.encode()
    rest = _ORIGIN.pack(boot, life, seq, len(name)) + name + pieces
    return _HEAD.pack(MAGIC, VERSION, zlib.crc32(rest)) + rest


def opened(data: bytes) -> Frame:
    """Foreign says what is wrong with it."""
    if len(data) > 4 * CLUSTER_FRAME_BYTES:  # and no node says as much at once
        raise Foreign(f"a frame of {len(data)} bytes")
    if len(data) < _HEAD.size + _ORIGIN.size or not data.startswith(MAGIC):
        raise Foreign("a frame that is none of ours")
    _, version, crc = _HEAD.unpack_from(data)
    if version != VERSION:
        raise Foreign(f"a frame of version {version}, this node speaks {VERSION}")
    if zlib.crc32(memoryview(data)[_HEAD.size :]) != crc:
        raise Foreign("a damaged frame")
    boot, life, seq, length = _ORIGIN.unpack_from(data, _HEAD.size)
    at = _HEAD.size + _ORIGIN.size + length
    node = _called(data[at - length : at])
    if not node:
        raise Foreign("a frame of a node without a proper name")
    try:
        records = _records(data, at)
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        raise Foreign(f"a frame that cannot be read: {error}") from None
    return Frame(node, boot, life, seq, records)


def name_in(data: bytes) -> str:
    """Of which node a frame is that may be of another version: all have that in one place. "" if it
    says none.
    """
    if len(data) < _HEAD.size + _ORIGIN.size or not data.startswith(MAGIC):
        return ""
    length = _ORIGIN.unpack_from(data, _HEAD.size)[3]
    at = _HEAD.size + _ORIGIN.size
    return _called(data[at : at + length])


@lru_cache(CLUSTER_NAMES)
def _called(name: bytes) -> str:
    """The node of that name, "" if none can have it."""
    text = name.decode(errors="replace")
    return text if _NAME.fullmatch(text) else ""


def read(data: bytes) -> Record:
    """A record whose parts have come; Foreign if it is none. To read messages that long is nothing;
    very many short things take a second.
    """
    if len(data) > CLUSTER_WHOLE_BYTES + KIB and (data[0] >> 4 != 9 or data[1] not in LONG):
        raise Foreign(f"a record of {len(data)} bytes, of a kind that is not so long")
    try:
        record: Record = _decoder.decode(data)
        return record
    except msgspec.MsgspecError as error:
        raise Foreign(f"a record that cannot be read: {error}") from None


def _records(data: bytes, at: int) -> list[Record]:
    view, whole, found = memoryview(data), len(data), []
    while at < whole:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size + length
        if at > whole:
            raise ValueError("a piece that ends behind its frame")
        found.append(_decoder.decode(view[at - length : at]))
    return found


def cut(pieces: bytes, most: int) -> Iterator[bytes]:
    """The same pieces in portions for one frame each; one that is too large goes in parts."""
    begin, at = 0, 0 if len(pieces) > most else len(pieces)
    while at < len(pieces):
        (length,) = _LENGTH.unpack_from(pieces, at)
        end = at + _LENGTH.size + length
        if end - begin > most and at > begin:
            yield pieces[begin:at]
            begin = at
        if end - at > most:
            for part in range(at + _LENGTH.size, end, most):
                yield piece(Part(part + most >= end, pieces[part : min(part + most, end)]))
            begin = end
        at = end
    if at > begin:
        yield pieces[begin:at]
