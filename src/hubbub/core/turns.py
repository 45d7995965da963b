"""Work that takes longer than one client may keep the hub for: it goes on in the next turns.

    later(call) -> the end of this tick -> call, call, call ... until TURN_SECONDS are over
                -> the next turn of the loop, after all who have something to say were heard -> ...

One budget for all such work, and each piece has its place in the row, so a thousand who ask for
much get their parts in turn and nobody else waits. A piece is short by itself; one that is not done
asks for another. Called by the broker and by protocols; the tick settles it as it does sessions.

What goes through a list, or through what a client sent, asks its `Stint` now and then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from hubbub.core.clock import Clock
from hubbub.core.limits import TURN_SECONDS
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Silent

log = logging.getLogger("hubbub.turns")

HALF: Final = TURN_SECONDS / 2
CROWDED: Final = 0.3  # seconds that a turn of the loop took so far: longer than one with nothing


class Stint:
    """What somebody has worked of a turn; it began `since` (monotonic seconds), or now.

    Where a thousand ask for much in one turn of the loop nobody else is heard for as many times as
    long, and other nodes take this one for dead. So in a long turn what each has is over soon.
    Time that the machine gave to others does not count. How long this thread worked is a question
    to the system (0.3 us, where the time of day is 0.05), so it is asked from the second half of a
    turn on: before, nobody can have worked for longer than a turn.
    """

    __slots__ = ("_clock", "_since", "_began")

    def __init__(self, clock: Clock, since: float = 0.0) -> None:
        self._clock = clock
        self._since = since or clock.now()
        self._began = 0.0

    def over(self) -> bool:
        clock = self._clock
        now = clock.now()
        if clock.turned and now - clock.turned > CROWDED:
            return True
        if now - self._since <= HALF:
            return False
        spent = clock.spent()
        self._began = self._began or spent
        return spent - self._began > HALF


class Turns(Silent):
    """`unsettle` has the tick call `settle` at its end. `enough`: whether so much was read from
    files in this turn that others come in the next one.
    """

    def __init__(
        self, clock: Clock, rights: Rights, unsettle: Callable[[Session], None],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        super().__init__("", "hub", rights)
        self._clock = clock
        self._unsettle = unsettle
        self._enough = enough
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
        """Do a turn's work; those who ask again meanwhile have the next one.

        Where what was read is enough all others keep their places: who read it is behind them now.
        If they were called they could do no more than ask again, behind that one each time.
        """
        self._listed = False
        stint = Stint(self._clock)
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception:
                log.exception("work that goes on in turns broke the hub's own code")
            if stint.over() or self._enough():
                break
        if self._calls:
            self._list()
