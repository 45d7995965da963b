"""What lies in one file of rows: its header, its frames, and the bytes of them.

A file is read by calls that can fail. A map would be no slower and no simpler, but one block that
the disk cannot read ends the process that touches it, without a word. So whoever reads gets
OSError with the file's name, and knows the difference that matters most here:

    OSError                 the machine cannot read it now: says nothing about the file
    DAMAGED, TORN, None     the file was read, and is not what was written

Nobody may move, cut or remove a file because of the first. Used by the writer, the roller and
the readers; opens files and reads them, never writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from hubbub.errors import DirectoryError, JournalError, UnreadableError
from hubbub.journal import frame
from hubbub.journal.arrow import BATCH, SCHEMA
from hubbub.journal.frame import DAMAGED, PART, TORN, WHOLE, Frame
from hubbub.schema import FORMAT_VERSION, Row

MAGIC: Final = b"HUBBUBJ1"
UNREADABLE: Final = frozenset((errno.EIO, errno.EUCLEAN, errno.EBADMSG))  # of one place on a disk

_HEADER: Final = struct.Struct("<8sIIqqqqI12x")
_CRC_AT: Final = 48
HEADER_BYTES: Final = _HEADER.size + len(SCHEMA)
_MARK: Final = BATCH[:16]  # how the Arrow message of every uncompressed frame begins
# Bytes read at a time: more was no faster, and of this much the allocator has room from before
# (`wire.bytes.CHUNK` is a block of its own, of which the machine makes each page anew).
_WINDOW: Final = (1 << 20) - 64
_GLANCE: Final = 1 << 15  # the same where only the headers of frames are looked at
_HEAD: Final = frame.HEADER.size + len(BATCH)  # bytes of a frame before its body
_BLOCK: Final = 4096  # what a disk cannot read at the least

# What to do when the machine cannot read.
_ADVICE: Final = {
    errno.EIO: "the disk cannot read a part of it: look at the system's log, copy what can be "
    "copied, and see what `hubbub journal repair --dry-run` can save",
    errno.EMFILE: "this process may not open more files: raise `ulimit -n`",
    errno.ENFILE: "the machine has too many files open: raise fs.file-max",
    errno.ENOMEM: "there is not enough memory: give it more",
    errno.EACCES: "make it readable for this user",
    errno.EPERM: "make it readable for this user",
    errno.ENOENT: "it went while it was looked for: see who else is at work in this directory",
    errno.ENOSPC: "the disk is full: make room",
    errno.EDQUOT: "the quota is used up: make room",
    errno.EROFS: "the file system is read-only: look at the system's log why",
}


def unreadable(error: OSError, path: Path | None = None) -> UnreadableError:
    """What to tell a user when the machine could not open, read or write a file.

    `path`: what it was about, where the error does not say it.
    """
    advice = _ADVICE.get(error.errno or 0, "mend that")
    where = error.filename or path or "the journal"
    return UnreadableError(f"{where}: {error.strerror or error}; {advice}, and try again")


@contextlib.contextmanager
def told(path: Path) -> Iterator[None]:
    """What the machine cannot do with the files of a directory is said as UnreadableError."""
    try:
        yield
    except OSError as error:
        raise unreadable(error, path) from error


class Header(NamedTuple):
    """The beginning of a segment or snapshot; `segments` draws it."""

    first: int
    after: int
    base: int
    sealed: int = 0

    def encode(self) -> bytes:
        fields = (MAGIC, FORMAT_VERSION, HEADER_BYTES, *self)
        crc = zlib.crc32(_HEADER.pack(*fields, 0) + SCHEMA)
        return _HEADER.pack(*fields, crc) + SCHEMA


def header_of(view: memoryview) -> Header | None:
    """The header that these bytes begin with, or None if it is damaged.

    Raises DirectoryError if it is whole and of a later format.
    """
    if len(view) < _HEADER.size:
        return None
    magic, version, size, *numbers, crc = _HEADER.unpack_from(view)
    if magic != MAGIC or not _HEADER.size <= size <= len(view):
        return None
    whole = bytearray(view[:size])
    whole[_CRC_AT : _CRC_AT + 4] = bytes(4)
    if zlib.crc32(whole) != crc:
        return None
    if version > FORMAT_VERSION:
        raise DirectoryError(f"journal format {version}: this is made by a newer hubbub; update")
    header = Header(*numbers)
    return header if header.encode() == view[:HEADER_BYTES] else None


def read_at(fd: int, size: int, at: int, path: Path) -> bytes:
    """Up to `size` bytes of an open file, fewer at its end. OSError says which file it was."""
    try:
        data = os.pread(fd, size, at)
        while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
            data += more
    except OSError as error:
        error.filename = str(path)
        raise
    return data


class Content:
    """One file, open for reading: `with Content(path) as content`.

    `size` is its length when it was opened; a file that a hub writes may be cut meanwhile, and
    then is as long as could be read. Raises OSError if the machine cannot open or read it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        try:
            self.size = os.fstat(self._fd).st_size
        except OSError:
            self.close()
            raise
        self._window = b""
        self._start = 0

    def __enter__(self) -> Content:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; views that were given stay what they are."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def header(self) -> Header | None:
        """The header, None if it is damaged. DirectoryError if it is of a later format."""
        return header_of(self.view(0, HEADER_BYTES))

    def view(self, at: int, size: int) -> memoryview:
        """These bytes, fewer at the end of the file."""
        data, begin = self.around(at, size)
        return memoryview(data)[begin : begin + size]

    def around(self, at: int, size: int, window: int = 0) -> tuple[bytes, int]:
        """A piece of the file that holds these bytes, and where they begin in it.

        If it must be read, as much as `window` is (1 MiB for 0), if that much can be.
        """
        size = max(min(size, self.size - at), 0)
        if at < self._start or at + size > self._start + len(self._window):
            self._fill(at, size, max(size, window or _WINDOW))
        return self._window, at - self._start

    def placed(self, found: Frame) -> Frame:
        """A frame with its place in the piece that `around` gave last."""
        return found._replace(at=found.at - self._start)

    def inode(self) -> int:
        """The number of this very file, whatever has its name now."""
        return os.fstat(self._fd).st_ino

    def rows(self, found: Frame) -> list[Row]:
        """The rows of a whole frame. JournalError if only its checksum is right."""
        with self.named(found):
            return frame.decode(self.view(found.at, found.size), 0)

    def columns(self, found: Frame) -> frame.Columns:
        """The same, not read yet: what reads them is to say where they lie (`named`)."""
        return frame.Columns(self.view(found.at, found.size), 0)

    @contextlib.contextmanager
    def named(self, found: Frame) -> Iterator[None]:
        """What is wrong with a frame is said with the place where it lies."""
        try:
            yield
        except JournalError as error:
            raise JournalError(f"{self.path.name}, byte {found.at}: {error}") from None

    def frames(self, at: int = HEADER_BYTES, check: bool = True) -> Iterator[Frame]:
        """Frames in turn. A stretch that is no frame comes as one DAMAGED, one at the end as TORN.
        Zeros at the end are nothing. `check=False` believes the headers and leaves out the CRCs.
        """
        last = 0
        while at < self.size:
            found = self._scan(at, check)
            if found.verdict != WHOLE or found.first < last:
                zeros = self._zeros_at_end()
                if at >= zeros:
                    return
                end = self.size if found.verdict == TORN else self._resume(found, last, zeros)
                verdict = DAMAGED if end < zeros else TORN
                found = Frame(verdict, at, end - at, found.first, found.last, 0, 0)
            else:
                last = found.last
            yield found
            at += found.size

    def rows_frames(self, following: int) -> list[Frame]:
        """The frames of a healed file, of which the next one begins with seq `following` (or 0).

        What lies behind them was left by a write that failed; its rows are in the next file.
        """
        return [
            found
            for found in self.frames(check=False)
            if found.verdict == WHOLE and (not following or found.first < following)
        ]

    def readable(self) -> Iterator[Frame]:
        """The whole frames of a file in which the disk cannot read some blocks."""
        at = HEADER_BYTES
        while at < self.size:
            try:
                for found in self.frames(at):
                    if found.verdict == WHOLE:
                        yield found
                    at = found.at + found.size
                return
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                at = self._behind(at)

    def _behind(self, at: int) -> int:
        """Where the next whole frame begins behind one that cannot be read."""
        try:
            head = self.view(at, _HEAD)
            found = frame.scan(head, 0, False, self.size - at - len(head))
        except OSError:
            found = Frame(DAMAGED, at, 0, 0, 0, 0, 0)
        if found.size:
            return at + found.size  # it says its length: its payload is not searched
        for block in range(at // _BLOCK * _BLOCK, self.size, _BLOCK):
            for place in self._marks_in(block):
                if place > at and self._is_whole(place):
                    return place
        return self.size

    def _marks_in(self, begin: int) -> list[int]:
        """Where frames may begin of which the mark begins in that block."""
        piece = b""
        for size in (_BLOCK, _BLOCK + len(_MARK) - 1):  # the block after it may be unreadable
            with contextlib.suppress(OSError):
                piece = bytes(self.view(begin, size))
        found, at = [], piece.find(_MARK)
        while at >= 0:
            found.append(begin + at - frame.HEADER.size)
            at = piece.find(_MARK, at + 1)
        return [place for place in found if not place & 7]

    def _is_whole(self, at: int) -> bool:
        try:
            return self._scan(at, True).verdict == WHOLE
        except OSError:
            return False

    def check(self, found: Frame) -> Frame:
        """The same frame with its CRC looked at."""
        return frame.scan(self.view(found.at, found.size), 0)._replace(at=found.at)

    def _scan(self, at: int, check: bool) -> Frame:
        data, begin = self.around(at, _HEAD, _WINDOW if check else _GLANCE)
        found = frame.scan(memoryview(data), begin, check, self.size - self._start - len(data))
        if found.verdict == PART:
            found = frame.scan(self.view(at, found.size), 0, check, 0)
        return found._replace(at=at)

    def _fill(self, at: int, size: int, wanted: int) -> None:
        try:
            self._window = read_at(self._fd, wanted, at, self.path)
        except OSError:
            # Behind what is wanted there may be a block that cannot be read: that is not asked.
            self._window = read_at(self._fd, size, at, self.path)
        self._start = at
        if len(self._window) < size:
            self.size = min(at + len(self._window), os.fstat(self._fd).st_size)

    def _zeros_at_end(self) -> int:
        """Where they begin; the last frame may end with some of them."""
        end = self.size
        while end:
            start = max(end - _WINDOW, 0)
            if rest := bytes(self.view(start, end - start)).rstrip(b"\0"):
                return start + len(rest)
            end = start
        return 0

    def _resume(self, bad: Frame, last: int, zeros: int) -> int:
        """Where the next whole frame begins after a damaged one, or the `zeros` after all of them.

        If the damaged frame still tells its size it is not searched: a payload may hold frames.
        """
        at = bad.at + bad.size
        if bad.size and (at >= zeros or self._scan(at, True).verdict == WHOLE):
            return at
        mark = self._find(at + frame.HEADER.size)
        while mark >= 0:
            at = mark - frame.HEADER.size
            if not at & 7:
                found = self._scan(at, True)
                if found.verdict == WHOLE and found.first > last:
                    return at
            mark = self._find(mark + 1)
        return zeros

    def _find(self, at: int) -> int:
        """Where an Arrow message of rows begins from there on, -1 if none does."""
        while at < self.size:
            piece = bytes(self.view(at, _WINDOW))
            found = piece.find(_MARK)
            if found >= 0:
                return at + found
            at += max(len(piece) - len(_MARK) + 1, 1)
        return -1


class Index:
    """Where the frames of one file lie, and the file open for reading: rows by their seq.

    `fd` is an open file and belongs to the index from then on.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self._firsts = array("q")
        self._places = array("q")

    def add(self, first: int, at: int) -> None:
        self._firsts.append(first)
        self._places.append(at)

    def place(self, seq: int) -> int:
        """Where the frame lies that holds `seq` if any does; -1 if none can."""
        index = bisect_right(self._firsts, seq) - 1
        return self._places[index] if index >= 0 else -1

    def columns(self, at: int) -> tuple[frame.Columns, int]:
        """The frame at that place, of which nothing is read yet, and its size in bytes.

        Raises JournalError if it is damaged, OSError if it cannot be read now.
        """
        view = memoryview(read_at(self.fd, self._end(at) - at, at, self.path))
        if frame.scan(view, 0).verdict != WHOLE:
            raise JournalError(f"{self.path} is damaged at byte {at}: its rows cannot be read")
        return frame.Columns(view, 0), len(view)

    def _end(self, at: int) -> int:
        """Of the frame there, where the next one begins. Behind the last one zeros may lie."""
        following = bisect_right(self._places, at)
        if following < len(self._places):
            return self._places[following]
        length = int.from_bytes(read_at(self.fd, 4, at, self.path), "little")
        return min(at + length, os.fstat(self.fd).st_size)  # what is damaged may say anything

    def close(self) -> None:
        os.close(self.fd)
