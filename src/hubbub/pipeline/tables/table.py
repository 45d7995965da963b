"""What a table declares: its grain, its columns, and how rows of the journal become its rows.

There are five sorts. A `Table` makes rows out of one batch alone. `Spanning`, `Summed` and `Folded`
tables have rows that need several batches: such a row is open until the journal has said all about
it, then it closes once and for all. Spark sums the rows of a `Spanning` one; of a `Summed` one each
task sums its share; those of a `Folded` one must be taken one after the other, which Python does
with the few that concern it. A `Derived` one is made of what a batch added to the others.

    rows of the journal ─┐
                         ├─▶ rows or fold ─▶ closed: appended to the table
    open rows of the     │                   open:   carried to the next batch
    batch before ────────┘

What is made of messages alone (`of_messages`) gets the rows that the batch added to the table
`messages`; the others get the rows of the journal.

A table that has `made` says in Arrow what becomes of some rows: then `pipeline.task` makes it, with
all others of that sort, while it reads the journal. Else Spark makes it, of a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.accumulators import Accumulator
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hubbub.pipeline.rules import Rules


class Column(NamedTuple):
    """A column: its name, its type in SQL, what it says, and the unit of its numbers."""

    name: str
    type: str
    meaning: str
    unit: str = ""


class Moment(NamedTuple):
    """Where a batch ends, by the time of its last row, and the rules it is read by.

    `failed` counts the messages that a table cannot take.
    """

    until: Expression
    rules: Rules
    failed: Accumulator[int] | None = None


Make = Callable[[pa.RecordBatch], Iterator[pa.RecordBatch]]  # rows of one into rows of a table


class Table(NamedTuple):
    """A table whose rows each come from one batch.

    `event(rules)` tells in SQL which rows of the journal concern it: a batch without any is not
    written. `by` = columns that become directories. `of_messages`: its rows come of messages.
    `rows(batch, rules)`; one that `counts` messages it cannot take is also given an accumulator.
    `made(rules)` gives what says the same of some rows in Arrow; None where only Spark can.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    rows: Callable[..., DataFrame]
    by: tuple[str, ...] = ()
    of_messages: bool = True
    counts: bool = False
    made: Callable[[Rules], Make] | None = None


class Spanning(NamedTuple):
    """A table whose rows span batches. `rows(batch, carried, moment)` also says which are open.

    `carried` are the open rows of the batch before. The result has the columns, those of
    `memory` and the boolean `open`. `clocked`: rows close because time goes by, without any event.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    rows: Callable[[DataFrame, DataFrame, Moment], DataFrame]
    clocked: bool = False
    of_messages: bool = False
    by: tuple[str, ...] = ()
    memory: tuple[Column, ...] = ()


class Summed(NamedTuple):
    """A table of sums over messages, which batches add to until time closes a row.

    `part(rules)` gives what sums some messages; `summed(parts, until, rules)` adds such parts up,
    of the batch and of what was open before, and says which rows are open at that time. A row is
    known by its `keys`, all its other columns are sums.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    part: Callable[[Rules], Make]
    summed: Callable[[pa.Table, datetime, Rules], pa.Table]
    keys: tuple[str, ...]
    by: tuple[str, ...] = ()
    memory: tuple[Column, ...] = ()
    of_messages: bool = True

    def sums(self, messages: DataFrame, rules: Rules) -> DataFrame:
        """Such parts where Spark reads the messages, each row once."""
        parts = messages.mapInArrow(
            partial(each, made=self.part, rules=rules), ddl(self.columns)
        )
        added = (one.name for one in self.columns if one.name not in self.keys)
        return parts.groupBy(*self.keys).agg(*(F.sum(name).alias(name) for name in added))

    def fold(self, parts: pa.Table, held: Held, until: datetime, rules: Rules) -> Folding:
        """What is open is few rows: all of it is taken and made anew."""
        before = [held.rows(name) for name in held.names()]
        return split(self.summed(pa.concat_tables([parts, *before]), until, rules), held)


