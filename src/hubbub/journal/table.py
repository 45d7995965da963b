"""The journal as a table: what Spark and the command line read, also while a hub writes.

A `Table` asks its shelf for frames and makes batches of their rows: a directory (`frames`) or a
hub far away (`spark.remote`). Frames come as they lie on the disk: a batch of an uncompressed
frame is a view of what was read. What is missing between two frames is an error here, and
nowhere else. Needs no hub; never writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow
import pyarrow.compute

from hubbub.errors import JournalError
from hubbub.journal import arrow, frame
from hubbub.journal.frame import DAMAGED, WHOLE, Frame
from hubbub.journal.frames import Frames, Segment, State, lost
from hubbub.journal.shares import PIECES, ROW_COST, Shares, Stretch, cost_upto, ends_of

__all__ = [
    "LOOKED_AT", "PIECES", "ROW_COST", "SCHEMA", "Frame", "Segment", "Shares", "Shelf", "State",
    "Stretch", "Table", "cost_upto", "ends_of", "frames_in",
]  # fmt: skip

log = logging.getLogger("hubbub.journal")

LOOKED_AT: Final = ("kind", "topic")  # what a choice is made by
SCHEMA: Final = pyarrow.ipc.read_schema(pyarrow.py_buffer(arrow.SCHEMA))
_ALL: Final = tuple(SCHEMA.names)


class Shelf(Protocol):
    """Where frames come from. `frames.Frames` says what each of these means."""

    @property
    def name(self) -> str: ...
    def state(self) -> State: ...
    def identity(self) -> str: ...
    def first(self) -> int: ...
    def committed(self) -> int: ...
    def segments(self) -> list[Segment]: ...
    def between(
        self, after: int, upto: int, check: bool = True
    ) -> Iterator[tuple[bytes, Frame]]: ...
    def spans(
        self, after: int, upto: int, among: Callable[[list[bytes]], bool]
    ) -> Iterator[tuple[int, int]]: ...
    def within(self, after: int, upto: int, most: int) -> int: ...
    def shares(self, after: int, upto: int, count: int) -> Shares | None: ...


class Choice(Protocol):
    """Which rows are wanted, by a few columns; `among`: whether one of these topics is."""

    def among(self, topics: list[bytes]) -> bool: ...

    def mask(self, batch: pyarrow.RecordBatch) -> pyarrow.BooleanArray | None: ...


def frames_in(data: bytes, allow_loss: bool = False) -> Iterator[Frame]:
    """The frames of bytes that are nothing but frames. Raises JournalError for a damaged one.

    `allow_loss`: one of which it is known where it ends is left out.
    """
    at, view = 0, memoryview(data)
    while at < len(data):
        found = frame.scan(view, at)
        if found.verdict == WHOLE:
            yield found
        elif not (allow_loss and found.verdict == DAMAGED and found.size):
            raise JournalError(f"a {found.verdict} frame at byte {at} of {len(data)}")
        at += found.size


def batch_of(data: bytes, found: Frame) -> pyarrow.RecordBatch:
    """The rows of a whole frame as a view of these bytes, or decompressed.

    Raises JournalError for one that is right by its checksum only: Arrow believes what a batch
    says of itself, and reads where that points to.
    """
    return _whole(data, found, _ALL)


def _whole(data: bytes, found: Frame, names: tuple[str, ...]) -> pyarrow.RecordBatch:
    """These columns in this order, checked."""
    message = pyarrow.py_buffer(data).slice(
        found.at + frame.HEADER.size, found.size - frame.HEADER.size
    )
    try:
        batch = pyarrow.ipc.read_record_batch(message, SCHEMA)
        batch = batch if names == _ALL else batch.select(names)
        check(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise _forged(found, str(error)) from None
    return _counted(batch, found)


def _counted(batch: pyarrow.RecordBatch, found: Frame) -> pyarrow.RecordBatch:
    if batch.num_rows != found.rows:
        raise _forged(found, f"it has {batch.num_rows} rows, and says {found.rows}")
    return batch


def check(batch: pyarrow.RecordBatch) -> None:
    """Raise ArrowInvalid unless every place in it lies in it. Texts may be any bytes."""
    try:
        batch.validate(full=True)
    except pyarrow.ArrowInvalid:
        for column in batch.columns:
            if pyarrow.types.is_string(column.type):
                column.validate()
                column = column.view(pyarrow.binary())
            column.validate(full=True)


def _forged(found: Frame, why: str) -> JournalError:
    return JournalError(
        f"rows {found.first} to {found.last} are right by their checksum, and no rows: {why}"
    )


def plain_column(column: pyarrow.Array) -> list[Any]:
    """The values of a column as a `Row` has them."""
    if pyarrow.types.is_string(column.type):
        column = column.cast(pyarrow.binary())
    elif pyarrow.types.is_timestamp(column.type):
        column = column.cast(pyarrow.int64())
    values: list[Any] = column.to_pylist()
    return values


def some_columns(data: bytes, found: Frame, names: tuple[str, ...]) -> pyarrow.RecordBatch:
    """These columns of a whole frame; of a compressed one nothing else is decompressed."""
    if not found.flags & frame.COMPRESSED:
        return _whole(data, found, names)
    message = memoryview(data)[found.at + frame.HEADER.size : found.at + found.size]
    fields = [SCHEMA.get_field_index(name) for name in names]
    options = pyarrow.ipc.IpcReadOptions(included_fields=fields)
    stream = pyarrow.py_buffer(b"".join((arrow.SCHEMA, message)))
    try:
        batch = pyarrow.ipc.open_stream(stream, options=options).read_next_batch().select(names)
        check(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise _forged(found, str(error)) from None
    return _counted(batch, found)


class Table:
    """The rows of the journal in a directory, which need not exist yet, or on another shelf.

    `allow_loss`: rows that retention removed, or that damage took, are left out; without it
    reading over them raises OffsetError (gone) or JournalError (damaged).
    """

    schema: Final = SCHEMA

    def __init__(self, shelf: str | Shelf, allow_loss: bool = False) -> None:
        self.shelf = Frames(Path(shelf), allow_loss) if isinstance(shelf, str) else shelf
        self._allow_loss = allow_loss

    def first(self) -> int:
        """The oldest seq that exists, 1 for an empty journal."""
        return self.shelf.first()

    def committed(self) -> int:
        """The newest seq that exists, 0 for an empty journal."""
        return self.shelf.committed()

    def segment_of(self, seq: int) -> int:
        """The seq at which the segment with that row begins, or an earlier one.

        Only a directory knows which files go on with a segment; of a hub it is the file before.
        """
        if isinstance(self.shelf, Frames):
            return self.shelf.base_of(seq)
        firsts = [1, 1, *(one.first for one in self.shelf.segments() if one.first <= seq)]
        return firsts[-2]

    def read(
        self,
        after: int,
        upto: int,
        choice: Choice | None = None,
        names: tuple[str, ...] = (),
    ) -> Iterator[pyarrow.RecordBatch]:
        """The rows with after < seq <= upto, in order; with a choice, only what it wants, and
        with `names` only these columns.

        Frames without a wanted row are not decoded; segments without a wanted topic are not read,
        if their topics are listed (`journal.names`). Raises OffsetError if some rows are gone or
        not yet there, JournalError if they are damaged.
        """
        spans = [(after, upto)] if choice is None else self.shelf.spans(after, upto, choice.among)
        for start, end in spans:
            yield from self._read(start, end, choice, names)

    def _read(
        self, after: int, upto: int, choice: Choice | None, names: tuple[str, ...]
    ) -> Iterator[pyarrow.RecordBatch]:
        position = after
        for data, found in self.shelf.between(after, upto):
            self._gap(position, found.first - 1)
            position = found.last
            start = max(after + 1 - found.first, 0)
            count = min(upto, found.last) + 1 - found.first - start
            mask = None
            if choice is not None:
                mask = choice.mask(some_columns(data, found, LOOKED_AT).slice(start, count))
                if mask is not None and not mask.true_count:
                    continue
            batch = some_columns(data, found, names) if names else batch_of(data, found)
            batch = batch.slice(start, count)
            if mask is not None:
                batch = batch.filter(mask)
            elif names:  # a view of a few columns keeps all of its frame, payloads too
                batch = pyarrow.concat_batches([batch])
            yield batch
        self._gap(position, upto)

    def first_at(self, moment: int) -> int:
        """The first seq whose time is at least `moment` (microseconds); committed + 1 if none is.

        Time never goes back, so a few frames tell.
        """
        low, high = self.first(), self.committed() + 1
        firsts = [segment.first for segment in self.shelf.segments() if segment.first < high]
        while low < high:
            inner = [first for first in firsts if low < first < high]
            middle = inner[len(inner) // 2] if inner else (low + high) // 2
            batch = self._around(middle, high - 1)
            if batch is None:
                high = middle  # nothing is left from there on
                continue
            times = batch.column("time").cast(pyarrow.int64())
            seqs = batch.column("seq")
            if times[0].as_py() >= moment:
                high = max(min(middle, seqs[0].as_py()), low)
            elif times[-1].as_py() < moment:
                low = seqs[-1].as_py() + 1
            else:
                later = pyarrow.compute.greater_equal(times, moment)
                return int(seqs.filter(later)[0].as_py())
        return high

    def _around(self, seq: int, upto: int) -> pyarrow.RecordBatch | None:
        """The rows of the frame with that row, from it on, or else of the next frame there is."""
        for end in (seq, upto):
            for data, found in self.shelf.between(seq - 1, end):
                batch = batch_of(data, found)
                start = max(seq - found.first, 0)
                return batch.slice(start, min(upto, found.last) + 1 - found.first - start)
        return None

    def _gap(self, position: int, end: int) -> None:
        """Rows after `position` up to `end` are not there."""
        if end <= position:
            return
        if self._allow_loss:
            log.warning("rows %d to %d of %s are gone", position + 1, end, self.shelf.name)
            return
        raise lost(position, end, self.first())
