"""Requests that wait: what they wait for, and who tells them.

While something is published nothing may be published again, so what arrives only leaves a wake-up;
at the end of the tick `Wakeups` lets the waiting connections look. They then find all that came in
this tick, in one answer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER
from hubbub.core.queue import Queue, Reader
from hubbub.core.session import Silent
from hubbub.core.turns import Stint

log = logging.getLogger("hubbub.switch")


class Wakeups(Silent):
    """Is called by the tick, as a session that has something to settle. Ten thousand may wait for
    the same message: what a turn has no time for is done in the next ones.
    """

    def __init__(self, broker: Broker, protocol: str) -> None:
        super().__init__(protocol, "", broker.open)
        self._broker = broker
        self._woken: deque[Wait] = deque()
        self._listed = False
        self._settling = False

    def wake(self, wait: Wait) -> None:
        self._woken.append(wait)
        if not self._settling:
            self._list()

    def _list(self) -> None:
        if not self._listed:
            self._listed = True
            self._broker.unsettled.append(self)

    def settle(self) -> None:
        """Let them look; a request that goes on may well answer another one's wait."""
        self._listed, self._settling = False, True
        stint = Stint(self._broker.clock)
        while self._woken:
            wait = self._woken.popleft()
            wait.woken = False
            _safely(wait.look)
            if stint.over():
                break
        self._settling = False
        if self._woken:
            self._list()


def _safely(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a request that waits broke the hub's own code")


def nobody() -> None:
    """Nobody waits."""


class Wait(Reader):
    """A request that is answered when there is something, or empty at its deadline.

    `look` is what its connection wants called when there may be something; it sets it. `upto`: the
    last row that the answer tells of, 0 = any made so far; it leaves when that is as safe as
    `level` says (`core.log`), 0 = as its listener's. `weight`: bytes that it keeps while it waits.
    """

    def __init__(self, wakeups: Wakeups, deadline: float) -> None:
        self.wakeups = wakeups
        self.deadline = deadline
        self.look: Callable[[], None] = nobody
        self.woken = False
        self.weight = 0
        self.status = 200
        self.upto = 0
        self.level = 0

    def arrived(self, queue: Queue) -> None:
        self.wake()

    def wake(self) -> None:
        if not self.woken:
            self.woken = True
            self.wakeups.wake(self)

    def begin(self) -> None:
        """Be told from now on."""

    def end(self) -> None:
        """Be told no more. Called exactly once after `begin`."""

    def answer(self) -> bytes | None:
        """The answer, if there is one yet."""
        raise NotImplementedError

    def empty(self) -> bytes:
        """The answer when time is up."""
        raise NotImplementedError


class Report(Wait):
    """An answer about very much: it is made a piece a turn, so that nobody else waits for it."""

    def __init__(self, wakeups: Wakeups, broker: Broker) -> None:
        super().__init__(wakeups, NEVER)
        self._broker = broker
        self._work = self.pieces()

    def pieces(self) -> Iterator[None]:
        """Find what is to be said, with a stop behind each little of it."""
        raise NotImplementedError

    def whole(self) -> bytes:
        """What there is so far."""
        raise NotImplementedError

    def begin(self) -> None:
        self._broker.later(self.look)

    def answer(self) -> bytes | None:
        """Go on for as long as one turn may take."""
        stint = Stint(self._broker.clock)
        for _ in self._work:
            if stint.over():
                if self.look is not nobody:
                    self._broker.later(self.look)
                return None
        return self.whole()

    def empty(self) -> bytes:
        """The hub is stopping."""
        return self.whole()
