"""When who wants to be woken, for all connections together, so that the hub needs one timer.

    slots   10.0625 ──> one, another     a heap of times, and who is to be looked at then
            11.5    ──> a third

Tens of thousands of them wait for hours, so one that waits takes eight bytes in a slot; a place of
its own in a heap takes 120. The node owns it, the sockets of the listeners wait in it. Never wakes
anybody itself.
"""

from __future__ import annotations

import heapq
import math
from typing import Final, Generic, Protocol, TypeVar

from hubbub.core.connection import NEVER

STALE_DEADLINES: Final = 1_000  # below that, nothing is gained by throwing them out
SLOTS: Final = 16  # of a second: they begin before whom they wake, who would else miss a sweep


class Waiting(Protocol):
    """Who can be woken: `deadline` is when, NEVER = not at all. `queued` is the time of the slot in
    which it is, NEVER = of none.
    """

    deadline: float
    queued: float


W = TypeVar("W", bound=Waiting)


class Deadlines(Generic[W]):
    """When which connection wants to be woken, whatever their number.

    Most deadlines are put off before they come, so an entry is not moved: when its slot comes it is
    put where its connection's deadline is now. It is stale once its connection has an earlier one,
    or no deadline. A client may ask for one in 27 hours and leave, so stale entries are thrown out
    when they are the most.
    """

    def __init__(self) -> None:
        self._times: list[float] = []  # a heap
        self._slots: dict[float, list[W]] = {}
        self._count = 0
        self._stale = 0

    def __len__(self) -> int:
        return self._count

    def add(self, when: float, one: W) -> None:
        if when >= one.deadline:
            return
        time = _slot_of(when)
        if time >= one.queued:
            self._stale -= one.deadline == NEVER  # the entry of a deadline that was forgotten
        else:
            self._stale += one.deadline != NEVER and one.queued != NEVER
            self._put(time, one)
        one.deadline = when

    def _put(self, time: float, one: W) -> None:
        one.queued = time
        self._count += 1
        slot = self._slots.get(time)
        if slot is None:
            heapq.heappush(self._times, time)
            slot = self._slots[time] = []
        slot.append(one)

    def forget(self, one: W) -> None:
        """It need not be woken."""
        if one.deadline == NEVER:
            return
        one.deadline = NEVER
        self._stale += 1
        if self._stale > STALE_DEADLINES and 2 * self._stale > self._count:
            self._throw_out()

    def _throw_out(self) -> None:
        slots, self._slots = self._slots, {}
        self._times, self._count, self._stale = [], 0, 0
        for time, slot in slots.items():
            for one in dict.fromkeys(slot):
                if one.queued == time:
                    one.queued = NEVER
                    if one.deadline != NEVER:
                        self._put(time, one)

    def due(self, now: float) -> list[W]:
        """Those whose time has come. An entry that was overtaken by another is dropped."""
        found = []
        while self._times and self._times[0] <= now:
            time = heapq.heappop(self._times)
            for one in self._slots.pop(time):
                self._count -= 1
                if one.queued != time:
                    self._stale -= 1
                    continue
                one.queued = NEVER
                if one.deadline <= now:
                    one.deadline = NEVER
                    found.append(one)
                elif one.deadline == NEVER:
                    self._stale -= 1
                else:
                    self._put(_slot_of(one.deadline, now), one)
        return found


def _slot_of(when: float, now: float = 0.0) -> float:
    """The beginning of the slot in which that is; of the next one, if that is over."""
    began = math.floor(when * SLOTS) / SLOTS
    return began if began > now else began + 1 / SLOTS
