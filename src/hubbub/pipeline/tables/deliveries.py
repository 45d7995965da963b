"""deliveries: what waited for whom, from the moment it was due until it was acknowledged.

Covers what the hub keeps until it is acknowledged: the backlogs of lasting sessions, and queues.
Other deliveries are no rows of the journal, by design.

    publish, with an audience     one delivery to each of its sessions, in the order of the journal
    queued                        one more delivery: retained, shared, or through a binding
    send                          a message enters a queue
    deliver                       a queue's message is handed to a consumer, once more each time
    ack · drop · end · destroy    how deliveries close

A message offered again, as a retained one is to who subscribes again, is another delivery. What a
shared subscription has in hand itself is none: its members have deliveries.

A session's deliveries are numbered as the hub's own fold does it, and an `ack` of n of them means
n consecutive numbers from the one it names. Only the order counts here, so numbers may begin at
any value: the journal may have been cut before the session began.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.tables.table import Column, Moment, Spanning, built, ddl, with_carried

GRAIN: Final = "one row a delivery: offer, protocol, receiver"

COLUMNS: Final = (
    Column("seq", "bigint", "number of the message in the journal"),
    Column("offer", "bigint", "number of the row that made it due: seq, unless offered later"),
    Column("topic", "string", "its topic; null where it was offered later: see messages"),
    Column("protocol", "string", "protocol of the receiver; 'queue' for a queue"),
    Column("receiver", "string", "client of a lasting session, or the queue as $queue/NAME"),
    Column("qos", "tinyint", "QoS of the delivery; that of the message for a queue"),
    Column("since", "timestamp", "when it was due: published, or offered later"),
    Column("handed", "timestamp", "queues: when a consumer had it first; null before"),
    Column("attempts", "int", "queues: how often a consumer was given it"),
    Column("ended", "timestamp", "when it closed; null while open"),
    Column("latency_ms", "double", "from since to ended; null if not acknowledged", "ms"),
    Column("status", "string", "acknowledged, dropped, ended (session), destroyed (queue), open"),
    Column("by", "string", "queues: the client that acknowledged it; null else"),
)
MEMORY: Final = (
    Column("number", "bigint", "place in the backlog; without a seq: the next place"),
    Column("ref", "bigint", "seq of an audience"),
    Column("audience", "string", "the sessions of that audience, as JSON"),
)

QUEUE: Final = "$queue/"
EVENT: Final = (
    "(kind = 'publish' AND ref <> 0) OR kind IN ('send', 'audience', 'end')"
    " OR (kind IN ('queued', 'ack', 'drop') AND client <> '' AND protocol <> 'share')"
    " OR (kind IN ('deliver', 'destroy') AND startswith(topic, '$queue/'))"
)

_SCHEMA: Final = pa.schema(
    [
        ("seq", pa.int64()),
        ("offer", pa.int64()),
        ("topic", pa.string()),
        ("protocol", pa.string()),
        ("receiver", pa.string()),
        ("qos", pa.int8()),
        ("since", pa.timestamp("us", "UTC")),
        ("handed", pa.timestamp("us", "UTC")),
        ("attempts", pa.int32()),
        ("ended", pa.timestamp("us", "UTC")),
        ("latency_ms", pa.float64()),
        ("status", pa.string()),
        ("by", pa.string()),
        ("number", pa.int64()),
        ("ref", pa.int64()),
        ("audience", pa.string()),
        ("open", pa.bool_()),
    ]
)
_EVENT_COLUMNS: Final = (
    "seq", "time", "kind", "protocol", "client", "topic", "qos", "payload", "ref", "number",
    "properties",
)  # fmt: skip

Event = dict[str, Any]
Delivery = dict[str, Any]
Key = tuple[str, str]


def rows(batch: DataFrame, carried: DataFrame, moment: Moment) -> DataFrame:
    """The deliveries that close in this batch, and those that are open."""
    said = F.when(F.col("kind") == "audience", F.col("payload"))  # others' payloads stay behind
    events = batch.where(EVENT).withColumn("payload", said).select(*_EVENT_COLUMNS)
    # What was known before goes first, in its own order; then the rows of the journal.
    events = events.withColumn("at", F.col("seq"))
    ordered = with_carried(events, carried.withColumn("at", F.lit(0)), "at", "number", "seq")
    fold = partial(folded, segment=moment.segment)
    return ordered.mapInArrow(fold, ddl((*COLUMNS, *MEMORY)) + ", open boolean")


def folded(batches: Iterable[pa.RecordBatch], segment: int = 0) -> Iterator[pa.RecordBatch]:
    """Events in order become closed deliveries, then the open ones and what to remember.

    `segment`: where the journal's segment of the last row begins; audiences before it are over.
    """
    deliveries = Deliveries()
    for batch in batches:
        for event in batch.to_pylist():
            deliveries.take(event)
        yield from built(deliveries.closed, _SCHEMA)
        deliveries.closed = []
    yield from built(deliveries.still_open(), _SCHEMA)
    yield from built(deliveries.memory(segment), _SCHEMA)


class _Backlog:
    """The open deliveries of a session by their place, and the next place."""

    def __init__(self) -> None:
        self.open: dict[int, Delivery] = {}
        self.next = 0

    def place_of(self, event: Event) -> int:
        """Where the deliveries that an `ack` means begin; -1 if they are unknown.

        The oldest delivery of the message, unless the row names another: then the newest.
        """
        found = -1
        for place, delivery in self.open.items():
            if delivery["seq"] == event["ref"]:
                found = place
                if not event["properties"]:
                    break
        return found


class Deliveries:
    """Backlogs by session, messages by queue, audiences by seq; what closed since emptied."""

    def __init__(self) -> None:
        self.backlogs: dict[Key, _Backlog] = {}
        self.queues: dict[str, dict[int, Delivery]] = {}
        self.audiences: dict[int, list[tuple[str, str, int]]] = {}
        self.closed: list[Delivery] = []
        self._takers = {
            "carried": self._carried,
            "audience": self._audience,
            "publish": self._publish,
            "queued": self._queued,
            "send": self._send,
            "deliver": self._deliver,
            "ack": self._ack,
            "drop": self._drop,
            "end": self._end,
            "destroy": self._destroy,
        }

    def take(self, event: Event) -> None:
        """One row, in the order in which `rows` sorts them."""
        self._takers[event["kind"]](event)

    # What was known before the batch

    def _carried(self, row: Event) -> None:
        if row["audience"] is not None:
            self.audiences[row["ref"]] = json.loads(row["audience"])
        elif row["seq"] is None:
            self._backlog(row["protocol"], row["receiver"]).next = row["number"]
        elif row["protocol"] == "queue":
            self.queues.setdefault(row["receiver"], {})[row["seq"]] = row
        else:
            self._backlog(row["protocol"], row["receiver"]).open[row["number"]] = row

    # What begins

    def _audience(self, event: Event) -> None:
        self.audiences[event["seq"]] = json.loads(event["payload"])

    def _publish(self, event: Event) -> None:
        for protocol, client, granted in self.audiences.get(event["ref"], ()):
            qos = min(event["qos"], granted)
            if qos:
                delivery = _begun(event, event["seq"], protocol, client)
                delivery.update(topic=event["topic"], qos=qos)
                self._due(delivery)

    def _queued(self, event: Event) -> None:
        protocol, client, seq = event["protocol"], event["client"], event["ref"]
        delivery = _begun(event, seq, protocol, client)
        delivery.update(topic=None, qos=event["qos"])
        if protocol == "queue":
            self.queues.setdefault(client, {})[seq] = delivery
        elif seq:
            self._due(delivery)
        else:
            self._backlog(protocol, client).next += 1  # a lease takes a place and no more

    def _send(self, event: Event) -> None:
        queue = event["topic"]
        delivery = _begun(event, event["seq"], "queue", queue)
        delivery.update(topic=queue, qos=event["qos"])
        self.queues.setdefault(queue, {})[event["seq"]] = delivery

    def _due(self, delivery: Delivery) -> None:
        backlog = self._backlog(delivery["protocol"], delivery["receiver"])
        delivery["number"] = backlog.next
        backlog.open[backlog.next] = delivery
        backlog.next += 1

    def _backlog(self, protocol: str, client: str) -> _Backlog:
        return self.backlogs.setdefault((protocol, client), _Backlog())

    # What goes on and ends

    def _deliver(self, event: Event) -> None:
        delivery = self.queues.get(event["topic"], {}).get(event["ref"])
        if delivery is not None:
            delivery["attempts"] += 1
            delivery["handed"] = delivery["handed"] or event["time"]

    def _ack(self, event: Event) -> None:
        if event["topic"].startswith(QUEUE):
            delivery = self.queues.get(event["topic"], {}).pop(event["ref"], None)
            if delivery is not None:
                delivery["by"] = event["client"]
                self._close(delivery, event["time"], "acknowledged")
            return
        backlog = self.backlogs.get((event["protocol"], event["client"]))
        place = backlog.place_of(event) if backlog is not None else -1
        if backlog is not None and place >= 0:
            self._end_places(backlog, place, event, "acknowledged")

    def _drop(self, event: Event) -> None:
        """A queue gives a message up. Of a session the newest deliveries were too many: their
        places are free again.
        """
        if event["topic"].startswith(QUEUE):
            delivery = self.queues.get(event["topic"], {}).pop(event["ref"], None)
            if delivery is not None:
                self._close(delivery, event["time"], "dropped")
            return
        backlog = self.backlogs.get((event["protocol"], event["client"]))
        if backlog is not None:
            first = max(backlog.next - event["number"], 0)
            self._end_places(backlog, first, event, "dropped")
            backlog.next = first

    def _end_places(self, backlog: _Backlog, first: int, event: Event, status: str) -> None:
        for place in range(first, first + event["number"]):
            delivery = backlog.open.pop(place, None)
            if delivery is not None:
                self._close(delivery, event["time"], status)

    def _end(self, event: Event) -> None:
        backlog = self.backlogs.pop((event["protocol"], event["client"]), None)
        for delivery in backlog.open.values() if backlog is not None else ():
            self._close(delivery, event["time"], "ended")

    def _destroy(self, event: Event) -> None:
        for delivery in self.queues.pop(event["topic"], {}).values():
            self._close(delivery, event["time"], "destroyed")

    def _close(self, delivery: Delivery, when: Any, status: str) -> None:
        delivery.update(ended=when, status=status, open=False, number=None)
        if status == "acknowledged":
            delivery["latency_ms"] = (when - delivery["since"]).total_seconds() * 1000
        self.closed.append(delivery)

    # What the next batch needs

    def still_open(self) -> list[Delivery]:
        waiting = [one for backlog in self.backlogs.values() for one in backlog.open.values()]
        waiting += [one for queue in self.queues.values() for one in queue.values()]
        return [{**one, "open": True} for one in waiting]

    def memory(self, segment: int) -> list[Delivery]:
        """The next place of each backlog with open deliveries; the audiences that may come."""
        places = [
            {"protocol": protocol, "receiver": client, "number": backlog.next, "open": True}
            for (protocol, client), backlog in self.backlogs.items()
            if backlog.open
        ]
        return places + [
            {"ref": seq, "audience": json.dumps(names), "open": True}
            for seq, names in self.audiences.items()
            if seq >= segment
        ]


def _begun(event: Event, seq: int, protocol: str, receiver: str) -> Delivery:
    return {
        "seq": seq, "offer": event["seq"], "protocol": protocol, "receiver": receiver,
        "since": event["time"], "handed": None, "attempts": 0, "status": "open", "number": None,
    }  # fmt: skip


TABLE: Final = Spanning("deliveries", GRAIN, COLUMNS, lambda rules: EVENT, rows, MEMORY)
