"""Making a directory usable again that a start refuses, or cannot read: `hubbub journal repair`.

    format      written again, if the files say that they are of this version
    segments    one with damage, or with blocks that the disk cannot read: what can be read of it
                takes its place
    snapshots   damaged or unreadable ones are set aside; if none is left, one in quarantine that
                is whole comes back, or the log is folded again from its first row
    committed   worked out from the rows

Nothing is thrown away: every file that is replaced lies in `quarantine` afterwards. It says what it
does, and which rows are lost by the damage; with `dry_run` it only says so. Needs pyarrow, for
segments that are compressed; called by the command line, never by a hub.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hubbub.core.clock import Clock
from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import files, roll
from hubbub.journal.content import HEADER_BYTES, UNREADABLE, Content, Header, told
from hubbub.journal.examine import suspect_of
from hubbub.journal.files import make_folder, write_whole
from hubbub.journal.frame import Frame
from hubbub.journal.healing import choose, diagnose, heal, replace, set_aside, whole_snapshot
from hubbub.journal.lock import Lock, holder
from hubbub.journal.righting import Righting
from hubbub.journal.segments import FORMAT, Directory, committed_bytes


def repair(directory: Directory, dry_run: bool, say: Callable[[str], None]) -> None:
    """Mend what can be mended; `say` is called with each step.

    Raises DirectoryError if a hub runs here, the files are of another version or there are none,
    UnreadableError if the machine cannot read or write now.
    """
    suspect_of(directory.path)
    with told(directory.path):
        path = directory.path / "lock"
        lock = Lock(path)
        user = holder(path) if dry_run else lock.take()  # a file system may be read-only by now
        if user:
            raise DirectoryError(f"{directory.path} is used by process {user}: stop that hub first")
        try:
            work = _Repair(directory, dry_run, say)
            work.format()
            work.folders()
            work.segments()
            work.snapshots()
            work.committed()
        finally:
            lock.release()


class _Repair:
    def __init__(self, directory: Directory, dry_run: bool, say: Callable[[str], None]) -> None:
        self.directory = directory
        self._dry = dry_run
        self._say = say

    def _do(self, what: str, step: Callable[[], object]) -> None:
        self._say(f"would {what}" if self._dry else what)
        if not self._dry:
            step()

    def format(self) -> None:
        path = self.directory.path / "format"
        if self.directory.restoring.exists():
            raise DirectoryError(self.directory.complaint())
        if not path.exists() or not path.read_text(errors="replace").strip():
            self._do(f"write {path}", lambda: write_whole(path, FORMAT.encode()))
            return
        complaint = self.directory.complaint()
        if complaint:
            raise DirectoryError(complaint)

    def segments(self) -> None:
        committed = self._committed()
        last = 0
        for first, following in self.directory.spans():
            path = self.directory.segment(first)
            try:
                found = diagnose(self.directory, first, committed, following)
                whole = found.whole
                if found.text:
                    mend = partial(heal, self.directory, first, committed, following)
                    self._do(f"mend log/{path.name}: {found.text}", mend)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                whole = self._save(first, following)
            last = self._tell_lost(last, whole, first)

    def _save(self, first: int, following: int) -> list[Frame]:
        """What can be read of a segment with blocks that cannot."""
        path = self.directory.segment(first)
        with Content(path) as content:
            try:
                header = content.header() or Header(first, first - 1, first)
            except OSError:
                header = Header(first, first - 1, first)
            whole = [one for one in content.readable() if not following or one.first < following]
            size = content.size
        saved = sum(one.size for one in whole) + HEADER_BYTES
        self._do(
            f"save {saved:,} of {size:,} bytes of log/{path.name}: the disk cannot read the rest",
            lambda: replace(self.directory, path, header, whole),
        )
        return whole

    def _tell_lost(self, last: int, whole: list[Frame], first: int) -> int:
        last = last or first - 1
        for one in whole:
            if one.first > last + 1:
                self._say(f"lost: rows {last + 1} to {one.first - 1}")
            last = max(last, one.last)
        return last

    def snapshots(self) -> None:
        for seq in self.directory.snapshots():
            path = self.directory.snapshot(seq)
            try:
                why = "" if whole_snapshot(path) is not None else "it is damaged"
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                why = "the disk cannot read it"
            if why:
                self._do(f"set aside state/{path.name}: {why}", partial(self._put_away, path))
        self._begin_somewhere()

    def _put_away(self, path: Path) -> None:
        set_aside(self.directory, path)
        files.remove(path)

    def folders(self) -> None:
        for path in (self.directory.log, self.directory.state):
            if not path.is_dir():
                self._do(f"make {path}", partial(make_folder, path))

    def _begin_somewhere(self) -> None:
        """See that a start has a snapshot, or a log from its first row, to begin from."""
        try:
            choice = choose(self.directory)
        except OSError:
            return  # said above: it is set aside when this is no dry run
        if choice.path.parent == self.directory.quarantine and not choice.refusal:
            self._say(f"a start takes {choice.path} back, which reads well")
        if not choice.refusal:
            return
        first = self.directory.segments()[0]
        if first > 1:
            self._say(f"lost: what sessions, queues and topics were before row {first}")
        self._do(f"fold the log again, from row {first} on", lambda: self._fold_anew(first))

    def _fold_anew(self, first: int) -> None:
        if not roll.fold_anew(self.directory, Righting(Clock().stamp())):
            header = Header(first - 1, 0, first - 1, HEADER_BYTES)
            write_whole(self.directory.snapshot(first - 1), header.encode())

    def _committed(self) -> int:
        try:
            return self.directory.committed()
        except JournalError:
            return 0

    def committed(self) -> None:
        try:
            self.directory.committed()
        except JournalError:
            path = self.directory.log / "committed"
            last = self._last()
            data = committed_bytes(last)
            self._do(f"write {path}: the last row is {last}", lambda: write_whole(path, data))

    def _last(self) -> int:
        for first in reversed(self.directory.segments()):
            with Content(self.directory.segment(first)) as content:
                frames = content.rows_frames(0)
            if frames:
                return frames[-1].last
        return max(self.directory.snapshots(), default=0)

