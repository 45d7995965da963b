"""A group of rows on its way to the disk: what the loop hands the writer thread, and gets back.

The loop gathers rows and makes frames of them (`group_of`), so that the thread only writes and
syncs. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Protocol

from hubbub.core.limits import COMMIT_BYTES, COMMIT_ROWS, GROUP_BYTES, GROUP_ROWS
from hubbub.journal import frame
from hubbub.journal.buffers import Buffers
from hubbub.journal.gathered import Gathered


class Group:
    """Frames as bytes, the first seq of each, and their rows.

    `size`: the bytes of all. `base`: where the segment begins that it belongs to. When it is
    durable the thread has said where: `file`, the first seq of its file, `landed`, its place there,
    and, if the file is a new one, `fd`, which from then on is the loop's to read from and to close
    (else -1).
    """

    __slots__ = ("base", "fd", "file", "first", "frames", "landed", "last", "rows", "size")

    def __init__(self, frames: list[tuple[int, bytearray]], rows: Gathered, base: int) -> None:
        self.frames = frames
        self.size = sum([len(data) for _, data in frames])
        self.rows = rows
        self.first = rows.first
        self.last = rows.first + len(rows) - 1
        self.base = base
        self.file = 0
        self.landed = 0
        self.fd = -1

    def changes_state(self) -> bool:
        """Whether a row inside does: what does not, nobody needs after a restart."""
        return any([frame.flags_at(data, 0) & frame.STATE for _, data in self.frames])

    def data(self) -> bytes:
        """All frames, one behind the other."""
        return b"".join([data for _, data in self.frames])


class Beyond(Protocol):
    """Where groups go beside the disk, and without which nothing of them is promised."""

    def take(self, first: int, last: int, data: bytes) -> None:
        """A group that changes state, as it goes to the disk."""

    def safe(self, landed: int) -> int:
        """How far of the rows that the disk has it is promised."""


def group_of(
    rows: Gathered, together: list[tuple[int, int]], base: int, most: int = 0,
    buffers: Buffers | None = None,
) -> Group:  # fmt: skip
    """The next group of these rows, which are taken out of them unless it has all.

    `together`: first and last seq of rows that a crash must not tear apart, sorted, each apart from
    the others: there are very many where all clients of a crash had wills. `most`: of how many rows
    at most, of which the last ends a frame; 0 = there is no such place. `buffers`: where large
    frames lie. Raises JournalError, and takes nothing, if one row is larger than a frame can be.
    """
    if not rows.cuts:
        return Group([(rows.first, _encoded(rows, 0, len(rows), 0, buffers))], rows, base)
    end = _enough(rows, together, most)
    frames: list[tuple[int, bytearray]] = []
    places = _places(rows, together, end)
    for at, next_at in pairwise([*places, end]):
        more = frame.MORE if next_at != end else 0
        frames.append((rows.first + at, _encoded(rows, at, next_at, more, buffers)))
    return Group(frames, rows.split(end) if end < len(rows) else rows, base)


def _encoded(
    rows: Gathered, begin: int, end: int, more: int, buffers: Buffers | None
) -> bytearray:  # fmt: skip
    """The frame of the rows of these places."""
    if end - begin == 1:
        return frame.encode_row(rows.at(begin), more, buffers)
    return frame.encode_columns(rows.columns(begin, end), more, buffers)


def _enough(rows: Gathered, together: list[tuple[int, int]], most: int) -> int:
    """How many rows a group has: the loop makes its frames at once, in a few milliseconds.

    What is left is worth a group of its own, or goes along.
    """
    for at, weight in rows.cuts:
        large = at >= GROUP_ROWS or weight >= GROUP_BYTES
        rest = len(rows) - at >= COMMIT_ROWS or rows.weight - weight >= COMMIT_BYTES
        if at == most or (large and rest and _before(rows, together, at) == at):
            return at
    return len(rows)


def _before(rows: Gathered, together: list[tuple[int, int]], cut: int) -> int:
    """That place, or before what belongs together there."""
    at = rows.first + cut
    index = bisect_left(together, (at, 0)) - 1
    return together[index][0] - rows.first if index >= 0 and at <= together[index][1] else cut


def _places(rows: Gathered, together: list[tuple[int, int]], end: int) -> list[int]:
    """Where frames begin: of neither too many rows nor, unless it is one, too many bytes.

    A cut within rows that belong together is made before them.
    """
    return sorted({0, *[_before(rows, together, at) for at, _ in rows.cuts if at < end]})
