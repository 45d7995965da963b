"""When the next batch may begin, if few rows come: a batch costs much the same however few it has.

    many rows wait         at once
    few rows wait          when all batches together take SHARE of a processor, IDLE s at most
    nothing waits          when something comes: after a silence that is at once

So what few rows cost is bounded, and they are as fresh as that allows: on a fast machine, and
once Java has compiled what is hot, a batch costs less and the next one comes sooner. What a batch
costs is read from the system: the time of processors that driver and Java took. Called by
`batches`, with each batch that is whole.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from hubbub.errors import HubbubError
from hubbub.journal.table import Table as Journal

SHARE: Final = 0.07  # of one processor. Python workers are not counted: some 1 % more
FEW: Final = 500  # rows of the journal
IDLE: Final = 20.0  # seconds between two batches at most, whatever they cost
COLD: Final = 3  # batches after a start: they cost what none does later, and somebody looks on
LOOK: Final = 0.5  # seconds between two looks at the journal


class Pace:
    """Holds a batch back. `over` ends all waiting; `spent` = seconds of processors, None = unknown.

    Unknown costs IDLE.
    """

    def __init__(self, journal: Journal, spent: Callable[[], float | None]) -> None:
        self.over = threading.Event()
        self._journal = journal
        self._spent = spent
        self._cold = COLD
        self._since = time.monotonic()
        self._before = spent()

    def rest(self, seq: int) -> None:
        """A batch up to `seq` is whole: return when the next one may begin."""
        due = self._due()
        while not self._over_at(seq, due):
            if self.over.wait(LOOK):
                return
        self._since = time.monotonic()

    def _due(self) -> float:
        """The moment from which what was spent is SHARE of the time since the rest before."""
        now, spent, before = time.monotonic(), self._spent(), self._before
        self._before = spent
        self._cold -= 1
        if self._cold >= 0:
            return now
        if spent is None or before is None:
            return now + IDLE
        return min(self._since + (spent - before) / SHARE, now + IDLE)

    def _over_at(self, seq: int, due: float) -> bool:
        try:
            waiting = self._journal.committed() - seq
        except HubbubError:
            return True  # the source says what is wrong, or waits for a hub that is away
        if waiting < 0:
            return True  # rows that were there are gone: the source says so
        return waiting >= FEW or (waiting > 0 and time.monotonic() >= due)
