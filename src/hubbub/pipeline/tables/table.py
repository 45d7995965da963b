"""What a table declares: its grain, its columns, and how rows of the journal become its rows.

There are three sorts. A `Table` makes rows out of one batch alone. A `Spanning` table has rows
that need several batches: such a row is open until the journal has said all about it, then it
closes once and for all. A `Derived` one is made of what a batch added to the others.

    rows of the journal ─┐
                         ├─▶ rows(batch, carried, moment) ─▶ open = false: appended to the table
    open rows of the     │                                   open = true:  carried to the next batch
    batch before ────────┘

What is made of messages alone (`of_messages`) gets the rows that the batch added to the table
`messages`; the others get the rows of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, functions

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
    written. `by` = columns that become directories. `of_messages`: its rows come of messages.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    rows: Callable[[DataFrame, Rules], DataFrame]
    by: tuple[str, ...] = ()
    of_messages: bool = True


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
    of_messages: bool = False
    by: tuple[str, ...] = ()


class Derived(NamedTuple):
    """A table that is made of the others, by its own module."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    by: tuple[str, ...] = ()


AnyTable = Table | Spanning | Derived

_ROWS: Final = 10_000  # in one Arrow batch
_ARROW: Final = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}


def arrow(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([(column.name, _ARROW[column.type]) for column in columns])


def with_carried(events: DataFrame, carried: DataFrame, *order: str) -> DataFrame:
    """The events of a batch and the open rows of the one before, of kind `carried`, in order.

    They are one partition, as a fold needs them. What only one side has is null on the other.
    """
    here = carried.withColumn("kind", functions.lit("carried"))
    both = events.unionByName(here, allowMissingColumns=True)
    return both.coalesce(1).sortWithinPartitions(*order)


def built(rows: list[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """What a fold found, as Spark takes it."""
    for at in range(0, len(rows), _ROWS):
        yield pa.RecordBatch.from_pylist(rows[at : at + _ROWS], schema=schema)


def clock(table: AnyTable) -> str:
    """The column by which a row of the table is old: the first that is a time."""
    return next(column.name for column in table.columns if column.type == "timestamp")


def ddl(columns: tuple[Column, ...]) -> str:
    """The columns as Spark's schema text."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]
