"""The journal's one table: its columns and its kinds of rows, declared once.

The hub writes these rows, `core.state` folds them, Spark and the command line read them.
There are no nulls: 0, "" and False mean "none". This module imports nothing of ours.

A `Row` holds every text column as the bytes that lie in the journal (UTF-8). Names a client
chose may be any bytes: bytes that are not UTF-8, and a `%` before two hex digits, are written
%XX, so `name_of(column_of(name)) == name` for every name. In Python such a name is a `str` in
which undecodable bytes are surrogates (PEP 383).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

FORMAT_VERSION: Final = 1


class Column(NamedTuple):
    """A column: its name, its Arrow type in Arrow's own words, and what it says."""

    name: str
    type: str
    meaning: str


COLUMNS: Final[tuple[Column, ...]] = (
    Column("seq", "int64", "number of the row: log << 48 | n, n counts from 1 without gaps"),
    Column("time", "timestamp[us, UTC]", "when the hub took it in; never goes back"),
    Column("kind", "string", "what the row says, see KINDS"),
    Column("protocol", "string", "protocol of the client; 'queue' for a queue, '' for the hub"),
    Column("client", "string", "who: client id, SMQ uid, message-switch token, or $queue/Q"),
    Column("topic", "string", "topic, filter or queue name ($queue/Q)"),
    Column("subtopic", "string", "SMQ sub-topic name"),
    Column("qos", "int8", "0, 1 or 2"),
    Column("retain", "bool", "the message replaces the retained one of its topic"),
    Column("payload", "binary", "the bytes of the message"),
    Column("content_type", "string", "MIME type, if the publisher named one"),
    Column("reply_to", "string", "where an answer goes: a topic, $client/<id> or $queue/Q"),
    Column("correlation", "binary", "what the asker wants to see again in the answer"),
    Column("ref", "int64", "the row this one is about (its seq)"),
    Column("number", "int64", "a durable number: topic id, queue message id, packet id, count"),
    Column("expires", "timestamp[us, UTC]", "when it ends by itself"),
    Column("properties", "string", "a JSON object with everything else"),
)


class Same:
    """The values of a column that says the same in each of its rows. Nobody counts them to know."""

    __slots__ = ("value", "rows")

    def __init__(self, value: Any, rows: int) -> None:
        self.value = value
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.value, self.rows)


class Stretches:
    """The values of a column in which rows say what the row before them said: each once, and how
    many rows it is said by. `rows`: by all together.
    """

    __slots__ = ("values", "counts", "rows")

    def __init__(self, values: list[Any], counts: list[int], rows: int) -> None:
        self.values = values
        self.counts = counts
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(map(repeat, self.values, self.counts))


Values = Sequence[Any] | Same | Stretches  # of one column


class Row(NamedTuple):
    """One row, columns in the order of COLUMNS. Times are microseconds since 1970, UTC."""

    seq: int
    time: int
    kind: bytes
    protocol: bytes = b""
    client: bytes = b""
    topic: bytes = b""
    subtopic: bytes = b""
    qos: int = 0
    retain: bool = False
    payload: bytes = b""
    content_type: bytes = b""
    reply_to: bytes = b""
    correlation: bytes = b""
    ref: int = 0
    number: int = 0
    expires: int = 0
    properties: bytes = b""


CONNECT: Final = b"connect"
DISCONNECT: Final = b"disconnect"
END: Final = b"end"
SUBSCRIBE: Final = b"subscribe"
UNSUBSCRIBE: Final = b"unsubscribe"
WILL: Final = b"will"
CREATE: Final = b"create"
DESTROY: Final = b"destroy"
FORGET: Final = b"forget"
AUDIENCE: Final = b"audience"
PUBLISH: Final = b"publish"
RELEASE: Final = b"release"
QUEUED: Final = b"queued"
SEND: Final = b"send"
DELIVER: Final = b"deliver"
RECEIVED: Final = b"received"
ACK: Final = b"ack"
DROP: Final = b"drop"
HELD: Final = b"held"
TAKEN: Final = b"taken"
REFUSED: Final = b"refused"
MANAGED: Final = b"managed"
AHEAD: Final = b"ahead"
ADOPT: Final = b"adopt"

KINDS: Final[dict[bytes, str]] = {
    CONNECT: "a client took its session; number = next delivery number of a durable one",
    DISCONNECT: "a client left; expires = when its session ends; number = deliveries tried before",
    END: "the session is over: forget its subscriptions and deliveries",
    SUBSCRIBE: "client subscribes to the filter in topic with qos; client $queue/Q = a binding",
    UNSUBSCRIBE: "the reverse of subscribe",
    WILL: "the client's will, in the message columns; expires = due then; no topic = taken back",
    CREATE: "a (sub-)topic gets its id (number); a queue begins or changes (number = next id)",
    DESTROY: "a queue ends with all it holds",
    FORGET: "a (sub-)topic loses its id (number), which is nobody's then",
    AUDIENCE: "the durable sessions of a route: payload = [[protocol, client, qos], ...] (JSON)",
    PUBLISH: "a message; ref = its audience; number = packet id of a durable QoS 2 publisher",
    RELEASE: "that packet id (number) of that publisher is free again",
    QUEUED: "one more delivery: ref = message; number = its bytes, for a queue its id there",
    SEND: "message `number` enters queue `topic`; ref = the request it answers",
    DELIVER: "queue message ref (number = its id there) is handed to client until expires",
    RECEIVED: "a QoS 2 receiver has the message ref; number = how many deliveries from there",
    ACK: "client is done with message ref; number = how many deliveries from there",
    DROP: "lost: ref = message, number = how many, its id for a queue; no client = a retained one",
    HELD: "snapshot only: an open QoS 2 packet id (number) of a durable publisher",
    TAKEN: "cluster only: one thing of it (client), and how far that is (number)",
    REFUSED: "who did not get in, or may not do that with topic; no client: number = how many more",
    MANAGED: "a client did that to topic, which is not its own alone",
    AHEAD: "ids of so many rows (number) may be told before they are durable; 0 = all is durable",
    ADOPT: "cluster: a dead node's (content_type) row of the kind subtopic; none: 1 = all is here",
}


