"""Folding and compressing everything now, without a hub: `hubbub journal compact`.

A running hub does the same by and by (`roll`). The last segment is ended by beginning the next.
"""

from __future__ import annotations

from collections.abc import Callable

from hubbub.core.clock import Clock
from hubbub.journal import roll
from hubbub.journal.content import Header, told
from hubbub.journal.files import write_whole
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal


def compact(
    directory: Directory, keep_seconds: float = 0, keep_bytes: int = 0,
    progress: Callable[[int], None] = lambda size: None,
) -> None:  # fmt: skip
    """Heal the files, fold all segments, compress what may be. DirectoryError if a hub runs here.

    `keep_seconds`, `keep_bytes` and `progress`: as in `roll.roll`.
    """
    journal = Journal(directory.path, Clock(), "disk", lambda seq: None)
    try:
        journal.recover(lambda batch: None)
        last = journal.position
    finally:
        journal.close()
    directory.acquire()
    try:
        with told(directory.path):
            # What two snapshots cover is compressed. A snapshot is as large as all that lasts, so
            # there is one in front of the last segment, one behind it, and no others.
            for base in _ended(directory, last)[-2:]:
                roll.roll(
                    directory, base, keep_seconds, keep_bytes, righting=journal.righting,
                    progress=progress,
                )  # fmt: skip
    finally:
        directory.release()


def _ended(directory: Directory, last: int) -> list[int]:
    """Where the segments begin, all of them ended; an empty one is begun behind the last."""
    bases = roll.bases(directory)
    if not bases or last < bases[-1]:
        return bases[:-1]
    write_whole(directory.segment(last + 1), Header(last + 1, last, last + 1).encode())
    return bases
