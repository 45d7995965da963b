"""When strangers are heard: what they say costs them time, and all of them together have little.

A request that is refused is work all the same: the connection, the parsing, the answer. Who sends
thousands of them a second would take all the time there is. So what a stranger says is heard if
strangers owe no time; then it pays by the time that took. Else it stands in line and nothing more
is read of it. Each place has a line of its own, an address and TLS, HTTP with credentials, HTTP
without, none of these or what has said nothing yet, and they take turns: who comes from elsewhere,
or shows who it is beside a flood of requests, is next but for one of each other place. In a long
line the last who came is next: in a flood that comes back as it is answered all would wait for as
long as the flood is large, and an honest one would be gone before its turn; so only those wait who
came before. Who is let in gets back what it paid. Time is what the hub had, or could have had:
where other programs have the processors strangers get no larger part of what is left.

    said ──> owed nothing, and nobody stands in line there? ──> heard ──> pays, if it was not let in
      └──> in the line of its place ──> its turn, when what is owed was paid ──┘

The node owns one; the sockets of strangers ask it, and the web application before it refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from hubbub.core.limits import HEARD_SECONDS, STRANGERS_BURST, STRANGERS_SHARE
from hubbub.core.metrics import Metrics
from hubbub.runtime.loop import SHORTEST
from hubbub.runtime.strangers import Stranger

SHORT: Final = 8  # in a line: its connections are ended after others, and first come, first served
MINUTE: Final = 60.0  # from one line of the log to the next
LOOK_SECONDS: Final = 0.005  # from one look at what the kernel counts to the next: it takes 2 us
_WAITED: Final = Path("/proc/thread-self/schedstat")  # ran, waited, how often: ns
LATE: Final = "strangers"  # as the metric calls them

TLS: Final = "TLS"
HTTP: Final = "HTTP"
SHOWN: Final = "HTTP with credentials"
OTHER: Final = ""

Place = tuple[str, str]
"""An address, and how what is said there begins: TLS, HTTP that shows who it is or does not,
another way, or that nobody has looked at it yet (`newcomers`).
"""

log = logging.getLogger("hubbub.listener")


class Visitor(Protocol):
    """Who stands in line."""

    def come_in(self) -> None:
        """It is its turn."""


def _counts() -> bytes:
    """What the kernel counts of this thread, in half of the time of `Path.read_bytes`."""
    file = os.open(_WAITED, os.O_RDONLY)
    try:
        return os.read(file, 100)
    finally:
        os.close(file)


class OwnTime:
    """Seconds in which this thread ran, or had nothing to do: not those in which it waited for a
    processor. Linux counts these; elsewhere it is the time that passes.
    """

    def __init__(self) -> None:
        self._waited = 0.0
        self._look_again = 0.0

    def __call__(self) -> float:
        now = time.perf_counter()
        if now >= self._look_again:
            self._look_again = now + LOOK_SECONDS
            with contextlib.suppress(OSError, IndexError, ValueError):
                self._waited = int(_counts().split()[1]) / 1e9
        return now - self._waited


@mypyc_attr(allow_interpreted_subclasses=True)
class Door:
    """The lines of one hub. `clock` gives seconds, as precise as there are."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or OwnTime()
        self._metrics = metrics
        self._due = 0.0  # when all that was heard is paid
        self._lines: OrderedDict[Place, OrderedDict[Visitor, None]] = OrderedDict()
        self._where: dict[Visitor, Place] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._told_again = 0.0

    def __len__(self) -> int:
        return len(self._where)

    def open_to(self, visitor: Visitor, place: Place) -> bool:
        """Whether it is heard now; else it stands in line, and `come_in` is called."""
        if visitor in self._where:
            return False
        now = self.clock()
        if not self._where and self._due <= now:
            return True
        self._lines.setdefault(place, OrderedDict())[visitor] = None
        self._where[visitor] = place
        self._count(now)
        self._serve_later(now)
        return False

    def soon(self, visitor: Visitor) -> bool:
        """Whether it stands in a short line: that is no flood, and it has its turn in a moment."""
        place = self._where.get(visitor)
        return place is not None and len(self._lines[place]) <= SHORT

    def forget(self, visitor: Visitor) -> None:
        """It is gone."""
        place = self._where.pop(visitor, None)
        if place is not None:
            line = self._lines[place]
            del line[visitor]
            if not line:
                del self._lines[place]

    def charge(self, stranger: Stranger, seconds: float) -> None:
        """What was heard of it took that long; other programs may have had a part of that."""
        seconds = min(seconds, HEARD_SECONDS)
        stranger.paid += seconds
        self._due = max(self._due, self.clock() - STRANGERS_BURST) + seconds / STRANGERS_SHARE

    def refund(self, stranger: Stranger) -> None:
        """It was let in."""
        self._due -= stranger.paid / STRANGERS_SHARE
        stranger.paid = 0.0

    def _count(self, now: float) -> None:
        slowed = self._metrics.slowed
        slowed[LATE] = slowed.get(LATE, 0) + 1
        if now >= self._told_again:
            self._told_again = now + MINUTE
            log.warning(
                "those who are not logged in ask for more than %.0f %% of the time of this hub and "
                "are heard later, each address in turn", STRANGERS_SHARE * 100,
            )  # fmt: skip

    def _serve_later(self, now: float) -> None:
        if self._timer is None:
            wait = max(self._due - now, SHORTEST)
            self._timer = asyncio.get_running_loop().call_later(wait, self._serve)

    def _serve(self) -> None:
        """Let them in until time is owed again; then the loop has others to look after."""
        self._timer = None
        try:
            while self._lines and self._due <= self.clock():
                place, line = next(iter(self._lines.items()))
                visitor = next(iter(line) if len(line) <= SHORT else reversed(line))
                self._lines.move_to_end(place)
                self.forget(visitor)
                visitor.come_in()
        finally:
            if self._lines:
                self._serve_later(self.clock())


class Turn:
    """One that waits for a call: a request to the web application that is to be refused."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.come_in = call
