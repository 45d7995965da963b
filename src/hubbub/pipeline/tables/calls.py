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
is a fold in Python over the few rows that have to do with calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hubbub.pipeline.tables.table import Column, Folded, built, opened, whole
from hubbub.schema import column_of

GRAIN: Final = "one row a request: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the request in the journal"),
    Column("queue", "string", "the queue that was asked, without $queue/"),
    Column("number", "bigint", "id of the request in that queue"),
    Column("caller", "string", "client that asked"),
    Column("asked", "timestamp", "when the hub took the request in"),
    Column("responder", "string", "client that answered or acknowledged; null if none did"),
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

NEEDS: Final = (
    "seq", "time", "kind", "client", "topic", "ref", "number", "reply_to", "properties"
)  # fmt: skip
_KIND: Final = pc.field("kind")
_CONCERNED: Final = (
    ((_KIND == "send") & ((pc.field("reply_to") != "") | (pc.field("ref") != 0)))
    | ((_KIND == "publish") & pc.match_substring(pc.field("properties"), '"answers"'))
    | (_KIND.isin(["ack", "drop", "destroy"]) & pc.starts_with(pc.field("topic"), PREFIX))
)

_SCHEMA: Final = opened(COLUMNS)

Call = dict[str, Any]


def events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that EVENT means."""
    return rows.select(NEEDS).filter(_CONCERNED)


def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events in the order of seq become closed calls, then the open ones."""
    calls = Calls()
    for batch in batches:
        for event in batch.to_pylist():
            calls.take(event)
        yield from built(calls.closed, _SCHEMA)
        calls.closed = []
    yield from built(list(calls.open.values()), _SCHEMA)


class Calls:
    """The open calls by seq, and by queue and id; what closed since `closed` was emptied."""

    def __init__(self) -> None:
        self.open: dict[int, Call] = {}
        self.queues: dict[str, dict[int, Call]] = {}
        self.closed: list[Call] = []

    def take(self, event: dict[str, Any]) -> None:
        """One row of the journal, or an open call, as `rows` selects it."""
        kind = event["kind"]
        if kind == "carried":
            self._waits({**event, "open": True})
        elif kind == "destroy":
            for call in list(self.queues.get(_queue(event), {}).values()):
                self._close(call, "unanswered", None, None)
        elif kind == "publish":
            self._answered(event)
        else:
            if event["ref"]:
                self._ended(event)
            if kind == "send" and event["reply_to"]:
                self._waits(_asked(event))

    def _waits(self, call: Call) -> None:
        self.open[call["seq"]] = call
        self.queues.setdefault(call["queue"], {})[call["number"]] = call

    def _answered(self, event: dict[str, Any]) -> None:
        """A publish that says which request it answers."""
        try:
            queue, number = json.loads(event["properties"])["answers"]
            call = self.queues.get(column_of(queue).decode(), {}).get(number)
        except (KeyError, TypeError, ValueError):
            return  # not the hub's own words
        if call is not None:
            self._close(call, "answered", event["client"], event["time"])

    def _ended(self, event: dict[str, Any]) -> None:
        call = self.open.get(event["ref"])
        if call is None:
            return
        if event["kind"] == "send":
            self._close(call, "answered", event["client"], event["time"])
        elif _queue(event) == call["queue"]:
            by = event["client"] if event["kind"] == "ack" else None  # who drops is the queue
            self._close(call, "unanswered", by, None)

    def _close(self, call: Call, status: str, by: str | None, when: Any) -> None:
        del self.open[call["seq"]]
        # Not there if the id was given again: the disk had lost what a reader had seen.
        self.queues[call["queue"]].pop(call["number"], None)
        latency = (when - call["asked"]).total_seconds() * 1000 if when is not None else None
        call.update(responder=by, answered=when, latency_ms=latency, status=status, open=False)
        self.closed.append(call)


def _queue(event: dict[str, Any]) -> str:
    return str(event["topic"]).removeprefix(PREFIX)


def _asked(event: dict[str, Any]) -> Call:
    return {
        "seq": event["seq"],
        "queue": _queue(event),
        "number": event["number"],
        "caller": event["client"],
        "asked": event["time"],
        "status": "open",
        "open": True,
    }


TABLE: Final = Folded(
    "calls", GRAIN, COLUMNS, lambda rules: EVENT, events, whole(folded, COLUMNS)
)
