"""Rows of a clock that was far ahead when they were written are taken for rows of the start.

    clock     ──────── a year ahead ────╮ set right, start
    rows      t+1y  t+1y  t+1y          ╰── t   t    t
    taken as  start start start             t   t    t        what expires does so as much earlier

Else what they delay, keep or let expire would do so when that clock's time has come. The files
stay as they were written. `writer` takes rows so at a start and when they are read later, and
`roll` when it folds them: the rows of a snapshot have no time of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Final

from hubbub.core.limits import CLOCK_BEHIND
from hubbub.schema import Row

ENDLESS: Final = 1 << 63
_TIME: Final = itemgetter(Row._fields.index("time"))


class Righting:
    """`start`: when the hub started (UTC microseconds). `upto`: the last row that it found then;
    later ones are its own, and right. `begins`: says when it starts, which its last row decides
    where the clock is a little behind that; asked when there is a row that is ahead.
    """

    def __init__(
        self, start: int, upto: int = ENDLESS, begins: Callable[[], int] | None = None
    ) -> None:
        self.upto = upto
        self._begins = begins
        self._begin(start)

    def _begin(self, start: int) -> None:
        self.start = start
        self._latest = start + CLOCK_BEHIND * 1_000_000

    def began(self, start: int) -> None:
        """All was read, and that is when it started."""
        self._begins = None
        self._begin(start)

    def concerns(self, times: Iterable[int]) -> bool:
        """Whether a row that was written at one of these times is not taken as it is."""
        latest = max(times)
        if latest > self._latest and self._begins is not None:
            self.began(self._begins())
        return latest > self._latest

    def rows(self, rows: list[Row]) -> list[Row]:
        if not self.concerns(map(_TIME, rows)):
            return rows
        return [self.row(row) for row in rows]

    def row(self, row: Row) -> Row:
        if row.time <= self._latest or row.seq > self.upto:
            return row
        expires = row.expires - (row.time - self.start) if row.expires else 0
        return row._replace(time=self.start, expires=expires)