def row_without_message(
    kind: bytes, protocol: bytes, client: bytes, topic: bytes = b"", ref: int = 0, number: int = 0,
    expires: int = 0, properties: bytes = b"", qos: int = 0,
) -> Row:  # fmt: skip
    """What somebody did; the log gives it seq and time. Row(…) takes several times as long."""
    values = (
        0, 0, kind, protocol, client, topic, b"", qos, False, b"", b"", b"", b"", ref, number,
        expires, properties,
    )  # fmt: skip
    return tuple.__new__(Row, values)


def numbered(row: Row, seq: int) -> Row:
    """The row as the log numbered it. `_replace` takes ten times as long."""
    return tuple.__new__(Row, (seq, *row[1:]))


def timed(row: Row, time: int) -> Row:
    """The row with the time at which the fold hears of it; the log fills in its own."""
    return tuple.__new__(Row, (row.seq, time, *row[2:]))


def counted(row: Row, number: int) -> Row:
    """The row with that durable number."""
    return tuple.__new__(Row, (*row[:_NUMBER], number, *row[_NUMBER + 1 :]))


def changes_state(row: Row) -> bool:
    """Whether folding the row has an effect; a start-up skips frames where no row has."""
    if row.kind == PUBLISH:
        return row.ref != 0 or row.retain or row.number != 0 or row.topic.startswith(b"$delayed/")
    if row.kind == DELIVER:
        return row.properties != b""
    return row.kind not in _TOLD


def any_changes_state(columns: Sequence[Values]) -> bool:
    """Whether any row of these columns does; what most traffic is made of is seen fast."""
    kinds = columns[_KIND]
    if _all_are(PUBLISH, kinds):
        if any_in(columns[_REF]) or any_in(columns[_RETAIN]) or any_in(columns[_NUMBER]):
            return True
        topics = b"\0" + b"\0".join(columns[_TOPIC])
        return topics.find(b"\0$delayed/") >= 0  # `in` raises an error first, and forgets it
    if not _OFTEN_NONE.issuperset(kinds):
        return True
    return any(map(changes_state, map(Row._make, zip(*columns, strict=True))))


def _all_are(value: bytes, column: Values) -> bool:
    if isinstance(column, Same):
        return bool(column.value == value)
    said = column.values if isinstance(column, Stretches) else column
    return said.count(value) == len(said)


def any_in(column: Values) -> bool:
    """Whether any row has something there."""
    if isinstance(column, Same):
        return bool(column.value)
    return any(column.values if isinstance(column, Stretches) else column)


_TOLD: Final = frozenset((REFUSED, MANAGED))  # for people only
_OFTEN_NONE: Final = _TOLD | {PUBLISH, DELIVER}
_KIND, _TOPIC, _RETAIN, _REF, _NUMBER = map(
    Row._fields.index, ("kind", "topic", "retain", "ref", "number")
)


# Protocols are few, and each client's rows and names would have one of its own.
_COLUMN_OF_PROTOCOL: Final[dict[str, bytes]] = {}
_PROTOCOL_OF_COLUMN: Final[dict[bytes, str]] = {}
_PROTOCOLS: Final = 100  # more than these somebody made up


def protocol_column(protocol: str) -> bytes:
    found = _COLUMN_OF_PROTOCOL.get(protocol)
    return found if found is not None else _meet(protocol, protocol.encode())[1]


def protocol_of(column: bytes) -> str:
    found = _PROTOCOL_OF_COLUMN.get(column)
    return found if found is not None else _meet(column.decode(), column)[0]


def _meet(protocol: str, column: bytes) -> tuple[str, bytes]:
    """One that is new: from now on there is one object of each."""
    if len(_COLUMN_OF_PROTOCOL) >= _PROTOCOLS:
        _COLUMN_OF_PROTOCOL.clear()
        _PROTOCOL_OF_COLUMN.clear()
    _COLUMN_OF_PROTOCOL[protocol] = column
    _PROTOCOL_OF_COLUMN[column] = protocol
    return protocol, column


_AMBIGUOUS = re.compile(r"%(?=[0-9A-Fa-f]{2})|[\udc80-\udcff]")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_PERCENT: Final = ord("%")  # a number is found in bytes five times as fast as b"%"


def _escape(match: re.Match[str]) -> str:
    return "%%%02X" % (ord(match[0]) & 0xFF)


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes((int(match[1], 16),))


def column_of(name: str) -> bytes:
    """A name as it lies in the journal: always valid UTF-8."""
    if name.isascii() and "%" not in name:
        return name.encode()
    return _AMBIGUOUS.sub(_escape, name).encode()


def name_of(column: bytes) -> str:
    """The name that `column_of` wrote, its exact bytes included."""
    if _PERCENT in column:
        column = _ESCAPED.sub(_unescape, column)
    return column.decode("utf-8", "surrogateescape")


def name_from_wire(raw: bytes) -> str:
    """A name as a client wrote it, any bytes, as a `str`."""
    return raw.decode("utf-8", "surrogateescape")


def name_to_wire(name: str) -> bytes:
    """The exact bytes of a name."""
    return name.encode("utf-8", "surrogateescape")


def name_shown(name: str) -> str:
    """As JSON can say it, which has no bytes but those of UTF-8."""
    return name.encode("utf-8", "replace").decode()
