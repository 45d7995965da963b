"""Whether what comes waits for what is about to come, so that one group takes all of it.

    answered ──> who waited for it says more ──> as many as were on their way wait again: they go
                      └── not within a moment: what there is goes

A group costs servers and nodes the same whether one message is in it or a thousand. Whoever waits
for answers says more as soon as they are there; the half that came before would go alone, and each
of the two would wait for the other one. Publishers that wait for nobody are found out: after a
moment that was too short only a few of the next ones are as long. Asked by `copies` and `passing`,
which say what time it is. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.limits import CLUSTER_COPY_GATHER_SECONDS, CLUSTER_COPY_RETURN_SECONDS

TRIES: Final = 8  # of so many moments that were in vain one is long


class Gathering:
    """`moment`: which one it is. `_full`: with so many there it is over, and at `_until`. `_vain`:
    moments since one was not.
    """

    def __init__(self) -> None:
        self.moment = self._full = self._vain = 0
        self._until = 0.0

    def begin(self, now: float, full: int) -> float:
        """Some of so many that were on their way were answered. The seconds for which others may
        wait now.
        """
        in_vain = self._vain % TRIES
        seconds = CLUSTER_COPY_GATHER_SECONDS if in_vain else CLUSTER_COPY_RETURN_SECONDS
        self.moment += 1
        self._full, self._until = full, now + seconds
        return seconds

    def over(self, moment: int) -> None:
        """It is, unless it was before: by the clock of `now` a timer may be early."""
        if moment == self.moment and self._full:
            self._end(in_vain=True)

    def waits(self, now: float, there: int) -> bool:
        """Whether those that are there do."""
        if there < self._full and now < self._until:
            return True
        if self._full:
            self._end(in_vain=there < self._full)
        return False

    def _end(self, in_vain: bool) -> None:
        self._vain = self._vain + 1 if in_vain else 0
        self._full = 0
