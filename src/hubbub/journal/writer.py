"""The durable log of a hub: numbers rows, hands them to the disk in groups, reads messages back.

What is appended gathers (`intake`). `commit` makes frames of it and hands them to one writer
thread (`disk`), which only writes and syncs (Python there would stall the loop); what arrives
during one sync is the next group. When a group is durable the thread calls `on_durable`; the loop
then calls `arrived`, and from then on the rows are read from their file (`readback`).

    append → pending ──commit──→ flying ──thread: write, sync, publish──→ arrived → durable
                          │                           └── (on_written) ──→ written   ↑
                          └── nothing is synced, little to write ────────────────────┘

Owned by the hub; every method belongs to the loop's thread. Starts no process: `roll_due` says
which command folds and compresses a finished segment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mypy_extensions import mypyc_attr

from hubbub.core.clock import Clock
from hubbub.core.limits import (
    COMMIT_BYTES,
    SEGMENT_BYTES,
    SEGMENT_SECONDS,
)
from hubbub.core.message import (
    Message,
    message_of,
    properties_column,
)
from hubbub.errors import DirectoryError, JournalError, UnreadableError
from hubbub.journal import frame
from hubbub.journal.batch import Batch
from hubbub.journal.behind import Behind
from hubbub.journal.buffers import Buffers
from hubbub.journal.content import HEADER_BYTES, Content, unreadable
from hubbub.journal.disk import Disk
from hubbub.journal.frame import Frame
from hubbub.journal.gathered import Gathered
from hubbub.journal.group import Beyond, Group, group_of
from hubbub.journal.healing import choose, forged, heal, take_back
from hubbub.journal.intake import Intake
from hubbub.journal.invariants import must
from hubbub.journal.pulse import Pulse
from hubbub.journal.readback import File, ReadBack, opened
from hubbub.journal.righting import Righting
from hubbub.journal.room import Room
from hubbub.journal.segments import Directory
from hubbub.schema import MANAGED, PUBLISH, SEND, Row

log = logging.getLogger(__name__)

LATEST: Final = 64  # messages that were read back last; as many as calls are under way, as a rule
LATEST_BYTES: Final = 4096  # of the payload of one that is kept beside others
SCRUB_PAUSE: Final = 3600.0  # seconds between two looks at when it was scrubbed last
ENDS_EARLY: Final = "end early"  # what the row says with which a segment begins early
ROW_BYTES: Final = 50  # that a row takes at least, beside its payload
SNAPSHOT_BYTES: Final = 110  # that a row takes more in a snapshot, as a message of a queue does
STALLED: Final = 5.0  # seconds of a group on its way: it has a write and a sync or two
FOLDED_SHARE: Final = 2  # a snapshot is made anew when half its bytes have come since: roll_due


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal(Intake):
    """The log of one directory. Call `recover` once before anything else, `close` at the end.

    `on_durable(seq)` is called from the writer thread. `sync` is what makes a file's data durable;
    it raises OSError if it failed. `beyond`: where groups go beside the disk.
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
        self.most = durability
        self.directory = Directory(directory)
        self.behind = False  # so much waits for the disk that publishers do, too
        self.shortage = ""  # of room on the disk
        self.room = Room(self.directory, segment_bytes)
        segment_bytes = self.room.segment_bytes
        self.roll_trouble = ""  # why the last roll failed
        self._roll_failures = 0  # how many failed one after another
        self.scrub_trouble = ""  # what reading everything found
        self.reports: list[str] = []
        # Settings
        self._segment_bytes = segment_bytes
        self._segment_time = int(segment_seconds * 1_000_000)
        self.keep_seconds = keep_seconds
        self.keep_bytes = keep_bytes
        # Rows on their way
        self._group: Group | None = None
        self._buffers = Buffers()
        self.on_disk = 0  # the last row that the disk has
        self.beyond: Beyond | None = None
        self._launched = 0.0
        self.stalled = False  # a group is on its way for longer than any disk takes that is well
        self.flight = (0, 0.0)  # rows of the last group, and seconds from its commit until here
        # The segment as the loop sees it
        self._base = self._base_before = 0
        self._began = 0
        self._size = 0
        self._full = True
        self._ends_at = 0  # the row with which it ends, while some before that wait; 0 = not yet
        self._newest = 0
        self.righting = Righting(clock.stamp(), begins=self._begins)
        self.clock_behind = Behind(self.directory.behind)
        self.begun = 0  # up to which row this start has made rows of what it found
        self.ahead = 0  # the time of the last row, if that is to come: the clock had been ahead
        self.late = 0  # microseconds of the time since the last row that did not pass, but were set
        # What is on the disk
        self.disk = Disk(
            self.directory, sync if durability == "disk" else None, on_durable, segment_bytes
        )
        self._read = ReadBack(self._report)
        # What was read back last, by seq: a request is read when it is handed out, when it is
        # answered and when the answer is. One message of any size, or LATEST small ones.
        self._latest: dict[int, Message] = {}
        self._said: set[str] = set()
        # What the roller does
        self._scrub_again = 0.0
        self._rolling = 0
        self._hurried = False  # a segment ended early to be folded
        self._rolled_upto = 0  # damage may leave no rows to fold, and then no snapshot
        self._let_go: tuple[float, int] | None = None  # what was kept when it was looked at last
        self._changed = 0  # the last row that may change state
        self._passing: dict[int, int] = {}  # of a segment, by its base: bytes no snapshot will have
        self._more: dict[int, int] = {}  # and those it will have more than the segment
        self._covered = 0  # up to which row both of the newest two snapshots say all
        self.directory.acquire()

    @property
    def trouble(self) -> str:
        """What keeps rows from the disk, "" if nothing does."""
        return self.disk.trouble

    @property
    def snapshot_seq(self) -> int:
        """Up to which row the newest snapshot says all; 0 if there is none."""
        return self._read.snapshot_seq

    @property
    def pulse(self) -> Pulse:
        return self.disk.pulse

    @property
    def on_written(self) -> Callable[[int], None] | None:
        """Called by the thread with rows that survive the end of this process, before the sync."""
        return self.disk.on_written

    @on_written.setter
    def on_written(self, call: Callable[[int], None] | None) -> None:
        self.disk.on_written = call

    # Starting

    def recover(
        self, fold: Callable[[Batch], None], progress: Callable[[int], None] = lambda size: None
    ) -> None:
        """Fold what is there, frame by frame: every row of the newest snapshot, then the rows after
        it that change state. Heals the files; what that found is logged and in `reports`.
        `progress` is called with the bytes of each frame that is done, of `Directory.to_fold`.

        Raises DirectoryError if state cannot be known, UnreadableError if the machine cannot read
        what is there: then nothing was changed.
        """
        try:
            self._begin_at_snapshot(fold, progress)
            committed = self._committed()
            last = self._read.snapshot_seq
            for first, following in self.directory.spans():
                if not following or following > self._read.snapshot_seq + 1:
                    self._report(heal(self.directory, first, committed, following))
                    last = self._fold_segment(first, following, last, fold, progress)
            self._lost(last, self._seen(committed))
            self._continue(last, committed)
        except OSError as error:
            raise unreadable(error) from error
        except JournalError as error:
            raise DirectoryError(forged(error)) from error
        except MemoryError as error:
            raise UnreadableError(
                f"there is not enough memory to read {self.directory.path}; nothing was changed: "
                "give the hub more, and start it again"
            ) from error

    def _begin_at_snapshot(
        self, fold: Callable[[Batch], None], progress: Callable[[int], None]
    ) -> None:
        choice = choose(self.directory)
        if choice.refusal:
            raise DirectoryError(choice.refusal)
        for note in (*choice.notes, *choice.unread):
            self._report(note)
        for path in self.directory.strangers():
            self._report(f"{path} is no file of a hub; it is left alone")
        if not choice.seq:
            return
        take_back(self.directory, choice)
        path = self.directory.snapshot(choice.seq)
        self._read.snapshot = opened(path, choice.frames)
        self._read.snapshot_seq = self._changed = choice.seq
        older = [seq for seq in self.directory.snapshots() if seq < choice.seq]
        self._covered = max(older, default=0)
        with Content(path) as content:
            for found in choice.frames:
                self._fold(content, found, fold)
                progress(found.size)

    def _committed(self) -> int:
        """How far readers may have read. If nobody can say, it is as far as the rows go."""
        try:
            return self.directory.committed()
        except JournalError as error:
            self._report(str(error))
            return 0

    def _fold_segment(
        self, first: int, following: int, last: int, fold: Callable[[Batch], None],
        progress: Callable[[int], None],
    ) -> int:  # fmt: skip
        """Fold the rows of a healed segment that come after `last`; return its last seq."""
        path = self.directory.segment(first)
        with Content(path) as content:
            header = content.header()
            assert header is not None, "the file was healed"
            frames = content.rows_frames(following)
            flags = os.O_RDONLY if following else os.O_RDWR  # the last one is written on
            self._read.files.append(File(first, header.base, opened(path, frames, flags)))
            for found in frames:
                if found.flags & frame.STATE:
                    self._changed = max(self._changed, found.last)
                    self._fold(content, found, fold, self._read.snapshot_seq)
                self._lost(last, found.first - 1)
                last = max(last, found.last)
                progress(found.size)
            self._size = HEADER_BYTES
            if frames:
                self._size = frames[-1].at + frames[-1].size
                self._newest = max(self._newest, content.rows(frames[-1])[-1].time)
                self._began = content.rows(frames[0])[0].time
        return last

    def _fold(
        self, content: Content, found: Frame, fold: Callable[[Batch], None], after: int = -1
    ) -> None:
        """The rows of a frame behind the row `after`; those that only a snapshot has are row 0."""
        with content.named(found):
            fold(Batch(content.columns(found), self.righting, after))

    def _continue(self, last: int, committed: int) -> None:
        """Number on above all that could have been seen, at the end of the last segment."""
        disk, files = self.disk, self._read.files
        self._report(self.clock.begin(self._newest))
        self.righting.began(self.clock.stamp())
        self.ahead = self._newest if self._newest > self.clock.stamp() else 0
        still = max(0, -self.clock.ahead())  # as other processes are, by whose time it goes on
        self.late = max(0, self.clock_behind.late(self.clock.stamp()) - still)
        if self.late:
            self._report(
                f"the clock was set {self.late // 1_000_000} s ahead while the hub ran: sessions "
                "that are away, and wills that wait, last so much longer; delayed messages and "
                "those that expire do so by the clock as it is now"
            )
        self.position = self.durable = self.righting.upto = max(last, self._seen(committed))
        self.handed = self.on_disk = self.position
        disk.open(last)
        if files:
            self._base, self._full = files[-1].base, False
            disk.go_on(files[-1].first, files[-1].places.fd, self._size)
            sure = last <= committed
            disk.make_sure(0 if sure else max(files[-1].places.place(committed + 1), HEADER_BYTES))
        disk.start(self.durable)

    def _seen(self, committed: int) -> int:
        """The last number that could have been seen: the last file begins behind that."""
        return max([committed, *(file.first - 1 for file in self._read.files[-1:])])

    def _begins(self) -> int:
        """When this start is, before all is read: the last row says it."""
        self.clock.begin(self.directory.newest())
        return self.clock.stamp()

    def _lost(self, last: int, before: int) -> None:
        if before > last:
            self._report(f"rows {last + 1} to {before} are lost")

    def _report(self, text: str) -> None:
        if text:
            self.reports.append(text)
            log.warning("journal: %s", text)

    # Committing

    def commit(self, here: bool = False) -> bool:
        """Send what is pending to the disk, or a group of it, unless one is on its way already.

        `here`: it may be written at once, where that takes no time. True if that is durable now.
        """
        if self.flying:
            self.shelve()
            return False
        if not self.pending:
            return False
        group = self._next_group()
        if here and self.disk.write_here(group):
            self.arrived(group.last)
            return True
        self.disk.groups.put(group)
        return False

    def _next_group(self) -> Group:
        rows = self._shelf[0] if self._shelf else self._rows
        base = rows.first if self._full else self._base
        most = self._ends_at - rows.first + 1 if self._ends_at else 0
        # Encoded before anything is given up: rows that cannot be written are promised to nobody.
        group = group_of(rows, self._together, base, most, self._buffers)
        must(group.first == self.handed + 1, "rows are numbered one by one")
        if group.changes_state():
            self._changed = group.last
            self._more[base] = self._more.get(base, 0) + SNAPSHOT_BYTES * len(group.rows)
            if self.beyond is not None:
                self.beyond.take(group.first, group.last, group.data())
        else:
            self._passing[base] = self._passing.get(base, 0) + group.size
        self.handed, self._group, self.flying = group.last, group, True
        if group.rows is rows:
            self._taken_whole()
        if self._together:
            del self._together[: bisect_left(self._together, (group.last + 1, 0))]
        self._launched = self.clock.now()
        times = group.rows.times()
        if self._full:
            self._full = False
            self._base_before, self._base = self._base, group.first
            self._began, self._size = times[0], HEADER_BYTES
        self._size += group.size
        self.room.spend(group.size)
        self._end_segment(group.last, times[1] - self._began)
        return group

    def _taken_whole(self) -> None:
        """Nothing is left of what came first."""
        if self._shelf:
            self._shelf.popleft()
        else:
            self._rows = Gathered()

    def _end_segment(self, last: int, age: int) -> None:
        """End it with the row `last`, or with all that waits, if it is long or old enough."""
        if self._ends_at:
            if self._ends_at == last:
                self._full, self._ends_at = True, 0
        elif self._size >= self._segment_bytes or age >= self._segment_time:
            # Decided here, not when the next group begins: rows appended from now on see the
            # new number and write their audiences again, all rows before lie in this segment.
            self.segment += 1
            if self._rows:
                self._rows.end_frame()
            if self.pending:
                self._ends_at = self.position
            else:
                self._full = True

    def arrived(self, seq: int) -> None:
        """The loop heard that the rows up to `seq` are durable."""
        group = self._group
        if group is None or seq < group.last:
            return
        must(self.on_disk < group.last <= self.position, "what is durable only grows")
        self._group, self.flying = None, False
        self.on_disk = self.written = group.last
        self.settle()
        self.flight = (len(group.rows), self.clock.now() - self._launched)
        self.pulse.committed(self.flight[1], len(group.rows), group.size)
        if group.size <= COMMIT_BYTES:
            self._read.recent.append(group.rows)
        self._read.landed(group, self.directory)

    def settle(self) -> None:
        """What the disk has, and who is beyond it, is promised."""
        safe = self.on_disk if self.beyond is None else self.beyond.safe(self.on_disk)
        self.durable = max(self.durable, safe)

    # Reading

    def read(self, seq: int) -> Message | None:
        if seq < 0:
            return super().read(seq)
        latest = self._latest
        message = latest.get(seq)
        if message is None:
            row = self._row(seq)
            if row is None or row.kind not in (PUBLISH, SEND):
                return None
            message = message_of(row)
            if len(row.payload) > LATEST_BYTES or len(latest) >= LATEST:
                latest.clear()
            latest[seq] = message
        return message

    def fetched(self) -> int:
        return self._read.fetched

    def _row(self, seq: int) -> Row | None:
        waiting = [self._rows, *self._shelf]
        if self._group is not None:
            waiting.append(self._group.rows)
        for gathered in waiting:
            row = gathered.row(seq)
            if row is not None:
                return row
        try:
            found = self._read.row(seq)
            return self.righting.row(found) if found is not None else None
        except OSError as error:
            trouble = unreadable(error)
            self._unread(str(trouble))
            raise trouble from error

    def _unread(self, text: str) -> None:
        """Say it once: who waits for the row asks for it again and again."""
        if text not in self._said:
            self._said.add(text)
            log.warning("journal: %s", text)

    def figures(self) -> dict[str, Callable[[], str]]:
        found = {name: _rounded(figure) for name, figure in self.pulse.figures().items()}
        found["waiting bytes"] = lambda: str(self.pending_bytes)
        found["trouble"] = self.complaint
        return found

    def complaint(self) -> str:
        """What is wrong with the disk just now, "" if nothing is."""
        folding = f"segments are not folded: {self.roll_trouble}" if self.roll_trouble else ""
        slow = "publishers wait for the disk" if self.behind else ""
        now = self.trouble or self._stall() or slow
        return now or folding or self.shortage or self.scrub_trouble

    def watch(self) -> None:
        """A few times a second: a disk that hangs (a network's, a failing one) says no error."""
        stall = self._stall()
        if self.stalled != (stall != ""):
            self.stalled = not self.stalled
            log.warning("journal: %s", stall or "the disk takes rows again")

    def _stall(self) -> str:
        seconds = self.clock.now() - self._launched if self.flying and not self.trouble else 0.0
        return f"the disk has not taken rows for {seconds:.0f} s" * (seconds >= STALLED)

    # Rolling

    def roll_due(self) -> list[str] | None:
        """The command that folds and compresses finished segments, None if there is nothing to
        do. The hub runs one at a time and calls `rolled` when it ended with 0.

        A snapshot says all that is, so it is not made anew for every segment: what has come since
        must be a part of it that is worth the work, unless room is short. On a full disk, or when
        less is to be kept from now on, what retention lets go goes at once. Where only one user
        has no more of what is left, it is worth the work as often as a segment ends early for it:
        that user may have no more for days.
        """
        finished = self._finished()
        whole, size = self._to_fold()
        pressed = self._less_is_kept() or self.disk.full
        hurried = self.shortage != "" or self._hurried
        folds = bool(finished) and (size * FOLDED_SHARE >= whole or hurried)
        if not folds and not pressed:
            return None
        self._rolling = finished[-1].base if folds else 0
        short = pressed or hurried
        return [*self._command(self._rolling), *(["--make-room"] if short else [])]

    def _to_fold(self) -> tuple[int, int]:
        """The bytes of the newest snapshot, and of the finished files after it."""
        snapshot = self._read.snapshot
        whole = os.fstat(snapshot.fd).st_size if snapshot is not None else 0
        return whole, sum(os.fstat(file.places.fd).st_size for file in self._finished())

    def _finished(self) -> list[File]:
        """The files of segments that are not folded yet and not written any more."""
        files = self._read.files
        current = files[-1].base if files else 0
        folded = max(self._read.snapshot_seq, self._rolled_upto)
        return [file for file in files if folded < file.base < current]

    def _less_is_kept(self) -> bool:
        """Whether a setting was lowered since the last roll."""
        wanted = (self.keep_seconds, self.keep_bytes)
        kept, self._let_go = self._let_go or wanted, wanted
        return any(0 < now < (before or now + 1) for before, now in zip(kept, wanted, strict=True))

    def _command(self, base: int) -> list[str]:
        return [
            sys.executable, "-P", "-m", "hubbub.journal.roll", str(self.directory.path), str(base),
            "--keep-seconds", str(self.keep_seconds), "--keep-bytes", str(self.keep_bytes),
            "--started", str(self.righting.start), str(self.righting.upto),
            "--now", str(self.clock.stamp() / 1_000_000),
        ]  # fmt: skip

    def rolled(self, complete: bool = True) -> None:
        """Read the messages of folded segments from the new snapshot from now on, and let go of
        what it makes needless. A roll that failed (not `complete`) may have written one before:
        on a full disk the room of what it replaced is needed to make the next one better.

        Raises OSError if that cannot be opened now: nothing has changed, it may be called again.
        """
        *_, before, newest = [0, 0, *self.directory.snapshots()]
        self._covered = before
        if complete:
            self._rolled_upto = max(self._rolled_upto, self._rolling)
            self._hurried = False
        folded = max(newest, self._rolled_upto)
        self._passing = {base: size for base, size in self._passing.items() if base > folded}
        self._more = {base: size for base, size in self._more.items() if base > folded}
        if newest > self._read.snapshot_seq:
            self._read.rolled(self.directory.snapshot(newest), newest, before)
        self._read.renew()  # of what is left: what the roll compressed cannot be read here

    def roll_ended(self, complaint: str) -> None:
        """The hub says how the roll ended: "" if all was done, else what was wrong."""
        if complaint and complaint != self.roll_trouble:
            log.error("journal: a segment could not be folded: %s", complaint)
        elif self.roll_trouble and not complaint:
            log.warning("journal: segments are folded again")
        self._roll_failures = self._roll_failures + 1 if complaint else 0
        self.roll_trouble = complaint

    def gone(self, seq: int, size: int) -> None:
        """What was taken from a queue as soon as it came is in no snapshot, as long as nothing of
        its segment is. What waited for longer comes back with the next fold. The row that says so
        is in none.
        """
        self._let_pass(self._base, 0)
        base = self._base if seq >= self._base else self._base_before
        if seq >= base > self._rolling:
            self._let_pass(base, size)

    def _let_pass(self, base: int, payload: int) -> None:
        size = payload + ROW_BYTES + SNAPSHOT_BYTES
        self._passing[base] = self._passing.get(base, 0) + size

    def no_room(self, folding: bool = False) -> str:
        """Why nothing more should be taken that stays on the disk, "" if there is room.

        What no roll can fold grows, too: the second one that fails in a row says so. Traffic that
        passes through is in no snapshot: counted as such, a disk would be short as long as it goes.
        """
        with contextlib.suppress(OSError):  # asked again soon; it must not stop a commit
            # The first group of a segment is on its way: the one before it has no other behind it.
            before = [file for file in self._read.files[-1:] if file.base != self._base]
            bases = {self._base, *[one.base for one in [*self._finished(), *before]]}
            passing = sum(self._passing.get(base, 0) for base in bases)
            more = sum(self._more.get(base, 0) for base in bases)
            ended = sum(os.fstat(file.places.fd).st_size for file in before)
            whole, size = self._to_fold()
            come = size + ended + self._size + more
            stays = whole + max(0, come - passing)
            writes = folding and self._writes_snapshot()
            self.shortage = self.room.look(whole + come, stays, self.clock.now(), writes)
        if self._roll_failures > 1:
            return f"segments are not folded: {self.roll_trouble}"
        return self.shortage

    def _writes_snapshot(self) -> bool:
        """Whether the roll that runs still has one to write: it compresses and removes, too, and
        what lies there needs no room once more.
        """
        return self._rolling > 0 and self.directory.snapshots()[-1:] <= [self._read.snapshot_seq]

    def waits_for_room(self) -> bool:
        """Whether more rows would take the room that the next roll needs to make some."""
        return self.room.left < 0 and self.shortage != "" and bool(self._finished())

    def early_end_due(self) -> bool:
        """Whether to end the segment before it is full: room is short, and only a fold gives it
        back what was taken away. What is refused leaves no row, so it might never get full.

        Two folds end this, for two snapshots are kept: what one of them has lies on the disk.
        Asked while no fold is due.
        """
        known = self._changed <= self._covered
        resting = self.position == self.on_disk  # what was appended is of this segment
        first = self.shortage != "" and self._finished() != []  # it is folded before
        return self.wants_room() and not known and resting and not (first or self._hurried)

    def wants_room(self) -> bool:
        """Whether something is refused for want of room."""
        return self.shortage != "" or self.room.wanted

    def end_early(self) -> None:
        """End the segment, and begin the next one: a segment is finished when there is another."""
        log.info("journal: a segment ends early, for the disk to get back what was taken away")
        self._hurried = True
        if not self._full:
            self._full = True
            self.segment += 1
        self.append(Row(0, 0, MANAGED, properties=properties_column({"verb": ENDS_EARLY})))

    # Scrubbing

    def scrub_due(self, days: float) -> bool:
        """Whether the journal was not read from end to end for so many days; 0 = never mind.

        A new one is a while old before that is asked; asked once an hour at most.
        """
        now = self.clock.now()
        if not days or now < self._scrub_again:
            return False
        self._scrub_again = now + SCRUB_PAUSE
        for path in (self.directory.scrubbed, self.directory.path / "id"):
            with contextlib.suppress(OSError):  # that is asked again
                # Or it was then by a clock that is ahead no more: nobody knows when it was.
                return abs(time.time() - path.stat().st_mtime) > days * 86_400
        return False

    def scrub_command(self) -> list[str]:
        path = str(self.directory.path)
        return [sys.executable, "-P", "-m", "hubbub.journal.scrub", path]

    def scrub_ended(self, found: str) -> None:
        """The hub says what was found: "" if all could be read and is right."""
        self.scrub_trouble = found
        if found:
            log.error("journal: read from end to end, it is not right: %s", found)

    # Ending

    def close(self) -> None:
        """Write what is pending, end the thread, let go of the directory."""
        while self.disk.runs and self.pending:
            self.disk.groups.put(self._next_group())
        self.disk.close()
        self._group = None
        self.durable = max(self.durable, self.disk.written)
        self._read.close()
        self.directory.release()


def _rounded(figure: Callable[[], float]) -> Callable[[], str]:
    return lambda: f"{figure():.3f}".rstrip("0").rstrip(".")
