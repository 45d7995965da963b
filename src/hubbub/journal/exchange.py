"""Rows out of a journal and into an empty one, as JSON lines or as an Arrow stream.

A line is one row without its empty columns: `seq` as text (it may pass 2^53), `time` and
`expires` in ISO 8601, a payload that is no UTF-8 as `payload_base64`. Reading back gives the same
rows. Lines need no pyarrow, unless rows are compressed. Used by the command line only; the hub
never loads this.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import frame, packing
from hubbub.journal.admit import Admission
from hubbub.journal.content import HEADER_BYTES, Header
from hubbub.journal.files import Replacement, write_at, write_whole
from hubbub.journal.frames import Frames, lost
from hubbub.journal.segments import Directory, committed_bytes
from hubbub.schema import COLUMNS, Row

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMES: Final = frozenset(("time", "expires"))
_BYTES: Final = frozenset(("payload", "correlation"))
_TEXTS: Final = frozenset(column.name for column in COLUMNS if column.type == "string")
_BASE64: Final = "_base64"
_ARROW: Final = b"\xff"  # how an Arrow stream begins, and no text
# What reading a line raises that is no row: also one that is nested too deep, or has 1e400 in it.
_WRONG: Final = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)


# Out


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of `path` when it is whole; see `Replacement`.

    It keeps the permissions of the one before. What is no plain file (a pipe, /dev/null) is
    written to as it is.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with open(path, "wb") as out:
            yield out
        return
    with Replacement(path) as new, open(new.fd, "wb", closefd=False) as out:
        if path.exists():
            os.fchmod(new.fd, stat.S_IMODE(path.stat().st_mode))
        yield out


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


def rows_in(source: BufferedReader) -> Iterator[Row]:
    """The rows of an export, of whichever kind; JournalError names the line that is wrong.

    The source may be a pipe, which cannot go back: it is only looked into.
    """
    if source.peek(1)[:1] == _ARROW:
        yield from _arrow_rows(source)
        return
    for number, line in enumerate(source, 1):
        try:
            yield _row(json.loads(line))
        except _WRONG as error:
            told = str(error) or type(error).__name__
            raise JournalError(f"line {number} is no row of a journal: {told}") from None


def _arrow_rows(source: BufferedReader) -> Iterator[Row]:
    import pyarrow

    try:
        yield from _batches(source)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise JournalError(f"expected an Arrow stream of rows: {error}") from None


def _batches(source: BufferedReader) -> Iterator[Row]:
    import pyarrow

    from hubbub.journal.table import SCHEMA, check, plain_column

    with pyarrow.ipc.open_stream(source) as stream:
        if stream.schema != SCHEMA:
            raise JournalError(f"expected the columns of a journal, got {stream.schema.names}")
        for batch in stream:
            check(batch)
            columns = [plain_column(batch.column(column.name)) for column in COLUMNS]
            yield from map(Row._make, zip(*columns, strict=True))


def _row(said: dict[str, Any]) -> Row:
    values: dict[str, Any] = {"seq": 0, "time": 0, "kind": b""}
    for name, value in said.items():
        plain = name.removesuffix(_BASE64)
        if plain not in Row._fields:
            raise ValueError(f"there is no column {name!r}")
        try:
            values[plain] = _value(name, plain, value)
        except _WRONG as error:
            raise ValueError(f"column {name}: {str(error) or type(error).__name__}") from None
    return Row(**values)


def _value(name: str, plain: str, value: Any) -> Any:
    if plain in _BYTES and name != plain:
        return base64.b64decode(value, validate=True)
    if plain in _TIMES:
        return (datetime.fromisoformat(value) - _EPOCH) // _MICROSECOND
    if plain in _TEXTS or plain in _BYTES:
        if not isinstance(value, str):
            raise ValueError(f"expected a text, got {_shown(value)}")
        return value.encode()
    if plain == "retain":
        if not isinstance(value, bool):
            raise ValueError(f"expected true or false, got {_shown(value)}")
        return value
    if isinstance(value, bool | float):
        raise ValueError(f"expected a whole number, got {_shown(value)}")
    return int(value)


def _shown(value: Any) -> str:
    return repr(value)[:60]


def import_rows(
    rows: Iterable[Row], target: Path, progress: Callable[[int], None] = lambda count: None
) -> tuple[int, int]:
    """Make a journal of these rows in `target`, empty or not there; return the first and last seq.

    The rows must follow one another. If they do not begin with row 1, what was before is not
    known: the messages can be read, but sessions, queues and retained messages from before are
    not there. Raises JournalError if a row is wrong, DirectoryError if `target` is no place for
    a journal; then nothing is left in `target`, nor `target` if it was not there.
    """
    _check_place(target)
    made = _not_there(target)
    directory = Directory(target)
    try:
        directory.acquire()
    except BaseException:
        _remove_empty(made, directory)
        raise
    if directory.segments() or directory.snapshots():  # another import was quicker
        directory.release()
        raise DirectoryError(f"{target} is not empty: import into a new directory")
    try:
        return _fill(_checked(rows, progress), directory)
    except BaseException:
        _remove(directory)
        _remove_empty(made, directory)
        raise
    finally:
        directory.release()


def _check_place(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DirectoryError(f"{target} is not empty: import into a new directory")
    for above in target.resolve().parents:
        if (above / "format").is_file() and (above / "log").is_dir():
            raise DirectoryError(
                f"{target} lies in {above}, the directory of another hub: "
                "choose another one with --data"
            )


def _not_there(target: Path) -> list[Path]:
    """The directory and those above it that must be made, the deepest first."""
    return [folder for folder in (target, *target.parents) if not folder.exists()]


def _fill(parts: Iterator[list[Row]], directory: Directory) -> tuple[int, int]:
    first, last = _write(parts, directory)
    if first > 1:
        before = first - 1
        header = Header(before, 0, before, HEADER_BYTES)
        write_whole(directory.snapshot(before), header.encode())
    write_whole(directory.log / "committed", committed_bytes(last))
    return first, last


def _remove(directory: Directory) -> None:
    """Remove the files that an import has made; the directory was empty before."""
    path = directory.path
    made = [directory.segment(first) for first in directory.segments()]
    made += [directory.snapshot(seq) for seq in directory.snapshots()]
    made += [directory.log / "committed", path / "id", path / "format", path / "lock"]
    for file in made:
        with contextlib.suppress(OSError):
            file.unlink()


def _remove_empty(made: list[Path], directory: Directory) -> None:
    """Remove the folders that were not there before, if nobody has put something there."""
    for folder in (directory.log, directory.state, *made):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _checked(rows: Iterable[Row], progress: Callable[[int], None]) -> Iterator[list[Row]]:
    """The rows in parts for a frame each."""
    part: list[Row] = []
    size = 0
    admission = Admission()
    for row in rows:
        admission.check(row)
        part.append(row)
        size += len(row.payload)
        if len(part) == COMMIT_ROWS or size >= FRAME_BYTES:
            yield part
            progress(len(part))
            part, size = [], 0
    if part:
        yield part
        progress(len(part))


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
