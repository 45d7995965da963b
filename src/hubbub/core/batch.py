"""What the fold is given: some rows in their order, or by column where all are of one sort.

A start reads a million retained messages and the sessions of as many clients as there are. Of a
row for each most was thrown away, and to make it took as long as to fold it. The journal makes
these (`journal.batch`), state folds them. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from hubbub import schema
from hubbub.schema import Row


class Retentions(NamedTuple):
    """Messages that are retained and nothing else, by column; none of them has an empty payload.

    `sizes`: bytes of their payloads. `properties`: as rows have them, of each.
    """

    names: list[str]
    seqs: list[int]
    sizes: list[int]
    expires: list[int]
    properties: Sequence[bytes]


class Visits(NamedTuple):
    """Rows that say that clients of one protocol came, went and subscribed, by column. Those of one
    client lie beside each other, as a rule.
    """

    protocol: str
    kinds: Sequence[bytes]
    clients: Sequence[bytes]
    topics: Sequence[bytes]
    qos: Sequence[int]
    numbers: Sequence[int]
    expires: Sequence[int]
    properties: Sequence[bytes]
    times: Sequence[int]


LEFT: Final = b'{"left":%d}'  # the properties of who was away when a segment was folded
_LEFT: Final = LEFT[: -len(b"%d}")]


def left_at(said: bytes, time: int) -> int:
    """When it lost its connection, by the properties and the time of that row. Not later than that:
    the time may have been righted.
    """
    is_said = said.startswith(_LEFT) and said.endswith(b"}")  # else nothing is between the two
    digits = said[len(_LEFT) : -1] if is_said else b""
    left = int(digits) if digits.isdigit() and len(digits) < 20 else time
    return min(left, time) if time else left


VISITS: Final = frozenset((schema.CONNECT, schema.SUBSCRIBE, schema.DISCONNECT))


class Batch(Protocol):
    """Some rows, in their order: as such, or if each retains a message and no more, or is one of a
    visit (VISITS), by column.
    """

    def rows(self) -> list[Row]: ...
    def retained(self) -> Retentions | None: ...
    def visits(self) -> Visits | None: ...
