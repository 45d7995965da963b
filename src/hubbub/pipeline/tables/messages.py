"""messages: the raw history, one row a message."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.table import Column, Table

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


# Text: each step of a plan, and each call of Spark for a column, is paid by every batch.
_MADE: Final = {
    "ref": "IF(kind = 'send', ref, 0L) AS ref",
    "number": "IF(kind = 'send', number, 0L) AS number",
    "expires": "nullif(expires, timestamp_micros(0)) AS expires",
    "day": "to_date(time) AS day",
}


def rows(batch: DataFrame, rules: Rules) -> DataFrame:
    """The messages of a batch. What refers to the hub's own state (audience, packet id) is 0."""
    return batch.where(MESSAGE).selectExpr(*(_MADE.get(one.name, one.name) for one in COLUMNS))


TABLE: Final = Table("messages", GRAIN, COLUMNS, lambda rules: MESSAGE, rows, ("day",), False)
