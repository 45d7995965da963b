"""Work that takes longer than one client may keep the hub for: it goes on in the next turns.

    later(call) -> the end of this tick -> call, call, call ... until TURN_SECONDS are over
                -> the next turn of the loop, after all who have something to say were heard -> ...

One budget for all such work, and each piece has its place in the row, so a thousand who ask for
much get their parts in turn and nobody else waits. A piece is short by itself; one that is not done
asks for another. Called by the broker and by protocols; the tick settles it as it does sessions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from hubbub.core.clock import Clock
from hubbub.core.limits import TURN_SECONDS
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Silent

log = logging.getLogger("hubbub.turns")


class Turns(Silent):
    """`unsettle` has the tick call `settle` at its end."""

    def __init__(self, clock: Clock, rights: Rights, unsettle: Callable[[Session], None]) -> None:
        super().__init__("", "hub", rights)
        self._clock = clock
        self._unsettle = unsettle
        self._calls: deque[Callable[[], None]] = deque()
        self._listed = False

    def later(self, call: Callable[[], None]) -> None:
        """Call it in another turn: this one has had its time."""
        self._calls.append(call)
        self._list()

    def _list(self) -> None:
        if not self._listed:
            self._listed = True
            self._unsettle(self)

    def settle(self) -> None:
        """Do a turn's work; those who ask again meanwhile have the next one."""
        self._listed = False
        began = self._clock.spent()
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                log.exception("work that goes on in turns broke the hub's own code")
            if self._clock.spent() - began > TURN_SECONDS:
                break
        if self._calls:
            self._list()
