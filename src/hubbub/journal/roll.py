"""What happens to finished segments: `python -m hubbub.journal.roll DIR BASE`.

    1. fold     newest snapshot + the segments up to BASE → the next snapshot, with the messages
                that state refers to
    2. compress the segments that two snapshots cover
    3. remove   all but the newest two snapshots, and what retention lets go, with its list of names
    4. repack   what one snapshot covers and lies in many small frames: QoS 1 of one message at a
                time leaves one row a frame, a kilobyte and a half for each, slow to read

A child process of the hub, so that the loop never stalls. Every step leaves by renaming one whole
file; run again after a crash it finds what is done. The newest two snapshots and the segments
between and after them are never compressed or removed: if the newest snapshot turns out damaged,
a hub, which cannot decompress, still starts from the one before. Both are known to be whole before
anything else goes. What the machine cannot open or read now ends the roll and is left as it is.

Where room is short (`--make-room`) 3 comes first too, and 4 not at all. The hub has the old files
open until the roll ended, so what 2 and 4 write anew takes its room twice: it is left for a later
roll, if there is not enough by then (a disk that was empty when the roll began can be full). On a
full disk a snapshot is written into the room that the file `reserve` keeps, or else into that of
the older one of two: then there is one for a moment, that was just read and is whole, where there
would be no roll ever again. Prints what it found damaged; ends with 0 if all is done.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES, RESERVE_BYTES
from hubbub.core.state import State
from hubbub.errors import HubbubError, JournalError
from hubbub.journal import files, frame, names, packing
from hubbub.journal.batch import Batch
from hubbub.journal.content import HEADER_BYTES, Content, Header, unreadable
from hubbub.journal.disk import FULL
from hubbub.journal.files import Replacement, write_at
from hubbub.journal.frame import Frame
from hubbub.journal.healing import heal, judged, set_aside, whole_snapshot, without_beginning
from hubbub.journal.holds import held
from hubbub.journal.lock import Lock
from hubbub.journal.righting import ENDLESS, Righting
from hubbub.journal.segments import Directory
from hubbub.schema import Row

PACKED_ROWS: Final = 16_384  # of a compressed frame: read three times as fast as with 1,000
AS_WRITTEN: Final = Righting(ENDLESS)  # no clock comes that far
HELD: Final = 2  # times a segment's size: the new one, and as much that the hub writes meanwhile
PLENTY: Final = 4  # times what is written that nobody needs: the next snapshots go first
TOO_MUCH: Final = 3  # times what `reserve` is to have: less is not worth that it comes and goes
SMALL_ROWS: Final = 64  # a frame on average: below it a segment is worth packing anew


class Source(NamedTuple):
    """A file to fold, and those of its frames that count."""

    content: Content
    frames: list[Frame]

    def rows(self, found: Frame) -> list[Row]:
        """The rows of one of its frames, also of a compressed one."""
        return packing.rows_of(self.content, found)


def roll(
    directory: Directory, base: int, keep_seconds: float = 0, keep_bytes: int = 0,
    make_room: bool = False, righting: Righting = AS_WRITTEN,
    progress: Callable[[int], None] = lambda size: None, now: float = 0.0,
) -> None:  # fmt: skip
    """All steps for the segments up to that which begins at `base`, 0 for none; what is kept 0
    seconds or bytes is kept for ever. `righting`: for which rows the hub takes those it found.
    `progress` gets half the bytes of a segment when it is folded, half when it is compressed. `now`
    is the time of the hub's rows: what is too old by a clock that was set is not. 0 = nobody runs.

    Raises JournalError if the segment is still being written, OSError if the machine cannot read
    or write now.
    """
    with Lock(directory.state / "lock"):  # a hub that was killed may have left a roller
        for left in directory.state.glob("*.rows.new"):  # of one that was killed
            files.remove(left)
        if make_room and _two_are_whole(directory):
            remove(directory, keep_seconds, keep_bytes, now)
        sure = fold(directory, base, righting, progress) if base else False
        if sure or _two_are_whole(directory):
            for seq in directory.snapshots()[:-2]:
                files.remove(directory.snapshot(seq))
            for first, following in _covered(directory) if packing.possible() else ():
                size = directory.segment(first).stat().st_size
                if _has_room(directory, HELD * size):
                    compress(directory, first, following)
                progress(size // 2)
            remove(directory, keep_seconds, keep_bytes, now)
        for first, following in () if make_room else _folded(directory):
            size = _newest_size(directory) + directory.segment(first).stat().st_size
            if _has_room(directory, PLENTY * size):
                repack(directory, first, following)
        names.tidy(directory)  # who was killed, or has just listed a segment that went, leaves some
        _reserve(directory)


def _two_are_whole(directory: Directory) -> bool:
    """Whether the newest two snapshots can be relied on; what is older may go then."""
    newest = directory.snapshots()[-2:]
    return len(newest) == 2 and all(whole_snapshot(directory.snapshot(seq)) for seq in newest)


def fold(
    directory: Directory, base: int, righting: Righting = AS_WRITTEN,
    progress: Callable[[int], None] = lambda size: None,
) -> bool:  # fmt: skip
    """Write the snapshot that stands at the end of the segment `base`, unless it is there.

    Return whether it and the one before it are the newest two, and were read or written now.
    """
    with contextlib.ExitStack() as stack:
        before, snapshot = _snapshot(directory, stack)
        segments = _segments(directory, base, before, stack)
        if not segments:
            return False
        last = _fold(directory, before, snapshot, segments, righting, progress)
    return directory.snapshots()[-2:] == [before, last]


def fold_anew(directory: Directory, righting: Righting) -> int:
    """Write a snapshot from nothing but the finished segments, compressed ones too; return its seq,
    0 if there is none. What was before the first of them is not in it.
    """
    with contextlib.ExitStack() as stack:
        segments = []
        for first, following in directory.spans():
            if following:
                content = stack.enter_context(Content(directory.segment(first)))
                segments.append(Source(content, content.rows_frames(following)))
        filled = [source for source in segments if source.frames]
        return _fold(directory, 0, [], filled, righting) if filled else 0


def _fold(
    directory: Directory, before: int, snapshot: list[Source], segments: list[Source],
    righting: Righting, progress: Callable[[int], None] = lambda size: None,
) -> int:  # fmt: skip
    state = State()
    for source in snapshot:
        for found in source.frames:
            _apply(state, source, found, AS_WRITTEN)
    for source in segments:
        for found in source.frames:
            if found.flags & frame.STATE:
                _apply(state, source, found, righting)
        progress(source.content.size // 2)
    last = segments[-1].frames[-1].last
    _write_snapshot(directory, before, last, state, [*snapshot, *segments])
    return last


def _apply(state: State, source: Source, found: Frame, righting: Righting) -> None:
    if found.flags & frame.COMPRESSED:
        for row in righting.rows(source.rows(found)):
            state.apply(row)
    else:
        with source.content.named(found):
            state.fold(Batch(source.content.columns(found), righting, -1))


def _snapshot(directory: Directory, stack: contextlib.ExitStack) -> tuple[int, list[Source]]:
    """The newest whole snapshot. Damaged ones are set aside; one that the disk cannot read stays,
    if there is another to go on from.
    """
    trouble: OSError | None = None
    for seq, path, frames in judged(directory.newest_first()):
        if isinstance(frames, OSError):
            trouble = frames
            print(f"{path.name}: {frames.strerror}; it stays as it is", file=sys.stderr)
        elif frames is not None:
            return seq, [Source(stack.enter_context(Content(path)), frames)]
        else:
            kept = set_aside(directory, path)
            print(f"{path.name}: a damaged snapshot, now {kept}", file=sys.stderr)
            files.remove(path)
    if trouble is not None:
        raise trouble
    if headless := without_beginning(directory):
        raise JournalError(headless)  # a fold of the rest would forget what was before
    return 0, []


def _segments(
    directory: Directory, base: int, before: int, stack: contextlib.ExitStack
) -> list[Source]:
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
        content = stack.enter_context(Content(directory.segment(first)))
        frames = content.rows_frames(following)
        if frames:
            found.append(Source(content, frames))
    return found


def _write_snapshot(
    directory: Directory, before: int, seq: int, state: State, sources: list[Source]
) -> None:
    """In the room that is kept for it, if there is no other."""
    path, kept = directory.snapshot(seq), _kept_room(directory, before)
    if kept is None or _has_room(directory, _newest_size(directory) + RESERVE_BYTES):
        try:
            _write_rows(Replacement(path), before, seq, state, sources)
            return
        except OSError as error:
            kept = _kept_room(directory, before)
            if error.errno not in FULL or kept is None:
                raise
    print(f"the disk is full: the snapshot takes the room of {kept.name}", file=sys.stderr)
    _write_rows(Replacement(path, kept), before, seq, state, sources)


def _kept_room(directory: Directory, before: int) -> Path | None:
    """A file that may give its blocks to the next snapshot: `reserve`, else a snapshot that is
    older than `before`, which was just read and is whole: with that a start does without.
    """
    older = [directory.snapshot(seq) for seq in directory.snapshots() if seq < before]
    return next((path for path in (directory.reserve, *older) if path.exists()), None)


def _write_rows(
    replacement: Replacement, before: int, seq: int, state: State, sources: list[Source]
) -> None:
    with replacement as new:
        end = HEADER_BYTES
        for rows in (state.rows(), _carried(state, sources)):
            for part in _parts(rows):
                data = frame.encode(part)
                _portion(new.fd, data, end)
                end += len(data)
        write_at(new.fd, Header(seq, before, seq, end).encode(), 0)
        os.ftruncate(new.fd, end)


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


def _folded(directory: Directory) -> list[tuple[int, int]]:
    """The segment files that the newest snapshot covers and the one before it does not."""
    before, newest = [0, 0, *directory.snapshots()][-2:]
    return [
        (first, following)
        for first, following in directory.spans()
        if before + 1 < following <= newest + 1
    ]


def repack(directory: Directory, first: int, following: int) -> None:
    """Write a segment of small frames again with the same rows in large ones, not compressed: a
    start may need it.
    """
    path = directory.segment(first)
    with Content(path) as content:
        header, frames = content.header(), content.rows_frames(following)
        rows = sum(found.rows for found in frames)
        if header is None or header.sealed or rows >= SMALL_ROWS * len(frames):
            return
        with Replacement(path) as new:
            write_at(new.fd, header.encode(), 0)
            end = HEADER_BYTES
            for part in _joined(frames, COMMIT_ROWS):
                data = frame.encode([row for found in part for row in content.rows(found)])
                _portion(new.fd, data, end)
                end += len(data)


def compress(directory: Directory, first: int, following: int) -> None:
    """Replace a segment by one of the same rows in fewer, compressed frames."""
    path = directory.segment(first)
    with Content(path) as content:
        header = content.header()
    if header is not None and header.sealed:
        return
    _heal(directory, first, following)
    with Content(path) as content:
        header = content.header()
        assert header is not None, "the file was healed"
        topics: set[bytes] = set()
        begin = rows = 0
        with Replacement(path) as new:
            end = HEADER_BYTES
            for part in _joined(content.rows_frames(following)):
                packed = packing.packed(content, part)
                _portion(new.fd, packed.data, end)
                end += len(packed.data)
                topics |= packed.topics
                begin = begin or packed.time
                rows += part[-1].last + 1 - part[0].first
            write_at(new.fd, header._replace(sealed=end).encode(), 0)
    if rows == following - first:  # what is missing may be put back
        names.write(directory, first, following, topics, begin)


def _joined(frames: list[Frame], most: int = PACKED_ROWS) -> Iterator[list[Frame]]:
    """Small frames together: they compress better. Never over a gap: seqs in a frame have none."""
    part: list[Frame] = []
    rows = size = 0
    for found in frames:
        apart = part and found.first != part[-1].last + 1
        if apart or rows >= most or size + found.size > FRAME_BYTES:
            if part:
                yield part
            part, rows, size = [], 0, 0
        part.append(found)
        rows += found.rows
        size += found.size
    if part:
        yield part


def remove(
    directory: Directory, keep_seconds: float, keep_bytes: int, now: float = 0.0
) -> None:
    """Remove whole segments, oldest first, that are too old or too much. Readers that hold rows
    keep them from getting old, and not from being too much.
    """
    upto = held(directory.path, now)
    total = sum(directory.segment(first).stat().st_size for first in directory.segments())
    oldest = ((now or time.time()) - keep_seconds) * 1_000_000
    for first, following in _covered(directory):
        path = directory.segment(first)
        read = upto is None or following - 1 <= upto
        old = read and keep_seconds and _last_time(path, following) < oldest
        if not old and not (keep_bytes and total > keep_bytes):
            return
        total -= path.stat().st_size
        files.remove(path)
        names.forget(directory, first)


def _last_time(path: Path, following: int) -> int:
    with Content(path) as content:
        frames = content.rows_frames(following)
        if not frames:
            return 0
        if frames[-1].flags & frame.COMPRESSED and not packing.possible():
            return path.stat().st_mtime_ns // 1000  # it was compressed later than that
        return packing.rows_of(content, frames[-1])[-1].time


def _reserve(directory: Directory) -> None:
    """Keep room for the next snapshot, if there is plenty: a full disk must not stop the roll.
    What was kept for snapshots that were much larger is given back.
    """
    wanted = _newest_size(directory) * 5 // 4 + RESERVE_BYTES
    there = directory.reserve.stat().st_size if directory.reserve.exists() else 0
    if there > TOO_MUCH * wanted:
        os.truncate(directory.reserve, wanted)
    if there >= wanted or not _has_room(directory, PLENTY * wanted):
        return
    with contextlib.suppress(OSError), Replacement(directory.reserve) as new:
        os.posix_fallocate(new.fd, 0, wanted)


def _newest_size(directory: Directory) -> int:
    return sum(directory.snapshot(seq).stat().st_size for seq in directory.snapshots()[-1:])


def _has_room(directory: Directory, size: int) -> bool:
    disk = os.statvfs(directory.path)
    return disk.f_bavail * disk.f_frsize >= size


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="hubbub.journal.roll")
    parser.add_argument("directory", type=Path)
    parser.add_argument("base", type=int)
    parser.add_argument("--keep-seconds", type=float, default=0)
    parser.add_argument("--keep-bytes", type=int, default=0)
    parser.add_argument("--now", type=float, default=0)
    parser.add_argument("--make-room", action="store_true")
    parser.add_argument("--started", type=int, nargs=2, default=(ENDLESS, 0))
    given = parser.parse_args(arguments)
    os.nice(10)  # the hub goes first
    try:
        roll(
            Directory(given.directory), given.base, given.keep_seconds, given.keep_bytes,
            given.make_room, Righting(*given.started), now=given.now,
        )  # fmt: skip
    except OSError as error:
        print(unreadable(error), file=sys.stderr)
    except MemoryError:
        print("there is not enough memory to fold the journal: give it more", file=sys.stderr)
    except HubbubError as error:
        print(error, file=sys.stderr)
    else:
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
