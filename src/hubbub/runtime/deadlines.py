"""When who wants to be woken: one heap for all, so that the hub needs one timer.

The node owns it, the sockets of the listeners wait in it. Never wakes anybody itself.
"""

from __future__ import annotations

import heapq
import itertools
from typing import Final, Generic, Protocol, TypeVar

from hubbub.core.connection import NEVER

STALE_DEADLINES: Final = 1_000  # below that, nothing is gained by throwing them out


class Waiting(Protocol):
    """Who can be woken: `deadline` is when, NEVER = not at all."""

    deadline: float


W = TypeVar("W", bound=Waiting)


class Deadlines(Generic[W]):
    """When which connection wants to be woken, whatever their number.

    An entry is stale once its connection has another deadline or none. A client may ask for one in
    27 hours and leave, so stale entries are thrown out when they are the most.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self._order = itertools.count()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, one: W) -> None:
        if when < one.deadline:
            self.forget(one)
            one.deadline = when
            heapq.heappush(self._heap, (when, next(self._order), one))

    def forget(self, one: W) -> None:
        """It need not be woken."""
        if one.deadline == NEVER:
            return
        one.deadline = NEVER
        self._stale += 1
        if self._stale > STALE_DEADLINES and 2 * self._stale > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].deadline == entry[0]]
            heapq.heapify(self._heap)
            self._stale = 0

    def due(self, now: float) -> list[W]:
        """Those whose time has come. An entry that was overtaken by another is dropped."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            when, _, one = heapq.heappop(self._heap)
            if one.deadline == when:
                one.deadline = NEVER
                found.append(one)
            else:
                self._stale -= 1
        return found
