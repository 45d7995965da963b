"""Looking at a journal's directory: what lies there (`inventory`), whether it is right (`verify`).

Takes no lock and changes nothing, so it may be used while a hub writes. `verify` reads every byte:
the header of each file, the CRC of each frame, and whether the rows follow one another. Rows above
the committed one are not looked at: a hub may be writing them.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hubbub.errors import HubbubError, JournalError
from hubbub.journal import frame
from hubbub.journal.frame import WHOLE, Frame
from hubbub.journal.segments import Directory, header_of, mapped, walk, whole_snapshot


class File(NamedTuple):
    """A segment (kind "segment") or snapshot: rows `first` to `last`, for a snapshot its own."""

    kind: str
    path: Path
    bytes: int
    frames: int
    rows: int
    first: int
    last: int
    compressed: bool


class Inventory(NamedTuple):
    """What a directory holds. `committed`: the last row; `quarantine`: damaged files set aside."""

    files: list[File]
    committed: int
    quarantine: list[Path]

    @property
    def first(self) -> int:
        """The oldest row, 0 if there is none."""
        return next((one.first for one in self.files if one.kind == "segment"), 0)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.files)


class Verdict(NamedTuple):
    """`wrong`: what is damaged or lost, in words; `noted`: what is no damage."""

    wrong: list[str]
    noted: list[str]
    frames: int
    rows: int
    bytes: int


def directory_of(path: Path) -> Directory:
    """The journal in that directory; JournalError if there is none."""
    if not (path / "format").exists():
        raise JournalError(f"{path} holds no journal: there is no file {path / 'format'}")
    return Directory(path)


def inventory(directory: Directory) -> Inventory:
    """What lies there, by the headers of files and frames; CRCs are not looked at."""
    files = []
    for seq in directory.snapshots():
        files.append(_file("snapshot", directory.snapshot(seq), seq))
    for first, following in directory.spans():
        files.append(_file("segment", directory.segment(first), first, following))
    kept = sorted(directory.quarantine.iterdir()) if directory.quarantine.exists() else []
    return Inventory(files, directory.committed(), kept)


def _file(kind: str, path: Path, first: int, following: int = 0) -> File:
    found = [one for one in _frames(path) if one.verdict == WHOLE]
    if following:
        found = [one for one in found if one.first < following]
    last = max((one.last for one in found), default=first if kind == "snapshot" else first - 1)
    return File(
        kind, path, path.stat().st_size, len(found), sum(one.rows for one in found), first,
        first if kind == "snapshot" else last,
        any(one.flags & frame.COMPRESSED for one in found),
    )  # fmt: skip


def _frames(path: Path) -> list[Frame]:
    try:
        return list(walk(mapped(path), check=False))
    except JournalError:
        return []


def verify(directory: Directory, progress: Callable[[int], None] = lambda size: None) -> Verdict:
    """Look at every byte; `progress` is called with the bytes of each file that is done."""
    examination = _Examination(directory, progress)
    examination.snapshots()
    examination.segments()
    return examination.verdict


class _Examination:
    """One walk over all files."""

    def __init__(self, directory: Directory, progress: Callable[[int], None]) -> None:
        self.directory = directory
        self.committed = directory.committed()
        self.verdict = Verdict([], [], 0, 0, 0)
        self._progress = progress

    def snapshots(self) -> None:
        for seq in self.directory.snapshots():
            path = self.directory.snapshot(seq)
            for one in self._walk(path, seq):
                if one.verdict != WHOLE:
                    self._wrong(f"{path.name}: damaged at byte {one.at}")
            if path.exists() and whole_snapshot(path) is None:
                self._wrong(f"{path.name}: not a whole snapshot, a start uses the one before")

    def segments(self) -> None:
        spans = list(self.directory.spans())
        last = spans[0][0] - 1 if spans else 0
        for first, following in spans:
            path = self.directory.segment(first)
            limit = following or self.committed + 1
            for one in self._walk(path, first):
                if one.verdict == WHOLE and one.first >= limit:
                    continue  # left by a write that failed, or by one of just now
                if one.verdict == WHOLE:
                    self._lost(last, one.first - 1)
                    last = max(last, one.last)
                elif last >= limit - 1:
                    self.verdict.noted.append(
                        f"{path.name}: {one.size} bytes after row {last} are not finished"
                    )
                else:
                    self._wrong(f"{path.name}: {one.size} bytes are damaged at byte {one.at}")
        self._lost(last, self.committed)
        if spans and spans[0][0] > 1 and not self.directory.snapshots():
            self._wrong("the log begins after row 1, and no snapshot says what was before")

    def _lost(self, last: int, before: int) -> None:
        if before > last:
            self._wrong(f"rows {last + 1} to {before} are lost")

    def _wrong(self, text: str) -> None:
        self.verdict.wrong.append(text)

    def _walk(self, path: Path, first: int) -> Iterator[Frame]:
        """The frames of a file, its header looked at; nothing if it went since it was listed."""
        try:
            data = mapped(path)
            header = header_of(memoryview(data))
        except FileNotFoundError:
            return
        except HubbubError as error:
            self._wrong(str(error))
            return
        if header is None or header.first != first:
            self._wrong(f"{path.name}: a damaged header")
        for one in walk(data):
            yield one
            if one.verdict == WHOLE:
                self.verdict = self.verdict._replace(
                    frames=self.verdict.frames + 1, rows=self.verdict.rows + one.rows
                )
        self.verdict = self.verdict._replace(bytes=self.verdict.bytes + len(data))
        self._progress(len(data))


def total_bytes(directory: Directory) -> int:
    """The bytes that `verify` reads."""
    paths = [directory.snapshot(seq) for seq in directory.snapshots()]
    paths += [directory.segment(first) for first in directory.segments()]
    return sum(path.stat().st_size for path in paths if path.exists())


def holder(directory: Directory) -> str:
    """The process id of the hub that has the directory open, "" if none has."""
    try:
        lock = os.open(directory.path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(lock, 20).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(lock)
    return ""
