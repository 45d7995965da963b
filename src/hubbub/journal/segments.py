"""The journal's directory: its files, their headers, who holds it, and how they are healed.

    DIR/format               "hubbub journal 1"
    DIR/id                   16 random hex digits: which journal this is
    DIR/lock                 held by the one hub that writes here; says its process id
    DIR/log/<first>.rows     a segment: rows from seq <first> (20 digits) to where the next begins
    DIR/log/committed        8 bytes: the last seq that readers may see
    DIR/state/<seq>.rows     a snapshot: what the fold of all rows up to <seq> leads to
    DIR/quarantine/          damaged files as they were found

Segments and snapshots are a header and frames (`frame`):

    0           8        12        16         24        32        40        48     52        64
    +-----------+--------+---------+----------+---------+---------+---------+------+---------+
    | HUBBUBJ1  |version | header  | first    | after   | base    | sealed  | CRC  | 0       |
    |           | u32    | bytes   | i64      | i64     | i64     | bytes   | u32  |         |
    +-----------+--------+---------+----------+---------+---------+---------+------+---------+
    | Arrow schema message                                                    frames …       |

`after` is the last row before this file, so that a lost end of the file before it is seen.
`base` is where the segment begins to which this file belongs: `first`, or less if it goes on
with a segment whose sync failed; audiences lie between `base` and the row that names them.
`sealed` is the length of a finished file (snapshots, compressed segments), else 0. The CRC is
over the whole header with the CRC as 0. A segment that is not sealed may end with zeros, which
frames take the place of.

Used by the writer, the roller and the readers. Reads and renames files; never folds rows.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import frame
from hubbub.journal.arrow import BATCH, SCHEMA
from hubbub.journal.frame import DAMAGED, TORN, WHOLE, Frame
from hubbub.schema import FORMAT_VERSION, Row

MAGIC: Final = b"HUBBUBJ1"
FORMAT: Final = f"hubbub journal {FORMAT_VERSION}\n"
SUFFIX: Final = ".rows"

_HEADER: Final = struct.Struct("<8sIIqqqqI12x")
_CRC_AT: Final = 48
HEADER_BYTES: Final = _HEADER.size + len(SCHEMA)
_MARK: Final = BATCH[:16]  # how the Arrow message of every uncompressed frame begins
_PIECE: Final = 1 << 16  # bytes of zeros looked at at a time


class Header(NamedTuple):
    """The beginning of a segment or snapshot, see the module's drawing."""

    first: int
    after: int
    base: int
    sealed: int = 0

    def encode(self) -> bytes:
        fields = (MAGIC, FORMAT_VERSION, HEADER_BYTES, *self)
        crc = zlib.crc32(_HEADER.pack(*fields, 0) + SCHEMA)
        return _HEADER.pack(*fields, crc) + SCHEMA


def header_of(view: memoryview) -> Header | None:
    """The header of a file, or None if it is damaged.

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


class Directory:
    """The paths and small files of a data directory. Making one touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.state = path / "state"
        self.quarantine = path / "quarantine"
        self._lock = -1

    def segment(self, first: int) -> Path:
        return self.log / f"{first:020}{SUFFIX}"

    def snapshot(self, seq: int) -> Path:
        return self.state / f"{seq:020}{SUFFIX}"

    def segments(self) -> list[int]:
        """First seqs of the segments, ascending."""
        return _numbers(self.log)

    def spans(self) -> Iterator[tuple[int, int]]:
        """First seq of every segment file, and of the one after it (0 for the last)."""
        firsts = self.segments()
        return zip_longest(firsts, firsts[1:], fillvalue=0)

    def base(self, first: int) -> int:
        """Where the segment begins that a file is of: after a failed write it goes on in another.

        Its own beginning if its header is damaged. Raises FileNotFoundError.
        """
        with open(self.segment(first), "rb") as file:
            header = header_of(memoryview(file.read(HEADER_BYTES)))
        return header.base if header is not None else first

    def snapshots(self) -> list[int]:
        """Seqs of the snapshots, ascending."""
        return _numbers(self.state)

    def to_fold(self) -> int:
        """About how many bytes a start reads: the newest snapshot, and the segments after it."""
        newest = max(self.snapshots(), default=0)
        paths = [self.segment(one) for one, end in self.spans() if not end or end > newest + 1]
        if newest:
            paths.append(self.snapshot(newest))
        return sum(path.stat().st_size for path in paths)

    def committed(self) -> int:
        """The last seq that readers may see; 0 if there is no journal yet."""
        try:
            data = (self.log / "committed").read_bytes()
        except FileNotFoundError:
            return 0
        return int.from_bytes(data[:8], "little")

    def identity(self) -> str:
        """What tells this journal from every other; "" if no hub has given it a name yet."""
        try:
            return (self.path / "id").read_text().strip()
        except FileNotFoundError:
            return ""

    def identify(self, identity: str = "") -> None:
        """Give a journal without a name one: `identity`, if it is a copy, or a new one."""
        if not self.identity():
            name = identity or os.urandom(8).hex()
            write_whole(self.path / "id", f"{name}\n".encode())

    def acquire(self) -> None:
        """Make the directory if need be and hold it for this process.

        Raises DirectoryError if that cannot be.
        """
        try:
            for path in (self.path, self.log, self.state):
                path.mkdir(parents=True, exist_ok=True)
            sync_folder(self.path)
            self._hold()
            self._check_format()
            self.identify()
        except DirectoryError:
            self.release()
            raise
        except OSError as error:
            self.release()
            raise DirectoryError(
                f"cannot write to {self.path}: {error.strerror}; "
                "make it writable or choose another directory with --data"
            ) from error

    def _hold(self) -> None:
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 20).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise DirectoryError(
                f"{self.path} is used by the hub with process id {holder}; "
                "stop it or choose another directory with --data"
            ) from None
        self._lock = lock
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())

    def _check_format(self) -> None:
        path = self.path / "format"
        if not path.exists():
            if self.segments():
                raise DirectoryError(f"{path} is missing: is {self.path} really a hub's directory?")
            write_whole(path, FORMAT.encode())
        found = path.read_text(errors="replace")
        if found != FORMAT:
            raise DirectoryError(
                f"{self.path} is of the format {found.strip()!r}, expected {FORMAT.strip()!r}; "
                "use the hubbub that wrote it, or another directory with --data"
            )

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(name[: -len(SUFFIX)]) for name in names if _is_rows(name))


