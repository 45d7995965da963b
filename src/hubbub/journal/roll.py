"""What happens to a finished segment: `python -m hubbub.journal.roll DIR BASE`.

    1. fold     newest snapshot + segment BASE → the next snapshot, with the messages that
                state refers to
    2. compress the segments that two snapshots cover
    3. remove   all but the newest two snapshots, and what retention lets go

A child process of the hub, so that the loop never stalls. Every step leaves by renaming one whole
file; run again after a crash it finds what is done. The newest two snapshots and the segments
between and after them are never compressed or removed: if the newest snapshot turns out damaged,
a hub, which cannot decompress, still starts from the one before. Prints what it found damaged;
ends with 0 if all is done.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import mmap
import os
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.core.state import State
from hubbub.errors import HubbubError, JournalError
from hubbub.journal import frame
from hubbub.journal.frame import Frame
from hubbub.journal.segments import (
    HEADER_BYTES,
    Directory,
    Header,
    Replacement,
    frames_of,
    header_of,
    heal,
    mapped,
    set_aside,
    whole_snapshot,
    write_at,
)
from hubbub.journal.table import SCHEMA, batch_of
from hubbub.schema import Row

PACKED_ROWS: Final = 16_384  # of a compressed frame: read three times as fast as with 1,000
_ZSTD = pyarrow.ipc.IpcWriteOptions(compression="zstd")


class Source(NamedTuple):
    """A file to fold: its data and those of its frames that count."""

    data: mmap.mmap
    frames: list[Frame]

    def rows(self, found: Frame) -> list[Row]:
        return frame.decode(memoryview(self.data), found.at)


def roll(directory: Directory, base: int, keep_seconds: float = 0, keep_bytes: int = 0) -> None:
    """All steps for the segment that begins at `base`; 0 keeps for ever.

    Raises JournalError if the segment is still being written.
    """
    with _alone(directory):
        fold(directory, base)
        for first, following in _covered(directory):
            compress(directory, first, following)
        for seq in directory.snapshots()[:-2]:
            directory.snapshot(seq).unlink()
        remove(directory, keep_seconds, keep_bytes)


@contextlib.contextmanager
def _alone(directory: Directory) -> Iterator[None]:
    """One roller at a time: a hub that was killed may have left one."""
    with open(directory.state / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fold(directory: Directory, base: int) -> None:
    """Write the snapshot that stands at the end of the segment `base`, unless it is there."""
    before, snapshot = _snapshot(directory)
    segment = _segment(directory, base, before)
    if not segment:
        return
    state = State()
    for source in snapshot:
        for found in source.frames:
            _apply(state, source.rows(found))
    for source in segment:
        for found in source.frames:
            if found.flags & frame.STATE:
                _apply(state, source.rows(found))
    _write_snapshot(directory, before, segment[-1].frames[-1].last, state, [*snapshot, *segment])


def _apply(state: State, rows: list[Row]) -> None:
    for row in rows:
        state.apply(row)


def _snapshot(directory: Directory) -> tuple[int, list[Source]]:
    """The newest whole snapshot; damaged ones are set aside."""
    for seq in reversed(directory.snapshots()):
        path = directory.snapshot(seq)
        data = whole_snapshot(path)
        if data is not None:
            return seq, [Source(data, frames_of(data, 0))]
        print(f"{path.name}: a damaged snapshot, now {set_aside(directory, path)}", file=sys.stderr)
        path.unlink()
    return 0, []


def _segment(directory: Directory, base: int, before: int) -> list[Source]:
    """The files after the snapshot up to the end of the segment; none if it is folded already."""
    found: list[Source] = []
    for first, following in directory.spans():
        if following and following <= before + 1:
            continue
        if directory.base(first) > base:
            break
        if not following:
            raise JournalError(f"the segment {base} is still being written")
        _heal(directory, first, following)
        data = mapped(directory.segment(first))
        frames = frames_of(data, following)
        if frames:
            found.append(Source(data, frames))
    return found


def _write_snapshot(
    directory: Directory, before: int, seq: int, state: State, sources: list[Source]
) -> None:
    with Replacement(directory.snapshot(seq)) as new:
        end = HEADER_BYTES
        for rows in (state.rows(), _carried(state, sources)):
            for part in _parts(rows):
                data = frame.encode(part)
                _portion(new.fd, data, end)
                end += len(data)
        write_at(new.fd, Header(seq, before, seq, end).encode(), 0)


def _portion(fd: int, data: bytearray, at: int) -> None:
    """Write a frame and sync it: else the hub's syncs wait behind a whole file, twice as long."""
    write_at(fd, data, at)
    os.fdatasync(fd)


