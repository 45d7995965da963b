"""The journal's directory: which files there are, what they are called, and who holds it.

    DIR/format               "hubbub journal 1"
    DIR/id                   16 random hex digits: which journal this is
    DIR/lock                 held by the one hub that writes here; says its process id
    DIR/log/<first>.rows     a segment: rows from seq <first> (20 digits) to where the next begins
    DIR/log/committed        twice 16 bytes: the last seq that readers may see, and its CRC-32
    DIR/state/<seq>.rows     a snapshot: what the fold of all rows up to <seq> leads to
    DIR/names/<first>.names  which names a segment has (`names`); no hub needs it
    DIR/quarantine/          damaged files as they were found
    DIR/reserve              room for a snapshot on a disk that is full otherwise
    DIR/scrubbed             when it was last read from end to end, by its time
    DIR/bridges-cut-off      which bridges are (`runtime.cutoff`): a backup has it, too
    DIR/behind               how far the clock was set ahead while a hub ran (`behind`): the same
    DIR/restoring            there while a backup is being put back: no hub starts on half of it

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

`content` reads these files, `files` writes them whole, `healing` judges and mends them. Used by the
writer, the roller and the readers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Final

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal.content import Content, unreadable
from hubbub.journal.files import make_folder, write_whole
from hubbub.journal.frame import WHOLE
from hubbub.journal.lock import Lock
from hubbub.schema import FORMAT_VERSION

PROCESSES: Final = "processes"  # in the directory around those of several processes: how many
FORMAT: Final = f"hubbub journal {FORMAT_VERSION}\n"
SUFFIX: Final = ".rows"
_DIGITS: Final = 20  # of the number in a file's name
_MOST: Final = 2**62  # a number above has no room for rows behind it
_COMMITTED: Final = struct.Struct("<qI4x")  # the number and its CRC
# What says that the place is not fit for a journal; other errors are the machine's, and may pass.
_UNSUITABLE: Final = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOTDIR", "EEXIST", "ENOSPC", "EDQUOT")
)
COMMITTED_BYTES: Final = _COMMITTED.size
_TRIES: Final = 5  # to read `committed`, which a hub may be writing


def committed_bytes(seq: int) -> bytes:
    """One half of the file `committed`, or all of it. Its halves are written in turns, so that a
    write which is cut off leaves the number before.
    """
    return _COMMITTED.pack(seq, zlib.crc32(seq.to_bytes(8, "little")))


def _committed_of(data: bytes) -> int | None:
    """The number, None if it is damaged. Files of 8 bytes, without a CRC, are of older hubs."""
    if len(data) in (0, 8):
        return int.from_bytes(data, "little")
    found = [data[at : at + 12] for at in (0, COMMITTED_BYTES) if len(data) >= at + 12]
    sound = [half for half in found if zlib.crc32(half[:8]).to_bytes(4, "little") == half[8:]]
    numbers = [int.from_bytes(half[:8], "little") for half in sound]
    return max(numbers, default=None)


class Directory:
    """The paths and small files of a data directory. Making one touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.state = path / "state"
        self.quarantine = path / "quarantine"
        self.reserve = path / "reserve"
        self.restoring = path / "restoring"
        self.scrubbed = path / "scrubbed"
        self.behind = path / "behind"
        self.cut_off = path / "bridges-cut-off"  # `runtime.cutoff` writes it
        self._lock = Lock(path / "lock")

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

    def newest(self) -> int:
        """The time of the last row; 0 if there is none, or none that a hub reads again."""
        for first, following in reversed([*self.spans()]):
            with contextlib.suppress(JournalError), Content(self.segment(first)) as content:
                for found in reversed(content.rows_frames(following)):
                    if next(content.frames(found.at)).verdict == WHOLE:
                        return content.rows(found)[-1].time
        return 0

    def base(self, first: int) -> int:
        """Where the segment begins that a file is of: after a failed write it goes on in another.

        Its own beginning if its header is damaged. Raises FileNotFoundError.
        """
        with Content(self.segment(first)) as content:
            header = content.header()
        return header.base if header is not None else first

    def snapshots(self) -> list[int]:
        """Seqs of the snapshots, ascending."""
        return _numbers(self.state)

    def newest_first(self) -> Iterator[tuple[int, Path]]:
        """The snapshots as who needs one looks at them."""
        return ((seq, self.snapshot(seq)) for seq in reversed(self.snapshots()))

    def to_fold(self) -> int:
        """About how many bytes a start reads: the newest snapshot, and the segments after it.

        What cannot be looked at now counts as nothing: this is for who shows how far it is.
        """
        newest = max(self.snapshots(), default=0)
        paths = [self.segment(one) for one, end in self.spans() if not end or end > newest + 1]
        if newest:
            paths.append(self.snapshot(newest))
        return sum(map(_size, paths))

    def committed(self) -> int:
        """The last seq that readers may see; 0 if there is no journal yet.

        Raises JournalError if the file is damaged.
        """
        path = self.log / "committed"
        for _ in range(_TRIES):
            try:
                seq = _committed_of(path.read_bytes())
            except FileNotFoundError:
                return 0
            if seq is not None:
                return seq
        raise JournalError(
            f"{path} is damaged: it does not say how far the journal may be read; "
            "a hub that starts here works it out from the rows"
        )

    def strangers(self) -> list[Path]:
        """Files among the rows that no hub has made: they are left alone."""
        folders = [folder for folder in (self.log, self.state) if folder.is_dir()]
        names = [(folder, name) for folder in folders for name in sorted(os.listdir(folder))]
        return [folder / name for folder, name in names if _number(name) < 0 and _is_strange(name)]

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

        Raises DirectoryError if that cannot be, UnreadableError if it may be later.
        """
        try:
            if (self.path / PROCESSES).exists():  # nothing is to be made in there
                raise DirectoryError(self.complaint())
            for path in (self.path, self.log, self.state):
                make_folder(path)
            self._hold()
            self._begin()
        except DirectoryError:
            self.release()
            raise
        except OSError as error:
            self.release()
            nowhere = error.errno == errno.ENOENT and not self.path.is_dir()  # as below /proc
            if error.errno not in _UNSUITABLE and not nowhere:
                raise unreadable(error) from error
            raise DirectoryError(
                f"cannot write to {self.path}: {error.strerror}; "
                "make it writable or choose another directory with --data"
            ) from error

    def _hold(self) -> None:
        holder = self._lock.take()
        if holder:
            raise DirectoryError(
                f"{self.path} is used by the hub with process id {holder}; "
                "stop it or choose another directory with --data"
            )

    def _begin(self) -> None:
        empty = not self.segments() and not self.snapshots()
        if empty and not (self.path / "format").exists():
            write_whole(self.path / "format", FORMAT.encode())
        complaint = self.complaint()
        if complaint:
            raise DirectoryError(complaint)
        self.identify()

    def complaint(self) -> str:
        """Why this is no directory that a hub of this version can use, "" if it is one."""
        path = self.path / "format"
        if (self.path / PROCESSES).exists():
            return (
                f"{self.path} is of several processes, of which each has its journal below it "
                f"({self.path}/1 …): start with --processes, or name one of them"
            )
        if self.restoring.exists():
            return (
                f"a restore into {self.path} did not come to its end: run it again, or move the "
                "directory away to start empty"
            )
        try:
            found = path.read_text(errors="replace")
        except FileNotFoundError:
            return f"{path} is missing: is {self.path} really a hub's directory?"
        if found == FORMAT:
            return ""
        return (
            f"{self.path} is of the format {found.strip()!r}, expected {FORMAT.strip()!r}; "
            "use the hubbub that wrote it, or another directory with --data"
        )

    def release(self) -> None:
        self._lock.release()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _numbers(folder: Path) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(number for name in names if (number := _number(name)) >= 0)


def _number(name: str) -> int:
    """The number that a file of rows is named by, -1 if it is none."""
    digits = name.removesuffix(SUFFIX)
    named = name.endswith(SUFFIX) and len(digits) == _DIGITS
    number = int(digits) if named and digits.isascii() and digits.isdecimal() else -1
    return number if number <= _MOST else -1


def _is_strange(name: str) -> bool:
    return name not in ("committed", "lock") and not name.endswith(".new")
