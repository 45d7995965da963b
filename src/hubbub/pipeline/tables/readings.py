"""readings: one row a value decoded from a message (see `pipeline.decode`).

Decoding is Python on whole Arrow batches. What cannot be decoded makes no rows and fails nothing;
what was declared and is not so is in `quarantine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from hubbub.pipeline.decode import Leaves, Undecodable
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Column, Table, ddl

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
)  # fmt: skip

_CONTEXT: Final = ("seq", "time", "event_time", "topic", "protocol", "client")
_VALUES: Final = (
    pa.field("path", pa.string()),
    pa.field("value", pa.float64()),
    pa.field("text", pa.string()),
)
_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("event_time", pa.timestamp("us", "UTC")),
        ("topic", pa.string()),
        ("protocol", pa.string()),
        ("client", pa.string()),
        *_VALUES,
    ]
)
_ROWS: Final = 20_000  # values in one Arrow batch, about


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """The values in the messages of a batch."""
    chosen = batch.where(MESSAGE).select(*_CONTEXT, "payload", "content_type")
    return chosen.mapInArrow(partial(decoded, rules=rules), ddl(COLUMNS))


def decoded(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    """For each batch of messages the batches of their values."""
    reading = Reading(rules)
    for batch in batches:
        found = Leaves()
        columns = (batch.column(name).to_pylist() for name in ("payload", "content_type", "topic"))
        for index, (payload, content_type, topic) in enumerate(zip(*columns, strict=True)):
            with suppress(Undecodable):
                found.take(index, payload, content_type or reading.of(topic)[0])
            if len(found.paths) >= _ROWS:
                yield _built(batch, found)
                found = Leaves()
        if found.paths:
            yield _built(batch, found)


def _built(batch: pa.RecordBatch, found: Leaves) -> pa.RecordBatch:
    """The values with the columns of the messages they came in."""
    messages = batch.select(_CONTEXT).take(pa.array(found.places, pa.int32()))
    parts = (found.paths, found.values, found.texts)
    values = [pa.array(part, field.type) for part, field in zip(parts, _VALUES, strict=True)]
    return pa.record_batch([*messages.columns, *values], schema=_SCHEMA)


TABLE: Final = Table("readings", GRAIN, COLUMNS, lambda rules: MESSAGE, rows)
