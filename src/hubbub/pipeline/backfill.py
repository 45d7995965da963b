"""A table computed anew from `messages`, and put in the place of the old one at once.

Called by `hubbub pipeline backfill` after the rules changed, or for a table that was added later:
`messages` reaches further back than the journal. Possible for what is made of messages alone; the
others need rows of the journal that `messages` does not have.

    _tmp/backfill/<table>/closed/…   ──`handover`──▶   <table>/…

What `messages` does not hold any more (retention, rows that went to quarantine alone) cannot be
computed: rows that were made of it stay as they are. Only who says `discard` loses them. A typed
table may get another form (`tables.typed`): then they cannot stay, and it is refused without that.

    readings, quarantine   rows whose message is not there
    traffic                minutes up to that of the oldest message, if any message is not there

`quarantine` says why messages are not in `readings` or a typed table; so it is judged anew with
each of these, at the same moment.

Rows get the `batch_id` of their message, those of `traffic` 0, a directory that is always there:
who listed the directories before the exchange and looks into them after it finds them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import structs
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import closing
from hubbub.pipeline.blame import said_by
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.handover import finish, hand_over
from hubbub.pipeline.layout import (
    BATCH,
    FULL,
    NO_DAY,
    NO_ROOM,
    NO_ROWS,
    Layout,
    Progress,
    merged_name,
    room,
    sync,
)
from hubbub.pipeline.left_out import made_again
from hubbub.pipeline.places import BATCH_ID, read_payloads_of, settle
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.sql import closed
from hubbub.pipeline.sql import opened as _opened
from hubbub.pipeline.tables import TABLES, messages, quarantine, readings, typed
from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Moment, Spanning, Summed, Table, arrow, clock, ddl
from hubbub.pipeline.typed import Typed

_NEVER: Final = "9999-12-31"
POSSIBLE: Final = tuple(
    table.name for table in TABLES if table.of_messages and table is not messages.TABLE
)


class Made(NamedTuple):
    """How many rows a table has now, open ones aside, and how many of them stayed as they were."""

    rows: int
    kept: int


def backfill(
    spark: SparkSession, layout: Layout, name: str, rules: Rules, discard: bool = False
) -> Made:
    """Make the table again. `discard`: without the rows whose messages are gone.

    Raises SettingError if the table cannot be made of messages, DirectoryError if a pipeline is
    at work, or none ever was, or if it cannot be written: then it stays as it was.
    """
    own = {one.name: typed.table_of(one) for one in rules.table}
    table = own.get(name) or next((one for one in TABLES if one.name == name), None)
    if name not in (*POSSIBLE, *own) or not isinstance(table, Table | Spanning | Summed):
        possible = ", ".join((*POSSIBLE, *own))
        raise SettingError(f"{name} cannot be computed from messages: expected one of {possible}")
    progress = layout.stands()
    layout.prepare((messages.TABLE.name, quarantine.TABLE.name, name), (name,))
    settle(spark)
    try:
        with room():
            finish(layout)
            declared = typed.declared(layout, rules, anew=name)
            return _make(spark, layout, table, rules, progress, discard, declared)
    except (PySparkException, Py4JError) as error:
        reason = NO_ROOM if FULL in str(error) else said_by(error)
        raise DirectoryError(f"{name} stays as it was: {reason}") from error
    finally:
        layout.release()


def _make(
    spark: SparkSession,
    layout: Layout,
    table: Table | Spanning | Summed,
    rules: Rules,
    progress: Progress,
    discard: bool,
    declared: str,
) -> Made:
    fresh = layout.scratch("backfill")
    read_payloads_of(spark, progress.largest)
    past = timed(closed(spark, layout, messages.TABLE, progress).drop("event_time"), rules)
    _refuse_another_form(spark, layout, table, past, rules, discard)
    rows, kept, opened = _again(spark, layout, table, past, rules, progress)
    with _persisted(kept.where(F.lit(not discard))) as kept:
        count = kept.count()
        if count:
            rows = rows.unionByName(kept)
        _written(table, rows, fresh / table.name / "closed")
    if opened is not None:
        opened.coalesce(1).write.parquet(str(fresh / table.name / "open"))
    _judge(spark, layout, table.name, past, rules, progress, fresh)
    for file in fresh.rglob("*.parquet"):
        sync(file)
    hand_over(layout, fresh, progress.batch, declared)
    made_again(layout, table.name)
    closing.note(layout, (table,), rules)
    return Made(closed(spark, layout, table, progress).count(), count)


@contextmanager
def _persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """The same, computed once; forgotten however it ends, or who tries again gets what it was."""
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _written(table: Table | Spanning | Summed, rows: DataFrame, place: Path) -> None:
    """Its files as they lie in the tables."""
    rows = rows.repartition("batch_id").sortWithinPartitions(rows.columns[0])
    rows.write.partitionBy(*table.by, "batch_id").parquet(str(place))
    for file in [*place.rglob("*.parquet")]:
        # Below every batch of its group that may come, so all of them are shown.
        first = int(file.parent.name.removeprefix(BATCH))
        file.rename(file.with_name(merged_name(first, first)))
    columns = tuple(column for column in table.columns if column.name not in table.by)
    hollow = place / (f"day={NO_DAY}" if table.by else "") / f"{BATCH}0"
    hollow.mkdir(parents=True, exist_ok=True)
    pq.write_table(arrow(columns).empty_table(), hollow / NO_ROWS)


def _judge(
    spark: SparkSession,
    layout: Layout,
    name: str,
    past: DataFrame,
    rules: Rules,
    progress: Progress,
    fresh: Path,
) -> None:
    """Make `quarantine` again too, with what does not fit that table, or `readings`, now. Other
    rows of it stay, and those whose messages are gone.
    """
    own = tuple(one for one in rules.table if one.name == name)
    if own:
        its = F.col("declared") == f"table {name}"
    elif name == readings.TABLE.name:
        its = ~F.col("declared").startswith("table ")
    else:
        return
    groups = past.select("seq", "batch_id")
    before = closed(spark, layout, quarantine.TABLE, progress)
    now = quarantine.rows(past, structs.replace(rules, table=own)).where(its)
    with _persisted(now.join(groups, "seq")) as now:
        if not now.isEmpty() or not before.where(its).isEmpty():
            gone = before.where(its).join(groups.select("seq"), "seq", "left_anti")
            rows = before.where(~its).unionByName(gone).unionByName(now)
            _written(quarantine.TABLE, rows, fresh / quarantine.TABLE.name / "closed")


def _again(
    spark: SparkSession,
    layout: Layout,
    table: Table | Spanning | Summed,
    past: DataFrame,
    rules: Rules,
    progress: Progress,
) -> tuple[DataFrame, DataFrame, DataFrame | None]:
    """The rows that messages make, those that stay as they are, and the open ones."""
    groups = past.select("seq", "batch_id")
    opened = None
    if isinstance(table, Table):
        rows = table.rows(past, rules)
    else:
        rows, opened = _spanning(spark, table, past, rules, progress)
    if _another_form(layout, table, rules):
        before = spark.createDataFrame([], ddl((*table.columns, BATCH_ID)))
    else:
        before = closed(spark, layout, table, progress)
    if "seq" in rows.columns:  # a row a message, if it is the first of those alike
        kept = before.join(groups.select("seq"), "seq", "left_anti")
        return rows.drop("batch_id").join(groups, "seq"), kept, opened
    column = clock(table)
    whole = (
        _first_whole(past, before, _opened(spark, layout, table, progress))
        if isinstance(table, Summed)
        else _first_after(past, before, column)
    )
    return rows.where(F.col(column) >= whole), before.where(F.col(column) < whole), opened


def _another_form(layout: Layout, table: Table | Spanning | Summed, rules: Rules) -> Typed | None:
    """The declaration by which its files were written, if rows of today's are not alike."""
    now = {one.name: one for one in rules.table}.get(table.name)
    was = {one.name: one for one in typed.saved(layout)}.get(table.name)
    return was if was is not None and now is not None and not typed.alike(was, now) else None


