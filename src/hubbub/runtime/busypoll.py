"""Looking once more before the loop sleeps, while the next message follows at once.

Who waits for an answer before it says the next thing (a call, a publisher with one message out)
finds the hub asleep each time, and a sleeping core takes tens of microseconds to wake: more than
the message does. So after a read the loop asks its sockets again instead of sleeping, for a moment:

    reads      |  |  |  |··|··|··|·····|          · looks        many close ones begin it,
    loop       z  z  z  z  looks       z          z sleeps       nothing in `seconds` ends it

What the looks cost is bounded by what they gain. A read that follows closely on another would be
caught by a look and counts for it; one that comes late would be a look in vain and counts WORTH
times against it. An idle hub sleeps, and so does one whose clients write now and then. On a single
core nobody looks: there the clients need the time.

Owned by the node, which tells it of each read; belongs to the loop's thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

WORTH: Final = 8  # reads that are caught pay for a look in vain: it lasts about as long as they
WANTED: Final = 2 * WORTH  # gained, until it begins: less may be one message in pieces
GAINED_MOST: Final = 8 * WORTH  # so when the traffic changes, few looks are in vain


class BusyPoll:
    """Looks for `seconds` after a read; 0 never looks. `soon` is the loop's `call_soon`."""

    def __init__(
        self,
        soon: Callable[[Callable[[], None]], object],
        seconds: float,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds = seconds if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._soon = soon
        self._now = now
        self._looking = False
        self._last = 0.0  # when was read
        self._gained = 0

    def heard(self) -> None:
        """A socket was read."""
        now = self._now()
        close = now - self._last < self.seconds
        self._last = now
        self._gained = min(self._gained + 1, GAINED_MOST) if close else max(self._gained - WORTH, 0)
        if self._gained >= WANTED and not self._looking:
            self._looking = True
            self._soon(self._look)

    def rest(self) -> None:
        """Somebody waits for the disk: what is read late shares the next sync, so no haste."""
        self._last = 0.0
        self._gained = 0

    def _look(self) -> None:
        self._looking = self._now() - self._last < self.seconds
        if self._looking:
            self._soon(self._look)  # the turn of the loop until then is the look
