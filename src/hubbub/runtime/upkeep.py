"""The slow work on a journal that is in use: finished segments are folded, old files read again.

Each runs in a child process, so that the loop never stalls, and the two beside each other: reading
everything again may take a day, and retention must go on meanwhile. The node asks every second;
what is due the journal knows. Where room is short a segment may end early, to be folded: how often
is decided here, for on a disk that is full of the files of others it gives nothing back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.runtime import child

RETRY_SECONDS: Final = 60.0
FULL_RETRY_SECONDS: Final = 5.0  # on a full disk, where there is more to remove with each roll
EARLY_PAUSE: Final = 10.0  # seconds from the fold of a segment that ended early until one may again
EARLY_SHARE: Final = 3  # times what that fold took, if that is more: a fourth of the time
EARLY_VAIN: Final = 2  # of them may give nothing back: what two snapshots have goes with the second
EARLY_DOUBLED: Final = 6  # times that each one more doubles the pause: to eleven minutes

log = logging.getLogger("hubbub")


class Upkeep:
    """At most one fold and one scrub at a time. `seconds`: what all folds took."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._roll: asyncio.Task[None] | None = None
        self._scrub: asyncio.Task[None] | None = None
        self._roll_again = 0.0
        self._found = 0  # bytes that the disk had when a fold failed
        self._early = _Early()
        self.folds = self.failed = 0
        self.seconds = 0.0

    @property
    def folding(self) -> bool:
        return _runs(self._roll)

    def figures(self) -> dict[str, float]:
        """What the status says of it."""
        seconds = round(self.seconds, 3)
        return {"folds": self.folds, "folds_failed": self.failed, "fold_seconds": seconds}

    def roll(self, journal: Journal) -> None:
        """Fold what is finished, if anything is and the last fold has ended. One that failed is
        tried again after a while, or as soon as the disk has more than it found.
        """
        waits = self._clock.now() < self._roll_again
        more = journal.room.free >= self._found + journal.room.segment_bytes
        if _runs(self._roll) or (waits and not (self._found and more)):
            return
        try:
            command = journal.roll_due()
        except OSError as error:
            path = error.filename or journal.directory.path
            self._roll_ended(journal, f"{path}: {error.strerror or error}")
            return
        if command is not None:
            self._roll = asyncio.create_task(self._run_roll(journal, command))
        elif self._early.may(journal, self._clock.now()):
            journal.end_early()

    def hurry(self) -> None:
        """Settings changed: less may be kept, so what failed is tried again now."""
        self._roll_again = 0.0

    def scrub(self, journal: Journal, days: float) -> None:
        """Read everything again, if the last time was so many days ago."""
        if not _runs(self._scrub) and journal.scrub_due(days):
            self._scrub = asyncio.create_task(self._run_scrub(journal))

    async def end(self) -> None:
        """The hub is stopping: what runs is broken off, and is due again at the next start."""
        for task in (self._roll, self._scrub):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task

    async def _run_scrub(self, journal: Journal) -> None:
        journal.scrub_ended(await _run(journal.scrub_command()))

    async def _run_roll(self, journal: Journal, command: list[str]) -> None:
        began = self._clock.now()
        self._roll_ended(journal, _taken_over(journal, await _run(command)))
        ended = self._clock.now()
        self._early.folded(ended - began, ended)
        self.seconds += ended - began

    def _roll_ended(self, journal: Journal, complaint: str) -> None:
        self.folds += not complaint
        self.failed += complaint != ""
        journal.roll_ended(complaint)
        self._found = journal.room.free if complaint and journal.shortage else 0
        if complaint or journal.disk.full:  # which would make it due again at once
            pause = RETRY_SECONDS if complaint else FULL_RETRY_SECONDS
            self._roll_again = self._clock.now() + pause


class _Early:
    """When a segment may end early. `_free`: what the disk had when that last gave something back,
    or less; `_vain`: how often it did not since. `_folds`: the next fold will be of one that did.
    """

    def __init__(self) -> None:
        self._again = 0.0
        self._free = self._vain = 0
        self._folds = False

    def may(self, journal: Journal, now: float) -> bool:
        """Whether one is to end now. Asked while nothing is folded, nor due to be."""
        if not journal.wants_room():
            self._free = self._vain = 0
        if now < self._again or not journal.early_end_due():
            return False
        free = journal.room.free
        gained = free >= self._free + journal.room.segment_bytes
        self._free = free if gained else min(free, self._free)
        self._vain = 0 if gained else self._vain + 1
        self._folds = True
        return True

    def folded(self, seconds: float, now: float) -> None:
        if not self._folds:
            return
        self._folds = False
        doubled = min(max(0, self._vain - EARLY_VAIN), EARLY_DOUBLED)
        self._again = now + max(EARLY_PAUSE, EARLY_SHARE * seconds) * 2**doubled


def _runs(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def _taken_over(journal: Journal, complaint: str) -> str:
    """Let the journal go on from what a roll left, also from what one did that failed later."""
    try:
        journal.rolled(complete=not complaint)
    except OSError as error:
        return complaint or f"{error.filename or journal.directory.path}: {error.strerror or error}"
    return complaint


async def _run(command: list[str]) -> str:
    """Run one of the journal's commands; what failed, else ""."""
    try:
        ended = await child.run(command)
        if ended.code:
            return ended.said or f"{command[3]} ended with {ended.code}"
    except OSError as error:
        return f"{error.filename or command[0]}: {error.strerror or error}"
    if ended.said:
        log.warning("journal: %s", ended.said)
    return ""
