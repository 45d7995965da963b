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

Looks gain nothing where nobody waits for an answer: a thousand devices that each say something
once a second come as close on one another, and come no sooner. So it is tried: SAMPLE reads with
looks, as many without, and only where those with looks came FASTER it goes on looking.

It also says whether a read came **alone**. What many say in one turn of the loop is answered at its
end, all at once: a write in between wakes a peer that finds one answer where it could find a
hundred. What one says alone is answered at once, without another turn. Nobody can know what else
the kernel has ready; but traffic stays as it was a moment ago:

    turns      | r r r r r r | r r r r | r | r |      several: to the end of the turn
    alone      | - - - - - - | - - - - | - | + |      the turn before had one, so this one has

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
SAMPLE: Final = 128  # close reads: their mean differs by a tenth from one time to the next
FASTER: Final = 0.85  # of the time between two reads without looks
AGAIN: Final = 32  # samples until it is tried anew
APART: Final = 100e-6  # seconds between reads that no turn of the loop has both of


class Trial:
    """Whether looks make those who speak speak sooner. `helps`: look now, be it to find out."""

    __slots__ = ("helps", "_with", "_sum", "_reads", "_rounds")

    def __init__(self) -> None:
        self.helps = True
        self._with = 0.0  # seconds between two reads with looks, 0 while that is not tried
        self._sum = 0.0
        self._reads = 0
        self._rounds = 0  # samples until it is tried

    def read(self, passed: float) -> None:
        """A read so many seconds after the one before."""
        self._sum += passed
        self._reads += 1
        if self._reads == SAMPLE:
            self._sampled(self._sum / SAMPLE)
            self._sum, self._reads = 0.0, 0

    def _sampled(self, mean: float) -> None:
        if self.helps and mean * FASTER > self._with:
            self._rounds = 0  # others speak now, or it is the first sample: this one is tried
        if self._rounds:
            self._rounds -= 1
            if not self._rounds:
                self.helps = True
        elif self.helps:
            self._with, self.helps = mean, False
        else:
            self.helps = self._with < mean * FASTER
            self._rounds = AGAIN


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
        self._trial = Trial()
        self._reads = 0  # of this turn
        self._before = 0  # of the last turn that had any

    def heard(self, caused: bool = True) -> bool:
        """A socket was read. True: it came alone, so what it caused may leave at once.

        `caused`: there is something to be written. Other reads keep nobody from being alone.
        """
        now = self._now()
        passed = now - self._last
        self._last = now
        close = passed < self.seconds
        self._gained = min(self._gained + 1, GAINED_MOST) if close else max(self._gained - WORTH, 0)
        if passed >= APART:
            self.turned()
        self._reads += caused
        if close and self._gained >= WANTED:
            self._trial.read(passed)
            if self._trial.helps and not self._looking:
                self._looking = True
                self._soon(self._look)
        return self._reads == 1 and self._before <= 1

    def turned(self) -> None:
        """A turn of the loop is over: what is read from now on belongs to the next."""
        if self._reads:
            self._before = self._reads
            self._reads = 0

    def rest(self) -> None:
        """Somebody waits for the disk: what is read late shares the next sync, so no haste."""
        self._last = 0.0
        self._gained = 0

    def _look(self) -> None:
        self.turned()
        self._looking = self._trial.helps and self._now() - self._last < self.seconds
        if self._looking:
            self._soon(self._look)  # the turn of the loop until then is the look
