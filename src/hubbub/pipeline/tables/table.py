"""What a table declares: its grain, its columns, and how rows of the journal become its rows.

There are three sorts. A `Table` makes rows out of one batch alone. A `Spanning` table has rows
that need several batches: such a row is open until the journal has said all about it, then it
closes once and for all. A `Derived` one is made of what a batch added to the others.

    rows of the journal ─┐
                         ├─▶ rows(batch, carried, moment) ─▶ open = false: appended to the table
    open rows of the     │                                   open = true:  carried to the next batch
    batch before ────────┘

The rows of a batch have the journal's columns and `event_time`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame

from hubbub.pipeline.rules import Rules


class Column(NamedTuple):
    """A column: its name, its type in SQL, what it says, and the unit of its numbers."""

    name: str
    type: str
    meaning: str
    unit: str = ""


class Moment(NamedTuple):
    """Where a batch ends, and the rules it is read by.

    `until` is the time of its last row; `segment` the seq at which the journal's segment of that
    row begins.
    """

    until: Expression
    rules: Rules
    segment: int = 0


class Table(NamedTuple):
    """A table whose rows each come from one batch.

    `event(rules)` tells in SQL which rows of the journal concern it: a batch without any is not
    written. `by` = columns that become directories.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    rows: Callable[[DataFrame, Rules], DataFrame]
    by: tuple[str, ...] = ()


class Spanning(NamedTuple):
    """A table whose rows span batches. `rows(batch, carried, moment)` also says which are open.

    `carried` are the open rows of the batch before. The result has the columns, those of
    `memory`, and the boolean `open`. `memory` are columns that only carried rows have: what the
    function needs to know again later. A carried row whose first column is null is memory and
    nothing else. `clocked`: rows close because time goes by, without any event.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    rows: Callable[[DataFrame, DataFrame, Moment], DataFrame]
    memory: tuple[Column, ...] = ()
    clocked: bool = False


class Derived(NamedTuple):
    """A table that is made of the others, by its own module."""

    name: str
    grain: str
    columns: tuple[Column, ...]


def ddl(columns: tuple[Column, ...]) -> str:
    """The columns as Spark's schema text."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]
