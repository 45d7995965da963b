"""Connections that nobody was let in on yet: their room, their time, and who goes first.

Whoever reaches a port can open connections; it costs nothing to say a line, or none, and wait. So
strangers have what those who were let in leave of the descriptors, a fourth at least. When that is
full the oldest goes of an address that has more than a fourth of it, or of all; not who comes:
those who say who they are need a moment, and are strangers no more. One whose words we have not
read or judged yet is passed over: a busy hub is not its fault. While all are such the room holds
more for a moment. Nobody goes while there is room: who is closed comes back, and a thousand who do
stand before everybody else in the line of the kernel.

    connected ── said who it is, and was let in ──> discard
        │ the room is full, and it is the oldest;  or STRANGER_SECONDS are over
        └──> turned away, counted, one line of the log a minute

The node owns one; listeners add to it. No I/O.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Final, Protocol

from hubbub.core.limits import STRANGER_SECONDS
from hubbub.core.metrics import Metrics

MINUTE: Final = 60.0  # from one line of the log about strangers to the next
SHARE: Final = 4  # of the room for one address: a fourth
SPARED: Final = 8  # who waits for us goes after others, of so many that are looked at
SPILL: Final = 16  # a part of so many more, for them: a turn of the loop accepts before it reads
KNOWN: Final = 16  # a part of so many of all connections is left to who was let in

log = logging.getLogger("hubbub.listener")


class Visitor(Protocol):
    """What a stranger is behind the room: a socket, or a connection of the web application."""

    def occupied(self) -> bool:
        """Whether it waits for us, and not we for it."""

    def turn_away(self) -> None: ...


class Stranger:
    """One connection: who it is now, where it comes from, and since when it is here.

    `paid`: seconds of the hub's time that were charged for it (`door`).
    """

    __slots__ = ("visitor", "address", "came", "paid")

    def __init__(self, visitor: Visitor, address: str, came: float) -> None:
        self.visitor = visitor
        self.address = address
        self.came = came
        self.paid = 0.0


class Strangers:
    """All of one hub, the oldest first. `room` is how many there may be; `most` is how many
    connections there may be, those among them who were let in.
    """

    def __init__(self, room: int, metrics: Metrics, most: int = 1 << 30) -> None:
        self.room = room
        self.most = most
        self.metrics = metrics
        self._many: dict[str, None] = {}  # addresses that had more than their share
        self._all: OrderedDict[Stranger, None] = OrderedDict()
        self._at: dict[str, OrderedDict[Stranger, None]] = {}
        self._turned_away = 0
        self._told_again = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, one: Stranger) -> bool:
        return one in self._all

    def add(self, one: Stranger) -> None:
        """Let one more in; for it another one goes if there is no room."""
        bound = self._bound()
        if len(self._all) >= bound:
            self._make_room(one.address, bound)
        self._all[one] = None
        here = self._at.get(one.address)
        if here is None:
            here = self._at[one.address] = OrderedDict()
        here[one] = None
        if len(here) > bound // SHARE:
            self._many[one.address] = None

    def _bound(self) -> int:
        """How many there may be now: what those who were let in leave, but a fourth always."""
        metrics, most = self.metrics, self.most
        known = metrics.connections - metrics.connections_ended - len(self._all)
        return min(self.room, max(1, most // SHARE, most - most // KNOWN - known))

    def _make_room(self, address: str, bound: int) -> None:
        """For one more; and then for one that was let in above the bound, if there is one."""
        for _ in range(2):
            some = self._crowd(address, max(1, bound // SHARE))
            oldest = self._oldest(some)
            if oldest is None and len(self._all) >= bound + bound // SPILL:
                oldest = next(iter(some))
            if oldest is not None:
                self._turn_away(oldest)
            if len(self._all) < bound:
                break

    def _crowd(self, address: str, share: int) -> OrderedDict[Stranger, None]:
        """Of whom one goes: of the comer's address if that has its share, or of one with more."""
        nobody: OrderedDict[Stranger, None] = OrderedDict()
        for one in (address, *self._many):
            here = self._at.get(one, nobody)
            if len(here) >= share + (one != address):
                return here
            self._many.pop(one, None)
        return self._all

    def _oldest(self, some: OrderedDict[Stranger, None]) -> Stranger | None:
        """Of the oldest one that waits for nothing of ours, if there is one."""
        for _ in range(min(SPARED, len(some))):
            oldest = next(iter(some))
            if not oldest.visitor.occupied():
                return oldest
            self._all.move_to_end(oldest)
            self._at[oldest.address].move_to_end(oldest)
        return None

    def discard(self, one: Stranger) -> None:
        """It was let in, or is gone."""
        if self._all.pop(one, one) is one:
            return
        here = self._at[one.address]
        del here[one]
        if not here:
            del self._at[one.address]

    def sweep(self, now: float) -> None:
        """End those whose time is over; who waits for us has some more."""
        while self._all:
            oldest = next(iter(self._all))
            if oldest.came + STRANGER_SECONDS > now:
                break
            if oldest.visitor.occupied():
                oldest.came = now
                self._all.move_to_end(oldest)
                self._at[oldest.address].move_to_end(oldest)
            else:
                self._turn_away(oldest)
        if self._turned_away and now >= self._told_again:
            self._told_again = now + MINUTE
            log.warning(
                "turned away %d connections that did not say who they are; there is room for %d, "
                "for %g s", self._turned_away, self._bound(), STRANGER_SECONDS,
            )  # fmt: skip
            self._turned_away = 0

    def _turn_away(self, one: Stranger) -> None:
        self.discard(one)
        self._turned_away += 1
        self.metrics.connections_refused += 1
        one.visitor.turn_away()
