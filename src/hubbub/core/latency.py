"""How long messages and calls take within the hub, for `/metrics` and the page.

    Transit   a message: from when it is routed until a receiver's socket has its bytes,
              and what had to be durable before is
    Calls     a request: from when it came in until its answer does

A message is timed only now and then, the first one of each window of `core.sampled`, and of its
receivers one that takes what it gets: what waits for a slow reader says nothing of the hub. So the
others cost nothing. Every call is timed, as far as the hub sees that it is one: a request in a
queue, or one that has a number to be answered at.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import Final

from hubbub.core.clock import Clock
from hubbub.core.limits import CALLS_TIMED
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.core.message import Run
from hubbub.core.metrics import Histogram

RECEIVERS_LOOKED: Final = 20  # of one message: is there one who takes it at once?
GIVEN_UP: Final = 10.0  # seconds: it counts as one that took as long


class Transit:
    """One message on its way, and how long those before it took (`seconds`).

    The tick looks at its end whether it has left.
    """

    __slots__ = ("seconds", "on_its_way", "_clock", "_log", "_link", "_began", "_position")

    def __init__(self, clock: Clock, log: Log) -> None:
        self.seconds = Histogram()
        self.on_its_way = False
        self._clock = clock
        self._log = log
        self._link: Link | None = None
        self._began = 0.0
        self._position = 0

    def begin(self, run: Run) -> bool:
        """This run is about to be delivered; False if it is not the one to be timed."""
        if self.on_its_way:
            return False
        for subscription in islice(run.route.subscriptions, RECEIVERS_LOOKED):
            session = subscription.session
            link = session.way_out()
            # Its own link may be written without a tick (`Node.heard`).
            takes = link is not None and not link.choked and session.hungry()
            if takes and session is not run.sender:
                self._link, self._began, self._position = link, self._clock.now(), 0
                self.on_its_way = True
                return True
        return False

    def look(self) -> None:
        """Every link that was touched has been written: has it left?"""
        link = self._link
        if link is None or link.closing:
            self._forget()
            return
        self._position = self._position or self._log.position or 1  # the rows that it waits for
        took = self._clock.now() - self._began
        if not link.held or link.held[0][0] > self._position or took > GIVEN_UP:
            self.seconds.add(took)
            self._forget()

    def _forget(self) -> None:
        self._link, self.on_its_way = None, False


class Calls:
    """How long requests took that were answered (`seconds`); CALLS_TIMED are remembered."""

    __slots__ = ("seconds", "_clock", "_began")

    def __init__(self, clock: Clock) -> None:
        self.seconds = Histogram()
        self._clock = clock
        self._began: OrderedDict[int, float] = OrderedDict()  # by seq

    def asked(self, seq: int) -> None:
        """The request with this seq is in a queue now."""
        if len(self._began) >= CALLS_TIMED:
            self._began.popitem(last=False)
        self._began[seq] = self._clock.now()

    def answered(self, seq: int, began: float = 0.0) -> None:
        """It is answered. `began`: when it was asked, if it is not remembered; 0 = unknown."""
        began = self._began.pop(seq, began)
        if began:
            self.seconds.add(self._clock.now() - began)
