"""The rows of one frame as a start folds them: one by one, or all at once where that is possible.

    a snapshot's messages   publish  publish  publish …    retained, and nothing else
                            └── names, numbers, sizes ─→   `State.retain_all`
    its sessions            connect  subscribe  disconnect …
                            └── clients, topics, qos ──→   `State` too: by column, as they come
    anything else           connect  subscribe  ack …  ─→  `State.apply`, row by row

A million retained messages are most of what a start reads, and all that state keeps of one is a
name, a number and how long it is: of a row for each, with a payload, nine tenths were thrown away.
Made by the journal (`writer`), given to the fold. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.batch import VISITS, Retentions, Visits
from hubbub.core.queue import PROTOCOL as QUEUE_PROTOCOL
from hubbub.core.state import SHARED
from hubbub.journal.frame import Columns, rows_of
from hubbub.journal.righting import Righting
from hubbub.schema import PUBLISH, Row, name_of, protocol_of

SEQ, TIME, KIND, PROTOCOL, CLIENT, TOPIC, QOS, RETAIN, PAYLOAD, REF, NUMBER, EXPIRES, PROPERTIES = (
    map(
        Row._fields.index,
        (
            "seq", "time", "kind", "protocol", "client", "topic", "qos", "retain", "payload", "ref",
            "number", "expires", "properties",
        ),
    )
)  # fmt: skip

_OTHERS: Final = (QUEUE_PROTOCOL.encode(), SHARED.encode())  # whose clients are no clients
_SPECIAL: Final = (b"$", b"%")  # in a name: it may mean something, or is not as it is written


class Batch:
    """Those of a whole frame behind the row `after`, taken as `righting` has them."""

    __slots__ = ("_columns", "_righting", "_after")

    def __init__(self, columns: Columns, righting: Righting, after: int) -> None:
        self._columns = columns
        self._righting = righting
        self._after = after

    def rows(self) -> list[Row]:
        rows = self._righting.rows(rows_of(self._columns))
        if rows[0].seq > self._after:
            return rows
        return [row for row in rows if row.seq > self._after]

    def retained(self) -> Retentions | None:
        """Them by column, if each retains a message and does nothing else; None if any may."""
        columns = self._columns
        count = columns.count
        if not (
            columns.is_all(KIND, PUBLISH)
            and columns.is_zero(REF)
            and columns.is_zero(NUMBER)
            and int.from_bytes(columns.raw(RETAIN), "little") == (1 << count) - 1
        ):
            return None
        seqs = columns.numbers(SEQ)
        topics = columns.joined(TOPIC)
        if seqs[0] <= self._after or any(one in topics for one in _SPECIAL):
            return None
        if self._righting.concerns(columns.numbers(TIME)):
            return None
        sizes = columns.sizes(PAYLOAD)
        if not all(sizes):
            return None
        expires = [0] * count if columns.is_zero(EXPIRES) else columns.numbers(EXPIRES)
        names = _decoded(topics, columns.ends(TOPIC, len(topics)))
        return Retentions(names, seqs, sizes, expires, columns.values(PROPERTIES))


    def visits(self) -> Visits | None:
        """Them by column, if each is one of a client's visit, of one protocol; None if not."""
        columns, values = self._columns, self._columns.values
        kinds = values(KIND)
        if not VISITS.issuperset(kinds):
            return None
        protocols = values(PROTOCOL)
        if protocols[0] in _OTHERS or protocols.count(protocols[0]) != columns.count:
            return None
        if columns.numbers(SEQ)[0] <= self._after or self._righting.concerns(values(TIME)):
            return None
        return Visits(
            protocol_of(protocols[0]), kinds, values(CLIENT), values(TOPIC), values(QOS),
            values(NUMBER), values(EXPIRES), values(PROPERTIES), values(TIME),
        )  # fmt: skip


def _decoded(joined: bytes, ends: list[int]) -> list[str]:
    """Names that lie one behind the other. Cut when they are text, where that is the same."""
    if joined.isascii():
        text = joined.decode()
        return [text[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]
    return [name_of(joined[begin:end]) for begin, end in zip(ends, ends[1:], strict=False)]
