"""Whether there is little of something, said without flicker; and how much that is, for people.

    below the mark ──> little       a fourth more than the mark, LASTS seconds on end ──> no more

Asked by what keeps a disk free (`journal.room`), and by what shares out the last of it (`scarce`).
No I/O.
"""

from __future__ import annotations

from math import inf
from typing import Final

AGAIN: Final = 5 / 4  # of the mark must be there again
LASTS: Final = 5.0  # seconds: a fold moves marks, and segments come and go


class Low:
    """`on`: whether there was little when it was last looked at."""

    def __init__(self) -> None:
        self.on = False
        self._enough = inf  # since when there has been so much again

    def look(self, there: int, mark: int, now: float) -> bool:
        """`there`: so much is left, below `mark` is little; `now`: monotonic seconds."""
        self._enough = min(self._enough, now) if there >= mark * AGAIN else inf
        self.on = there < mark or (self.on and now - self._enough < LASTS)
        return self.on


def megabytes(size: int) -> str:
    """As people are told of it."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.1f} MB"