class Held(Protocol):
    """The open rows of the batch before, in pieces that have a name. They have no order."""

    def names(self) -> list[str]: ...
    def rows(self, name: str, columns: tuple[str, ...] = ()) -> pa.Table:
        """A piece, or some columns of it."""

    def count(self, name: str) -> int: ...
    def lowest(self, name: str) -> int | None:
        """The least value of the first column; None if it may be null somewhere."""

    def may_hold(self, name: str, wanted: pa.Array) -> bool:
        """Whether the first column may have one of these values, which ascend."""


class Folding(NamedTuple):
    """What a fold made of a batch: rows that closed, rows that are open and new or changed.

    `left`: of pieces that it took rows from, which of their rows stay as they are; pieces that are
    not named stay whole. `memory`: what is carried beside the open rows, its first column null.
    """

    closed: pa.Table
    opened: pa.Table
    left: dict[str, pa.Array]
    memory: pa.Table | None = None


class Folded(NamedTuple):
    """A table whose rows span batches and are folded: `fold(events, held, segment)`.

    `events` takes from rows of the journal those that concern it, in their order and with the
    columns that the fold needs; `event` says in SQL which these are, and so whether a batch has
    any. `segment` is where the journal's segment of the last one begins. `memory` are columns that
    only carried rows have: what the function needs to know again later.
    """

    name: str
    grain: str
    columns: tuple[Column, ...]
    event: Callable[[Rules], str]
    events: Callable[[pa.RecordBatch], pa.RecordBatch]
    fold: Callable[[pa.Table, Held, int], Folding]
    memory: tuple[Column, ...] = ()
    by: tuple[str, ...] = ()
    of_messages: bool = False


class Derived(NamedTuple):
    """A table that is made of the others, by its own module."""

    name: str
    grain: str
    columns: tuple[Column, ...]
    by: tuple[str, ...] = ()


Made = Table | Spanning | Summed | Folded  # of rows of the journal
AnyTable = Made | Derived
Carried = Spanning | Summed | Folded  # tables with open rows
CARRIED: Final = (Spanning, Summed, Folded)

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
    "decimal(38,12)": pa.decimal128(38, 12),
}


def arrow(columns: tuple[Column, ...]) -> pa.Schema:
    """The columns as Arrow has them."""
    return pa.schema([(column.name, _ARROW[column.type]) for column in columns])


def opened(columns: tuple[Column, ...]) -> pa.Schema:
    """The same, and whether a row is open: what a fold gives that `whole` takes."""
    return arrow(columns).append(pa.field("open", pa.bool_()))


def whole(
    folded: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    columns: tuple[Column, ...],
) -> Callable[[pa.Table, Held, int], Folding]:
    """A fold that gets all open rows, of kind `carried`, before the events.

    `folded` gives rows with the columns and `open`. For tables that never have very many.
    """
    schema = opened(columns)

    def fold(events: pa.Table, held: Held, segment: int) -> Folding:
        carried = [held.rows(name) for name in held.names()]
        kind = pa.field("kind", pa.string())
        marked = [one.append_column(kind, pa.repeat("carried", len(one))) for one in carried]
        given = chain.from_iterable(one.to_batches() for one in (*marked, events))
        return split(pa.Table.from_batches(folded(given), schema), held)

    return fold


def split(found: pa.Table, held: Held) -> Folding:
    """Rows that say whether they are `open`, made of all that was held."""
    closed = found.filter(pc.invert(found["open"])).drop_columns("open")
    rest = found.filter(found["open"]).drop_columns("open")
    left = {name: pa.repeat(False, held.count(name)) for name in held.names()}
    return Folding(closed, rest, left)


def each(
    batches: Iterable[pa.RecordBatch],
    made: Callable[[Rules], Make],
    rules: Rules,
) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` takes, of what is said of one batch."""
    make = made(rules)
    for batch in batches:
        yield from make(batch)


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
