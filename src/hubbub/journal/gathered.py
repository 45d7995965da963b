"""Rows that gather for their frame.

The messages of a run differ in `seq` and `payload` only. A frame holds columns, so a run goes
straight into them: nobody makes a row of each message, unless one is read back while it is here.
The writer owns these; no I/O.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any, Final

from hubbub.journal.frame import check
from hubbub.schema import Row

_SEQ: Final = Row._fields.index("seq")
_PAYLOAD: Final = Row._fields.index("payload")
ROW_BYTES: Final = 128  # about what a row takes beside its payload


def weight_of(row: Row) -> int:
    """About how many bytes a row takes; names and properties count, they can be long."""
    return (
        len(row.payload) + len(row.topic) + len(row.client) + len(row.properties)
        + len(row.reply_to) + len(row.correlation) + ROW_BYTES
    )  # fmt: skip


class Gathered:
    """Rows without a gap from the seq `first` on (0 while there are none). `weight`: their bytes,
    about.
    """

    __slots__ = ("first", "weight", "_rows", "_payloads")

    def __init__(self) -> None:
        self.first = 0
        self.weight = 0
        self._rows: list[Row] = []  # the first of each run; one that came alone is a run
        self._payloads: list[bytes] = []  # of all rows

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, zip(*self.columns(), strict=True))

    def append(self, row: Row, seq: int, time: int) -> None:
        """A row that comes alone gets its number. ValueError if no frame can hold it: before it is
        taken, for after such a one nothing could be written.
        """
        row = tuple.__new__(Row, (seq, time) + row[2:])  # Row._make is a function of Python
        check(row)
        self.add(row, (row.payload,))

    def add(self, row: Row, payloads: Sequence[bytes]) -> None:
        """As many rows as payloads: `row`, and others like it in all else but their seq."""
        if not self._rows:
            self.first = row.seq
        self._rows.append(row)
        self._payloads += payloads
        self.weight += weight_of(row) * len(payloads)  # all of one run are equally long

    def times(self) -> tuple[int, int]:
        """Those of the first row and of the last."""
        return self._rows[0].time, self._rows[-1].time

    def columns(self) -> list[Sequence[Any]]:
        """All rows, by column."""
        columns: list[Sequence[Any]] = list(zip(*self._rows, strict=True))
        seqs = range(self.first, self.first + len(self))
        if len(seqs) == len(self._rows):
            return columns
        begins = columns[_SEQ]
        counts = [end - seq for seq, end in zip(begins, (*begins[1:], seqs.stop), strict=True)]
        columns = [_repeated(column, counts, len(seqs)) for column in columns]
        columns[_SEQ], columns[_PAYLOAD] = seqs, self._payloads
        return columns

    def row(self, seq: int) -> Row | None:
        """The row of that number, if it is one of these."""
        at = seq - self.first
        if not 0 <= at < len(self._payloads):
            return None
        first = self._rows[bisect_left(self._rows, (seq + 1,)) - 1]
        return first if first.seq == seq else first._replace(seq=seq, payload=self._payloads[at])


def _repeated(values: Sequence[Any], counts: list[int], total: int) -> list[Any]:
    """Each value so many times."""
    if values[0] == values[-1] and values.count(values[0]) == len(values):
        return [values[0]] * total
    return list(chain.from_iterable(map(repeat, values, counts)))
