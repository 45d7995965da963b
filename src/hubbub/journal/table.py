"""The journal as a table: what Spark and the command line read, also while a hub writes.

A `Table` looks at the directory anew for every question: segments are added, compressed and
removed in the meantime, rows never change. Only rows up to the committed one exist for it.
Frames come as they lie on the disk: a batch of an uncompressed frame is a view of the mapped
file. Needs no hub and takes no lock; never writes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow

from hubbub.errors import JournalError, OffsetError
from hubbub.journal import arrow, frame
from hubbub.journal.frame import WHOLE, Frame
from hubbub.journal.segments import Directory, mapped, walk

SCHEMA: Final = pyarrow.ipc.read_schema(pyarrow.py_buffer(arrow.SCHEMA))


def batch_of(data: mmap.mmap, found: Frame) -> pyarrow.RecordBatch:
    """The rows of a whole frame as a view of the mapped file, or decompressed."""
    message = pyarrow.py_buffer(data).slice(
        found.at + frame.HEADER.size, found.size - frame.HEADER.size
    )
    return pyarrow.ipc.read_record_batch(message, SCHEMA)


class Table:
    """The rows of the journal in `directory`, which need not exist yet.

    `allow_loss`: rows that retention removed, or that damage took, are left out; without it
    reading over them raises OffsetError (gone) or JournalError (damaged).
    """

    schema: Final = SCHEMA

    def __init__(self, directory: str, allow_loss: bool = False) -> None:
        self._directory = Directory(Path(directory))
        self._allow_loss = allow_loss

    def first(self) -> int:
        """The oldest seq that exists, 1 for an empty journal."""
        return next(iter(self._directory.segments()), 1)

    def committed(self) -> int:
        """The newest seq that exists, 0 for an empty journal."""
        return self._directory.committed()

    def segment_of(self, seq: int) -> int:
        """The seq at which the segment with that row begins; the oldest one's if it is gone."""
        firsts = self._directory.segments()
        return max((first for first in firsts if first <= seq), default=self.first())

    def read(self, after: int, upto: int) -> Iterator[pyarrow.RecordBatch]:
        """The rows with after < seq <= upto, in order.

        Raises OffsetError if some of them are gone or not yet there, JournalError if they are
        damaged.
        """
        for data, found in self._frames(after, upto, check=True):
            batch = batch_of(data, found)
            start = max(after + 1 - found.first, 0)
            yield batch.slice(start, min(upto, found.last) + 1 - found.first - start)

    def split(self, after: int, upto: int, parts: int) -> list[tuple[int, int]]:
        """The range cut into at most `parts` ranges of about as many bytes, at frame ends."""
        ends = [(found.last, found.size) for _, found in self._frames(after, upto, check=False)]
        total = sum(size for _, size in ends)
        cuts: list[tuple[int, int]] = []
        start, passed = after, 0
        for last, size in ends[:-1]:
            passed += size
            if passed * parts >= total * (len(cuts) + 1):
                cuts.append((start, last))
                start = last
        return [*cuts, (start, upto)] if upto > start else cuts

    def _frames(self, after: int, upto: int, check: bool) -> Iterator[tuple[mmap.mmap, Frame]]:
        """The frames that hold rows with after < seq <= upto."""
        committed = self.committed()
        if after < upto and upto > committed:
            raise OffsetError(f"rows up to {upto} were asked for, the last one is {committed}")
        position = after
        while position < upto and (opened := self._open(position + 1)):
            data, end = opened
            for found in walk(data, check=False):
                if position >= min(end, upto):
                    break
                if found.verdict == WHOLE and found.last <= position:
                    continue
                checked = frame.scan(memoryview(data), found.at) if check else found
                if checked.verdict != WHOLE:
                    self._damaged(position, found)
                    continue
                if found.first > min(end, upto):
                    break
                self._gap(position, found.first - 1)
                yield data, found
                position = found.last
            self._gap(position, min(end, upto))
            position = max(position, end)
        self._gap(position, upto)

    def _open(self, seq: int) -> tuple[mmap.mmap, int] | None:
        """The segment that holds `seq` or else the first one after it, and its last seq."""
        while True:
            firsts = self._directory.segments()
            at = max(sum(first <= seq for first in firsts) - 1, 0)
            if at >= len(firsts):
                return None
            end = firsts[at + 1] - 1 if at + 1 < len(firsts) else 2**63 - 1
            try:
                return mapped(self._directory.segment(firsts[at])), end
            except FileNotFoundError:
                continue  # removed since it was listed

    def _gap(self, position: int, end: int) -> None:
        """Rows after `position` up to `end` are not there."""
        if end <= position or self._allow_loss:
            return
        if position + 1 < (first := self.first()):
            raise OffsetError(f"row {position + 1} was asked for, the oldest one kept is {first}")
        raise OffsetError(f"rows {position + 1} to {end} are lost: the hub's log says why")

    def _damaged(self, position: int, found: Frame) -> None:
        if not self._allow_loss:
            raise JournalError(
                f"rows after {position} are damaged at byte {found.at} of their segment: "
                "restart the hub, which sets the damaged file aside"
            )
