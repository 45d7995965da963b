"""Several simulated hubs as one cluster: real brokers, journals, protocols and memberships over
lines that do what a seed says.

    client ── wire ── hub "a" ══ lines ══ hub "b" ── wire ── client

A line keeps the order of what one hub sends another, as NATS does. It may lose a frame, repeat it,
or hold all of them for as long as it is cut, as TCP does when a cable is pulled: what is held comes
when both have long given one another up. Each hub has a clock of its own.
"""

from __future__ import annotations

import contextlib
import queue
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from hubbub.cluster import heritage, wills
from hubbub.cluster.copies import FENCE, LOG, STATE, Found, Piece
from hubbub.cluster.heritage import Adoption
from hubbub.cluster.membership import Membership
from hubbub.cluster.stops import Numbered
from hubbub.core.limits import CLUSTER_FRAME_BYTES
from hubbub.journal.copied import Copy, Files
from hubbub.journal.group import Group
from hubbub.journal.segments import Directory
from hubbub.runtime.folding import copy_of
from hubbub.runtime.heirs import Heirs
from tests.simulation.hub import SimulatedClock, SimulatedNode

ALL = 1 << 62
JOINS = 0.5  # seconds


class Lines:
    """The engine of one hub. `marks`: how many frames of each other hub are to come before each of
    them, of `said` to each, and what is called then.
    """

    trouble = ""
    complete = True
    most = CLUSTER_FRAME_BYTES

    def __init__(self, name: str, others: tuple[str, ...]) -> None:
        self.name = name
        self.up = True
        self.lines: dict[str, deque[bytes]] = {other: deque() for other in others}
        self.marks: list[tuple[dict[str, int], Callable[[], None]]] = []
        self.others: dict[str, Lines] = {}

    async def open(self, heard: object, changed: object) -> None:
        raise AssertionError("the world drives")

    def send(self, node: str, frames: list[bytes]) -> bool:
        if not self.up:
            return False
        for name in [node] if node else list(self.lines):
            if name in self.lines:
                self.lines[name].extend(frames)
        return True

    async def settle(self, met: object) -> None:
        raise AssertionError("nobody opens it")

    def mark(self, passed: Callable[[], None]) -> None:
        waiting = {name: len(one.lines.get(self.name, ())) for name, one in self.others.items()}
        self.marks.append((waiting, passed))

    def came(self, sender: str) -> None:
        """One frame less is before each mark."""
        for before, _ in self.marks:
            before[sender] = max(0, before.get(sender, 0) - 1)

    def passed(self, cut: set[str]) -> list[Callable[[], None]]:
        """What is to be called now; a server does not wait for what is held before it."""
        marks, self.marks, calls = self.marks, [], []
        for before, call in marks:
            if any(count and name not in cut for name, count in before.items()):
                self.marks.append((before, call))
            else:
                calls.append(call)
        return calls

    def waiting(self, node: str = "") -> int:
        return 0

    async def close(self) -> None:
        """Nothing here is anybody's."""


class SkewedClock(SimulatedClock):
    def __init__(self, seconds: float, wall: int) -> None:
        super().__init__()
        self.seconds, self.wall = seconds, wall
        self._last = 0
        self._steered = self._elapsed()
        self._base = self._machine() - self._steered


