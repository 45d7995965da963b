"""Rows that were written, read again: backlogs, retained messages, the request to an answer.

What was written last is still in memory; the rest lies in files that stay open until a snapshot
has taken their place. The loop's, like the journal (`writer`) that owns it.

    row ──→ near ──→ recent groups ──→ frame cache ──→ the file that holds it, else the snapshot

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
from hubbub.journal.frame import Frame
from hubbub.journal.gathered import Gathered
from hubbub.journal.group import Group
from hubbub.journal.segments import Directory
from hubbub.schema import Row

RECENT_GROUPS: Final = 16  # small ones, of COMMIT_BYTES at most


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


class ReadBack:
    """The files of a journal that rows are read from. `report` is told what is damaged."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self.files: list[File] = []
        self.snapshot: Index | None = None
        self.snapshot_seq = 0
        # What was written last is asked for soon: the answer to a request looks at the request.
        self.recent: deque[Gathered] = deque(maxlen=RECENT_GROUPS)
        self._report = report
        self._cache: dict[tuple[Index, int], tuple[list[Row], int]] = {}
        self._cached = 0
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
        rows = self._rows_around(seq)
        at = bisect_left(rows, (seq,))
        if at == len(rows) or rows[at].seq != seq:
            return None
        if rows[-1].seq - rows[0].seq == len(rows) - 1:  # no gaps, as snapshots have
            self._near = rows
        return rows[at]

    def _rows_around(self, seq: int) -> list[Row]:
        """The rows that lie in a frame with that one, if it is there."""
        index = next((file.places for file in reversed(self.files) if file.first <= seq), None)
        return self._frame(index or self.snapshot, seq)

    def _frame(self, index: Index | None, seq: int) -> list[Row]:
        at = index.place(seq) if index else -1
        if index is None or at < 0:
            return []
        cached = self._cache.get((index, at))
        if cached is not None:
            return cached[0]
        try:
            rows, size = index.rows(at)
        except JournalError as error:
            self._report(f"row {seq} is lost: {error}")
            return []
        self._cache[index, at] = rows, size
        self._cached += size
        while self._cached > FRAME_CACHE_BYTES and len(self._cache) > 1:
            self._cached -= self._cache.pop(next(iter(self._cache)))[1]
        return rows

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
