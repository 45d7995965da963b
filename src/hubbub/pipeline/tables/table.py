"""What a table declares: its grain, its columns, and how rows of the journal become its rows.

There are two sorts. A `Table` makes rows out of one batch alone. A `Spanning` table has rows
that need several batches: such a row is open until the journal has said all about it, then it
closes once and for all.

    rows of the journal ─┐
                         ├─▶ rows(batch, carried, until) ─▶ open = false: appended to the table
    open rows of the     │                                  open = true:  carried to the next batch
    batch before ────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame


class Column(NamedTuple):
    """A column: its name, its type in SQL, what it says, and the unit of its numbers."""

    name: str
    type: str
    meaning: str
    unit: str = ""


class Table(NamedTuple):
    """A table whose rows each come from one batch. `by` = columns that become directories."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    rows: Callable[[DataFrame], DataFrame]
    by: tuple[str, ...] = ()


class Spanning(NamedTuple):
    """A table whose rows span batches. `rows(batch, carried, until)` also says which are open.

    `carried` are the open rows of the batch before, `until` is the time of the last row of this
    one. The result has the columns and the boolean `open`; rows of the journal that the function
    needs again later must be told by the columns of its open rows.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    rows: Callable[[DataFrame, DataFrame, Expression], DataFrame]


def ddl(columns: tuple[Column, ...]) -> str:
    """The columns as Spark's schema text."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)