def _refuse_another_form(
    spark: SparkSession,
    layout: Layout,
    table: Table | Spanning | Summed,
    past: DataFrame,
    rules: Rules,
    discard: bool,
) -> None:
    """Raise SettingError if rows whose messages are gone would have to get another form."""
    was = _another_form(layout, table, rules)
    if was is None or discard:
        return
    before = closed(spark, layout, typed.table_of(was), layout.stands())
    if "seq" in before.columns:
        gone = before.join(past.select("seq"), "seq", "left_anti").count()
    else:  # a message counts in a window that may begin so long before it came
        oldest = past.agg(F.min("time")).first()
        assert oldest is not None
        span = F.expr(f"INTERVAL {was.seconds() + rules.patience():.6f} SECONDS")
        until = F.lit(oldest[0] or _NEVER).cast("timestamp") - span
        gone = before.where(F.col(clock(typed.table_of(was))) < until).count()
    if gone:
        raise SettingError(
            f"{gone:,} rows of {table.name} are of messages that are gone, and cannot get its new "
            "form: --discard drops them; or name a new table, and the old one stays as it is"
        )


def _first_whole(past: DataFrame, before: DataFrame, opened: DataFrame) -> Expression:
    """The first minute of which all messages are there; the first of all if none is gone.

    A minute counts each message once, whatever the rules: so their sum says if any is gone.
    """
    counted = before.select("messages").unionByName(opened.select("messages"))
    total = counted.agg(F.coalesce(F.sum("messages"), F.lit(0))).first()
    here = past.where(MESSAGE).agg(F.count("*"), F.min("time")).first()
    assert total is not None and here is not None
    if total[0] <= here[0]:
        return F.timestamp_micros(F.lit(0))
    if not here[0]:
        return F.lit(_NEVER).cast("timestamp")
    return F.date_trunc("minute", F.lit(here[1]).cast("timestamp")) + F.expr("INTERVAL 1 MINUTE")


