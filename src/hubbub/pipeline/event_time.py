"""Gives each row of a batch its `event_time`: the time a message says it has, else the hub's.

Called once a batch by `run`, before any table. Without a rule that names a path it costs
nothing; with one, the messages it applies to are decoded here. A time that is none (no such
path, no number, out of range) is the hub's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from hubbub.pipeline.decode import Leaf, Undecodable, leaves
from hubbub.pipeline.rules import Reading, Rules

# A number since 1970: the unit is what makes it a year between 1973 and 5138.
_UNITS: Final = ((1e11, 1_000_000), (1e14, 1_000), (1e17, 1))  # below this, so many us each
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = 253_402_300_799_999_999  # the end of the year 9999, in microseconds


def timed(frame: DataFrame, rules: Rules) -> DataFrame:
    """The frame with `event_time` as its last column, never null."""
    if not rules.timed():
        return frame.withColumn("event_time", F.col("time"))
    fields = StructType([*frame.schema.fields]).add("event_time", TimestampType(), False)
    return frame.mapInArrow(partial(_timed, rules=rules), fields)


def _timed(batches: Iterable[pa.RecordBatch], rules: Rules) -> Iterator[pa.RecordBatch]:
    reading = Reading(rules)
    for batch in batches:
        yield stamped(batch, reading, rules.timed())


def stamped(rows: pa.RecordBatch, reading: Reading, timed: bool) -> pa.RecordBatch:
    """Some rows of the journal with the same column; not `timed` = no rule says so."""
    times = rows.column("time")
    if timed:
        names = ("kind", "topic", "content_type", "payload")
        columns = (rows.column(name).to_pylist() for name in names)
        own = [
            _own(reading, topic, content_type, payload) if kind in _MESSAGES else None
            for kind, topic, content_type, payload in zip(*columns, strict=True)
        ]
        times = pc.coalesce(pa.array(own, times.type), times)
    return rows.append_column(pa.field("event_time", times.type, False), times)


_MESSAGES: Final = ("publish", "send")


def _own(reading: Reading, topic: str, content_type: str, payload: bytes) -> int | None:
    declared, path = reading.of(topic)
    if not path:
        return None
    try:
        found = [leaf for leaf in leaves(payload, content_type or declared) if leaf.path == path]
    except Undecodable:
        return None
    return microseconds(found[0]) if found else None


def microseconds(leaf: Leaf) -> int | None:
    """A leaf as microseconds since 1970, UTC: a number in s, ms, us or ns, or ISO 8601 text.

    Text without an offset is UTC. None if it is no time that a table can hold.
    """
    if leaf.value is not None:
        return None if leaf.text in ("true", "false") else _since_1970(leaf.value)
    try:
        said = datetime.fromisoformat(leaf.text or "")
    except ValueError:
        return None
    return since(said)


def since(said: datetime) -> int | None:
    """The same of a time of CBOR or MessagePack; its offset may lead out of the calendar."""
    aware = said if said.tzinfo else said.replace(tzinfo=UTC)
    return _in_range((aware - _EPOCH) // timedelta(microseconds=1))


def _since_1970(value: float) -> int | None:
    if not math.isfinite(value):
        return None
    for limit, unit in _UNITS:
        if abs(value) < limit:
            return _in_range(round(value * unit))
    return _in_range(round(value / 1_000))


def _in_range(time: int) -> int | None:
    return time if 0 < time <= _LAST else None
