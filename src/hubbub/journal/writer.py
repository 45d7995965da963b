"""The durable log of a hub: numbers rows, makes them durable in groups, reads messages back.

What is appended gathers in a list. `commit` makes frames of it and hands them to one writer
thread, which only writes and syncs (Python there would stall the loop); what arrives during one
sync is the next group. When a group is durable the thread publishes the committed position and
calls `on_durable`; the loop then calls `arrived`. Most groups take the place of zeros: a sync of a
file that keeps its size is faster, so the file grows in steps.

    append → pending ──commit──→ flying ──thread: write, sync, publish──→ arrived → durable
                                                      └── (on_written) ──→ written

A sync that failed says nothing about what is on the disk, so it is never repeated: the file is
left as suspect, and the same rows go into a new file. What the old one has of them is cut off, or,
if the end of this process could leave it as the only copy, passed over by readers.

Owned by the hub; every method belongs to the loop's thread. Starts no process: `roll_due` says
which command folds and compresses a finished segment.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.clock import Clock
from hubbub.core.limits import (
    COMMIT_BYTES,
    COMMIT_ROWS,
    COMMIT_SECONDS,
    FRAME_BYTES,
    FRAME_CACHE_BYTES,
    GROWTH_LEAST,
    GROWTH_MOST,
    SEGMENT_BYTES,
    SEGMENT_SECONDS,
)
from hubbub.core.log import Log
from hubbub.core.message import Message, Run, message_of, row_of_run, rows_of
from hubbub.errors import JournalError
from hubbub.journal import frame
from hubbub.journal.gathered import Gathered
from hubbub.journal.pulse import Pulse
from hubbub.journal.segments import (
    HEADER_BYTES,
    Directory,
    Header,
    Index,
    Replacement,
    frames_of,
    header_of,
    heal,
    mapped,
    sync_folder,
    whole_snapshot,
    write_at,
)
from hubbub.schema import PUBLISH, SEND, Row

log = logging.getLogger(__name__)

RECENT_GROUPS: Final = 16  # small ones, of COMMIT_BYTES at most
ROW_BYTES: Final = 128  # about what a row takes beside its payload
FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
FULL_PAUSE: Final = 1.0  # seconds between tries while the disk is full
PAUSES: Final = (0.05, 0.2, 1.0, 5.0)  # seconds before the next try after other errors


class _File(NamedTuple):
    """A segment file that can be read: first seq, where its segment begins, its frames."""

    first: int
    base: int
    places: Index


class _Group(NamedTuple):
    """What the thread gets: frames as bytes, where each begins in them (first seq, place), the
    rows, and where the segment begins that the group belongs to.
    """

    data: bytearray
    frames: list[tuple[int, int]]
    rows: Gathered
    first: int
    last: int
    base: int


class Journal(Log):
    """The log of one directory. Call `recover` once before anything else, `close` at the end.

    `on_durable(seq)` is called from the writer thread, and so is `on_written(seq)`, before the
    sync, if it is set: those rows survive the end of this process. `sync` is what makes a file's
    data durable; it raises OSError if it failed. `trouble` says what keeps rows from the disk.
    Raises DirectoryError if the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        durability: str,
        on_durable: Callable[[int], None],
        segment_bytes: int = SEGMENT_BYTES,
        segment_seconds: float = SEGMENT_SECONDS,
        keep_seconds: float = 0.0,
        keep_bytes: int = 0,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        super().__init__(clock)
        self.records = True
        self.directory = Directory(directory)
        self.trouble = ""
        self.behind = False  # so much waits for the disk that publishers do, too
        self.reports: list[str] = []
        # Settings
        self._sync = sync if durability == "disk" else _leave_it_to_the_system
        self._on_durable = on_durable
        self.on_written: Callable[[int], None] | None = None
        self._segment_bytes = segment_bytes
        self._segment_time = int(segment_seconds * 1_000_000)
        self.keep_seconds = keep_seconds
        self.keep_bytes = keep_bytes
        # Rows on their way
        self._rows = Gathered()
        self._together: list[tuple[int, int]] = []  # first and last seq of what is one frame
        self._weight = 0
        self._since = 0.0
        self._group: _Group | None = None
        self._launched = 0.0
        self.pulse = Pulse()
        # The segment as the loop sees it
        self._base = 0
        self._began = 0
        self._size = 0
        self._full = True
        # What can be read
        self._files: list[_File] = []
        self._listed = 0  # how many that the thread began are among them
        self._snapshot: Index | None = None
        self._rolling = 0
        self._empty: set[int] = set()
        self._snapshot_seq = 0
        self._cache: dict[tuple[Index, int], tuple[list[Row], int]] = {}
        self._cached = 0
        # What was read last: backlogs and retained messages are read in their order, and often
        # the same message by several. Rows never change, so this is never out of date.
        self._near: list[Row] = []
        # What was written last is asked for soon: the answer to a request looks at the request.
        self._recent: deque[Gathered] = deque(maxlen=RECENT_GROUPS)
        self._latest: Message | None = None
        # The segment as the thread sees it
        self._fd = -1
        self._committed_fd = -1
        self._file = 0
        self._begun = 0
        self._end = 0
        self._bytes = 0  # of the file, with the zeros behind its end
        self._written = 0
        self._suspect = False
        self._landed = 0  # where the group in flight begins in its file
        self._groups: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self.directory.acquire()

    # Starting

    def recover(
        self, apply: Callable[[Row], None], progress: Callable[[int], None] = lambda size: None
    ) -> None:
        """Fold what is there: every row of the newest snapshot, then the rows after it that
        change state. Heals the files; what that found is logged and in `reports`. `progress` is
        called with the bytes of each frame that is done, of `Directory.to_fold`.

        Raises JournalError if state cannot be known.
        """
        try:
            self._fold_snapshot(apply, progress)
            committed = self.directory.committed()
            last = self._snapshot_seq
            for first, following in self.directory.spans():
                if not following or following > self._snapshot_seq + 1:
                    self._report(heal(self.directory, first, committed, following))
                    last = self._fold_segment(first, following, last, apply, progress)
            self._lost(last, committed)
            self._continue(last, committed)
        except OSError as error:
            raise JournalError(f"cannot read {self.directory.path}: {error}") from error
        self._thread.start()

    def _fold_snapshot(self, apply: Callable[[Row], None], progress: Callable[[int], None]) -> None:
        for seq in reversed(self.directory.snapshots()):
            path = self.directory.snapshot(seq)
            data = whole_snapshot(path)
            if data is None:
                self._report(f"{path.name}: a damaged snapshot, the one before it is used")
                continue
            self._snapshot, self._snapshot_seq = Index(path), seq
            view = memoryview(data)
            for found in frames_of(data, 0):
                self._snapshot.add(found.first, found.at)
                for row in frame.decode(view, found.at):
                    apply(row)
                progress(found.size)
            return
        if self.directory.segments()[:1] > [1]:
            raise JournalError(
                f"the log begins after row 1 and {self.directory.state} has no whole snapshot: "
                "restore the directory from a backup, or move it away to start empty"
            )

    def _fold_segment(
        self, first: int, following: int, last: int, apply: Callable[[Row], None],
        progress: Callable[[int], None],
    ) -> int:  # fmt: skip
        """Fold the rows of a healed segment that come after `last`; return its last seq."""
        path = self.directory.segment(first)
        data = mapped(path)
        view = memoryview(data)
        header = header_of(view)
        assert header is not None, "the file was healed"
        file = _File(first, header.base, Index(path))
        self._files.append(file)
        frames = frames_of(data, following)
        for found in frames:
            if found.flags & frame.COMPRESSED:
                raise JournalError(
                    f"{path} is compressed, but the snapshot that covers it is damaged: restore "
                    f"{self.directory.state} from a backup, or move the directory away"
                )
            file.places.add(found.first, found.at)
            if found.flags & frame.STATE:
                for row in frame.decode(view, found.at):
                    if row.seq > self._snapshot_seq:
                        apply(row)
            self._lost(last, found.first - 1)
            last = max(last, found.last)
            progress(found.size)
        self._end = HEADER_BYTES
        if frames:
            self._end = frames[-1].at + frames[-1].size
            self.clock.at_least(frame.decode(view, frames[-1].at)[-1].time)
            self._began = frame.decode(view, frames[0].at)[0].time
        return last

    def _continue(self, last: int, committed: int) -> None:
        """Number on above all that could have been seen, at the end of the last segment."""
        self._written = last
        self.position = self.durable = max(last, committed)
        if self._files:
            self._file, self._base = self._files[-1].first, self._files[-1].base
            self._fd = os.open(self.directory.segment(self._file), os.O_RDWR)
            self._size, self._bytes = self._end, os.fstat(self._fd).st_size
            self._full = False
            self._make_sure(last, committed)
        path = self.directory.log / "committed"
        self._committed_fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        write_at(self._committed_fd, self.durable.to_bytes(8, "little"), 0)
        sync_folder(self.directory.log)

    def _make_sure(self, last: int, committed: int) -> None:
        """What a crash left in the system's memory becomes durable before it is believed.

        If a sync had failed before the crash, another one would not try again: what is not known
        to be durable is written once more.
        """
        if last > committed:
            at = max(self._files[-1].places.place(committed + 1), HEADER_BYTES)
            write_at(self._fd, os.pread(self._fd, self._bytes - at, at), at)
        self._sync(self._fd)

    def _lost(self, last: int, before: int) -> None:
        if before > last:
            self._report(f"rows {last + 1} to {before} are lost")

    def _report(self, text: str) -> None:
        if text:
            self.reports.append(text)
            log.warning("journal: %s", text)

    # Appending

    @property
    def pending(self) -> int:
        """Rows that wait for the next commit."""
        return len(self._rows)

    @property
    def pending_bytes(self) -> int:
        """About how many bytes these are."""
        return self._weight

    @property
    def busy(self) -> bool:
        """Whether a group is on its way to the disk."""
        return self._group is not None

    def append(self, row: Row) -> int:
        row = Row._make((self.position + 1, self.clock.stamp(), *row[2:]))
        return self._add(row, (row.payload,))

    def append_run(self, run: Run, audience: int) -> int:
        run.recorded(self.position + 1, self.clock.stamp())
        payloads = run.encoding.payloads(run)
        if payloads is not None:
            return self._add(row_of_run(run, audience, payloads[0]), payloads)
        for row in rows_of(run, audience):
            self._add(row, (row.payload,))
        return run.first

    def _add(self, row: Row, payloads: Sequence[bytes]) -> int:
        """Take a run that begins with a row, which is numbered; return its number."""
        if not self._weight:
            self._since = self.clock.now()
        self._rows.add(row, payloads)
        self._weight += _weight(row) * len(payloads)  # all of one run are equally long
        self.position += len(payloads)
        return row.seq

    def together(self, first: int) -> None:
        self._together.append((first, self.position))

    def due(self, now: float) -> bool:
        """Whether enough has gathered, or waited long enough, though nobody waits for it."""
        return bool(self._weight) and (
            len(self._rows) >= COMMIT_ROWS
            or self._weight >= COMMIT_BYTES
            or now - self._since >= COMMIT_SECONDS
        )

    def commit(self) -> None:
        """Send what is pending to the disk, unless a group is on its way already."""
        if self._rows and self._group is None:
            self._launch()

    def _launch(self) -> None:
        rows, weight = self._rows, self._weight
        base = rows.first if self._full else self._base
        # Encoded before anything is given up: rows that cannot be written are promised to nobody.
        group = _group_of(rows, _places(rows, weight, self._together), base)
        self._rows, self._weight, self._group = Gathered(), 0, group
        self._together = []
        self._launched = self.clock.now()
        if self._full:
            self._full = False
            self._base, self._began, self._size = group.first, rows.times()[0], HEADER_BYTES
        self._size += len(group.data)
        age = rows.times()[1] - self._began
        if self._size >= self._segment_bytes or age >= self._segment_time:
            # Decided here, not when the next group begins: rows appended from now on see the
            # new number and write their audiences again, all rows before lie in this group.
            self._full = True
            self.segment += 1
        self._groups.put(group)

    def arrived(self, seq: int) -> None:
        """The loop heard that the rows up to `seq` are durable."""
        group = self._group
        if group is None or seq < group.last:
            return
        self._group = None
        self.durable = self.written = group.last
        self.pulse.committed(self.clock.now() - self._launched, len(group.rows), len(group.data))
        if len(group.data) <= COMMIT_BYTES:
            self._recent.append(group.rows)
        if self._listed != self._begun:
            self._listed = self._begun
            self._list_file(group.base)
        for first, at in group.frames:
            self._files[-1].places.add(first, self._landed + at)

    def _list_file(self, base: int) -> None:
        """The thread has begun a file: it can be read from now on."""
        if self._files and self._files[-1].first == self._file:
            # Found empty at the start; then its first sync failed, and this took its name.
            self._files.pop().places.close()
        path = self.directory.segment(self._file)
        self._files.append(_File(self._file, base, Index(path)))

    # Reading

    def read(self, seq: int) -> Message | None:
        if seq < 0:
            return super().read(seq)
        message = self._latest
        if message is None or message.seq != seq:
            row = self._row(seq)
            if row is None or row.kind not in (PUBLISH, SEND):
                return None
            message = self._latest = message_of(row)
        return message

    def _row(self, seq: int) -> Row | None:
        rows = self._near
        if rows and rows[0].seq <= seq <= rows[-1].seq:
            return rows[seq - rows[0].seq]
        for gathered in (self._rows, self._group.rows if self._group else None, *self._recent):
            row = gathered.row(seq) if gathered is not None else None
            if row is not None:
                return row
        rows = self._rows_around(seq)
        at = bisect_left(rows, (seq,))
        if at == len(rows) or rows[at].seq != seq:
            return None
        if rows[-1].seq - rows[0].seq == len(rows) - 1:  # no gaps, as snapshots have
            self._near = rows
        return rows[at]

    def _rows_around(self, seq: int) -> list[Row]:
        """The rows that lie in a frame with that one, if it is there."""
        index = next((file.places for file in reversed(self._files) if file.first <= seq), None)
        return self._frame(index or self._snapshot, seq)

    def _frame(self, index: Index | None, seq: int) -> list[Row]:
        at = index.place(seq) if index else -1
        if index is None or at < 0:
            return []
        cached = self._cache.get((index, at))
        if cached is not None:
            return cached[0]
        try:
            rows, size = index.rows(at)
        except (JournalError, OSError) as error:
            self._report(f"row {seq} cannot be read: {error}")
            return []
        self._cache[index, at] = rows, size
        self._cached += size
        while self._cached > FRAME_CACHE_BYTES and len(self._cache) > 1:
            self._cached -= self._cache.pop(next(iter(self._cache)))[1]
        return rows

    def figures(self) -> dict[str, Callable[[], str]]:
        found = {name: _rounded(figure) for name, figure in self.pulse.figures().items()}
        found["waiting bytes"] = lambda: str(self.pending_bytes)
        found["trouble"] = self.complaint
        return found

    def complaint(self) -> str:
        """What is wrong with the disk just now, "" if nothing is."""
        return self.trouble or ("publishers wait for the disk" if self.behind else "")

    # Rolling

    def roll_due(self) -> list[str] | None:
        """The command that folds and compresses the oldest finished segment, None if there is
        none. The hub runs one at a time and calls `rolled` when it ended with 0.
        """
        current = self._files[-1].base if self._files else 0
        for file in self._files:
            if self._snapshot_seq < file.base < current and file.base not in self._empty:
                self._rolling = file.base
                return [
                    sys.executable, "-m", "hubbub.journal.roll", str(self.directory.path),
                    str(file.base), "--keep-seconds", str(self.keep_seconds),
                    "--keep-bytes", str(self.keep_bytes),
                ]  # fmt: skip
        return None

    def rolled(self) -> None:
        """Read the messages of folded segments from the new snapshot from now on.

        Segments since the snapshot before it stay open: sessions that end with their
        connection are in no snapshot, but may still wait for messages.
        """
        *_, before, newest = [0, 0, *self.directory.snapshots()]
        if newest <= self._snapshot_seq:
            self._empty.add(self._rolling)  # damage left no rows in it: nothing to fold
            return
        path = self.directory.snapshot(newest)
        snapshot = Index(path)
        for found in frames_of(mapped(path), 0):
            snapshot.add(found.first, found.at)
        done = [file.places for file in self._files if file.base <= before]
        self._files = [file for file in self._files if file.base > before]
        if self._snapshot is not None:
            done.append(self._snapshot)
        self._snapshot, self._snapshot_seq = snapshot, newest
        self._cache.clear()
        self._recent.clear()
        self._cached = 0
        for index in done:
            index.close()

    # The writer thread

    def _work(self) -> None:
        while (group := self._groups.get()) is not None:
            if not (self._insist(self._land, group) and self._insist(self._publish, group)):
                return
            self._on_durable(group.last)

    def _insist(self, step: Callable[[_Group], None], group: _Group) -> bool:
        """Try until it works. False: the hub stops and the disk is still in trouble."""
        tries = 0
        while True:
            try:
                step(group)
            except OSError as error:
                self._complain(error)
                pause = FULL_PAUSE if error.errno in FULL else PAUSES[min(tries, len(PAUSES) - 1)]
            else:
                self._complain(None)
                return True
            tries += 1
            if self._closing.wait(pause):
                log.error("journal: rows from %d on were never written", group.first)
                return False

    def _complain(self, error: OSError | None) -> None:
        self.pulse.failures += error is not None
        trouble = f"the journal cannot be written: {error.strerror or error}" if error else ""
        if trouble != self.trouble:
            log.warning("journal: %s", trouble or "it can be written again")
        self.trouble = trouble

    def _land(self, group: _Group) -> None:
        """Make the group durable at the end of its file."""
        if self._suspect or (group.first == group.base and self._file != group.first):
            self._begin(group)
        view = memoryview(group.data)
        ends = [*(at for _, at in group.frames[1:]), len(view)]
        for (_, at), end in zip(group.frames, ends, strict=True):
            # A frame is on the disk before the next one is written: else a crash could leave
            # the next without it.
            self._write(view[at:end], self._end + at)
            if self.on_written is not None and end == len(view):
                self.on_written(group.last)
            self._make_durable(self._end + end)
        self._landed = self._end
        self._end += len(group.data)
        self._written = group.last

    def _write(self, data: memoryview, at: int) -> None:
        try:
            write_at(self._fd, data, at)
        except OSError:
            self._retreat()
            raise

    def _make_durable(self, end: int) -> None:
        if end > self._bytes:
            self._grow(end)
        started = time.perf_counter()
        try:
            self._sync(self._fd)
        except OSError:
            self._suspect = True
            if self.on_written is None:  # else it was promised that they survive this process
                self._retreat()
            raise
        self.pulse.synced(time.perf_counter() - started)

    def _begin(self, group: _Group) -> None:
        path = self.directory.segment(group.first)
        with Replacement(path) as new:
            write_at(new.fd, Header(group.first, self._written, group.base).encode(), 0)
        # Opened before the old one is closed: if that fails, a retry must not close a number
        # that meanwhile is somebody else's socket.
        before, self._fd = self._fd, os.open(path, os.O_RDWR)
        if before >= 0:
            os.close(before)
        self._file, self._suspect = group.first, False
        self._end = self._bytes = HEADER_BYTES
        self._begun += 1

    def _retreat(self) -> None:
        """Take back what was written of a group, so that the file ends with a durable row."""
        try:
            os.ftruncate(self._fd, self._end)
            self._bytes = self._end
        except OSError:
            self._suspect = True

    def _grow(self, end: int) -> None:
        """Zeros behind the end of the file: its next syncs find it of the same size."""
        self._bytes = end
        size = min(end + min(max(end, GROWTH_LEAST), GROWTH_MOST), self._segment_bytes)
        with contextlib.suppress(OSError):  # there may be room for what was written and no more
            if self._sync is not _leave_it_to_the_system and size > end:
                write_at(self._fd, bytes(size - end), end)
                self._bytes = size

    def _publish(self, group: _Group) -> None:
        write_at(self._committed_fd, group.last.to_bytes(8, "little"), 0)

    # Ending

    def close(self) -> None:
        """Write what is pending, end the thread, let go of the directory.

        If the disk is in trouble, one more try is made; what nobody was promised is lost then.
        """
        if self._thread.is_alive():
            if self._rows:
                self._launch()
            self._groups.put(None)
            self._closing.set()
            self._thread.join()
            self._group = None
            self.durable = max(self.durable, self._written)
        for fd in (self._fd, self._committed_fd):
            if fd >= 0:
                os.close(fd)
        for file in self._files:
            file.places.close()
        if self._snapshot is not None:
            self._snapshot.close()
        self.directory.release()


