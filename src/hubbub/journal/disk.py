"""The writer thread's half of the journal: groups become durable at the end of a file.

    groups ──take──→ land: write, sync ──→ publish: `committed` ──→ on_durable(seq)
                        └── (on_written) ──→ what survives the process may leave

A sync that failed says nothing about what is on the disk, so it is never repeated: the file is
left as suspect, and the same rows go into a new file. What the old one has of them is cut off, or,
if the end of this process could leave it as the only copy, passed over by readers. Most groups
take the place of zeros: a sync of a file that keeps its size is faster, so the file grows in steps.

The next file is opened ahead, while there are descriptors, so that a hub whose clients took all
of them goes on acknowledging. Everything here is the thread's, from `start` on; the loop (`writer`)
only puts groups into `groups` and reads `trouble`, `pulse` and what a group says when it is back.

Where nothing is synced a write is a copy into the system's memory, which takes less than waking a
thread, so the loop does it itself (`write_here`) while the thread has nothing to do. What fails or
may take its time is left to the thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Final

from hubbub.core.limits import COMMIT_BYTES, GROWTH_BEHIND_BYTES, GROWTH_LEAST, GROWTH_MOST
from hubbub.journal.content import HEADER_BYTES, Header
from hubbub.journal.files import opened, write_at
from hubbub.journal.group import Group
from hubbub.journal.invariants import must
from hubbub.journal.pulse import Pulse
from hubbub.journal.segments import COMMITTED_BYTES, Directory, committed_bytes

log = logging.getLogger(__name__)

FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
FULL_PAUSE: Final = 1.0  # seconds between tries while the disk is full
PAUSES: Final = (0.05, 0.2, 1.0, 5.0)  # seconds before the next try after other errors
SLOW: Final = 0.02  # seconds of a write of the loop's own: more than others who want the core take
REST: Final = 1.0  # seconds that the loop writes nothing itself after one
AHEAD: Final = "ahead.new"  # the next segment, before it has a name of its own


class Disk:
    """Where groups go. `sync` makes a file's data durable; it raises OSError if it failed.

    `on_durable(seq)` is called from the thread, and so is `on_written(seq)`, before the sync, if it
    is set: those rows survive the end of this process. `trouble` says what keeps rows from the
    disk, `full` whether it is for want of room.
    """

    def __init__(
        self,
        directory: Directory,
        sync: Callable[[int], None] | None,
        on_durable: Callable[[int], None],
        segment_bytes: int,
    ) -> None:
        self.directory = directory
        self.on_durable = on_durable
        self.on_written: Callable[[int], None] | None = None
        self.trouble = ""
        self.full = False
        self.pulse = Pulse()
        self.written = 0  # the last row in the file
        self.groups: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._sync = sync or _leave_it_to_the_system
        self._grows = sync is not None
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._ours = False  # the file was begun and no group of it is back yet: nobody reads it
        self._committed = -1
        self._folder = -1
        self._ahead = -1
        self._file = 0
        self._end = 0
        self._bytes = 0  # of the file, with the zeros behind its end
        self._suspect = False
        self._half = 0  # of `committed` that was written last
        self._published = 0  # what it says, or is about to
        self._rests = 0.0  # until then the loop writes nothing itself
        self._closing = threading.Event()
        self._worker = threading.Thread(target=self._work, name="journal", daemon=True)

    # Starting: the loop's thread, before the other one runs

    def open(self, written: int) -> None:
        """Make ready what every write needs. `written`: the last row that the files have."""
        self.written = written
        log_folder = self.directory.log
        self._folder = os.open(log_folder, os.O_RDONLY)
        self._committed = opened(log_folder / "committed", os.O_RDWR | os.O_CREAT)

    def go_on(self, file: int, fd: int, end: int) -> None:
        """Go on behind the rows of a file that was found; the descriptor stays its reader's."""
        self._file, self._fd, self._end = file, fd, end
        self._bytes = os.fstat(fd).st_size

    def make_sure(self, at: int) -> None:
        """What a crash left in the system's memory becomes durable before it is believed.

        If a sync had failed before the crash, another one would not try again: what is not known
        to be durable, from the place `at` on (0 for nothing), is written once more.
        """
        if at:
            write_at(self._fd, os.pread(self._fd, self._bytes - at, at), at)
        self._sync(self._fd)

    def start(self, committed: int) -> None:
        """Say how far the journal may be read, and let the thread run."""
        for half in (0, 1):
            write_at(self._committed, committed_bytes(committed), half * COMMITTED_BYTES)
        os.fsync(self._committed)
        os.fsync(self._folder)
        self._look_ahead()
        self._worker.start()

    # The thread

    @property
    def runs(self) -> bool:
        return self._worker.is_alive()

    def _work(self) -> None:
        while (group := self.groups.get()) is not None:
            if not all(self._insist(step, group) for step in self._steps(group)):
                return
            if self._ahead < 0:
                self._look_ahead()

    def _steps(self, group: Group) -> tuple[Callable[[Group], None], ...]:
        """What is left to do: the loop may have written it, and no more."""
        rest = (self.publish, self.tell)
        return rest if group.landed else (self.land, *rest)

    def _insist(self, step: Callable[[Group], None], group: Group) -> bool:
        """Try until it works. False: the hub stops and the disk is still in trouble."""
        tries = 0
        while True:
            try:
                step(group)
            except (OSError, MemoryError) as caught:
                short = OSError(errno.ENOMEM, "there is not enough memory")
                error = caught if isinstance(caught, OSError) else short
                self.complain(error)
                pause = FULL_PAUSE if error.errno in FULL else PAUSES[min(tries, len(PAUSES) - 1)]
            else:
                self.complain(None)
                return True
            tries += 1
            if self._closing.wait(pause):
                log.error("journal: rows from %d on were never written", group.first)
                return False

    def complain(self, error: OSError | None) -> None:
        self.pulse.failures += error is not None
        self.full = error is not None and error.errno in FULL
        trouble = f"the journal cannot be written: {error.strerror or error}" if error else ""
        if trouble != self.trouble:
            log.warning("journal: %s", trouble or "it can be written again")
        self.trouble = trouble

    def land(self, group: Group) -> None:
        """Make the group durable at the end of its file."""
        if self._suspect or (group.first == group.base and self._file != group.first):
            self._begin(group)
        at = self._end
        for _, data in group.frames:
            # A frame is on the disk before the next one is written: else a crash could leave
            # the next without it.
            self._write(memoryview(data), at)
            at += len(data)
            if self.on_written is not None and at == self._end + group.size:
                self.on_written(group.last)
            self._make_durable(at, len(data))
        group.file, group.landed = self._file, self._end
        if self._ours:
            group.fd, self._ours = self._fd, False
        self._end += group.size
        self.written = group.last

    def publish(self, group: Group) -> None:
        must(group.last >= self._published, "`committed` never goes back")
        self._published = group.last
        half = 1 - self._half  # again the same one, if this fails: the other stays right
        write_at(self._committed, committed_bytes(group.last), half * COMMITTED_BYTES)
        self._half = half

    def tell(self, group: Group) -> None:
        self.on_durable(group.last)

    def _write(self, data: memoryview, at: int) -> None:
        try:
            write_at(self._fd, data, at)
        except OSError:
            self._retreat()
            raise

    def _make_durable(self, end: int, written: int) -> None:
        if end > self._bytes:
            self._grow(end, written)
        started = time.perf_counter()
        try:
            self._sync(self._fd)
        except OSError:
            self._suspect = True
            if self.on_written is None:  # else it was promised that they survive this process
                self._retreat()
            raise
        self.pulse.synced(time.perf_counter() - started)

    def _begin(self, group: Group) -> None:
        """Give the file that was opened ahead its header and its name."""
        if self._ahead < 0:
            self._open_ahead()
        write_at(self._ahead, Header(group.first, self.written, group.base).encode(), 0)
        try:
            os.fsync(self._ahead)
        except OSError:
            self._drop_ahead()
            raise
        try:
            os.replace(self.directory.log / AHEAD, self.directory.segment(group.first))
        except FileNotFoundError:
            self._drop_ahead()  # somebody tidied up
            raise
        before, self._fd, self._ahead = self._fd, self._ahead, -1
        if self._ours:
            os.close(before)
        self._ours = self._suspect = True
        self._file = group.first
        self._end = self._bytes = HEADER_BYTES
        os.fsync(self._folder)  # if this fails, the next try begins another file of that name
        self._suspect = False

    def _open_ahead(self) -> None:
        self._ahead = opened(self.directory.log / AHEAD, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def _drop_ahead(self) -> None:
        """A file whose sync failed is not written again, not even under another name."""
        fd, self._ahead = self._ahead, -1
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(self.directory.log / AHEAD)

    def _look_ahead(self) -> None:
        with contextlib.suppress(OSError, MemoryError):  # there is time until it is needed
            self._open_ahead()

    def _retreat(self) -> None:
        """Take back what was written of a group, so that the file ends with a durable row."""
        try:
            os.ftruncate(self._fd, self._end)
            self._bytes = self._end
        except OSError:
            self._suspect = True

    def _grow(self, end: int, written: int) -> None:
        """Zeros behind the end of the file: its next syncs find it of the same size. None behind
        what is large: of a flood the disk would write each byte twice, and save few syncs.
        """
        self._bytes = end
        if written > GROWTH_BEHIND_BYTES:
            return
        size = min(end + min(max(end, GROWTH_LEAST), GROWTH_MOST), self._segment_bytes)
        with contextlib.suppress(OSError):  # there may be room for what was written and no more
            if self._grows and size > end:
                write_at(self._fd, bytes(size - end), end)
                self._bytes = size

    # The loop's thread, while the other one waits for a group

    def write_here(self, group: Group) -> bool:
        """Write a group at once. False: the thread has to, for it may take long, or just failed."""
        new = group.first == group.base and self._file != group.first
        large = group.size > COMMIT_BYTES
        if self._grows or new or large or self._suspect or self.trouble:
            return False
        began = time.perf_counter()
        if began < self._rests:
            return False
        try:
            self.land(group)
            self.publish(group)
        except (OSError, MemoryError):
            return False
        ended = time.perf_counter()
        if ended - began > SLOW:  # the system makes who writes wait for the disk
            self._rests = ended + REST
        return True

    # Ending: the loop's thread again

    def close(self) -> None:
        """End the thread and let go of the files that are nobody else's.

        If the disk is in trouble, one more try is made; what nobody was promised is lost then.
        """
        if self.runs:
            self.groups.put(None)
            self._closing.set()
            self._worker.join()
        if self._ahead >= 0:
            with contextlib.suppress(OSError):  # the next hub writes over it
                os.unlink(self.directory.log / AHEAD)
        self.forget()

    def forget(self) -> None:
        """Let go of the files, as the end of a process does."""
        for fd in (self._fd if self._ours else -1, self._committed, self._folder, self._ahead):
            if fd >= 0:
                os.close(fd)
        self._fd = self._committed = self._folder = self._ahead = -1


def _leave_it_to_the_system(fd: int) -> None:
    """Durability "os": what was written survives the process, not the machine."""
