"""Rows that were written, read again: backlogs, retained messages, the request to an answer.

What was written last is still in memory; the rest lies in files that stay open until a snapshot
has taken their place. The loop's, like the journal (`writer`) that owns it.

    row ──→ near ──→ recent groups ──→ frame cache ──→ the file that holds it, else the snapshot

Of a frame only the rows are made that are asked for, and those around them when who asks goes on
from row to row: to make all of a thousand takes ten times as long as to read it, and who wants what
is retained below a name, or was away while others spoke, may want one of each frame.

A frame that was read and is damaged has lost its rows: said once, and None. One that the machine
cannot read now is OSError: whoever waits for that row waits on.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.limits import FRAME_CACHE_BYTES
from hubbub.errors import JournalError
from hubbub.journal.content import Content, Index
from hubbub.journal.frame import Columns, Frame, rows_of
from hubbub.journal.gathered import Gathered
from hubbub.journal.group import Group
from hubbub.journal.segments import Directory
from hubbub.schema import Row

RECENT_GROUPS: Final = 16  # small ones, of COMMIT_BYTES at most
LARGE: Final = 4 << 10  # bytes of a row: to make one costs less than to have it twice
BLOCK: Final = 128  # rows of a frame that are made at once, which takes as long as 20 by themselves
EACH: Final = 128 << 10  # bytes that could be read in the time that each frame takes beside its own
APART: Final = 8  # seqs: who asks for one so close to the last one may ask for those around,
CLOSE: Final = 2  # if that comes so often in a row


class File(NamedTuple):
    """A segment file that can be read: first seq, where its segment begins, its frames."""

    first: int
    base: int
    places: Index


def opened(path: Path, frames: list[Frame], flags: int = os.O_RDONLY) -> Index:
    """A file open for reading by the seqs of these frames."""
    index = Index(path, os.open(path, flags))
    for found in frames:
        index.add(found.first, found.at)
    return index


def _renewed(file: File, following: int) -> File:
    """The file that has the name now. The same one, if that cannot be opened: it has all rows."""
    path, fd = file.places.path, file.places.fd
    try:
        if os.stat(path).st_ino == os.fstat(fd).st_ino:
            return file
        with Content(path) as content:
            return file._replace(places=opened(path, content.rows_frames(following)))
    except OSError:
        return file


class Held:
    """A frame that was read, `size` bytes of it. `block`: the last rows of it that were made.

    Large rows are all made at once, and their frame let go: whoever asks for one of them then has
    the same bytes as all others, and not 60 MiB for each.
    """

    __slots__ = ("size", "block", "_columns", "_begin", "_last", "_close")

    def __init__(self, columns: Columns, size: int) -> None:
        large = size >= LARGE * columns.count
        self.size = size
        self.block: list[Row] = rows_of(columns) if large else []
        self._columns = None if large else columns
        self._begin = 0  # where the block does
        self._last = -APART
        self._close = 0  # so many in a row were close to each other

    def row(self, seq: int) -> Row | None:
        """That one, if it is there. JournalError if only the frame's checksum is right."""
        columns = self._columns
        if columns is None:
            at = bisect_left(self.block, (seq,))
            return self.block[at] if at < len(self.block) and self.block[at].seq == seq else None
        at, count = columns.place(seq), columns.count
        if at < 0:
            return None
        self._close = self._close + 1 if 0 < seq - self._last <= APART else 0
        self._last = seq
        if not 0 <= at - self._begin < len(self.block):
            if self._close < CLOSE < count:
                return columns.row(at)
            self._begin = at // BLOCK * BLOCK
            self.block = columns.rows(self._begin, min(self._begin + BLOCK, count))
        return self.block[at - self._begin]


class ReadBack:
    """The files of a journal that rows are read from. `report` is told what is damaged."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.files: list[File] = []
        self.snapshot: Index | None = None
        self.snapshot_seq = 0
        # What was written last is asked for soon: the answer to a request looks at the request.
        self.recent: deque[Gathered] = deque(maxlen=RECENT_GROUPS)
        self._report = report
        self._cache: dict[tuple[Index, int], Held] = {}
        self._cached = 0
        self.fetched = 0  # bytes of frames that were read so far, and EACH
        # What was read last: backlogs and retained messages are read in their order, and often
        # the same message by several. Rows never change, so this is never out of date.
        self._near: list[Row] = []

    def landed(self, group: Group, directory: Directory) -> None:
        """A group is durable: its file can be read from now on."""
        if group.fd >= 0:
            if self.files and self.files[-1].first == group.file:
                # Found empty at the start; then its first sync failed, and this took its name.
                self.files.pop().places.close()
            path = directory.segment(group.file)
            self.files.append(File(group.file, group.base, Index(path, group.fd)))
        at = group.landed
        for first, data in group.frames:
            self.files[-1].places.add(first, at)
            at += len(data)

    def row(self, seq: int) -> Row | None:
        """The row of that number, None if there is none. OSError if it cannot be read now."""
        rows = self._near
        if rows and rows[0].seq <= seq <= rows[-1].seq:
            return rows[seq - rows[0].seq]
        for gathered in reversed(self.recent):  # they follow each other without a gap
            if seq >= gathered.first:
                found = gathered.row(seq)
                if found is not None:
                    return found
                break
        return self._from_file(seq)

    def _from_file(self, seq: int) -> Row | None:
        index = next((file.places for file in reversed(self.files) if file.first <= seq), None)
        held = self._frame(index or self.snapshot, seq)
        if held is None:
            return None
        try:
            row = held.row(seq)
        except JournalError as error:
            self._report(f"row {seq} is lost: {error}")
            return None
        rows = held.block
        if rows and rows[-1].seq - rows[0].seq == len(rows) - 1:  # no gaps, as snapshots have
            self._near = rows
        return row

    def _frame(self, index: Index | None, seq: int) -> Held | None:
        """What lies where that row does, if it is there."""
        at = index.place(seq) if index else -1
        if index is None or at < 0:
            return None
        held = self._cache.get((index, at))
        if held is not None:
            return held
        try:
            held = Held(*index.columns(at))
        except JournalError as error:
            self._report(f"row {seq} is lost: {error}")
            return None
        self._cache[index, at] = held
        self.fetched += held.size + EACH
        self._cached += held.size
        while self._cached > FRAME_CACHE_BYTES and len(self._cache) > 1:
            self._cached -= self._cache.pop(next(iter(self._cache))).size
        return held

    def rolled(self, path: Path, seq: int, before: int) -> None:
        """Read the messages of folded segments from the snapshot `seq` from now on.

        Segments since the snapshot `before` stay open: sessions that end with their connection
        are in no snapshot, but may still wait for messages.
        """
        with Content(path) as content:
            snapshot = opened(path, content.rows_frames(0))
        done = [file.places for file in self.files if file.base <= before]
        self.files = [file for file in self.files if file.base > before]
        if self.snapshot is not None:
            done.append(self.snapshot)
        self.snapshot, self.snapshot_seq = snapshot, seq
        self._cache.clear()
        self.recent.clear()
        self._cached = 0
        for index in done:
            index.close()

    def renew(self) -> None:
        """Let go of finished files that others took the place of: as long as they are open, the
        disk has no room for anything else where they lie.
        """
        for at, (file, after) in enumerate(pairwise(self.files)):
            renewed = _renewed(file, after.first)
            if renewed is not file:
                self.files[at] = renewed
                self._cache.clear()
                self._cached = 0
                file.places.close()

    def close(self) -> None:
        for file in self.files:
            file.places.close()
        self.files = []
        if self.snapshot is not None:
            self.snapshot.close()
            self.snapshot = None