def _rounded(figure: Callable[[], float]) -> Callable[[], str]:
    return lambda: f"{figure():.3f}".rstrip("0").rstrip(".")


def _leave_it_to_the_system(fd: int) -> None:
    """Durability "os": what was written survives the process, not the machine."""


def _weight(row: Row) -> int:
    """About how many bytes a row takes; names and properties count, they can be long."""
    return (
        len(row.payload) + len(row.topic) + len(row.client) + len(row.properties)
        + len(row.reply_to) + len(row.correlation) + ROW_BYTES
    )  # fmt: skip


def _group_of(rows: Gathered, places: list[int], base: int) -> _Group:
    data = bytearray()
    frames: list[tuple[int, int]] = []
    columns, count = rows.columns(), len(rows)
    for at, end in zip(places, [*places[1:], count], strict=True):
        frames.append((rows.first + at, len(data)))
        part = columns if end - at == count else [column[at:end] for column in columns]
        data += frame.encode_columns(part, frame.MORE if end != count else 0)
    return _Group(data, frames, rows, rows.first, rows.first + count - 1, base)


def _places(rows: Gathered, weight: int, together: list[tuple[int, int]]) -> list[int]:
    """Where frames begin: of neither too many rows nor, unless it is one, too many bytes.

    A cut within rows that belong together is made before them.
    """
    cuts = _cuts(rows, weight)
    for first, last in together if cuts else ():
        low, high = first - rows.first, last - rows.first
        cuts = [low if low < cut <= high else cut for cut in cuts]
    return sorted({0, *cuts})


def _cuts(rows: Gathered, weight: int) -> list[int]:
    """Where a new frame begins."""
    if weight <= FRAME_BYTES:
        return list(range(COMMIT_ROWS, len(rows), COMMIT_ROWS))
    cuts: list[int] = []
    begun = size = 0
    for index, row in enumerate(rows):
        size += _weight(row)
        if index > begun and (index - begun == COMMIT_ROWS or size > FRAME_BYTES):
            cuts.append(index)
            begun, size = index, _weight(row)
    return cuts
