"""readings: one row a value decoded from a message (see `pipeline.decode`).

Decoding is Python on whole Arrow batches. What cannot be decoded makes no rows and fails nothing;
what was declared and is not so is in `quarantine`: only if there is such a message that table is
written, so `rows` counts them in passing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame

from hubbub.pipeline.decode import Leaves, Undecodable
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Column, Make, Table, arrow, ddl

GRAIN: Final = "one row a value in a message: seq, path"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the message in the journal"),
    Column("time", "timestamp", "when the hub took it in"),
    Column("event_time", "timestamp", "its own time by the rules; else time"),
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("protocol", "string", "protocol it came by"),
    Column("client", "string", "who sent it"),
    Column("path", "string", "where in the message: cpu[0].load; '' for a plain value"),
    Column("value", "double", "the number; 1 or 0 for a boolean; null for text", "the sender's"),
    Column("text", "string", "the text; true or false for a boolean; all digits of a number "
           "that value rounds; else null"),
    Column("day", "date", "the day of time, in UTC"),
)  # fmt: skip

_CONTEXT: Final = ("seq", "time", "event_time", "topic", "protocol", "client")
_SCHEMA: Final = arrow(COLUMNS)
_VALUES: Final = tuple(_SCHEMA.field(name) for name in ("path", "value", "text"))
_ROWS: Final = 20_000  # values in one Arrow batch, about
_BYTES: Final = 64 << 20  # of the names repeated in one: a topic and a client may have 64 KiB each


def rows(batch: DataFrame, rules: Rules, failed: Accumulator[int] | None = None) -> DataFrame:
    """The values in the messages of a batch; `failed` counts messages that cannot be decoded."""
    chosen = batch.where(MESSAGE).select(*_CONTEXT, "payload", "content_type")
    return chosen.mapInArrow(partial(_decoded, rules=rules, failed=failed), ddl(COLUMNS))


def _decoded(
    batches: Iterable[pa.RecordBatch], rules: Rules, failed: Accumulator[int] | None
) -> Iterator[pa.RecordBatch]:
    def count(place: int) -> None:
        if failed is not None:
            failed.add(1)

    reading = Reading(rules)
    for batch in batches:
        yield from values_of(batch, reading, count)


def made(rules: Rules) -> Make:
    return partial(values_of, reading=Reading(rules))


def values_of(
    messages: pa.RecordBatch, reading: Reading, failed: Callable[[int], object] = lambda place: None
) -> Iterator[pa.RecordBatch]:
    """The values of some messages; `failed` is told the place of each that cannot be decoded."""
    found = Leaves()
    columns = (messages.column(name).to_pylist() for name in ("payload", "content_type", "topic"))
    for index, (payload, content_type, topic) in enumerate(zip(*columns, strict=True)):
        try:
            found.take(index, payload, content_type or reading.of(topic)[0])
        except Undecodable:
            failed(index)
        if len(found.paths) >= _ROWS:
            yield from _built(messages, found)
            found = Leaves()
    yield from _built(messages, found)


def _built(batch: pa.RecordBatch, found: Leaves) -> Iterator[pa.RecordBatch]:
    """The values with the columns of the messages they came in."""
    context = batch.select(_CONTEXT)
    lengths = (pc.max(pc.binary_length(batch.column(name))) for name in ("topic", "client"))
    step = _BYTES // (1 + sum(length.as_py() or 0 for length in lengths))
    for at in range(0, len(found.paths), step):
        messages = context.take(pa.array(found.places[at : at + step], pa.int32()))
        parts = (part[at : at + step] for part in (found.paths, found.values, found.texts))
        values = [pa.array(part, field.type) for part, field in zip(parts, _VALUES, strict=True)]
        days = pc.cast(messages.column("time"), pa.date32())
        yield pa.record_batch([*messages.columns, *values, days], schema=_SCHEMA)


TABLE: Final = Table(
    "readings", GRAIN, COLUMNS, lambda rules: MESSAGE, rows, ("day",), counts=True, made=made
)
