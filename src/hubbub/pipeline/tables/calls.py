"""calls: who asked whom, and how long the answer took.

A call is a message in a queue (`send`) with a reply-to. It closes by the first of:

    send     whose ref is the request                      answered
    publish  which says that it answers this id            answered
    ack      of the request in its queue, no answer yet    unanswered
    drop     of the request by a limit                     unanswered
    destroy  of the queue it waits in                      unanswered

A reply is a `send` if the asker waits at a queue, as message-switch clients do. To an MQTT topic or
an SMQ client it is a `publish`, whose properties name the queue and the id that it answers,
whatever protocol it came by. Such rows are there if everything is recorded (`journal.record`);
else the acknowledgement that comes with each answer closes the call, as unanswered.

Later answers to a closed call change nothing. The rows must be taken one after the other, so this
is a fold in Python over the few rows that have to do with calls, in one task.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.tables.table import Column, Moment, Spanning, ddl
from hubbub.schema import column_of

GRAIN: Final = "one row a request: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the request in the journal"),
    Column("queue", "string", "the queue that was asked, without $queue/"),
    Column("number", "bigint", "id of the request in that queue"),
    Column("caller", "string", "client that asked"),
    Column("asked", "timestamp", "when the hub took the request in"),
    Column("responder", "string", "client that answered or acknowledged; null while open"),
    Column("answered", "timestamp", "when the hub took the answer in; null without one"),
    Column("latency_ms", "double", "from asked to answered; null without an answer", "ms"),
    Column("status", "string", "answered or unanswered; open rows: open"),
)

PREFIX: Final = "$queue/"
EVENT: Final = (
    "(kind = 'send' AND (reply_to <> '' OR ref <> 0))"
    " OR (kind = 'publish' AND contains(properties, '\"answers\"'))"
    " OR (kind IN ('ack', 'drop') AND startswith(topic, '$queue/'))"
    " OR (kind = 'destroy' AND startswith(topic, '$queue/'))"
)

_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("queue", pa.string()),
        ("number", pa.int64()),
        ("caller", pa.string()),
        ("asked", pa.timestamp("us", "UTC")),
        ("responder", pa.string()),
        ("answered", pa.timestamp("us", "UTC")),
        ("latency_ms", pa.float64()),
        ("status", pa.string()),
        ("open", pa.bool_()),
    ]
)
_ROWS: Final = 10_000  # calls in one Arrow batch


def rows(batch: DataFrame, carried: DataFrame, moment: Moment) -> DataFrame:
    """The calls that close in this batch, and those that are still open."""
    events = batch.where(EVENT).select(
        "seq", "time", "kind", "client", "topic", (F.col("reply_to") != "").alias("asks"), "ref",
        "number", F.get_json_object("properties", "$.answers").alias("answers"),
    )  # fmt: skip
    waiting = carried.select(
        "seq",
        F.col("asked").alias("time"),
        F.lit("send").alias("kind"),
        F.col("caller").alias("client"),
        F.concat(F.lit(PREFIX), "queue").alias("topic"),
        F.lit(True).alias("asks"),
        F.lit(0).cast("bigint").alias("ref"),
        "number",
        F.lit(None).cast("string").alias("answers"),
    )
    ordered = events.unionByName(waiting).coalesce(1).sortWithinPartitions("seq")
    return ordered.mapInArrow(folded, ddl(COLUMNS) + ", open boolean")


def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events in the order of seq become closed calls, then the open ones."""
    calls = Calls()
    for batch in batches:
        for event in batch.to_pylist():
            calls.take(event)
        yield from _built(calls.closed)
        calls.closed = []
    yield from _built(calls.still_open())


def _built(found: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(found), _ROWS):
        yield pa.RecordBatch.from_pylist(found[at : at + _ROWS], schema=_SCHEMA)


class Calls:
    """The open calls by seq, and by queue and id; what closed since `closed` was emptied."""

    def __init__(self) -> None:
        self.open: dict[int, dict[str, Any]] = {}
        self.queues: dict[str, dict[int, dict[str, Any]]] = {}
        self.closed: list[dict[str, Any]] = []

    def take(self, event: dict[str, Any]) -> None:
        """One row of the journal, as `rows` selects it."""
        if event["kind"] == "destroy":
            for request in list(self.queues.get(event["topic"], {}).values()):
                self._close(request, "unanswered", None, None)
            return
        if event["kind"] == "publish":
            self._answered(event)
            return
        if event["ref"]:
            self._ended(event)
        if event["asks"] and event["kind"] == "send":
            self.open[event["seq"]] = event
            self.queues.setdefault(event["topic"], {})[event["number"]] = event

    def _answered(self, event: dict[str, Any]) -> None:
        """A publish that says which request it answers."""
        try:
            queue, number = json.loads(event["answers"])
            topic = column_of(PREFIX + queue).decode()
            request = self.queues.get(topic, {}).get(number)
        except (TypeError, ValueError):
            return  # not the hub's own words
        if request is not None:
            self._close(request, "answered", event["client"], event["time"])

    def _ended(self, event: dict[str, Any]) -> None:
        request = self.open.get(event["ref"])
        if request is None:
            return
        if event["kind"] == "send":
            self._close(request, "answered", event["client"], event["time"])
        elif event["topic"] == request["topic"]:
            self._close(request, "unanswered", event["client"], None)

    def _close(self, request: dict[str, Any], status: str, by: str | None, when: Any) -> None:
        del self.open[request["seq"]]
        del self.queues[request["topic"]][request["number"]]
        self.closed.append(_row(request, status, by, when))

    def still_open(self) -> list[dict[str, Any]]:
        return [_row(request, "open", None, None) for request in self.open.values()]


def _row(request: dict[str, Any], status: str, by: str | None, when: Any) -> dict[str, Any]:
    asked = request["time"]
    return {
        "seq": request["seq"],
        "queue": request["topic"].removeprefix(PREFIX),
        "number": request["number"],
        "caller": request["client"],
        "asked": asked,
        "responder": by,
        "answered": when,
        "latency_ms": (when - asked).total_seconds() * 1000 if when is not None else None,
        "status": status,
        "open": status == "open",
    }


TABLE: Final = Spanning("calls", GRAIN, COLUMNS, lambda rules: EVENT, rows)
