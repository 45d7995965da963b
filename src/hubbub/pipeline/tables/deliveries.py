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
n consecutive numbers from the one it names. The `connect` row of a lasting session says which
number comes next; in a journal that was cut before the session began, places are counted from 0
until then.

A batch costs what it changes: of the open deliveries, which may be millions, the fold gets those
that rows of the batch may mean. The others stay in the files they lie in (`table.Held`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hubbub.pipeline.tables.backlogs import Backlog, Key, Run, rows_of
from hubbub.pipeline.tables.table import Column, Folded, Folding, Held, arrow
from hubbub.schema import column_of

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
    Column("ref", "bigint", "seq of an audience; of a next place: 1 if the hub said which it is"),
    Column("audience", "string", "the sessions of that audience, as JSON"),
)

QUEUE: Final = "$queue/"
EVENT: Final = (
    "(kind = 'publish' AND ref <> 0) OR kind IN ('send', 'audience', 'end')"
    " OR (kind = 'connect' AND contains(properties, '\"lasting\"'))"
    " OR (kind IN ('queued', 'ack', 'drop') AND client <> '' AND protocol <> 'share')"
    " OR (kind IN ('deliver', 'destroy') AND startswith(topic, '$queue/'))"
    " OR (kind = 'adopt' AND subtopic IN ('connect', 'queued') AND protocol <> 'node')"
)
_KIND: Final = pc.field("kind")
_OF_QUEUE: Final = pc.starts_with(pc.field("topic"), QUEUE)
_CONCERNED: Final = (
    ((_KIND == "publish") & (pc.field("ref") != 0))
    | _KIND.isin(["send", "audience", "end"])
    | ((_KIND == "connect") & pc.match_substring(pc.field("properties"), '"lasting"'))
    | (
        _KIND.isin(["queued", "ack", "drop"])
        & (pc.field("client") != "")
        & (pc.field("protocol") != "share")
    )
    | (_KIND.isin(["deliver", "destroy"]) & _OF_QUEUE)
)
_ADOPTED: Final = pa.array(["connect", "queued"])  # of a dead node's sessions: theirs go on here
_SAYS: Final = pa.array(["ack", "connect"])  # the kinds whose properties are looked at

_NAMES: Final = ("seq", "time", "kind", "protocol", "client", "topic", "qos", "payload", "ref",
                 "number", "properties")  # fmt: skip
_CLOSED: Final = arrow(COLUMNS)
_OPENED: Final = arrow((*COLUMNS, *MEMORY))
_ALL: Final = (-(1 << 62), 1 << 62)  # places of a backlog

Event = tuple[Any, ...]  # by _NAMES; times in microseconds


class Delivery:
    """A row of the table, its times in microseconds; `number` is its place in the backlog."""

    __slots__ = (*(column.name for column in COLUMNS), "number")

    def __init__(
        self, seq: int, offer: int, topic: str | None, protocol: str, receiver: str, qos: int,
        since: int, number: int | None = None,
    ) -> None:  # fmt: skip
        self.seq = seq
        self.offer = offer
        self.topic = topic
        self.protocol = protocol
        self.receiver = receiver
        self.qos = qos
        self.since = since
        self.handed: int | None = None
        self.attempts = 0
        self.ended: int | None = None
        self.latency_ms: float | None = None
        self.status = "open"
        self.by: str | None = None
        self.number = number


def fold(events: pa.Table, held: Held, segment: int) -> Folding:
    """The deliveries that close by these events, those that are new or changed, what stays.

    `segment`: where the journal's segment of the last row begins; audiences before it are over.
    """
    events, published = _mattering(events)
    rows = list(events_in(events.filter(pa.array(~published))))
    deliveries = Deliveries(events)
    for row in _memory_of(held):
        deliveries.remember(row)
    left = {}
    for name, chosen, staying in _wanted(rows, held, deliveries):
        left[name] = staying
        for row in chosen.sort_by("number").to_pylist():
            deliveries.carry(row)
    deliveries.take(rows, published)
    memory = pa.Table.from_pylist(deliveries.memory(segment), _OPENED)
    return Folding(deliveries.rows_closed(), deliveries.rows_open(), left, memory)


