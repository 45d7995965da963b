"""messages: the raw history, one row a message."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.table import Column, Make, Table, arrow, ddl, each

GRAIN: Final = "one row a message: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the message in the journal"),
    Column("time", "timestamp", "when the hub took it in"),
    Column("event_time", "timestamp", "its own time by the rules; else time"),
    Column("kind", "string", "publish: to a topic; send: into a queue"),
    Column("protocol", "string", "protocol it came by, '' for the hub itself"),
    Column("topic", "string", "topic, or queue as $queue/NAME"),
    Column("subtopic", "string", "SMQ sub-topic"),
    Column("client", "string", "who sent it"),
    Column("qos", "tinyint", "0, 1 or 2"),
    Column("retain", "boolean", "it replaced the retained message of its topic"),
    Column("payload", "binary", "the bytes of the message"),
    Column("content_type", "string", "MIME type, if the sender named one"),
    Column("reply_to", "string", "where an answer is expected"),
    Column("correlation", "binary", "what the asker wants to see again in the answer"),
    Column("ref", "bigint", "send: seq of the request it answers, 0 if none"),
    Column("number", "bigint", "send: id of the message in its queue"),
    Column("expires", "timestamp", "when it ends by itself; null if it does not"),
    Column("properties", "string", "a JSON object with everything else, see below"),
    Column("day", "date", "the day of time, in UTC"),
)

# What the hub notes for itself under $hub/ is kept as a retained message, and nobody sent it.
MESSAGE: Final = "kind IN ('publish', 'send') AND NOT startswith(topic, '$hub/')"


def named(pattern: str) -> str:
    """SQL for a topic that is all of this regular expression.

    Not `$`, which in Java matches before a last newline too: names of SMQ may have one.
    """
    quoted = pattern.replace("\\", "\\\\").replace("'", "\\'")
    return f"topic RLIKE '^(?s:{quoted})\\\\z'"


_KINDS: Final = pa.array(["publish", "send"])
_SCHEMA: Final = arrow(COLUMNS)
_NEVER: Final = pa.scalar(0, pa.timestamp("us", "UTC"))


def made(rules: Rules) -> Make:
    return _made


def _made(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The messages among rows that have their `event_time`.

    What refers to the hub's own state (audience, packet id) is 0.
    """
    chosen = pc.is_in(rows["kind"], value_set=_KINDS)
    own = pc.starts_with(rows["topic"], "$hub/")
    found = rows.filter(pc.and_not(chosen, own))
    columns = {name: found[name] for name in _SCHEMA.names if name != "day"}
    sent = pc.equal(found["kind"], "send")
    columns |= {name: pc.if_else(sent, found[name], 0) for name in ("ref", "number")}
    ends = pc.not_equal(found["expires"], _NEVER)
    columns["expires"] = pc.if_else(ends, found["expires"], pa.scalar(None, _NEVER.type))
    columns["day"] = pc.cast(found["time"], pa.date32())
    yield pa.RecordBatch.from_pydict(columns, schema=_SCHEMA)


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """The same where Spark writes."""
    return batch.mapInArrow(partial(each, made=made, rules=rules), ddl(COLUMNS))


TABLE: Final = Table(
    "messages", GRAIN, COLUMNS, lambda rules: MESSAGE, rows, ("day",), False, made=made
)