def _is_rows(name: str) -> bool:
    return name.endswith(SUFFIX) and name[: -len(SUFFIX)].isdecimal()


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of `data`; a short write goes on where it stopped and so meets the error."""
    view = memoryview(data)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], at + done)


def write_whole(path: Path, data: bytes | bytearray) -> None:
    """Create or replace a file so that after a crash it is there whole or as before."""
    with Replacement(path) as new:
        write_at(new.fd, data, 0)


class Replacement:
    """A file that takes its name only when it is whole and on the disk.

    Leaving the `with` block by an exception removes what was written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._new = path.with_name(f"{path.name}.new")

    def __enter__(self) -> Replacement:
        self.fd = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self.fd)
                os.replace(self._new, self.path)
                sync_folder(self.path.parent)
        finally:
            os.close(self.fd)
            if os.path.exists(self._new):
                os.unlink(self._new)


def mapped(path: Path) -> mmap.mmap:
    """A file mapped for reading. Raises JournalError if it is empty."""
    with open(path, "rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise JournalError(f"{path} is empty, expected a header; restart the hub") from None


def walk(data: mmap.mmap, at: int = HEADER_BYTES, check: bool = True) -> Iterator[Frame]:
    """Frames in turn. A stretch that is no frame comes as one DAMAGED, one at the end as TORN.
    Zeros at the end are nothing.
    """
    view = memoryview(data)
    last = 0
    while at < len(data):
        found = frame.scan(view, at, check)
        if found.verdict != WHOLE or found.first < last:
            zeros = _zeros_at_end(data)
            if at >= zeros:
                return
            end = len(data) if found.verdict == TORN else _resume(data, view, found, last, zeros)
            verdict = DAMAGED if end < zeros else TORN
            found = Frame(verdict, at, end - at, found.first, found.last, 0, 0)
        else:
            last = found.last
        yield found
        at += found.size


def _zeros_at_end(data: mmap.mmap) -> int:
    """Where they begin; the last frame may end with some of them."""
    end = len(data)
    while end:
        start = max(end - _PIECE, 0)
        if rest := data[start:end].rstrip(b"\0"):
            return start + len(rest)
        end = start
    return 0


def frames_of(data: mmap.mmap, following: int) -> list[Frame]:
    """The frames of a healed file, of which the next one begins with the seq `following` (or 0).

    What lies behind them was left by a write that failed; its rows are in the next file.
    """
    return [
        found
        for found in walk(data, check=False)
        if found.verdict == WHOLE and (not following or found.first < following)
    ]


def _resume(data: mmap.mmap, view: memoryview, bad: Frame, last: int, zeros: int) -> int:
    """Where the next whole frame begins after a damaged one, or the `zeros` after all of them.

    If the damaged frame still tells its size it is not searched: a payload may hold frames.
    """
    at = bad.at + bad.size
    if bad.size and (at >= zeros or frame.scan(view, at).verdict == WHOLE):
        return at
    mark = data.find(_MARK, at + frame.HEADER.size)
    while mark >= 0:
        at = mark - frame.HEADER.size
        found = frame.scan(view, at)
        if not at & 7 and found.verdict == WHOLE and found.first > last:
            return at
        mark = data.find(_MARK, mark + 1)
    return zeros


class Index:
    """Where the frames of one file lie, and the file open for reading: rows by their seq."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY)
        self._firsts = array("q")
        self._places = array("q")

    def add(self, first: int, at: int) -> None:
        self._firsts.append(first)
        self._places.append(at)

    def place(self, seq: int) -> int:
        """Where the frame lies that holds `seq` if any does; -1 if none can."""
        index = bisect_right(self._firsts, seq) - 1
        return self._places[index] if index >= 0 else -1

    def rows(self, at: int) -> tuple[list[Row], int]:
        """The rows of the frame at that place, and its size in bytes.

        Raises JournalError if it is damaged.
        """
        length = int.from_bytes(os.pread(self._fd, 4, at), "little")
        view = memoryview(os.pread(self._fd, length, at))
        if frame.scan(view, 0).verdict != WHOLE:
            raise JournalError(f"{self.path} is damaged at byte {at}: its rows cannot be read")
        return frame.decode(view, 0), length

    def close(self) -> None:
        os.close(self._fd)


def whole_snapshot(path: Path) -> mmap.mmap | None:
    """A snapshot in which everything is right, mapped; else None."""
    try:
        data = mapped(path)
    except (OSError, JournalError):
        return None
    header = header_of(memoryview(data))
    if header is None or header.sealed != len(data):
        return None
    end = HEADER_BYTES
    for found in walk(data):
        if found.verdict != WHOLE:
            return None
        end += found.size
    return data if end == header.sealed else None


def heal(directory: Directory, first: int, committed: int, following: int) -> str:
    """Make the segment `first` readable from end to end; return what was wrong, "" if nothing.

    `following` is the first seq of the next segment, 0 for the last one. The torn tail of the
    last segment is cut, the beginning of an unfinished group with it. Any other damage: the file
    is kept in quarantine, and one with the frames that are whole takes its place.
    """
    path = directory.segment(first)
    data = mapped(path) if path.stat().st_size else None
    view = memoryview(data or b"")
    header = header_of(view)
    found = list(walk(data)) if data else []
    if not following:
        found = _without_unfinished(_without_doubtful(found, committed), committed)
    whole = [one for one in found if one.verdict == WHOLE]
    last = whole[-1].last if whole else first - 1
    damaged = header is None or any(one.verdict == DAMAGED for one in found)
    tail = bool(found) and found[-1].verdict == TORN
    if following:
        damaged |= tail and last < _after(directory, following)
    elif tail and not damaged and last >= committed:
        os.truncate(path, found[-1].at)
        return f"{path.name}: an unfinished write of {found[-1].size} bytes was cut"
    else:
        damaged |= tail
    if not damaged:
        return ""
    kept = set_aside(directory, path)
    with Replacement(path) as new:
        at = 0
        for piece in ((header or Header(first, 0, first)).encode(), *_pieces(view, whole)):
            write_at(new.fd, bytes(piece), at)
            at += len(piece)
    return f"{path.name} was damaged; what could be read is there again, the file is {kept}"


def _without_doubtful(found: list[Frame], committed: int) -> list[Frame]:
    """Without what seems to follow a stretch that does not say its length, unless it is committed.

    Of the last write the disk may have got any parts, also without the first one: what looks like
    a frame there may be a piece of a payload.
    """
    ours = [one.verdict == WHOLE and one.first <= committed for one in found]
    for index, one in enumerate(found):
        if one.verdict == DAMAGED and not one.first and not any(ours[index:]):
            return found[: index + 1]
    return found


def _without_unfinished(found: list[Frame], committed: int) -> list[Frame]:
    """Frames of a group of which the end is missing are torn: a group is written as one thing."""
    bad = found[-1].verdict if found and found[-1].verdict != WHOLE else ""
    count = kept = len(found) - bool(bad)
    while kept and found[kept - 1].flags & frame.MORE and found[kept - 1].first > committed:
        kept -= 1
    if kept == count:
        return found
    size = sum(one.size for one in found[kept:])
    return [*found[:kept], found[kept]._replace(verdict=bad or TORN, size=size)]


def _pieces(view: memoryview, whole: list[Frame]) -> Iterator[memoryview]:
    for one in whole:
        yield view[one.at : one.at + one.size]


def _after(directory: Directory, first: int) -> int:
    header = header_of(memoryview(mapped(directory.segment(first))))
    return header.after if header else first - 1


def set_aside(directory: Directory, path: Path) -> Path:
    """Give a damaged file a second name in quarantine; return that name."""
    directory.quarantine.mkdir(exist_ok=True)
    kept = directory.quarantine / path.name
    while kept.exists():
        kept = kept.with_name(kept.name + "~")
    os.link(path, kept)
    sync_folder(directory.quarantine)
    return kept