def events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that EVENT means; what other kinds carry stays behind."""
    found = _adopted(rows).select(_NAMES).filter(_CONCERNED)
    kind = found["kind"]
    columns = dict(zip(_NAMES, found.columns, strict=True))
    payloads = pc.equal(kind, "audience"), found["payload"], pa.scalar(None, pa.binary())
    columns["payload"] = pc.if_else(*payloads)
    says = pc.is_in(kind, value_set=_SAYS)
    columns["properties"] = pc.if_else(says, found["properties"], "")
    return pa.RecordBatch.from_pydict(columns)


def _adopted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """What came of a dead node is what it is there (docs/decisions/0051)."""
    adopted = pc.and_(
        pc.equal(rows["kind"], "adopt"), pc.is_in(rows["subtopic"], value_set=_ADOPTED)
    )
    if not pc.any(adopted).as_py():
        return rows
    adopted = pc.and_(adopted, pc.not_equal(rows["protocol"], "node"))
    kinds = pc.if_else(adopted, rows["subtopic"], rows["kind"])
    return rows.set_column(rows.schema.get_field_index("kind"), rows.schema.field("kind"), kinds)


def _mattering(events: pa.Table) -> tuple[pa.Table, np.ndarray]:
    """Without messages that nobody must acknowledge; which of the others are published ones."""
    published = pc.equal(events["kind"], "publish")
    events = events.filter(pc.or_(pc.invert(published), pc.greater(events["qos"], 0)))
    return events, pc.equal(events["kind"], "publish").to_numpy(zero_copy_only=False)


def events_in(events: pa.Table) -> Iterator[Event]:
    columns = {name: events.column(name) for name in _NAMES}
    columns["time"] = columns["time"].cast(pa.int64())
    return zip(*(columns[name].to_pylist() for name in _NAMES), strict=True)


def _table(rows: list[Delivery], schema: pa.Schema) -> pa.Table:
    columns = []
    for field in schema:
        if field.name in ("ref", "audience"):
            columns.append(pa.nulls(len(rows), field.type))
        else:
            columns.append(pa.array([getattr(row, field.name) for row in rows], field.type))
    return pa.table(columns, schema=schema)


# Which of the open deliveries a batch may mean


def _memory_of(held: Held) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in held.names():
        if held.lowest(name) is None:
            found += held.rows(name).filter(pc.field("seq").is_null()).to_pylist()
    return found


def _wanted(
    events: list[Event], held: Held, known: Deliveries
) -> Iterator[tuple[str, pa.Table, pa.Array]]:
    """Of each piece with such rows: its name, the rows, and which of the piece stay."""
    named, several, places = _meant(events, known)
    wanted = pa.array(sorted({seq for seq, _ in named}), pa.int64())
    receivers = pa.array(sorted({receiver for _, receiver in named}), pa.string())
    names = held.names()
    for name in names:
        for receiver, seq, number in _starts(held, name, several):
            for count in several[seq, receiver]:
                low, high = places.get(receiver, (number, number))
                places[receiver] = min(low, number), max(high, number + count)
    for name in names:
        if not places and not held.may_hold(name, wanted):
            continue
        keys = held.rows(name, ("seq", "receiver", "number"))
        taken = pc.and_(pc.is_in(keys["seq"], wanted), pc.is_in(keys["receiver"], receivers))
        taken = pc.or_(taken, pc.is_null(keys["seq"]))
        if places:
            taken = pc.or_(taken, _within(keys, places))
        if pc.any(taken).as_py():
            rows = held.rows(name).filter(taken)
            yield name, rows.filter(pc.field("seq").is_valid()), pc.invert(taken)


def _meant(
    events: list[Event], known: Deliveries
) -> tuple[set[tuple[int, str]], dict[tuple[int, str], list[int]], dict[str, tuple[int, int]]]:
    """Messages named, each with its receiver; those that begin several; places by receiver."""
    named: set[tuple[int, str]] = set()
    several: dict[tuple[int, str], list[int]] = {}
    places: dict[str, tuple[int, int]] = {}
    dropped: dict[Key, int] = {}
    for _, _, kind, protocol, client, topic, _, _, ref, number, properties in events:
        if kind == "deliver" or (kind in ("ack", "drop") and topic.startswith(QUEUE)):
            named.add((ref, topic))
        elif kind == "ack":
            named.add((ref, client))
            if properties and known.backlog(protocol, client).said:
                named_place = int(json.loads(properties)["delivery"])
                low, high = places.get(client, _ALL[::-1])
                places[client] = min(low, named_place), max(high, named_place + number)
            elif properties:
                places[client] = _ALL  # its numbers are not known: the newest is looked for
            elif number > 1:
                several.setdefault((ref, client), []).append(number)
        elif kind == "drop":
            dropped[protocol, client] = dropped.get((protocol, client), 0) + number
        elif kind in ("end", "destroy"):
            places[client or topic] = _ALL
        elif kind == "connect" and not known.backlog(protocol, client).said:
            places[client] = _ALL
    for key, count in dropped.items():
        low, high = places.get(key[1], _ALL[::-1])
        places[key[1]] = min(low, known.backlog(*key).next - count), max(high, _ALL[1])
    return named, several, places


def _starts(
    held: Held, name: str, several: dict[tuple[int, str], list[int]]
) -> Iterator[tuple[str, int, int]]:
    """Receiver, message and place of the deliveries with which several end."""
    wanted = pa.array(sorted({seq for seq, _ in several}), pa.int64())
    if not several or not held.may_hold(name, wanted):
        return
    keys = held.rows(name, ("seq", "receiver", "number"))
    keys = keys.filter(pc.is_in(keys["seq"], wanted))
    columns = (keys[name].to_pylist() for name in ("receiver", "seq", "number"))
    for receiver, seq, number in zip(*columns, strict=True):
        if number is not None and (seq, receiver) in several:
            yield receiver, seq, number


def _within(keys: pa.Table, places: dict[str, tuple[int, int]]) -> pa.Array:
    """Which rows lie at one of these places; a queue has no places, all of it is meant."""
    coded = keys["receiver"].combine_chunks().dictionary_encode()
    bounds = [places.get(name, (1, 0)) for name in coded.dictionary.to_pylist()] + [(1, 0)]
    low, high = np.array(bounds, np.int64).T
    codes = coded.indices.fill_null(len(bounds) - 1).to_numpy(zero_copy_only=False)
    numbers = keys["number"].fill_null(0).to_numpy()
    return pa.array((low[codes] <= numbers) & (numbers < high[codes]))


# The fold


class Deliveries:
    """Backlogs by session, messages by queue, audiences by seq; what closed.

    `events` are all of the batch that matter: what is kept of most deliveries are places in them.
    """

    def __init__(self, events: pa.Table) -> None:
        self.events = events
        queued = pc.equal(events["kind"], "queued")
        self.messages = pc.if_else(queued, events["ref"], events["seq"]).to_pylist()
        self.runs: list[Run] = []
        self.backlogs: dict[Key, Backlog] = {}
        self.queues: dict[str, dict[int, Delivery]] = {}
        self.audiences: dict[int, list[tuple[str, str, int]]] = {}
        self.closed: list[Delivery] = []
        self._at = 0  # the event that is taken
        self._takers = {
            "audience": self._audience,
            "connect": self._connect,
            "queued": self._queued,
            "send": self._send,
            "deliver": self._deliver,
            "ack": self._ack,
            "drop": self._drop,
            "end": self._end,
            "destroy": self._destroy,
        }

    def take(self, rows: list[Event], published: np.ndarray) -> None:
        """All events in the order of seq: `rows`, and between them the published messages.

        Those of one audience that follow each other are taken together.
        """
        refs = self.events["ref"].to_numpy()
        begins = ~published
        begins[1:] |= ~published[:-1] | (refs[1:] != refs[:-1])
        begins[:1] = True
        starts = np.flatnonzero(begins).tolist()
        others = iter(rows)
        for at, upto in pairwise([*starts, len(refs)]):
            if published[at]:
                self._publish(at, upto, int(refs[at]))
            else:
                self._at = at
                event = next(others)
                self._takers[event[2]](*event)

    def backlog(self, protocol: str, client: str) -> Backlog:
        key = protocol, client
        found = self.backlogs.get(key)
        if found is None:
            found = self.backlogs[key] = Backlog()
        return found

    # What was known before the batch

    def remember(self, row: dict[str, Any]) -> None:
        """An audience, or the next place of a backlog."""
        if row["audience"] is not None:
            self.audiences[row["ref"]] = json.loads(row["audience"])
        else:
            backlog = Backlog(row["number"], bool(row["ref"]))
            self.backlogs[row["protocol"], row["receiver"]] = backlog

    def carry(self, row: dict[str, Any]) -> None:
        """An open delivery; those of a backlog in the order of their places."""
        one = Delivery(
            row["seq"], row["offer"], row["topic"], row["protocol"], row["receiver"], row["qos"],
            _microseconds(row["since"]), row["number"],
        )  # fmt: skip
        one.attempts = row["attempts"]
        one.handed = _microseconds(row["handed"]) if row["handed"] is not None else None
        if one.protocol == "queue":
            self.queues.setdefault(one.receiver, {})[one.seq] = one
        else:
            self.backlog(one.protocol, one.receiver).older[row["number"]] = one

    # What begins

    def _audience(self, seq: int, time: int, *event: Any) -> None:
        # Names as their clients chose them, which in columns may be other texts.
        self.audiences[seq] = [
            (protocol, column_of(client).decode(), qos)
            for protocol, client, qos in json.loads(event[5])
        ]

    def _connect(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        payload: None, ref: int, number: int, properties: str,
    ) -> None:  # fmt: skip
        self.backlog(protocol, client).connect(number)

    def _publish(self, at: int, upto: int, ref: int) -> None:
        for protocol, receiver, granted in self.audiences.get(ref, ()):
            if granted:
                self.backlog(protocol, receiver).add(at, upto, granted)

    def _queued(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        payload: None, ref: int, number: int, properties: str,
    ) -> None:  # fmt: skip
        if protocol == "queue":
            delivery = Delivery(ref, seq, None, protocol, client, qos, time)
            self.queues.setdefault(client, {})[ref] = delivery
        elif ref:
            self.backlog(protocol, client).add(self._at, self._at + 1, qos)
        else:
            self.backlog(protocol, client).pass_over()  # a lease takes a place and no more

    def _send(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        *rest: Any,
    ) -> None:  # fmt: skip
        delivery = Delivery(seq, seq, topic, "queue", topic, qos, time)
        self.queues.setdefault(topic, {})[seq] = delivery

    # What goes on and ends

    def _deliver(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        payload: None, ref: int, *rest: Any,
    ) -> None:  # fmt: skip
        delivery = self.queues.get(topic, {}).get(ref)
        if delivery is not None:
            delivery.attempts += 1
            delivery.handed = delivery.handed or time

    def _ack(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        payload: None, ref: int, number: int, properties: str,
    ) -> None:  # fmt: skip
        if topic.startswith(QUEUE):
            delivery = self.queues.get(topic, {}).pop(ref, None)
            if delivery is not None:
                delivery.by = client
                self._close(delivery, time, "acknowledged")
            return
        backlog = self.backlogs.get((protocol, client))
        if backlog is None:
            return
        place = backlog.place_of(ref, properties, self.messages)
        if place >= 0:
            self._end_places((protocol, client), place, number, time, "acknowledged")

    def _drop(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, qos: int,
        payload: None, ref: int, number: int, properties: str,
    ) -> None:  # fmt: skip
        """A queue gives a message up. Of a session the newest deliveries were too many: their
        places are free again.
        """
        if topic.startswith(QUEUE):
            delivery = self.queues.get(topic, {}).pop(ref, None)
            if delivery is not None:
                self._close(delivery, time, "dropped")
            return
        backlog = self.backlogs.get((protocol, client))
        if backlog is not None:
            first = max(backlog.next - number, 0)
            self._end_places((protocol, client), first, number, time, "dropped")
            backlog.cut(first)

    def _end_places(self, key: Key, first: int, count: int, time: int, status: str) -> None:
        older, made, granted = self.backlogs[key].taken(first, count)
        for delivery in older:
            self._close(delivery, time, status)
        if made:
            self.runs.append(Run(key, made, granted, status, self._at))

    def _end(
        self, seq: int, time: int, kind: str, protocol: str, client: str, *rest: Any
    ) -> None:
        backlog = self.backlogs.pop((protocol, client), None)
        if backlog is None:
            return
        for delivery in backlog.older.values():
            self._close(delivery, time, "ended")
        rest = backlog.still_open((protocol, client))
        if rest.made:
            self.runs.append(rest._replace(status="ended", end=self._at))

    def _destroy(
        self, seq: int, time: int, kind: str, protocol: str, client: str, topic: str, *rest: Any
    ) -> None:
        for delivery in self.queues.pop(topic, {}).values():
            self._close(delivery, time, "destroyed")

    def _close(self, delivery: Delivery, time: int, status: str) -> None:
        delivery.ended, delivery.status = time, status
        if status == "acknowledged":
            delivery.latency_ms = (time - delivery.since) / 1000
        self.closed.append(delivery)

    # What the next batch needs

    def rows_closed(self) -> pa.Table:
        older = _table(self.closed, _CLOSED)
        return pa.concat_tables([older, rows_of(self.runs, self.events, _CLOSED)])

    def rows_open(self) -> pa.Table:
        waiting = [one for backlog in self.backlogs.values() for one in backlog.older.values()]
        waiting += [one for queue in self.queues.values() for one in queue.values()]
        runs = [backlog.still_open(key) for key, backlog in self.backlogs.items()]
        return pa.concat_tables(
            [_table(waiting, _OPENED), rows_of(runs, self.events, _OPENED)]
        )

    def memory(self, segment: int) -> list[dict[str, Any]]:
        """The next place of each backlog; the audiences that may come."""
        places = [
            {"protocol": protocol, "receiver": client, "number": backlog.next,
             "ref": int(backlog.said)}
            for (protocol, client), backlog in self.backlogs.items()
        ]  # fmt: skip
        return places + [
            {"ref": seq, "audience": json.dumps(names)}
            for seq, names in self.audiences.items()
            if seq >= segment
        ]


def _microseconds(moment: Any) -> int:
    return int(pa.scalar(moment, pa.timestamp("us", "UTC")).value)


TABLE: Final = Folded("deliveries", GRAIN, COLUMNS, lambda rules: EVENT, events, fold, MEMORY)
