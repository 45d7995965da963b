"""The deliveries that wait for a session, by their places; those of one batch have no objects.

A busy session gets hundreds of thousands in a batch, most of which it also acknowledges there. Of
those only the numbers of the events are kept that made and ended them; their rows are made of the
columns of these events, all at once, when the batch is over.

    older      what was open before the batch, by place          objects
    base …     a place after the other: the event that made it   numbers, -1 = nothing is open there

Used by `deliveries` alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from hubbub.pipeline.tables.deliveries import Delivery

Key = tuple[str, str]


class Run(NamedTuple):
    """Deliveries to one session: the events that made them, the QoS that was granted at most.

    `end`: the event that ended all of them, or `places` where they are open.
    """

    session: Key
    made: Sequence[int]
    granted: Sequence[int]
    status: str
    end: int = -1
    places: Sequence[int] = ()


class Backlog:
    """The open deliveries of a session, and the next place.

    `said`: the hub said which it is, so places are the hub's numbers.
    """

    def __init__(self, base: int = 0, said: bool = False) -> None:
        self.older: dict[int, Delivery] = {}
        self.base = base
        self.made: list[int] = []
        self.granted: list[int] = []
        self.said = said
        self._first = 0  # before it nothing is open

    @property
    def next(self) -> int:
        return self.base + len(self.made)

    def add(self, begin: int, end: int, granted: int) -> None:
        """The events from begin to end each make one."""
        self.made.extend(range(begin, end))
        self.granted.extend([granted] * (end - begin))

    def pass_over(self, places: int = 1) -> None:
        """Places with nothing to deliver."""
        self.made.extend([-1] * places)
        self.granted.extend([0] * places)

    def place_of(self, ref: int, properties: str, messages: Sequence[int]) -> int:
        """Where the deliveries that an `ack` means begin; -1 if they are unknown.

        The oldest delivery of the message, unless the row names another by its number. `messages`:
        the message that each event is about.
        """
        if properties and self.said:
            return int(json.loads(properties)["delivery"])
        found = -1
        for place, delivery in self.older.items():
            if delivery.seq == ref:
                found = place
                if not properties:
                    return found
        while self._first < len(self.made) and self.made[self._first] < 0:
            self._first += 1
        for at in range(self._first, len(self.made)):
            if self.made[at] >= 0 and messages[self.made[at]] == ref:
                found = self.base + at
                if not properties:
                    return found
        return found

    def connect(self, number: int) -> None:
        """The hub says which number is next."""
        if not self.said:
            shift = number - self.next
            self.base += shift
            self.older = {place + shift: one for place, one in self.older.items()}
            for place, one in self.older.items():
                one.number = place
        elif number < self.next:
            self.cut(number)
        else:
            self.pass_over(number - self.next)
        self.said = True

    def taken(self, first: int, count: int) -> tuple[list[Delivery], list[int], list[int]]:
        """What is open at so many places, and then no more: older ones; events, QoS granted."""
        older = []
        if self.older:
            found = (self.older.pop(place, None) for place in range(first, first + count))
            older = [one for one in found if one is not None]
        low = max(first - self.base, 0)
        high = max(first - self.base + count, low)
        made, granted = self.made[low:high], self.granted[low:high]
        self.made[low:high] = [-1] * len(made)
        if -1 in made:
            granted = [qos for at, qos in zip(made, granted, strict=True) if at >= 0]
            made = [at for at in made if at >= 0]
        return older, made, granted

    def cut(self, first: int) -> None:
        """The places from there on are free again."""
        del self.made[max(first - self.base, 0) :], self.granted[max(first - self.base, 0) :]
        self.base = min(self.base, first)
        self._first = min(self._first, len(self.made))

    def still_open(self, session: Key) -> Run:
        """Those of this batch."""
        places = [place for place, at in enumerate(self.made) if at >= 0]
        made = [self.made[place] for place in places]
        granted = [self.granted[place] for place in places]
        return Run(session, made, granted, "open", -1, [self.base + place for place in places])


def rows_of(runs: list[Run], events: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows of the table. The runs are all open, or none is."""
    counts = [len(run.made) for run in runs]
    made = _joined([run.made for run in runs])
    which = pa.array(np.repeat(np.arange(len(runs)), counts))
    message = events.take(pa.array(made))
    kinds = pc.equal(message["kind"], "queued")
    since = message["time"].cast(pa.int64()).to_numpy()
    granted = np.minimum(_joined([run.granted for run in runs]), message["qos"].to_numpy())
    columns = {
        "seq": pc.if_else(kinds, message["ref"], message["seq"]),
        "offer": message["seq"],
        "topic": pc.if_else(kinds, pa.scalar(None, pa.string()), message["topic"]),
        "protocol": pa.array([run.session[0] for run in runs], pa.string()).take(which),
        "receiver": pa.array([run.session[1] for run in runs], pa.string()).take(which),
        "qos": granted,
        "since": since,
        "attempts": np.zeros(len(made), np.int32),
        "status": pa.array([run.status for run in runs], pa.string()).take(which),
    }
    if runs and runs[0].end >= 0:
        ends = events["time"].take(pa.array([run.end for run in runs]))
        ended = np.repeat(ends.cast(pa.int64()).to_numpy(), counts)
        acknowledged = pc.equal(columns["status"], "acknowledged")
        latency = pa.array((ended - since) / 1000)
        columns["ended"] = ended
        columns["latency_ms"] = pc.if_else(acknowledged, latency, pa.scalar(None, pa.float64()))
    else:
        columns["number"] = _joined([run.places for run in runs])
    nothing = (pa.nulls(len(made), field.type) for field in schema)
    found = (
        _as(columns[field.name], field.type) if field.name in columns else none
        for field, none in zip(schema, nothing, strict=True)
    )
    return pa.table(list(found), schema=schema)


def _as(column: Any, wanted: pa.DataType) -> pa.Array:
    known = pa.array(column) if isinstance(column, np.ndarray) else column
    return known.cast(wanted)


def _joined(parts: list[Sequence[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), np.int64, sum(map(len, parts)))