def _first_after(past: DataFrame, before: DataFrame, column: str) -> Expression:
    """The first time of a typed table's windows that no message is gone of; the first of all if
    the table has none from before the oldest message.
    """
    here, there = past.agg(F.min("time")).first(), before.agg(F.min(column)).first()
    assert here is not None and there is not None
    if there[0] is None or (here[0] is not None and there[0] >= here[0]):
        return F.timestamp_micros(F.lit(0))
    return F.lit(here[0] or _NEVER).cast("timestamp")


def _spanning(
    spark: SparkSession, table: Spanning | Summed, past: DataFrame, rules: Rules, progress: Progress
) -> tuple[DataFrame, DataFrame]:
    """Closed rows with their group, and open ones."""
    if isinstance(table, Summed):
        until = datetime.fromisoformat(progress.time).replace(tzinfo=UTC)
        whole = partial(_whole, table=table, until=until, rules=rules)
        made = table.sums(past, rules).mapInArrow(whole, f"{ddl(table.columns)}, open boolean")
    else:
        nothing = spark.createDataFrame([], ddl((*table.columns, *table.memory)))
        end = F.lit(progress.time).cast("timestamp")
        made = table.rows(past, nothing, Moment(end, rules))
    found = made.withColumn("batch_id", F.lit(0).cast("bigint"))
    closed = found.where("NOT open").drop("open", *(one.name for one in table.memory))
    return closed, found.where("open").drop("open", "batch_id")


def _whole(
    batches: Iterable[pa.RecordBatch], table: Summed, until: datetime, rules: Rules
) -> Iterator[pa.RecordBatch]:
    """Sums that are whole already, and which of them are open."""
    for batch in batches:
        parts = pa.Table.from_batches([batch]).cast(arrow(table.columns))
        yield from table.summed(parts, until, rules).to_batches()
