"""A group of rows on its way to the disk: what the loop hands the writer thread, and gets back.

The loop gathers rows and makes frames of them (`group_of`), so that the thread only writes and
syncs. Pure.
"""

from __future__ import annotations

from typing import Protocol

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.journal import frame
from hubbub.journal.gathered import Gathered, weight_of


class Group:
    """Frames as bytes, where each begins in them (first seq, place), and their rows.

    `base`: where the segment begins that it belongs to. When it is durable the thread has said
    where: `file`, the first seq of its file, `landed`, its place there, and, if the file is a new
    one, `fd`, which from then on is the loop's to read from and to close (else -1).
    """

    __slots__ = ("base", "data", "fd", "file", "first", "frames", "landed", "last", "rows")

    def __init__(
        self, data: bytearray, frames: list[tuple[int, int]], rows: Gathered, base: int
    ) -> None:
        self.data = data
        self.frames = frames
        self.rows = rows
        self.first = rows.first
        self.last = rows.first + len(rows) - 1
        self.base = base
        self.file = 0
        self.landed = 0
        self.fd = -1


    def changes_state(self) -> bool:
        """Whether a row inside does: what does not, nobody needs after a restart."""
        return any(frame.flags_at(self.data, at) & frame.STATE for _, at in self.frames)


class Beyond(Protocol):
    """Where groups go beside the disk, and without which nothing of them is promised."""

    def take(self, first: int, last: int, data: bytearray) -> None:
        """A group that changes state, as it goes to the disk."""

    def safe(self, landed: int) -> int:
        """How far of the rows that the disk has it is promised."""


def group_of(rows: Gathered, together: list[tuple[int, int]], base: int) -> Group:
    """The rows as frames. `together`: first and last seq of rows that a crash must not tear apart.
    """
    columns, count, weight = rows.columns(), len(rows), rows.weight
    if weight <= FRAME_BYTES and count <= COMMIT_ROWS:
        return Group(frame.encode_columns(columns), [(rows.first, 0)], rows, base)
    data = bytearray()
    frames: list[tuple[int, int]] = []
    places = _places(rows, together)
    for at, end in zip(places, [*places[1:], count], strict=True):
        frames.append((rows.first + at, len(data)))
        part = columns if end - at == count else [column[at:end] for column in columns]
        data += frame.encode_columns(part, frame.MORE if end != count else 0)
    return Group(data, frames, rows, base)


def _places(rows: Gathered, together: list[tuple[int, int]]) -> list[int]:
    """Where frames begin: of neither too many rows nor, unless it is one, too many bytes.

    A cut within rows that belong together is made before them.
    """
    cuts = _cuts(rows)
    for first, last in together if cuts else ():
        low, high = first - rows.first, last - rows.first
        cuts = [low if low < cut <= high else cut for cut in cuts]
    return sorted({0, *cuts})


def _cuts(rows: Gathered) -> list[int]:
    """Where a new frame begins."""
    if rows.weight <= FRAME_BYTES:
        return list(range(COMMIT_ROWS, len(rows), COMMIT_ROWS))
    cuts: list[int] = []
    begun = size = 0
    for index, row in enumerate(rows):
        size += weight_of(row)
        if index > begun and (index - begun == COMMIT_ROWS or size > FRAME_BYTES):
            cuts.append(index)
            begun, size = index, weight_of(row)
    return cuts
