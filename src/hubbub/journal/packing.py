"""Compressed frames: rows in, rows out, with pyarrow, where that is installed.

The roller and `repair` call this, in processes that end: pyarrow is 43 MB and
0.2 s. A hub never needs it, and without the extra that brings it nothing is compressed: everything
else of the journal works as ever.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from hubbub.journal import frame
from hubbub.journal.content import Content
from hubbub.journal.frame import Frame
from hubbub.schema import Row

if TYPE_CHECKING:
    import pyarrow


def possible() -> bool:
    """Whether frames can be compressed, and read again, here."""
    return find_spec("pyarrow") is not None


class Packed(NamedTuple):
    """A compressed frame, what stands in its column `topic`, and the time of its first row."""

    data: bytearray
    topics: set[bytes]
    time: int


def packed(content: Content, frames: list[Frame]) -> Packed:
    """One compressed frame of the rows of these."""
    import pyarrow

    from hubbub.journal.table import SCHEMA, batch_of

    batches = []
    for found in frames:
        data = content.around(found.at, found.size)[0]
        batches.append(batch_of(data, content.placed(found)))
    batch = pyarrow.concat_batches(batches)
    sink = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    messages = pyarrow.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema, which lies in the file's header
    message = messages.read_next_message().serialize().to_pybytes()
    state = frame.STATE if any(found.flags & frame.STATE for found in frames) else 0
    flags = state | frame.COMPRESSED
    sealed = frame.seal([message], frames[0].first, frames[-1].last, batch.num_rows, flags)
    return Packed(sealed, *_topics(batch))


def rows_of(content: Content, found: Frame) -> list[Row]:
    """The rows of a frame of either kind."""
    if not found.flags & frame.COMPRESSED:
        return content.rows(found)
    return rows_in(content.around(found.at, found.size)[0], content.placed(found))


def rows_in(data: bytes, found: Frame) -> list[Row]:
    """The same of a frame that lies in these bytes."""
    if not found.flags & frame.COMPRESSED:
        return frame.decode(memoryview(data), found.at)
    from hubbub.journal.table import batch_of, plain_column

    columns = batch_of(data, found).columns
    return list(map(Row._make, zip(*map(plain_column, columns), strict=True)))


def topics(content: Content, found: Frame) -> tuple[set[bytes], int]:
    """What stands in the column `topic` of a compressed frame, and the time of its first row."""
    from hubbub.journal.table import some_columns

    data = content.around(found.at, found.size)[0]
    return _topics(some_columns(data, content.placed(found), ("time", "topic")))


def _topics(batch: pyarrow.RecordBatch) -> tuple[set[bytes], int]:
    import pyarrow

    begin = batch.column("time").cast(pyarrow.int64())[0].as_py()
    return set(batch.column("topic").cast(pyarrow.binary()).unique().to_pylist()), begin


def rows_of_topics(content: Content, found: Frame, wanted: set[bytes]) -> list[Row]:
    """The rows of a compressed frame with one of these topics."""
    import pyarrow
    from pyarrow import compute

    from hubbub.journal.table import batch_of, plain_column

    data = content.around(found.at, found.size)[0]
    batch = batch_of(data, content.placed(found))
    values = pyarrow.array(sorted(wanted), pyarrow.binary())
    mask = compute.is_in(batch.column("topic").cast(pyarrow.binary()), value_set=values)
    columns = batch.filter(mask).columns
    return list(map(Row._make, zip(*map(plain_column, columns), strict=True)))
