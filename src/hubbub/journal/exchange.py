"""Rows out of a journal and into an empty one, as JSON lines or as an Arrow stream.

A line is one row without its empty columns: `seq` as text (it may pass 2^53), `time` and
`expires` in ISO 8601, a payload that is no UTF-8 as `payload_base64`. Reading back gives the same
rows. Lines need no pyarrow, unless rows are compressed. Used by the command line only; the hub
never loads this.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from hubbub.core.limits import CLOCK_BEHIND, COMMIT_ROWS, FRAME_BYTES
from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import frame, packing
from hubbub.journal.content import HEADER_BYTES, Header
from hubbub.journal.files import Replacement, write_at, write_whole
from hubbub.journal.frames import Frames, lost
from hubbub.journal.segments import Directory, committed_bytes
from hubbub.schema import COLUMNS, KINDS, Row

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMES: Final = frozenset(("time", "expires"))
_BYTES: Final = frozenset(("payload", "correlation"))
_TEXTS: Final = frozenset(column.name for column in COLUMNS if column.type == "string")
_BASE64: Final = "_base64"
_ARROW: Final = b"\xff\xff\xff\xff"  # how an Arrow stream begins


# Out


def export_lines(frames: Frames, after: int, upto: int, out: BinaryIO) -> int:
    """Write the rows with after < seq <= upto as JSON lines; return how many."""
    count = 0
    for row in _rows(frames, after, upto):
        out.write(json.dumps(_said(row), ensure_ascii=False).encode() + b"\n")
        count += 1
    return count


def _rows(frames: Frames, after: int, upto: int) -> Iterator[Row]:
    position = after
    for data, found in frames.between(after, upto):
        if found.first - 1 > position:
            raise lost(position, found.first - 1, frames.first())
        position = found.last
        for row in packing.rows_in(data, found):
            if after < row.seq <= upto:
                yield row
    if upto > position:
        raise lost(position, upto, frames.first())


def export_arrow(frames: Frames, after: int, upto: int, out: BinaryIO) -> int:
    """Write the rows with after < seq <= upto as one Arrow IPC stream; return how many."""
    import pyarrow

    from hubbub.journal.table import SCHEMA, Table

    count, table = 0, Table(frames)
    with pyarrow.ipc.new_stream(out, SCHEMA) as stream:
        for batch in table.read(after, upto):
            stream.write_batch(batch)
            count += batch.num_rows
    return count


def _said(row: Row) -> dict[str, Any]:
    """The columns of a row that say something, as JSON has them."""
    said: dict[str, Any] = {}
    value: Any
    for name, value in zip(Row._fields, row, strict=True):
        if not value:
            continue
        if name in _BYTES:
            said |= _bytes_said(name, value)
        elif name in _TEXTS:
            said[name] = value.decode()
        elif name in _TIMES:
            moment = _EPOCH + timedelta(microseconds=value)
            said[name] = moment.isoformat(timespec="microseconds")
        else:
            said[name] = str(value) if name in ("seq", "ref", "number") else value
    return said


def _bytes_said(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name + _BASE64: base64.b64encode(value).decode()}


# In


def rows_in(source: BinaryIO) -> Iterator[Row]:
    """The rows of an export, of whichever kind; JournalError names the line that is wrong."""
    start = source.read(len(_ARROW))
    source.seek(0)
    if start == _ARROW:
        yield from _arrow_rows(source)
        return
    for number, line in enumerate(source, 1):
        try:
            yield _row(json.loads(line))
        except (ValueError, TypeError, AttributeError) as error:
            raise JournalError(f"line {number} is no row of a journal: {error}") from None


def _arrow_rows(source: BinaryIO) -> Iterator[Row]:
    import pyarrow

    from hubbub.journal.table import SCHEMA, plain_column

    with pyarrow.ipc.open_stream(source) as stream:
        if stream.schema != SCHEMA:
            raise JournalError(f"expected the columns of a journal, got {stream.schema.names}")
        for batch in stream:
            columns = [plain_column(batch.column(column.name)) for column in COLUMNS]
            yield from map(Row._make, zip(*columns, strict=True))


def _row(said: dict[str, Any]) -> Row:
    values: dict[str, Any] = {"seq": 0, "time": 0, "kind": b""}
    for name, value in said.items():
        plain = name.removesuffix(_BASE64)
        if plain not in Row._fields:
            raise ValueError(f"there is no column {name!r}")
        values[plain] = _value(name, plain, value)
    return Row(**values)


def _value(name: str, plain: str, value: Any) -> Any:
    if plain in _BYTES and name != plain:
        return base64.b64decode(value, validate=True)
    if plain in _TIMES:
        return (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
    if plain in _TEXTS or plain in _BYTES:
        return value.encode()
    return value if plain == "retain" else int(value)


def import_rows(
    rows: Iterable[Row], target: Path, progress: Callable[[int], None] = lambda count: None
) -> tuple[int, int]:
    """Make a journal of these rows in `target`, empty or not there; return the first and last seq.

    The rows must follow one another. If they do not begin with row 1, what was before is not
    known: the messages can be read, but sessions, queues and retained messages from before are
    not there. Raises JournalError if a row is wrong; then nothing is left in `target`.
    """
    if target.exists() and any(target.iterdir()):
        raise DirectoryError(f"{target} is not empty: import into a new directory")
    directory = Directory(target)
    directory.acquire()
    try:
        first, last = _write(_checked(rows, progress), directory)
        if first > 1:
            before = first - 1
            header = Header(before, 0, before, HEADER_BYTES)
            write_whole(directory.snapshot(before), header.encode())
        write_whole(directory.log / "committed", committed_bytes(last))
    finally:
        directory.release()
    return first, last


def _checked(rows: Iterable[Row], progress: Callable[[int], None]) -> Iterator[list[Row]]:
    """The rows in parts for a frame each."""
    part: list[Row] = []
    size = 0
    before: Row | None = None
    for row in rows:
        _check(row, before)
        before = row
        part.append(row)
        size += len(row.payload)
        if len(part) == COMMIT_ROWS or size >= FRAME_BYTES:
            yield part
            progress(len(part))
            part, size = [], 0
    if part:
        yield part
        progress(len(part))


def _check(row: Row, before: Row | None) -> None:
    if row.seq < 1 or (before is not None and row.seq != before.seq + 1):
        expected = before.seq + 1 if before is not None else "1 or more"
        raise JournalError(f"row {row.seq}: expected row {expected}")
    if row.kind not in KINDS:
        raise JournalError(f"row {row.seq} is of the unknown kind {row.kind!r}")
    if before is not None and before.time - CLOCK_BEHIND * 1_000_000 <= row.time < before.time:
        # More than that is a hub that began again after a clock had been wrong.
        raise JournalError(f"row {row.seq} is older than the row before it")


def _write(parts: Iterator[list[Row]], directory: Directory) -> tuple[int, int]:
    """All rows as one segment, so that each finds its audience in it."""
    head = next(parts, None)
    if head is None:
        raise JournalError("there is no row to import")
    first = head[0].seq
    with Replacement(directory.segment(first)) as new:
        write_at(new.fd, Header(first, first - 1, first).encode(), 0)
        end, last = HEADER_BYTES, first
        for part in chain((head,), parts):
            data = frame.encode(part)
            write_at(new.fd, data, end)
            end, last = end + len(data), part[-1].seq
    return first, last
