"""Rows come in: the side of the journal that the broker calls for each message. Compiled.

    append, append_run ──> numbered, gathered by column ──> `writer.Journal` makes groups of them
                             └── as many as a group has: onto the shelf, until it is their turn

`Journal` is one of these and does all that comes afterwards. A row that nobody waits for is
committed by a timer of the loop, and while a group is on its way there is nothing to commit, so
that most turns need not ask for more (`pressing`). No I/O.
"""

from __future__ import annotations

from collections import deque

from mypy_extensions import mypyc_attr

from hubbub.core.clock import Clock
from hubbub.core.limits import (
    COMMIT_BYTES,
    COMMIT_ROWS,
    COMMIT_SECONDS,
    GROUP_BYTES,
    GROUP_ROWS,
)
from hubbub.core.log import Log
from hubbub.core.message import Run, rows_of
from hubbub.journal import frame
from hubbub.journal.gathered import Gathered
from hubbub.schema import Row


@mypyc_attr(allow_interpreted_subclasses=True)
class Intake(Log):
    """What waits for the next commit. `timed`: it is on its way by itself, in COMMIT_SECONDS at
    most. `flying`: a group is on its way to the disk, and what waits, waits for it.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.records = True
        self.timed = False
        self._shelf: deque[Gathered] = deque()  # what came before `_rows`, a group each
        self._rows = Gathered()
        self._together: list[tuple[int, int]] = []  # first and last seq of what is one frame
        self._since = 0.0

    @property
    def pending(self) -> int:
        """Rows that wait for the next commit."""
        return self.position - self.handed

    @property
    def pending_bytes(self) -> int:
        """About how many bytes these are."""
        size = self._rows.weight
        for rows in self._shelf:  # as a rule none
            size += rows.weight
        return size

    def append(self, row: Row) -> int:
        rows, clock, seq = self._rows, self.clock, self.position + 1
        if not rows.weight:
            self._since = clock.now()
        rows.append(row, seq, clock.stamp())
        self.position = seq
        return seq

    def append_run(self, run: Run, audience: int) -> int:
        gathered, clock = self._rows, self.clock
        # Which of two retained ones is the later one, nodes tell by their times.
        run.recorded(self.position + 1, clock.stamp() if run.retain else clock.taken_in())
        if not gathered.weight:
            self._since = clock.now()
        payloads = run.encoding.payloads(run)
        if payloads is not None:
            gathered.add(run, audience, payloads)
            self.position += len(payloads)
            return run.first
        rows = rows_of(run, audience)
        for row in rows:
            frame.check(row)  # all of them, before one is taken: a program may have made them
        for seq, row in enumerate(rows, run.first):
            gathered.take(row, seq, run.time)
        self.position += len(rows)
        return run.first

    def together(self, first: int) -> None:
        spans = self._together
        while spans and first <= spans[-1][1]:  # they overlap, and are one
            first = min(first, spans.pop()[0])
        if first < self.position:
            spans.append((first, self.position))

    def pressing(self) -> bool:
        if self.flying:
            return self._large()
        return not self.timed or self._many()

    def shelve(self) -> None:
        """Called between two turns, or sessions of a start: what was gathered is not added to any
        more if it is enough for a group. To take a group out of more than that, all of it would be
        copied each time.
        """
        if self._large():
            self._shelf.append(self._rows)
            self._rows = Gathered()

    def due(self, now: float) -> bool:
        """Whether enough has gathered, or waited long enough, though nobody waits for it."""
        return self._many() or (self._rows.weight > 0 and now - self._since >= COMMIT_SECONDS)

    def _many(self) -> bool:
        rows = self._rows
        return len(self._shelf) > 0 or len(rows) >= COMMIT_ROWS or rows.weight >= COMMIT_BYTES

    def _large(self) -> bool:
        return len(self._rows) >= GROUP_ROWS or self._rows.weight >= GROUP_BYTES
