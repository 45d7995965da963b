"""Which frames hold a range of rows: the journal's directory as its readers see it.

Everything is looked up anew for every question: segments are added, compressed and removed in
the meantime, rows never change. Names are listed again when the directory has changed: a year has
ten thousand, and each question asks for them. Only rows up to the committed one exist. `table`
makes batches of the frames, the web application sends them as they are. Needs no hub, takes no
lock, never writes, and knows no pyarrow.
"""

from __future__ import annotations

import math
import os
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import JournalError, OffsetError
from hubbub.journal import frame, names
from hubbub.journal.arrow import BATCH
from hubbub.journal.content import HEADER_BYTES, Content, unreadable
from hubbub.journal.frame import WHOLE, Frame
from hubbub.journal.segments import Directory
from hubbub.journal.shares import Piece, Shares, shared

END: Final = 2**63 - 1
MARK_BYTES: Final = 1 << 20  # so much is walked at most to find a row in a segment seen before
MARKED: Final = 16  # segments of which marks are kept
SETTLED: Final = 2_000_000_000  # ns after a change in which another may leave the same time
_MEND: Final = (
    "`hubbub journal repair` sets the damaged file aside and says what is lost; Spark's readers go "
    "on after it with failOnDataLoss=false (`hubbub pipeline run --skip-lost`)"
)
_GO_ON: Final = (
    "Spark's readers go on after what is missing with failOnDataLoss=false (`hubbub pipeline run "
    "--skip-lost`)"
)
SAMPLED: Final = 64  # files of which the first frame is looked at, to tell how much they grow
_BARE: Final = frame.HEADER.size + len(BATCH)  # of a frame without rows
ROW_BYTES: Final = 80  # of a row's numbers and offsets: every row has them, none can grow
_COMPRESSED_SIZE: Final = struct.Struct("<q")  # Arrow: before each compressed buffer


class State(NamedTuple):
    """A journal at one moment: its id ("": no hub has begun it), its oldest and newest seq."""

    id: str
    first: int
    committed: int


class Segment(NamedTuple):
    """A segment file: its first seq and its size in bytes."""

    first: int
    size: int


class Reach(NamedTuple):
    """Up to which row one came, what the rows up to there carry, and whether that is all."""

    seq: int
    carried: int
    whole: bool


class Marks:
    """Where some frames of one file begin, so that the next search does not start at its head."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._places = array("q")

    def add(self, found: Frame) -> None:
        """Remember a frame if it lies far enough behind the last one."""
        if not self._places or found.at >= self._places[-1] + MARK_BYTES:
            self._firsts.append(found.first)
            self._places.append(found.at)

    def before(self, seq: int) -> int:
        """A place from which walking finds that row."""
        index = bisect_right(self._firsts, seq) - 1
        return self._places[index] if index >= 0 else HEADER_BYTES


class Listing:
    """The first seqs of a directory's segments, listed again when it has changed."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._changed = -1
        self._firsts: list[int] = []

    def firsts(self) -> list[int]:
        """Ascending, as they are now; not to be changed."""
        now = time.time_ns()
        try:
            changed = os.stat(self._directory.log).st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._changed:
            self._firsts = self._directory.segments()
            self._changed = changed if changed < now - SETTLED else -1
        return self._firsts

    def forget(self) -> None:
        """One of them was not there: list them again, whatever the directory says."""
        self._changed = -1


