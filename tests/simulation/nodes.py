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
from pathlib import Path

from hubbub.cluster import heritage
from hubbub.cluster.copies import LOG, STATE, Piece
from hubbub.cluster.keeping import HEIR
from hubbub.cluster.membership import Membership
from hubbub.journal.copied import Copy, Files
from hubbub.journal.segments import Directory
from hubbub.runtime.heirs import copy_of
from tests.simulation.hub import SimulatedClock, SimulatedNode

ALL = 1 << 62


class Lines:
    """The engine of one hub. `held`: lines that are cut and forget nothing."""

    trouble = ""

    def __init__(self, name: str, others: tuple[str, ...]) -> None:
        self.name = name
        self.up = True
        self.lines: dict[str, deque[bytes]] = {other: deque() for other in others}

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


class ClusterHub(SimulatedNode):
    """One life of a hub. `deposed`: the message that stopped its stream, 0 while it has no heir."""

    def __init__(
        self, path: Path, clock: SimulatedClock, segment_bytes: int, engine: Lines, deposed: int
    ) -> None:
        super().__init__(path, clock, segment_bytes)
        self.engine = engine
        self.deposed = deposed

    @property
    def here(self) -> Membership:
        assert self.membership is not None
        return self.membership

    def begin(self) -> None:
        super().begin()
        here = self.here
        here.relays.hurry, here.relays.crowded = self.schedule, lambda: self.congested
        here.confirmed = self._confirmed
        if self.deposed:
            here.deposed = True
            self.broker.no_quorum = "the heir of this node has not taken over yet"
            heritage.let_go(self.broker, here, self.protocols, self.deposed)
        here.begin()
        here.beat()
        self.schedule()
        self.loop.run()

    def _confirmed(self, dead: str, at: int) -> None:
        if dead == self.here.name and 0 < self.deposed <= at:
            self.deposed, self.here.deposed, self.broker.no_quorum = 0, False, ""

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

    def adopt(self, dead: str, at: int, copy: Copy) -> None:
        heritage.adopt(self.here, dead, at, copy.state, copy.messages, self.protocols)
        self.schedule()
        self.loop.run()

    def kill(self, chance: random.Random) -> None:
        """The process is gone, maybe in the middle of a group: whole frames of it are written."""
        with contextlib.suppress(queue.Empty):
            group = self.log.disk.groups.get_nowait()
            written = chance.randrange(len(group.frames) + 1) if group is not None else 0
            if group is not None and written:
                ends = [*(at for _, at in group.frames[1:]), len(group.data)]
                group.data = group.data[: ends[written - 1]]
                group.frames = group.frames[:written]
                self.log.disk.land(group)
        self.log.abandon()


def copied(path: Path) -> Copy:
    """What a quorum has of a dead hub's log: all that its own disk has."""
    files = Files(Directory(path), ALL)
    pieces = [
        Piece(1, number, kind, upto, more, data)
        for number, (kind, (upto, more, data)) in enumerate(
            [(STATE, part) for part in files.snapshot.parts()]
            + [(LOG, part) for part in files.log()]
        )
    ]
    found = copy_of(pieces)
    assert found is not None
    return found


def has(path: Path, payload: bytes) -> bool:
    """Whether the files of a hub say it."""
    return any(payload in one.read_bytes() for one in path.rglob("*.rows"))


def taken_over(hub: ClusterHub, dead: str) -> int:
    """Up to which message of its stream a dead hub's log is in this one's."""
    return hub.broker.state.taken.get(HEIR + dead, 0)
