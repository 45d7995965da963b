"""Whether the disk has room for what is to stay there.

Traffic that nobody waits for passes through the log and goes with retention. What waits (in queues,
for sessions that are away, delayed, retained) stays for as long as it waits, and each snapshot
carries it anew; a disk that is filled with it could not even be tidied up. So a part is kept free:

    a twentieth of the disk (no more than 1 GiB: who has a large one keeps other things there)
    or three segments (no more than a quarter of a small disk) and two snapshots as large as the
    next may be, without what the file `reserve` has: there are three before the oldest goes

whichever is more. Asked by the journal about once a second; removes and refuses nothing itself.
"""

from __future__ import annotations

import os
from typing import Final

from hubbub.journal.segments import Directory

SEGMENTS: Final = 3  # the one that is written, one that is folded, one that is compressed
SHARE: Final = 20  # a twentieth: file systems get slow, and others write there too
SHARE_MOST: Final = 1 << 30
MOST: Final = 4  # a quarter is the most that segments ask of a small disk
AGAIN: Final = 5 / 4  # of the mark must be free before more is taken: else it would flicker


class Room:
    """`least`: bytes to keep free, whatever the disk; 0 for the rule above. `left`: bytes that may
    still be written before the next snapshot has no room; whoever writes takes from it.
    """

    def __init__(self, directory: Directory, segment_bytes: int) -> None:
        self.least = 0
        self.left = 0
        self._directory = directory
        self._segments = SEGMENTS * segment_bytes
        self._short = False

    def look(self, snapshot: int) -> str:
        """Why nothing more that stays is taken, "" if there is room.

        `snapshot`: bytes that the next one may have. What the system does not tell counts as room,
        and so does what has been written of a snapshot.
        """
        try:
            disk = os.statvfs(self._directory.path)
            begun = sum(path.stat().st_size for path in self._directory.state.glob("*.new"))
            reserve = self._directory.reserve
            kept = reserve.stat().st_size if reserve.exists() else 0
        except OSError:
            return ""
        free, size = disk.f_bavail * disk.f_frsize + begun, disk.f_blocks * disk.f_frsize
        segments = min(self._segments, size // MOST)
        self.left = free - segments // SEGMENTS - max(0, snapshot - kept)
        folding = segments + max(0, 2 * snapshot - kept)
        mark = self.least or max(folding, min(size // SHARE, SHARE_MOST))
        self._short = free < (mark * AGAIN if self._short else mark)
        if not self._short:
            return ""
        return f"the disk has {_megabytes(free)} left, and {_megabytes(mark)} are kept free"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.1f} MB"
