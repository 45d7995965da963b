"""Rows that gather for their frames, by column.

A frame holds columns, so what is to be written is kept as columns from the start: nobody makes a
row of each message and takes it apart again. Of many that was most of what recording them cost. A
row is made of one if it is read back while it is here.

    seq      payload   topic   time   kind, protocol, client, qos, ref   subtopic, reply_to …
    first    b"21.5"   b"t/1"  …17    publish, mqtt, lamp, 0, 0          (seldom: as long as the
    first+1  b"20.9"   b"t/2"   "       "                                 last row that has one)
    first+2  b"off"    b"t/1"  …25    publish, mqtt, door, 1, 12

What one client says after the other differs in payload and topic as a rule, and what was read
together has one time. So a time, and the other five, are written down where they are not what they
were in the row before, for a stretch of rows each.

The writer owns these; no I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import sub
from typing import Any, Final

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.core.message import Run, of_node
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.journal.frame import check
from hubbub.schema import PUBLISH, Row, Same, Stretches, Values, column_of

_NEVER: Final = -(1 << 62)
ROW_BYTES: Final = 128  # about what a row takes beside its payload

# Columns that most rows have nothing in, and what nothing is.
_SELDOM: Final = tuple(
    map(
        Row._fields.index,
        ("subtopic", "content_type", "reply_to", "correlation", "expires", "properties"),
    )
)
_PROPERTIES: Final = _SELDOM[-1]
_RETAIN: Final = Row._fields.index("retain")
_NUMBER: Final = Row._fields.index("number")
_NOTHING: Final = tuple(Row._field_defaults.get(name) for name in Row._fields)


# What many rows say is made bytes once.
_PROTOCOLS: Final[dict[str, bytes]] = {}  # of those that are spoken here


def _protocol(sender: Session) -> bytes:
    return _PROTOCOLS.setdefault(sender.protocol, sender.protocol.encode())


def _client(sender: Session) -> bytes:
    sender.column = column_of(sender.client)
    return sender.column


def _topic(route: Route) -> bytes:
    route.column = column_of(route.name)
    return route.column


class Gathered:
    """Rows without a gap from the seq `first` on (0 while there are none).

    `weight`: their bytes, about; names and properties count, they can be long. `cuts`: where a
    frame ends as no more should be in it: the index of the next row, and the weight before it.
    """

    __slots__ = (
        "first", "weight", "cuts", "_begun", "_lighter", "_topics", "_payloads", "_seldom",
        "_moments", "_times", "_time", "_begins", "_kinds", "_protocols", "_clients", "_qos",
        "_refs", "_kind", "_protocol", "_client", "_level", "_ref",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = 0
        self.weight = 0
        self.cuts: list[tuple[int, int]] = []
        self._begun = 0  # the row that the last frame begins with
        self._lighter = 0  # the weight before it
        self._topics: list[bytes] = []
        self._payloads: list[bytes] = []
        self._seldom: dict[int, list[Any]] = {}
        # Of each stretch: where it begins, and what its rows say.
        self._moments: list[int] = []
        self._times: list[int] = []
        self._begins: list[int] = []
        self._kinds: list[bytes] = []
        self._protocols: list[bytes] = []
        self._clients: list[bytes] = []
        self._qos: list[int] = []
        self._refs: list[int] = []
        # What the last one says; no row has that QoS, and none that time.
        self._time = _NEVER
        self._kind = self._protocol = self._client = b""
        self._level = -1
        self._ref = 0

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, zip(*self.columns(), strict=True))

    def append(self, row: Row, seq: int, time: int) -> None:
        """A row that comes alone gets its number. ValueError if no frame can hold it: before it is
        taken, for after such a one nothing could be written.
        """
        check(row)
        self.take(row, seq, time)

    def take(self, row: Row, seq: int, time: int) -> None:
        """The same of one that was checked."""
        (
            _, _, kind, protocol, client, topic, subtopic, qos, retain, payload, content_type,
            reply_to, correlation, ref, number, expires, properties,
        ) = row  # fmt: skip
        long = len(properties) + len(reply_to) + len(correlation)
        self._weigh(seq, 1, len(payload) + len(topic) + len(client) + long + ROW_BYTES)
        if long or subtopic or content_type or expires:
            self._say_all(row)
        if retain:
            self._say(_RETAIN, retain, 1)
        if number:
            self._say(_NUMBER, number, 1)
        self._one(time, kind, protocol, client, topic, qos, payload, ref)

    def add(self, run: Run, audience: int, payloads: list[bytes]) -> None:
        """The messages of a run that was numbered, if these payloads and what the run says are all
        that is to be said of them (`Encoding.payloads`).
        """
        sender, route = run.sender, run.route
        protocol = _PROTOCOLS.get(sender.protocol) or _protocol(sender)
        client = sender.column or _client(sender)
        topic, count = route.column or _topic(route), len(payloads)
        weight = len(payloads[0]) + len(topic) + len(client) + ROW_BYTES
        if sender.node:
            said = of_node(b"", sender.node)
            self._say(_PROPERTIES, said, count)
            weight += len(said)
        if run.retain:
            self._say(_RETAIN, True, count)
        if run.number:
            self._say(_NUMBER, run.number, count)
        self._weigh(run.first, count, weight)  # all of one run are equally long
        self._one(run.time, PUBLISH, protocol, client, topic, run.qos, payloads[0], audience)
        if count > 1:
            self._topics += [topic] * (count - 1)
            self._payloads += payloads[1:]

    def _one(
        self, time: int, kind: bytes, protocol: bytes, client: bytes, topic: bytes, qos: int,
        payload: bytes, ref: int,
    ) -> None:  # fmt: skip
        """A row, in the last stretches if it says what they say."""
        if time != self._time:
            self._time = time
            self._moments.append(len(self._payloads))
            self._times.append(time)
        if (
            kind is not self._kind or client is not self._client or ref != self._ref
            or qos != self._level or protocol is not self._protocol
        ):  # fmt: skip
            self._kind, self._protocol, self._client = kind, protocol, client
            self._level, self._ref = qos, ref
            self._begins.append(len(self._payloads))
            self._kinds.append(kind)
            self._protocols.append(protocol)
            self._clients.append(client)
            self._qos.append(qos)
            self._refs.append(ref)
        self._topics.append(topic)
        self._payloads.append(payload)

    def _say_all(self, row: Row) -> None:
        for number in _SELDOM:
            value = row[number]
            if value:
                self._say(number, value, 1)

    def _say(self, number: int, value: object, count: int) -> None:
        """What the next rows have in a column in which most have nothing."""
        column = self._seldom.get(number)
        if column is None:
            column = self._seldom[number] = []
        before = len(self._payloads) - len(column)
        if before:
            column += [_NOTHING[number]] * before
        column += [value] * count

    def _weigh(self, seq: int, count: int, each: int) -> None:
        """So many rows come, from the number `seq` on, each with that weight."""
        at = len(self._payloads)
        if not at:
            self.first = seq
        rows, weight = at + count - self._begun, self.weight + count * each - self._lighter
        if rows > COMMIT_ROWS or weight > FRAME_BYTES:
            self._cut(at, count, each)
        self.weight += count * each

    def _cut(self, at: int, count: int, each: int) -> None:
        """Begin frames where the one before would be too long: of these rows, each has a place."""
        for index in range(at, at + count):
            before = self.weight + (index - at) * each
            rows, weight = index - self._begun, before + each - self._lighter
            if rows and (rows == COMMIT_ROWS or weight > FRAME_BYTES):
                self.cuts.append((index, before))
                self._begun, self._lighter = index, before

    def end_frame(self) -> None:
        """The next row begins another one."""
        self._begun, self._lighter = len(self), self.weight
        self.cuts.append((self._begun, self._lighter))

    def times(self) -> tuple[int, int]:
        """Those of the first row and of the last."""
        return self._times[0], self._times[-1]

    def columns(self, begin: int = 0, end: int = -1) -> list[Values]:
        """All rows, by column, or those of these places."""
        if end < 0:
            end = len(self)
        count = end - begin
        topics, payloads = self._topics, self._payloads
        if count < len(self):
            topics, payloads = topics[begin:end], payloads[begin:end]
        none, zero = Same(b"", count), Same(0, count)
        (times,) = _spread(self._moments, (self._times,), begin, end)
        kinds, protocols, clients, qos, refs = _spread(
            self._begins, (self._kinds, self._protocols, self._clients, self._qos, self._refs),
            begin, end,
        )  # fmt: skip
        columns: list[Values] = [
            range(self.first + begin, self.first + end), times, kinds, protocols, clients, topics,
            none, qos, Same(False, count), payloads, none, none, none, refs, zero, zero, none,
        ]  # fmt: skip
        for number, said in self._seldom.items():
            part = said[begin:end]
            columns[number] = part + [_NOTHING[number]] * (count - len(part))
        return columns

    def row(self, seq: int) -> Row | None:
        """The row of that number, if it is one of these."""
        at = seq - self.first
        return self.at(at) if 0 <= at < len(self._payloads) else None

    def at(self, at: int) -> Row:
        """The row of that place."""
        part, moment = bisect_right(self._begins, at) - 1, bisect_right(self._moments, at) - 1
        values: list[Any] = [
            self.first + at, self._times[moment], self._kinds[part], self._protocols[part],
            self._clients[part], self._topics[at], b"", self._qos[part], False, self._payloads[at],
            b"", b"", b"", self._refs[part], 0, 0, b"",
        ]  # fmt: skip
        for number, said in self._seldom.items():
            if at < len(said):
                values[number] = said[at]
        return tuple.__new__(Row, values)

    def split(self, at: int) -> Gathered:
        """Take the rows before that place out of these, which `cuts` has."""
        taken = Gathered()
        taken.first = self.first
        taken.weight = next(weight for index, weight in self.cuts if index == at)
        taken.cuts = [cut for cut in self.cuts if cut[0] < at]
        taken._begun, taken._lighter = at, taken.weight
        taken._topics, self._topics = self._topics[:at], self._topics[at:]
        taken._payloads, self._payloads = self._payloads[:at], self._payloads[at:]
        taken._seldom = {number: said[:at] for number, said in self._seldom.items()}
        self._seldom = {
            number: said[at:] for number, said in self._seldom.items() if len(said) > at
        }
        self._split_stretches(taken, at)
        self.first += at
        self.weight -= taken.weight
        self.cuts = [(index - at, weight - taken.weight)
                     for index, weight in self.cuts if index > at]  # fmt: skip
        self._begun -= at
        self._lighter -= taken.weight
        return taken

    def _split_stretches(self, taken: Gathered, at: int) -> None:
        """One that begins before `at` and goes on behind it is in both."""
        end, both = _parted(self._moments, at)
        taken._times, self._times = self._times[:end], self._times[both:]
        taken._moments, self._moments = self._moments[:end], _behind(self._moments[both:], at)
        end, both = _parted(self._begins, at)
        taken._kinds, self._kinds = self._kinds[:end], self._kinds[both:]
        taken._protocols, self._protocols = self._protocols[:end], self._protocols[both:]
        taken._clients, self._clients = self._clients[:end], self._clients[both:]
        taken._qos, self._qos = self._qos[:end], self._qos[both:]
        taken._refs, self._refs = self._refs[:end], self._refs[both:]
        taken._begins, self._begins = self._begins[:end], _behind(self._begins[both:], at)


def _parted(begins: list[int], at: int) -> tuple[int, int]:
    """How many stretches begin before that row, and how many end before it."""
    return bisect_left(begins, at), bisect_right(begins, at) - 1


def _behind(begins: list[int], at: int) -> list[int]:
    return [max(0, begin - at) for begin in begins]


def _spread(
    begins: list[int], said: Sequence[list[Any]], begin: int, end: int
) -> list[Values]:  # fmt: skip
    """What the rows of these places say by stretches that begin there, by column."""
    first, last = bisect_right(begins, begin) - 1, bisect_left(begins, end)
    count, parts = end - begin, last - first
    if parts == 1:
        return [Same(values[first], count) for values in said]
    if parts == count:
        return [values[first:last] for values in said]
    ends = [*begins[first + 1 : last], end]
    counts = list(map(sub, ends, [begin, *ends]))
    return [_stretched(values[first:last], counts, count) for values in said]


def _stretched(values: list[Any], counts: list[int], count: int) -> Values:
    if values.count(values[0]) == len(values):
        return Same(values[0], count)
    return Stretches(values, counts, count)