class Streams:
    """What the servers have: of each dead hub all that its own disk had, whenever it was stopped.

    Each stop is a thousand messages behind the one before it; a hub that is back is at `BACK`
    behind its last one. `fails`: whether reading does just now, as without a leader; `sure`: it
    does not, and what is there since the last stop is read, too.
    """

    BACK = 500

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.fails = 0.0
        self.sure = False
        self.held: dict[str, list[Numbered]] = {}
        self.stopped: dict[str, int] = {}
        self.back: set[str] = set()
        self.answered: set[tuple[str, int]] = set()

    def stream_of(self, name: str) -> str:
        return name

    def base(self, name: str) -> int:
        return self.stopped.get(name, 0) + self.BACK

    def stop_behind(self, name: str) -> int:
        """Which message a hub finds last when it starts, if that is a stop."""
        return 0 if name in self.back else self.stopped.get(name, 0)

    async def nodes(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())

    async def last(self, name: str) -> Found:
        if at := self.stop_behind(name):
            return Found(at, await self.message(name, at))
        return Found(self.base(name), Piece(1, 1, LOG, 0, False, b""))

    async def message(self, name: str, at: int) -> Piece | None:
        return dict(self.held[name]).get(at)

    async def fence(self, name: str, after: int, life: int, author: str) -> int:
        """As the servers do it: nothing came in between."""
        if after != (await self.last(name)).at:
            return 0
        held = self.held.setdefault(name, [])
        at = self.stopped[name] = self.stopped.get(name, 0) + 1000
        if name in self.back or not held:
            pieces = pieces_of(self.root / name, at)
            held += enumerate(pieces, at - len(pieces))
        self.back.discard(name)
        held.append((at, Piece(life, 1, FENCE, 0, False, author.encode())))
        return at

    async def read(self, name: str, upto: int, heads: bool = False) -> list[Numbered]:
        if not (heads or self.sure) and self.chance.random() < self.fails:
            raise TimeoutError
        held = [*self.held.get(name, ())]
        if self.sure and not self.stop_behind(name):  # its disk has more since its last stop
            base = self.base(name)
            pieces = pieces_of(self.root / name, base)
            held += enumerate(pieces, base - len(pieces) + 1)
        return [one for one in held if one[0] <= upto]