class Frames:
    """The frames of the journal in `directory`, which need not exist yet.

    `allow_loss`: damaged frames are left out; without it they raise JournalError.
    """

    def __init__(self, directory: Path, allow_loss: bool = False) -> None:
        self._directory = Directory(directory)
        self._listing = Listing(self._directory)
        self._allow_loss = allow_loss
        self._marks: dict[tuple[int, int], Marks] = {}

    @property
    def name(self) -> str:
        """The journal in words."""
        return str(self._directory.path)

    def state(self) -> State:
        """What it has now."""
        committed, first = self.committed(), self.first()
        return State(self.identity(), first, committed)  # last: it says of which all that was

    def identity(self) -> str:
        """What tells this journal from every other, "" if there is none yet."""
        return self._directory.identity()

    def first(self) -> int:
        """The oldest seq that exists, 1 for an empty journal."""
        return next(iter(self._listing.firsts()), 1)

    def committed(self) -> int:
        """The newest seq that exists, 0 for an empty journal."""
        return self._directory.committed()

    def segments(self) -> list[Segment]:
        """The segments as they are now, ascending."""
        found = []
        for first in self._listing.firsts():
            try:
                size = self._directory.segment(first).stat().st_size
            except FileNotFoundError:
                continue  # removed since it was listed
            found.append(Segment(first, size))
        return found

    def base_of(self, seq: int) -> int:
        """Where the segment of that row begins; the oldest file's if the row is gone."""
        firsts = self._listing.firsts()
        first = firsts[max(bisect_right(firsts, seq) - 1, 0)] if firsts else 1
        try:
            return self._directory.base(first)
        except FileNotFoundError:
            return first  # removed since it was listed, or there is none

    def between(self, after: int, upto: int, check: bool = True) -> Iterator[tuple[bytes, Frame]]:
        """The frames that hold rows with after < seq <= upto, in order, each with bytes that it
        lies in, at the place it says.

        Rows that are gone or damaged make gaps. `check=False` leaves out the CRC. Raises
        OffsetError for rows that are not there yet, JournalError for damaged ones,
        UnreadableError if the machine cannot read them now.
        """
        for content, found in self._between(after, upto, check):
            yield content.around(found.at, found.size)[0], content.placed(found)

    def _between(self, after: int, upto: int, check: bool) -> Iterator[tuple[Content, Frame]]:
        committed = self.committed()
        if after < upto and upto > committed:
            raise OffsetError(f"rows up to {upto} were asked for, the last one is {committed}")
        position = after
        try:
            while position < upto and (opened := self._open(position + 1)):
                content, end, marks = opened
                limit = min(end, upto)
                with content:
                    for found in self._found(content, marks, position, limit, check):
                        yield content, found
                        position = found.last
                position = max(position, end)
        except OSError as error:
            raise unreadable(error) from error

    def _found(
        self, content: Content, marks: Marks, position: int, limit: int, check: bool
    ) -> Iterator[Frame]:
        """The frames of one file with rows after `position`, up to the one with row `limit`."""
        for found in content.frames(marks.before(position + 1), check=False):
            if found.first > limit:
                return
            if found.verdict == WHOLE:
                marks.add(found)
                if found.last <= position:
                    continue
            if found.verdict != WHOLE or (check and content.check(found).verdict != WHOLE):
                self._damaged(position, found)
                continue
            yield found
            position = found.last
            if position >= limit:
                return  # what follows may be written just now, or be cut

    def spans(
        self, after: int, upto: int, among: Callable[[list[bytes]], bool]
    ) -> Iterator[tuple[int, int]]:
        """The range without the segments that have no topic that is wanted, as ranges.

        `among` tells whether one of the topics that a segment has is wanted. A segment of which
        they are not known stays in.
        """
        firsts = self._listing.firsts()
        begin = max(bisect_right(firsts, after + 1) - 1, 0)
        for index in range(begin, min(bisect_right(firsts, upto), len(firsts) - 1)):
            first, following = firsts[index], firsts[index + 1]
            if listed := names.read(self._directory, first, following):
                if listed.listed and not among(listed.listed.split(b"\0")[1:-1]):
                    if after < first - 1:
                        yield after, first - 1
                    after = max(after, following - 1)
        if after < upto:
            yield after, upto

    def within(self, after: int, upto: int, most: int) -> int:
        """The last seq <= upto for which the rows behind `after` carry no more than `most` bytes.

        Counted is what rows bring (payloads, names, properties), as it is in memory: compressed
        frames by what they become. A frame counts as a whole, and the first one always fits.
        """
        return self.reach(after, upto, most).seq

    def reach(self, after: int, upto: int, most: int, seconds: float = math.inf) -> Reach:
        """The same, or as far as one comes in so many seconds."""
        carried, position, until = 0, after, time.monotonic() + seconds
        for found, size in self.sizes(after, upto):
            more = carried + max(size - _BARE - ROW_BYTES * found.rows, 0)
            if more > most and position > after:
                return Reach(position, carried, True)
            carried, position = more, min(found.last, upto)
            if position < upto and time.monotonic() > until:
                return Reach(position, carried, False)
        return Reach(upto, carried, True)

    def shares(self, after: int, upto: int, count: int) -> Shares:
        """The range in at most `count` pieces that cost who reads them about as much."""
        return shared(self.pieces(after, upto), self.sizes, after, upto, count)

    def sizes(self, after: int, upto: int) -> Iterator[tuple[Frame, int]]:
        """The frames that hold a range, each with its bytes in memory; of most only heads are read.
        """
        for content, found in self._between(after, upto, check=False):
            yield found, _in_memory(content, found)

    def pieces(self, after: int, upto: int) -> Iterator[Piece]:
        """The files that hold a range, as their sizes tell, and the first frames of some of them.

        One that is gone is left out; the last one may be said too large, as room is made ahead.
        """
        firsts, committed = self._listing.firsts(), self.committed()
        begin = max(bisect_right(firsts, after + 1) - 1, 0)
        end = max(bisect_right(firsts, upto), begin)
        step = -(-(end - begin) // SAMPLED)
        grows = 1.0
        for index in range(begin, end):
            first = firsts[index]
            last = firsts[index + 1] - 1 if index + 1 < len(firsts) else max(committed, first)
            try:
                size = self._directory.segment(first).stat().st_size
                if (index - begin) % step == 0:
                    grows = self._grows(first, last)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise unreadable(error) from error
            yield Piece(first - 1, last, round(size * grows))

    def _grows(self, first: int, last: int) -> float:
        """By how much the first frame of a file is larger in memory: 1 if not compressed."""
        content, _ = self._content(first)
        with content:
            for found in content.frames(check=False):
                if found.verdict != WHOLE:
                    break
                return _in_memory(content, found) / found.size
        return 1.0

    def _open(self, seq: int) -> tuple[Content, int, Marks] | None:
        """The segment that holds `seq` or else the first one after it, and its last seq."""
        while True:
            firsts = self._listing.firsts()
            at = max(bisect_right(firsts, seq) - 1, 0)
            if at >= len(firsts):
                return None
            end = firsts[at + 1] - 1 if at + 1 < len(firsts) else END
            try:
                content, marks = self._content(firsts[at])
            except FileNotFoundError:
                self._listing.forget()  # removed since it was listed
                continue
            return content, end, marks

    def _content(self, first: int) -> tuple[Content, Marks]:
        """A segment open for reading, and the marks of this very file: compressed is another."""
        content = Content(self._directory.segment(first))
        try:
            if content.size < HEADER_BYTES:
                raise JournalError(f"{content.path} has no whole header; {_MEND}")
            if content.header() is None and not self._allow_loss:
                raise JournalError(f"the header of {content.path} is damaged; {_MEND}")
            return content, self._marks_of(first, content.inode())
        except BaseException:
            content.close()
            raise

    def _marks_of(self, first: int, inode: int) -> Marks:
        key = (first, inode)
        if key not in self._marks:
            if len(self._marks) >= MARKED:
                del self._marks[next(iter(self._marks))]
            self._marks[key] = Marks()
        return self._marks[key]

    def _damaged(self, position: int, found: Frame) -> None:
        if not self._allow_loss:
            raise JournalError(
                f"rows after {position} are damaged at byte {found.at} of their segment in "
                f"{self.name}; {_MEND}"
            )


def lost(position: int, end: int, first: int) -> OffsetError:
    """What to say of rows after `position` up to `end` that are not there; `first`: the oldest."""
    if position + 1 < first:
        return OffsetError(
            f"row {position + 1} was asked for, the oldest one kept is {first}: {_GO_ON}"
        )
    return OffsetError(f"rows {position + 1} to {end} are lost, the hub's log says why: {_GO_ON}")


def _in_memory(content: Content, found: Frame) -> int:
    """The bytes of a frame in memory. Of a damaged one anything: who reads it says that it is."""
    if not found.flags & frame.COMPRESSED:
        return found.size
    try:
        return _BARE + inflated(content.view(found.at, found.size))
    except struct.error:
        return found.size


def inflated(view: memoryview) -> int:
    """The bytes that the body of a compressed frame has in memory."""
    return sum(_inflated(view[frame.HEADER.size :]))


def _inflated(message: memoryview) -> Iterator[int]:
    """The sizes that the buffers of a compressed record batch have in memory (Arrow IPC format).

    Message.header is field 2, RecordBatch.buffers field 2 too; a buffer is offset and length.
    """
    (metadata,) = struct.unpack_from("<i", message, 4)
    header = _field(message, 8 + struct.unpack_from("<I", message, 8)[0], 2)
    batch = header + struct.unpack_from("<I", message, header)[0]
    vector = _field(message, batch, 2)
    vector += struct.unpack_from("<I", message, vector)[0]
    (count,) = struct.unpack_from("<I", message, vector)
    for index in range(count):
        offset, length = struct.unpack_from("<qq", message, vector + 4 + 16 * index)
        if length:
            (size,) = _COMPRESSED_SIZE.unpack_from(message, 8 + metadata + offset)
            yield size if size >= 0 else length  # -1: it would not have become smaller


def _field(message: memoryview, table: int, index: int) -> int:
    """Where a table of a flatbuffer has its field."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    return int(table + struct.unpack_from("<H", message, vtable + 4 + 2 * index)[0])
