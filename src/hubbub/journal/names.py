"""Which names stand in a finished segment: whoever looks for others passes over it.

    DIR/names/<first>.names

    0          8        12         16        24        32        40
    +----------+--------+----------+---------+---------+---------+--------------------------+
    | HUBBUBN1 | CRC-32 | bytes    | first   | last    | time    | zlib: \\0 name \\0 name \\0  |
    |          | u32    | u32      | i64     | i64     | i64     |                          |
    +----------+--------+----------+---------+---------+---------+--------------------------+

The CRC is over all that follows it. `bytes` is the size of the names, 0 if they are too many to be
listed. `time` is that of the first row. The roller writes them when it compresses a segment and
has its names in hand; those of younger ones `history`, when it has looked through a segment without
finding enough: what recording does for them is nothing, and what was looked through once is not
looked through again. `history` and Spark's readers pass over segments by them. They say nothing
that the rows do not: one that is missing, damaged or of another segment is passed over. No hub
needs them.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.limits import SEGMENT_NAMES
from hubbub.journal import files, frame
from hubbub.journal.segments import Directory
from hubbub.schema import COLUMNS

_HEAD: Final = struct.Struct("<8sIIqqq")
_MAGIC: Final = b"HUBBUBN1"
_CRC_END: Final = 12
TOPIC, TIME = ([one.name for one in COLUMNS].index(name) for name in ("topic", "time"))


class Names(NamedTuple):
    """Of one segment: each name between zeros, b"" = any; and the time of its first row."""

    listed: bytes
    time: int


def path_of(directory: Directory, first: int) -> Path:
    return directory.path / "names" / f"{first:020}.names"


def read(directory: Directory, first: int, following: int) -> Names | None:
    """What is listed of the segment file that ends before `following`; None if that is unknown."""
    try:
        data = path_of(directory, first).read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        return None
    _, crc, size, begin, last, time = _HEAD.unpack_from(data)
    if zlib.crc32(data[_CRC_END:]) != crc or (begin, last + 1) != (first, following):
        return None
    listed = zlib.decompressobj().decompress(data[_HEAD.size :], size) if size else b""
    return Names(listed, time) if len(listed) == size else None


def write(directory: Directory, first: int, following: int, names: set[bytes], time: int) -> None:
    """Keep what was found in a finished segment file. OSError if the machine cannot write now."""
    listed = b"\0" + b"".join(b"%s\0" % name for name in sorted(names))
    if len(listed) > SEGMENT_NAMES:
        listed = b""
    head = _HEAD.pack(_MAGIC, 0, len(listed), first, following - 1, time)
    data = head[_CRC_END:] + (zlib.compress(listed, 1) if listed else b"")
    crc = zlib.crc32(data).to_bytes(4, "little")
    path = path_of(directory, first)
    files.make_folder(path.parent)
    files.write_whole(path, _MAGIC + crc + data)


def forget(directory: Directory, first: int) -> None:
    """A segment file goes, and its list with it: a megabyte for who publishes to many names."""
    path_of(directory, first).unlink(missing_ok=True)


def tidy(directory: Directory) -> None:
    """Remove the lists of segments that are gone, also those that were not written to their end."""
    there = set(directory.segments())
    for path in path_of(directory, 0).parent.glob("*.names*"):
        digits = path.name.partition(".")[0]
        if not (digits.isdecimal() and int(digits) in there):
            path.unlink(missing_ok=True)


def topics_of(view: memoryview) -> tuple[set[bytes], int]:
    """What stands in the column `topic` of an uncompressed frame, and the time of its first row."""
    columns = frame.Columns(view, 0)
    return set(columns.values(TOPIC)), columns.values(TIME)[0]