class _Pause:
    """Awaited, it ends the turn."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class SimulatedHeirs(Heirs):
    """As of a hub, driven by the world, which knows who is dead. `rows`: of what was a dead one's,
    in a turn.
    """

    def __init__(self, hub: ClusterHub, is_dead: Callable[[str], bool], rows: int) -> None:
        super().__init__(hub.here, cast(Any, hub), hub.protocols, hub.schedule)
        self.streams = hub.streams
        self.dead = is_dead
        self.rows = rows
        self.adoptions: list[tuple[str, int]] = []
        self.goes_on: Coroutine[Any, Any, None] | None = None

    def _is_dead(self, name: str) -> bool:
        return self.dead(name) and name not in self.membership.nodes

    async def _recalls(self, name: str, found: Found) -> bool:
        """Always: reads that may fail are those of heirs, in the order that seeds know."""
        self.streams.sure = True
        try:
            return await super()._recalls(name, found)
        finally:
            self.streams.sure = False

    async def _waits_for_itself(self, name: str, upto: int) -> bool:
        self.streams.sure = True
        try:
            return await super()._waits_for_itself(name, upto)
        finally:
            self.streams.sure = False

    async def _fold(self, pieces: Sequence[Numbered]) -> Copy | None:
        return copy_of(pieces)

    def _turn(self, pieces: Iterator[None]) -> bool:
        return len(list(islice(pieces, self.rows))) < self.rows

    async def _pause(self) -> None:
        await _Pause()

    def _go_live(self, adoption: Adoption) -> None:
        self.adoptions.append((adoption.dead, adoption.at))
        super()._go_live(adoption)

    def look(self, turns: int) -> None:
        """Begin, or go on, for so many turns at most."""
        if self.goes_on is None:
            self._told.clear()  # a disk has more without another number of its last message
            self.goes_on = self._look()
        try:
            for _ in range(turns):
                self.goes_on.send(None)
        except StopIteration:
            self.goes_on = None


class Stream:
    """The servers as one hub sees them."""

    def __init__(self, streams: Streams, name: str) -> None:
        self.streams = streams
        self.name = name
        self.ready = True
        self.nodes, self.stream_of = streams.nodes, streams.stream_of
        self.last, self.message, self.read = streams.last, streams.message, streams.read

    async def fence(self, name: str, after: int, life: int, author: str) -> int:
        return await self.streams.fence(name, after, life, author)


class ClusterHub(SimulatedNode):
    """One life of a hub. `fenced_at`: the message that stopped its stream, 0 while its heir is
    known.
    """

    def __init__(
        self, path: Path, clock: SimulatedClock, segment_bytes: int, engine: Lines,
        streams: Streams, is_dead: Callable[[str], bool], rows: int, record: str,
    ) -> None:  # fmt: skip
        super().__init__(path, clock, segment_bytes, record)
        self.engine = engine
        self.streams = streams
        self.stream = self.copies = Stream(streams, path.name)
        self.fenced_at = 0
        self._is_dead = is_dead
        self._rows = rows
        self.waiting_bytes = 0

    @property
    def here(self) -> Membership:
        assert self.membership is not None
        return self.membership

    def begin(self) -> None:
        super().begin()
        here = self.here
        here.relays.hurry, here.relays.crowded = self.schedule, self.pressure.crowded
        here.confirmed = self.confirmed
        stopped = self.streams.stop_behind(here.name)
        self.fenced_at = stopped or heritage.awaited(here)
        if self.fenced_at:
            here.deposed = True
            self.broker.no_quorum = "the heir of this node has not taken over yet"
        if stopped:
            heritage.let_go(self.broker, here, self.protocols, stopped)
        self._upto = self.log.position if stopped else 0
        self._settle()
        self.seeker = SimulatedHeirs(self, self._is_dead, self._rows)
        here.begin()
        here.beat()
        self._joins_at = self.clock.now() + JOINS
        self.schedule()
        self.loop.run()

    def sweep(self) -> None:
        """Others have had half a second to say who is where."""
        here = self.here
        if here.unknown and self.clock.now() >= self._joins_at:
            wills.known(here, wills.WHO_IS_WHERE)
        super().sweep()

    def _settle(self) -> None:
        """What it let go of is on the disk: it begins behind its stop."""
        if self.log.durable >= self._upto:
            self.streams.back.add(self.here.name)

    def confirmed(self, dead: str, at: int) -> None:
        if dead == self.here.name and 0 < self.fenced_at <= at:
            self.fenced_at, self.here.deposed, self.broker.no_quorum = 0, False, ""

    def hear(self, frame: bytes) -> None:
        self.here.hear(frame)
        self.schedule()
        self.loop.run()

    def write(self) -> None:
        """The journal's thread takes a step, and its news arrive."""
        self.log.step()
        arrivals, self.loop.arrivals = self.loop.arrivals, []
        self.loop.soon += arrivals
        self.loop.run()
        self._settle()

    def look(self, turns: int) -> int:
        """Look for dead ones, for so many turns at most; how many were taken over."""
        self.seeker.adoptions.clear()
        self.seeker.look(turns)
        self.schedule()
        self.loop.run()
        return len(self.seeker.adoptions)

    def kill(self, chance: random.Random) -> None:
        """The process is gone, maybe in the middle of a group: whole frames of it are written."""
        with contextlib.suppress(queue.Empty):
            group = self.log.disk.groups.get_nowait()
            written = chance.randrange(len(group.frames) + 1) if group is not None else 0
            if group is not None and written:
                whole = Group(group.frames[:written], group.rows, group.base)
                self.log.disk.land(whole)
        self.log.abandon()


def pieces_of(path: Path, life: int) -> list[Piece]:
    """What a quorum has of a dead hub's log: all that its own disk has."""
    files = Files(Directory(path), ALL)
    parts = [(STATE, part) for part in files.snapshot.parts()]
    parts += [(LOG, part) for part in files.log()]
    return [
        Piece(life, number, kind, upto, more, data)
        for number, (kind, (upto, more, data)) in enumerate(parts)
    ]


def has(path: Path, payload: bytes) -> bool:
    """Whether the files of a hub say it."""
    return any(payload in one.read_bytes() for one in path.rglob("*.rows"))
