"""Waiting a moment before rows go to the disk, while those who were just answered speak again.

Publishers that wait for the disk come in waves. What arrives during one sync is the next group, and
whoever was in the group before waits one more: two waves, each with half of the publishers and a
sync of its own.

    at once    disk   [ a ][ b ][ a ][ b ]       a group costs the same, however many rows it has,
    in a wave  disk   [ ab ]·[ ab ]·[ ab ]       and here each waits for one sync, not for two

So when a group has landed and its publishers were answered, the next one waits until as many rows
are here as that group had, and those that waited already: but no longer than a SHARE of what the
disk just took. A loop's timers are coarser than a disk of today, so it looks at its sockets
meanwhile. A publisher that is alone has its row here, and never waits. Where nobody speaks again so
soon the wait is in vain; after VAIN such ones nobody waits for RESTS groups.

(PostgreSQL knows the same as `commit_delay`, which one sets.) Owned by the node, asked by the
`Turn`; belongs to the loop's thread. No I/O.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

SHARE: Final = 1 / 4  # of what the last group took from its commit until it was safe
MOST: Final = 200e-6  # seconds: the loop is awake meanwhile
WORTH: Final = 3 / 4  # of the rows that were waited for have come: then it was worth it
VAIN: Final = 4
RESTS: Final = 100


class CommitDelay:
    """Whether rows that somebody waits for wait for others. `now` is a clock of seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._helps = len(os.sched_getaffinity(0)) > 1  # a single core is the publishers'
        self._wanted = 0  # rows
        self._until = 0.0
        self._looked = False
        self._vain = 0
        self._rests = 0

    def landed(self, rows: int, waiting: int, seconds: float) -> None:
        """A group of so many rows is safe after so long, its publishers hear it, others wait."""
        self._wanted = 0
        if self._rests:
            self._rests -= 1
        elif self._helps:
            self._wanted, self._looked = rows + waiting, False
            self._until = self._now() + min(seconds * SHARE, MOST)

    def waits(self, waiting: int) -> bool:
        """Whether to look at the sockets once more before these rows go to the disk."""
        wanted = self._wanted
        if not wanted:
            return False
        if waiting < wanted and self._now() < self._until:
            self._looked = True
            return True
        self._wanted = 0
        if self._looked:
            self._judge(waiting >= wanted * WORTH)
        return False

    def _judge(self, worth: bool) -> None:
        self._vain = 0 if worth else self._vain + 1
        if self._vain == VAIN:
            self._vain, self._rests = 0, RESTS
