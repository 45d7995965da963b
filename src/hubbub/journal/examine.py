"""Looking at a journal's directory: what lies there (`inventory`), whether it is right (`verify`).

Takes no lock and changes nothing, so it may be used while a hub writes. `verify` reads every byte:
the header of each file, the CRC of each frame, and whether the rows follow one another; what a
start would do it asks the functions that a start asks (`healing.choose`). Rows above the committed
one are not looked at: a hub may be writing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import DirectoryError, HubbubError, JournalError
from hubbub.journal import frame
from hubbub.journal.content import Content, told, unreadable
from hubbub.journal.frame import TORN, WHOLE, Frame
from hubbub.journal.healing import choose, forged, whole_snapshot
from hubbub.journal.segments import PROCESSES, Directory

_NO_LIMIT: Final = 2**63  # of rows, where `committed` does not say one


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
    """`wrong`: what is damaged or lost, in words; `noted`: what is no damage. `refusal`: why a hub
    does not start here, "" if it does. `unread`: what the machine could not read now.
    """

    wrong: list[str]
    noted: list[str]
    unread: list[str]
    refusal: str = ""
    frames: int = 0
    rows: int = 0
    bytes: int = 0


def directory_of(path: Path) -> Directory:
    """The journal in that directory; DirectoryError if there is none."""
    with told(path):  # where a folder above may not be entered, nothing is said to be missing
        several, ours = (path / PROCESSES).exists(), (path / "format").exists()
    if several:
        raise DirectoryError(Directory(path).complaint())
    if not ours:
        raise DirectoryError(f"{path} holds no journal: there is no file {path / 'format'}")
    return Directory(path)


def suspect_of(path: Path) -> Directory:
    """The same of one that may lack what makes it a journal: whoever looks says what is wrong."""
    directory = Directory(path)
    with told(path):
        there = directory.segments() or directory.snapshots() or directory.restoring.exists()
    return directory if there else directory_of(path)


def inventory(directory: Directory) -> Inventory:
    """What lies there, by the headers of files and frames; CRCs are not looked at."""
    with told(directory.path):
        files = [_file("snapshot", directory.snapshot(seq), seq) for seq in directory.snapshots()]
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
    with Content(path) as content:
        return list(content.frames(check=False))


def verify(directory: Directory, progress: Callable[[int], None] = lambda size: None) -> Verdict:
    """Look at every byte; `progress` is called with the bytes of each frame that is done."""
    with told(directory.path):
        examination = _Examination(directory, progress)
        examination.start()
        examination.snapshots()
        examination.segments()
    return examination.verdict


class _Examination:
    """One walk over all files."""

    def __init__(self, directory: Directory, progress: Callable[[int], None]) -> None:
        self.directory = directory
        self.verdict = Verdict([], [], [])
        self._progress = progress
        self._damaged: set[str] = set()  # snapshots of which that was said
        self._snapshot = 0  # that a start begins with
        self.committed = 0
        try:
            self.committed = directory.committed()
        except JournalError as error:
            self.verdict.noted.append(str(error))

    def start(self) -> None:
        """What a start would say first."""
        try:
            choice = choose(self.directory)
        except OSError as error:
            self.verdict.unread.append(str(unreadable(error)))
        except HubbubError as error:
            self._refused(str(error))
        else:
            self._snapshot = choice.seq
            self.verdict.wrong.extend(choice.notes)
            self._damaged = {note.partition(":")[0] for note in choice.notes}
            self._refused(choice.refusal)
        self._refused(self.directory.complaint())
        for path in self.directory.strangers():
            self.verdict.noted.append(f"{path} is no file of a hub; it is left alone")

    def _refused(self, why: str) -> None:
        if why:
            self.verdict = self.verdict._replace(refusal=self.verdict.refusal or why)

    def snapshots(self) -> None:
        for seq in self.directory.snapshots():
            path = self.directory.snapshot(seq)
            for content, one in self._walk(path, seq):
                if one.verdict != WHOLE:
                    self._wrong(f"{path.name}: damaged at byte {one.at}")
                else:
                    self._look_into(content, one, seq == self._snapshot)
            if path.name in self._damaged:
                continue
            try:
                if whole_snapshot(path) is None:
                    self._wrong(f"{path.name}: not a whole snapshot")
            except (OSError, HubbubError):
                pass  # it went since it was listed, or cannot be read: that was said

    def segments(self) -> None:
        spans = list(self.directory.spans())
        last = spans[0][0] - 1 if spans else 0
        for first, following in spans:
            path = self.directory.segment(first)
            limit = following or (self.committed + 1 if self.committed else _NO_LIMIT)
            for content, one in self._walk(path, first):
                if one.verdict == WHOLE and one.first >= limit:
                    continue  # left by a write that failed, or by one of just now
                if one.verdict == WHOLE:
                    read = not following or following > self._snapshot + 1
                    self._look_into(content, one, read and bool(one.flags & frame.STATE))
                    self._lost(last, one.first - 1)
                    last = max(last, one.last)
                elif last >= limit - 1 or (limit == _NO_LIMIT and one.verdict == TORN):
                    self.verdict.noted.append(
                        f"{path.name}: {one.size} bytes after row {last} are not finished"
                    )
                else:
                    self._wrong(f"{path.name}: {one.size} bytes are damaged at byte {one.at}")
            if self._cut_short:
                last = max(last, following - 1, self.committed if not following else 0)
        self._lost(last, max([self.committed, *(first - 1 for first, _ in spans[-1:])]))
        newest = max(self.directory.snapshots(), default=0)
        if spans and newest and spans[0][0] > newest + 1:
            self._lost(newest, spans[0][0] - 1)

    def _look_into(self, content: Content, one: Frame, needed: bool) -> None:
        """Whether a frame whose checksum is right has the rows that it says; `needed` by a start.

        A compressed one is read by those who have Arrow, and by no start.
        """
        if one.flags & frame.COMPRESSED:
            return
        try:
            content.rows(one)
        except JournalError as error:
            if needed:
                self._refused(forged(error))
            self._wrong(str(error))

    def _lost(self, last: int, before: int) -> None:
        if before > last:
            self._wrong(f"rows {last + 1} to {before} are lost")

    def _wrong(self, text: str) -> None:
        self.verdict.wrong.append(text)

    def _walk(self, path: Path, first: int) -> Iterator[tuple[Content, Frame]]:
        """The file, open, with each of its frames; its header is looked at. `_cut_short` if that
        was not possible to its end: the machine cannot read it now, or it went since it was listed.
        """
        self._cut_short = True
        try:
            with Content(path) as content:
                header = content.header()
                if header is None or header.first != first:
                    self._wrong(f"{path.name}: a damaged header")
                for one in content.frames():
                    yield content, one
                    self._count(one)
                    self._progress(one.size)
            self._cut_short = False
        except FileNotFoundError:
            pass
        except OSError as error:
            self.verdict.unread.append(str(unreadable(error, path)))
        except HubbubError as error:
            self._wrong(str(error))

    def _count(self, one: Frame) -> None:
        found = self.verdict
        self.verdict = found._replace(bytes=found.bytes + one.size)
        if one.verdict == WHOLE:
            rows, frames = found.rows + one.rows, found.frames + 1
            self.verdict = self.verdict._replace(frames=frames, rows=rows)


def total_bytes(directory: Directory) -> int:
    """The bytes that `verify` reads."""
    paths = [directory.snapshot(seq) for seq in directory.snapshots()]
    paths += [directory.segment(first) for first in directory.segments()]
    return sum(path.stat().st_size for path in paths if path.exists())
