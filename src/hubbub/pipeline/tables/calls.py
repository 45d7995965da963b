"""calls: who asked whom, and how long the answer took.

A call is a message in a queue (`send`) with a reply-to. It closes by the first of:

    send     whose ref is the request                      answered
    ack      of the request in its queue, no answer yet    unanswered
    drop     of the request by a limit                     unanswered
    destroy  of the queue it waits in                      unanswered

Later answers to a closed call change nothing. The rows must be taken one after the other, so this
is a fold in Python over the few rows that have to do with calls, in one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.tables.table import Column, Moment, Spanning, ddl

GRAIN: Final = "one row a request: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the request in the journal"),
    Column("queue", "string", "the queue that was asked, without $queue/"),
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
    " OR (kind IN ('ack', 'drop') AND startswith(topic, '$queue/'))"
    " OR (kind = 'destroy' AND startswith(topic, '$queue/'))"
)

_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("queue", pa.string()),
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
        "seq", "time", "kind", "client", "topic", (F.col("reply_to") != "").alias("asks"), "ref"
    )
    waiting = carried.select(
        "seq",
        F.col("asked").alias("time"),
        F.lit("send").alias("kind"),
        F.col("caller").alias("client"),
        F.concat(F.lit(PREFIX), "queue").alias("topic"),
        F.lit(True).alias("asks"),
        F.lit(0).cast("bigint").alias("ref"),
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
    """The open calls by seq, and by queue; what closed since `closed` was emptied."""

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
        if event["ref"]:
            self._ended(event)
        if event["asks"] and event["kind"] == "send":
            self.open[event["seq"]] = event
            self.queues.setdefault(event["topic"], {})[event["seq"]] = event

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
        del self.queues[request["topic"]][request["seq"]]
        self.closed.append(_row(request, status, by, when))

    def still_open(self) -> list[dict[str, Any]]:
        return [_row(request, "open", None, None) for request in self.open.values()]


def _row(request: dict[str, Any], status: str, by: str | None, when: Any) -> dict[str, Any]:
    asked = request["time"]
    return {
        "seq": request["seq"],
        "queue": request["topic"].removeprefix(PREFIX),
        "caller": request["client"],
        "asked": asked,
        "responder": by,
        "answered": when,
        "latency_ms": (when - asked).total_seconds() * 1000 if when is not None else None,
        "status": status,
        "open": status == "open",
    }


TABLE: Final = Spanning("calls", GRAIN, COLUMNS, lambda rules: EVENT, rows)
