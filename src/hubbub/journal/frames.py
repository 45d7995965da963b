"""Which frames hold a range of rows: the journal's directory as its readers see it.

Everything is looked up anew for every question: segments are added, compressed and removed in
the meantime, rows never change. Only rows up to the committed one exist. `table` makes batches
of the frames, the web application sends them as they are. Needs no hub, takes no lock, never
writes, and knows no pyarrow.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import JournalError, OffsetError
from hubbub.journal import frame
from hubbub.journal.frame import WHOLE, Frame
from hubbub.journal.segments import HEADER_BYTES, Directory, header_of, walk

END: Final = 2**63 - 1
MARK_BYTES: Final = 1 << 20  # so much is walked at most to find a row in a segment seen before
MARKED: Final = 16  # segments of which marks are kept


class Segment(NamedTuple):
    """A segment file: its first seq and its size in bytes."""

    first: int
    size: int


class Marks:
    """Where some frames of one file begin, so that the next search does not start at its head."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._places = array("q")

    def add(self, found: Frame) -> None:
        """Remember a frame if it lies far enough behind the last one."""
        if not self._places or found.at >= self._places[-1] + MARK_BYTES:
            self._firsts.append(found.first)
            self._places.append(found.at)

    def before(self, seq: int) -> int:
        """A place from which walking finds that row."""
        index = bisect_right(self._firsts, seq) - 1
        return self._places[index] if index >= 0 else HEADER_BYTES


class Frames:
    """The frames of the journal in `directory`, which need not exist yet.

    `allow_loss`: damaged frames are left out; without it they raise JournalError.
    """

    def __init__(self, directory: Path, allow_loss: bool = False) -> None:
        self._directory = Directory(directory)
        self._allow_loss = allow_loss
        self._marks: dict[tuple[int, int], Marks] = {}

    @property
    def name(self) -> str:
        """The journal in words."""
        return str(self._directory.path)

    def identity(self) -> str:
        """What tells this journal from every other, "" if there is none yet."""
        return self._directory.identity()

    def first(self) -> int:
        """The oldest seq that exists, 1 for an empty journal."""
        return next(iter(self._directory.segments()), 1)

    def committed(self) -> int:
        """The newest seq that exists, 0 for an empty journal."""
        return self._directory.committed()

    def segments(self) -> list[Segment]:
        """The segments as they are now, ascending."""
        found = []
        for first in self._directory.segments():
            try:
                size = self._directory.segment(first).stat().st_size
            except FileNotFoundError:
                continue  # removed since it was listed
            found.append(Segment(first, size))
        return found

    def base_of(self, seq: int) -> int:
        """Where the segment of that row begins; the oldest file's if the row is gone."""
        firsts = self._directory.segments()
        first = max((one for one in firsts if one <= seq), default=self.first())
        try:
            return self._directory.base(first)
        except FileNotFoundError:
            return first  # removed since it was listed, or there is none

    def between(
        self, after: int, upto: int, check: bool = True
    ) -> Iterator[tuple[mmap.mmap, Frame]]:
        """The frames that hold rows with after < seq <= upto, in order, each in its mapped file.

        Rows that are gone or damaged make gaps. `check=False` leaves out the CRC. Raises
        OffsetError for rows that are not there yet, JournalError for damaged ones.
        """
        committed = self.committed()
        if after < upto and upto > committed:
            raise OffsetError(f"rows up to {upto} were asked for, the last one is {committed}")
        position = after
        while position < upto and (opened := self._open(position + 1)):
            data, end, marks = opened
            limit = min(end, upto)
            for found in walk(data, marks.before(position + 1), check=False):
                if found.first > limit:
                    break
                if found.verdict == WHOLE:
                    marks.add(found)
                    if found.last <= position:
                        continue
                checked = frame.scan(memoryview(data), found.at) if check else found
                if checked.verdict != WHOLE:
                    self._damaged(position, found)
                    continue
                yield data, found
                position = found.last
                if position >= limit:
                    break  # what follows may be written just now, or be cut
            position = max(position, end)

    def _open(self, seq: int) -> tuple[mmap.mmap, int, Marks] | None:
        """The segment that holds `seq` or else the first one after it, and its last seq."""
        while True:
            firsts = self._directory.segments()
            at = max(sum(first <= seq for first in firsts) - 1, 0)
            if at >= len(firsts):
                return None
            end = firsts[at + 1] - 1 if at + 1 < len(firsts) else END
            try:
                data, marks = self._map(firsts[at])
            except FileNotFoundError:
                continue  # removed since it was listed
            return data, end, marks

    def _map(self, first: int) -> tuple[mmap.mmap, Marks]:
        """A segment mapped for reading, and the marks of this very file: compressed is another."""
        path = self._directory.segment(first)
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_size < HEADER_BYTES:
                raise JournalError(f"{path} has no whole header; restart the hub, which heals it")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if header_of(memoryview(data)) is None and not self._allow_loss:
            raise JournalError(f"the header of {path} is damaged; restart the hub, which heals it")
        key = (first, status.st_ino)
        if key not in self._marks:
            if len(self._marks) >= MARKED:
                del self._marks[next(iter(self._marks))]
            self._marks[key] = Marks()
        return data, self._marks[key]

    def _damaged(self, position: int, found: Frame) -> None:
        if not self._allow_loss:
            raise JournalError(
                f"rows after {position} are damaged at byte {found.at} of their segment in "
                f"{self.name}: restart the hub, which sets the damaged file aside"
            )
