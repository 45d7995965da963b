"""sessions: who was connected, from when to when, and how it ended.

    connect      opens a row
    disconnect   of the same client closes it; one of nobody (the hub began again) closes all

A client that connects again without a disconnect in between (a hub that was killed and records
no more than it must) closes its row with the reason "not seen to leave".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hubbub.pipeline.tables.table import Column, Folded, built, opened, whole

GRAIN: Final = "one row a connection of a client: seq"

COLUMNS: Final = (
    Column("seq", "bigint", "number of its connect row in the journal"),
    Column("protocol", "string", "protocol it came by"),
    Column("client", "string", "client id, SMQ uid or message-switch token"),
    Column("address", "string", "the IP address it came from; '' if unknown"),
    Column("lasting", "boolean", "its subscriptions outlive the connection"),
    Column("connected", "timestamp", "when it came"),
    Column("disconnected", "timestamp", "when it left; null while it is here"),
    Column("seconds", "double", "between the two", "s"),
    Column(
        "reason", "string", "why it ended; '' = the client left in order; null while it is here"
    ),
)

EVENT: Final = "kind IN ('connect', 'disconnect')"
NEEDS: Final = ("seq", "time", "kind", "protocol", "client", "properties")
UNSEEN: Final = "not seen to leave"

_SCHEMA: Final = opened(COLUMNS)

Session = dict[str, Any]


def events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that EVENT means."""
    return rows.select(NEEDS).filter(pc.field("kind").isin(["connect", "disconnect"]))


def folded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Events in the order of seq become ended sessions, then those that go on."""
    here: dict[tuple[str, str], Session] = {}
    for batch in batches:
        ended: list[Session] = []
        for event in batch.to_pylist():
            ended += _take(event, here)
        yield from built(ended, _SCHEMA)
    yield from built(list(here.values()), _SCHEMA)


def _take(event: dict[str, Any], here: dict[tuple[str, str], Session]) -> list[Session]:
    """Fold one event into who is here; return the sessions that it ends."""
    key = event["protocol"], event["client"]
    if event["kind"] == "carried":
        here[key] = {**event, "open": True}
        return []
    said = json.loads(event["properties"] or "{}")
    if event["kind"] == "connect":
        before = here.pop(key, None)
        here[key] = _begun(event, said)
        return [_ended(before, event["time"], UNSEEN)] if before else []
    reason = said.get("reason", "")
    if not event["protocol"]:
        everybody = [_ended(one, event["time"], reason) for one in here.values()]
        here.clear()
        return everybody
    gone = here.pop(key, None)
    return [_ended(gone, event["time"], reason)] if gone else []


def _begun(event: dict[str, Any], said: dict[str, Any]) -> Session:
    return {
        "seq": event["seq"],
        "protocol": event["protocol"],
        "client": event["client"],
        "address": said.get("address", ""),
        "lasting": bool(said.get("lasting")),
        "connected": event["time"],
        "open": True,
    }


def _ended(session: Session, when: Any, reason: str) -> Session:
    seconds = (when - session["connected"]).total_seconds()
    return {**session, "disconnected": when, "seconds": seconds, "reason": reason, "open": False}


TABLE: Final = Folded(
    "sessions", GRAIN, COLUMNS, lambda rules: EVENT, events, whole(folded, COLUMNS)
)