def _carried(state: State, sources: list[Source]) -> Iterator[Row]:
    """The messages that state refers to, in the order of their seq."""
    needed = sorted(state.needed())
    wanted = set(needed)
    for source in sources:
        for found in source.frames:
            if bisect_left(needed, found.first) < bisect_right(needed, found.last):
                for row in source.rows(found):
                    if row.seq in wanted:
                        yield state.carried(row)


def _parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row.payload)
        if len(part) == COMMIT_ROWS or size >= FRAME_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _heal(directory: Directory, first: int, following: int) -> None:
    report = heal(directory, first, 0, following)
    if report:
        print(report, file=sys.stderr)


def bases(directory: Directory) -> list[int]:
    """Where the segments begin, ascending; files that go on with one are not counted."""
    return sorted({directory.base(first) for first in directory.segments()})


def _covered(directory: Directory) -> list[tuple[int, int]]:
    """The segment files that both of the newest two snapshots cover."""
    snapshots = directory.snapshots()
    if len(snapshots) < 2:
        return []
    end = snapshots[-2] + 1
    return [(first, following) for first, following in directory.spans() if 0 < following <= end]


def compress(directory: Directory, first: int, following: int) -> None:
    """Replace a segment by one of the same rows in fewer, compressed frames."""
    path = directory.segment(first)
    header = header_of(memoryview(mapped(path)))
    if header is not None and header.sealed:
        return
    _heal(directory, first, following)
    data = mapped(path)
    header = header_of(memoryview(data))
    assert header is not None, "the file was healed"
    frames = frames_of(data, following)
    with Replacement(path) as new:
        end = HEADER_BYTES
        for part in _joined(frames):
            packed = _packed(data, part)
            _portion(new.fd, packed, end)
            end += len(packed)
        write_at(new.fd, header._replace(sealed=end).encode(), 0)


def _joined(frames: list[Frame]) -> Iterator[list[Frame]]:
    """Small frames together: they compress better. Never over a gap: seqs in a frame have none."""
    part: list[Frame] = []
    rows = size = 0
    for found in frames:
        apart = part and found.first != part[-1].last + 1
        if apart or rows >= PACKED_ROWS or size + found.size > FRAME_BYTES:
            if part:
                yield part
            part, rows, size = [], 0, 0
        part.append(found)
        rows += found.rows
        size += found.size
    if part:
        yield part


def _packed(data: mmap.mmap, frames: list[Frame]) -> bytearray:
    batch = pyarrow.concat_batches([batch_of(data, found) for found in frames])
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, SCHEMA, options=_ZSTD) as stream:
        stream.write_batch(batch)
    messages = pyarrow.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema, which lies in the file's header
    message = messages.read_next_message().serialize().to_pybytes()
    state = frame.STATE if any(found.flags & frame.STATE for found in frames) else 0
    return frame.seal(
        [message], frames[0].first, frames[-1].last, batch.num_rows, state | frame.COMPRESSED
    )


def remove(directory: Directory, keep_seconds: float, keep_bytes: int) -> None:
    """Remove whole segments, oldest first, that are too old or too much."""
    total = sum(directory.segment(first).stat().st_size for first in directory.segments())
    oldest = (time.time() - keep_seconds) * 1_000_000
    for first, following in _covered(directory):
        path = directory.segment(first)
        old = keep_seconds and _last_time(path, following) < oldest
        if not old and not (keep_bytes and total > keep_bytes):
            return
        total -= path.stat().st_size
        path.unlink()


def _last_time(path: Path, following: int) -> int:
    data = mapped(path)
    frames = frames_of(data, following)
    if not frames:
        return 0
    times = batch_of(data, frames[-1]).column("time")
    return int(times[len(times) - 1].value)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hubbub.journal.roll")
    parser.add_argument("directory", type=Path)
    parser.add_argument("base", type=int)
    parser.add_argument("--keep-seconds", type=float, default=0)
    parser.add_argument("--keep-bytes", type=int, default=0)
    given = parser.parse_args(arguments)
    os.nice(10)  # the hub goes first
    try:
        roll(Directory(given.directory), given.base, given.keep_seconds, given.keep_bytes)
    except (HubbubError, OSError) as error:
        print(f"cannot roll segment {given.base}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
