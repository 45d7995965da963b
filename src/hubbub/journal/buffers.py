"""Buffers of large frames, used again once nobody has them any more.

What is as large as a frame of many payloads is memory that the allocator takes from the machine
for each (`runtime.allocator`), and gives back: the machine zeroes a page and enters it in its
tables for every 4 KiB, 0.9 us, which is nine times what it takes to copy them there. A buffer that
is there already costs none of that. Frames of small rows are joined as they are: to copy each by
itself would take longer.

Whether somebody has a buffer is what Python counts anyway, a view of it included. The journal owns
one of these and asks from its loop alone; no I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from hubbub.core.limits import COMMIT_ROWS, GROUP_ROWS

LARGE: Final = 256 << 10  # from here on the allocator takes blocks by themselves
MOST: Final = 4 << 20  # more is not kept
PIECE: Final = 1 << 10  # bytes of a piece, on average, that are worth a copy by themselves
KEPT: Final = GROUP_ROWS // COMMIT_ROWS + 1  # the frames of a group, and one of the next


class Buffers:
    """KEPT of them at most, the oldest first."""

    def __init__(self) -> None:
        self._all = [bytearray()]
        self._free = self._references(0)  # of one that nobody else has
        self._all.clear()

    def joined(self, pieces: Sequence[bytes | bytearray], length: int) -> bytearray:
        """All of these, which are so many bytes together, one behind the other."""
        if not LARGE <= length <= MOST or length < PIECE * len(pieces):
            return bytearray().join(pieces)
        out, at = self._room(length), 0
        view = memoryview(out)
        for piece in pieces:
            end = at + len(piece)
            view[at:end] = piece
            at = end
        view.release()
        return out

    def _room(self, length: int) -> bytearray:
        for index in range(len(self._all)):
            if self._references(index) == self._free:
                one = self._all[index]
                if length <= len(one) <= 2 * length:
                    del one[length:]
                    return one
                if len(one) < length <= 2 * len(one):
                    one += bytes(length - len(one))
                    return one
        if len(self._all) >= KEPT:
            del self._all[0]
        one = bytearray(length)
        self._all.append(one)
        return one

    def _references(self, index: int) -> int:
        return sys.getrefcount(self._all[index])
