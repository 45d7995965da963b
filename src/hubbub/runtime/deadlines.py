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
    """Who can be woken: `deadline` is when, NEVER = not at all. `queued` is when the heap comes to
    it, NEVER = it is not in it.
    """

    deadline: float
    queued: float


W = TypeVar("W", bound=Waiting)


class Deadlines(Generic[W]):
    """When which connection wants to be woken, whatever their number.

    Most deadlines are put off before they come, so an entry is not moved: when its time comes it
    is put where its connection's deadline is now. It is stale once its connection has an earlier
    one, or no deadline. A client may ask for one in 27 hours and leave, so stale entries are thrown
    out when they are the most.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, W]] = []
        self._order = itertools.count()
        self._stale = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, one: W) -> None:
        if when >= one.deadline:
            return
        if when >= one.queued:
            self._stale -= one.deadline == NEVER  # the entry of a deadline that was forgotten
        else:
            self._stale += one.deadline != NEVER and one.queued != NEVER
            self._push(when, one)
        one.deadline = when

    def _push(self, when: float, one: W) -> None:
        one.queued = when
        heapq.heappush(self._heap, (when, next(self._order), one))

    def forget(self, one: W) -> None:
        """It need not be woken."""
        if one.deadline == NEVER:
            return
        one.deadline = NEVER
        self._stale += 1
        if self._stale > STALE_DEADLINES and 2 * self._stale > len(self._heap):
            self._throw_out()

    def _throw_out(self) -> None:
        kept = []
        for entry in self._heap:
            when, _, one = entry
            if one.queued == when and one.deadline != NEVER:
                kept.append(entry)
            elif one.queued == when:
                one.queued = NEVER
        self._heap, self._stale = kept, 0
        heapq.heapify(kept)

    def due(self, now: float) -> list[W]:
        """Those whose time has come. An entry that was overtaken by another is dropped."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            when, _, one = heapq.heappop(self._heap)
            if one.queued != when:
                self._stale -= 1
                continue
            one.queued = NEVER
            if one.deadline <= now:
                one.deadline = NEVER
                found.append(one)
            elif one.deadline == NEVER:
                self._stale -= 1
            else:
                self._push(one.deadline, one)
        return found
