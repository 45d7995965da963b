"""Whether the disk has room for what is to stay there.

Traffic that nobody waits for passes through the log and goes with retention. What waits (in queues,
for sessions that are away, delayed, retained) stays for as long as it waits, and each snapshot
carries it anew; a disk that is filled with it could not even be tidied up. So a part is kept free:

    a twentieth of the disk (no more than 1 GiB: who has a large one keeps other things there)
    or three segments and two snapshots as large as the next may be, without what the file `reserve`
    has: there are three before the oldest goes; while one is written they are three, for that
    will be in the way of the others

whichever is more. A small disk has small segments: of 150 MB one of 64 MiB, the snapshot of it and
the next segment are all there is, and the first one may not go before the second is folded too.
Before that, the last of what may be taken is shared out among users (`core.scarce`): a tenth of the
disk, of a large one 4 GiB. How much is left of it must not change with folds, or what was taken
before would count as taken now. So what stays is counted five times from the start, and all
snapshots that there are as free:

    two snapshots that lie there, one that is being written, and the two that are kept free

Asked by the journal a few times a second, and when so much was written that it may be short:
a fast disk takes a third of a small one between two looks. Removes and refuses nothing itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from hubbub.core.limits import KIB
from hubbub.core.low import AGAIN, LASTS, Low, megabytes
from hubbub.core.scarce import WEIGHT
from hubbub.journal.segments import Directory

SEGMENTS: Final = 3  # the one that is written, one that is folded, one that is compressed
SHARE: Final = 20  # a twentieth: file systems get slow, and others write there too
SHARE_MOST: Final = 1 << 30
SNAPSHOTS: Final = 5  # of what stays, until the last one is written and all others have gone
SHARED: Final = 10  # a tenth: it is what one user alone has less of a disk, nearly
SHARED_MOST: Final = 4 << 30
OFTEN: Final = 16  # looks while what is shared out is taken: one user takes so much too much
SOONEST: Final = 64  # part of a segment that is written between two looks, each of 0.1 ms
HELD: Final = 32  # segments that a disk has room for at least
SEGMENT_LEAST: Final = 64 * KIB  # as the setting
UNSEEN: Final = 8  # part of what is left: a byte takes its own room, and that of three snapshots


class Room:
    """`least`: bytes to keep free, whatever the disk; 0 for the rule above. `free`: what there was
    at the last look. `left`: bytes that may still be written before the next snapshot has no room,
    `unseen`: before it must be looked again. `spare`: bytes until nothing is taken that stays,
    of which each byte that stays takes `core.scarce.WEIGHT`; `shared`: how many of these are shared
    out. `wanted`: the hub says that somebody may have no more of them, so what was taken away is
    to come back. Whoever writes says so (`spend`). `segment_bytes`: what is wanted, or less on a
    small disk.
    """

    def __init__(self, directory: Directory, segment_bytes: int) -> None:
        self.least = 0
        self.free = self.left = self.unseen = 0
        self.spare = self.shared = 0
        self.wanted = False
        self._directory = directory
        self.segment_bytes = _fitting(directory.path, segment_bytes)
        self._segments = SEGMENTS * self.segment_bytes
        self._low = Low()

    def spend(self, size: int) -> None:
        """So much was written."""
        self.left -= size
        self.unseen -= size

    def look(self, snapshot: int, stays: int, now: float, folding: bool = False) -> str:
        """Why nothing more that stays is taken, "" if there is room.

        `snapshot`: bytes that the next one may have at most, `stays`: without what was written and
        changed nothing; `folding`: one is being written. What the system does not tell counts as
        room, and so does what has been written of a snapshot. Who is to wait is decided by the
        former, as a fold needs its room; what is taken by the latter, or it would be refused for as
        long as others publish at full speed.
        """
        try:
            disk = os.statvfs(self._directory.path)
            held = {path: _size(path) for path in self._directory.state.glob("*")}
            kept = _size(self._directory.reserve)
        except OSError:
            return ""
        begun = sum(size for path, size in held.items() if path.suffix == ".new")
        free, size = disk.f_bavail * disk.f_frsize + begun, disk.f_blocks * disk.f_frsize
        self.free = free
        segments = self._segments
        self.left = free - segments // SEGMENTS - max(0, (1 + folding) * snapshot - kept)
        needed = segments + max(0, (2 + folding) * stays - kept)
        rule = self.least or min(size // SHARE, SHARE_MOST)
        mark = self.least or max(needed, rule)
        self._share(free - begun + kept + sum(held.values()), size, stays, rule)
        self.unseen = max((free - mark) // UNSEEN, self.segment_bytes // SEGMENTS)
        until = (self.spare - self.shared if self.spare > self.shared else self.spare) // WEIGHT
        self.unseen = min(self.unseen, max(until // OFTEN, self.segment_bytes // SOONEST))
        if not self._low.look(free, mark, now):
            return ""
        if free < mark * AGAIN:
            return f"the disk has {megabytes(free)} left, and {megabytes(mark)} are kept free"
        return f"the disk has {megabytes(free)} left again, which has to last {LASTS:g} s"

    def _share(self, unheld: int, size: int, stays: int, rule: int) -> None:
        """What is left to share out. `unheld`: bytes free if there were no snapshots; `rule`: kept
        free whatever stays.
        """
        spare = unheld - rule - (SNAPSHOTS - 2) * stays
        if not self.least:
            spare = min(spare, unheld - self._segments - SNAPSHOTS * stays)
        self.spare, self.shared = spare, max(min(size // SHARED, SHARED_MOST), self._segments)


def _size(path: Path) -> int:
    """A roll, which is another process, may take the file away meanwhile, or give it its name."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _fitting(path: Path, segment_bytes: int) -> int:
    try:
        there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
        disk = os.statvfs(there)
    except OSError:  # what cannot be entered is told when the directory is made
        return segment_bytes
    held = disk.f_blocks * disk.f_frsize // HELD
    return min(segment_bytes, max(held, SEGMENT_LEAST)) if held else segment_bytes
