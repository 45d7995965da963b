"""Rows that gather for their frames, by column.

A frame holds columns, so what is to be written is kept as columns from the start: nobody makes a
row of each message and takes it apart again. Of many that was most of what recording them cost. A
row is made of one if it is read back while it is here.

    seq      payload   topic   …   subtopic, reply_to … (seldom)
    first    b"21.5"   b"t/1"      as long as the last row that has one
    first+1  b"20.9"   b"t/2"

The writer owns these; no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.core.message import Run, of_node
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.journal.frame import check
from hubbub.schema import PUBLISH, Row, column_of

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
        "first", "weight", "cuts", "_begun", "_lighter", "_times", "_kinds", "_protocols",
        "_clients", "_topics", "_qos", "_payloads", "_refs", "_seldom",
    )  # fmt: skip

    def __init__(self) -> None:
        self.first = 0
        self.weight = 0
        self.cuts: list[tuple[int, int]] = []
        self._begun = 0  # the row that the last frame begins with
        self._lighter = 0  # the weight before it
        self._times: list[int] = []
        self._kinds: list[bytes] = []
        self._protocols: list[bytes] = []
        self._clients: list[bytes] = []
        self._topics: list[bytes] = []
        self._qos: list[int] = []
        self._payloads: list[bytes] = []
        self._refs: list[int] = []
        self._seldom: dict[int, list[Any]] = {}

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

    def add(self, run: Run, audience: int, payloads: Sequence[bytes]) -> None:
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
        if count == 1:
            self._one(run.time, PUBLISH, protocol, client, topic, run.qos, payloads[0], audience)
            return
        self._times += [run.time] * count
        self._kinds += [PUBLISH] * count
        self._protocols += [protocol] * count
        self._clients += [client] * count
        self._topics += [topic] * count
        self._qos += [run.qos] * count
        self._payloads += payloads
        self._refs += [audience] * count

    def _one(
        self, time: int, kind: bytes, protocol: bytes, client: bytes, topic: bytes, qos: int,
        payload: bytes, ref: int,
    ) -> None:  # fmt: skip
        self._times.append(time)
        self._kinds.append(kind)
        self._protocols.append(protocol)
        self._clients.append(client)
        self._topics.append(topic)
        self._qos.append(qos)
        self._payloads.append(payload)
        self._refs.append(ref)

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

    def columns(self, begin: int = 0, end: int = -1) -> list[Sequence[Any]]:
        """All rows, by column, or those of these places."""
        if end < 0:
            end = len(self)
        count, none, zero = end - begin, [b""] * (end - begin), [0] * (end - begin)
        false = [False] * count
        columns: list[Sequence[Any]] = [
            range(self.first + begin, self.first + end), self._times, self._kinds,
            self._protocols, self._clients, self._topics, none, self._qos, false, self._payloads,
            none, none, none, self._refs, zero, zero, none,
        ]  # fmt: skip
        if count < len(self):
            columns = [one if len(one) == count else one[begin:end] for one in columns]
        for number, said in self._seldom.items():
            part = said[begin:end]
            columns[number] = part + [_NOTHING[number]] * (count - len(part))
        return columns

    def row(self, seq: int) -> Row | None:
        """The row of that number, if it is one of these."""
        at = seq - self.first
        if not 0 <= at < len(self._payloads):
            return None
        values: list[Any] = [
            seq, self._times[at], self._kinds[at], self._protocols[at], self._clients[at],
            self._topics[at], b"", self._qos[at], False, self._payloads[at], b"", b"", b"",
            self._refs[at], 0, 0, b"",
        ]  # fmt: skip
        for number, said in self._seldom.items():
            if at < len(said):
                values[number] = said[at]
        return Row._make(values)

    def split(self, at: int) -> Gathered:
        """Take the rows before that place out of these, which `cuts` has."""
        taken = Gathered()
        taken.first = self.first
        taken.weight = next(weight for index, weight in self.cuts if index == at)
        taken.cuts = [cut for cut in self.cuts if cut[0] < at]
        taken._begun, taken._lighter = at, taken.weight
        taken._times, self._times = self._times[:at], self._times[at:]
        taken._kinds, self._kinds = self._kinds[:at], self._kinds[at:]
        taken._protocols, self._protocols = self._protocols[:at], self._protocols[at:]
        taken._clients, self._clients = self._clients[:at], self._clients[at:]
        taken._topics, self._topics = self._topics[:at], self._topics[at:]
        taken._qos, self._qos = self._qos[:at], self._qos[at:]
        taken._payloads, self._payloads = self._payloads[:at], self._payloads[at:]
        taken._refs, self._refs = self._refs[:at], self._refs[at:]
        taken._seldom = {number: said[:at] for number, said in self._seldom.items()}
        self._seldom = {
            number: said[at:] for number, said in self._seldom.items() if len(said) > at
        }
        self.first += at
        self.weight -= taken.weight
        self.cuts = [(index - at, weight - taken.weight)
                     for index, weight in self.cuts if index > at]  # fmt: skip
        self._begun -= at
        self._lighter -= taken.weight
        return taken
