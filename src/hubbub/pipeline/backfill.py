"""A table computed anew from `messages`, and put in the place of the old one at once.

Called by `hubbub pipeline backfill` after the rules changed, or for a table that was added later:
`messages` reaches further back than the journal. Possible for what is made of messages alone; the
others need rows of the journal that `messages` does not have.

    _tmp/backfill/<table>/…   ──one exchange of directories──▶   <table>/…

Rows get the `batch_id` of their message, those of `traffic` 0, a directory that is always there:
who listed the directories before the exchange and looks into them after it finds them too.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.errors import SettingError
from hubbub.pipeline.compact import exchange
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.layout import BATCH, NO_DAY, NO_ROWS, Layout, Progress, merged_name, sync
from hubbub.pipeline.places import settle
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.sql import closed
from hubbub.pipeline.tables import ALL, TABLES, messages
from hubbub.pipeline.tables.table import Moment, Spanning, Table, arrow, ddl

POSSIBLE: Final = tuple(
    table.name for table in TABLES if table.of_messages and table is not messages.TABLE
)


def backfill(spark: SparkSession, layout: Layout, name: str, rules: Rules) -> int:
    """Make the table again; return how many rows it has now, open ones aside.

    Raises SettingError if the table cannot be made of messages, DirectoryError if a pipeline is
    at work, or none ever was.
    """
    table = next((one for one in TABLES if one.name == name), None)
    if table is None or name not in POSSIBLE:
        raise SettingError(
            f"{name} cannot be computed from messages: expected one of {', '.join(POSSIBLE)}"
        )
    progress = layout.stands()
    layout.prepare(tuple(one.name for one in ALL))
    settle(spark)
    try:
        return _make(spark, layout, table, rules, progress)
    finally:
        layout.release()


def _make(
    spark: SparkSession, layout: Layout, table: Table | Spanning, rules: Rules, progress: Progress
) -> int:
    fresh = layout.scratch("backfill")
    past = timed(closed(spark, layout, messages.TABLE, progress).drop("event_time"), rules)
    if isinstance(table, Table):
        made = table.rows(past, rules)
        groups = past.select("seq", "batch_id")
        rows = made.join(groups, "seq")
        opened = None
    else:
        rows, opened = _spanning(spark, table, past, rules, progress)
    place = fresh / table.name
    rows = rows.repartition("batch_id").sortWithinPartitions(rows.columns[0])
    rows.write.partitionBy(*table.by, "batch_id").parquet(str(place))
    if opened is not None:
        opened.coalesce(1).write.parquet(str(fresh / "open"))
    for file in fresh.rglob("*.parquet"):
        sync(file)
    for file in place.rglob("*.parquet"):
        # Below every batch of its group that may come, so all of them are shown.
        first = int(file.parent.name.removeprefix(BATCH))
        file.rename(file.with_name(merged_name(first, first)))
    columns = tuple(column for column in table.columns if column.name not in table.by)
    hollow = place / (f"day={NO_DAY}" if table.by else "") / f"{BATCH}0"
    hollow.mkdir(parents=True, exist_ok=True)
    partial(pq.write_table, arrow(columns).empty_table())(hollow / NO_ROWS)
    sync(place)
    exchange(place, layout.root / table.name)
    if opened is not None:
        exchange(fresh / "open", layout.root / "_open" / table.name / f"{BATCH}{progress.batch}")
    shutil.rmtree(fresh)
    return closed(spark, layout, table, progress).count()


def _spanning(
    spark: SparkSession, table: Spanning, past: DataFrame, rules: Rules, progress: Progress
) -> tuple[DataFrame, DataFrame]:
    """Closed rows with their group, and open ones."""
    until = F.lit(progress.time).cast("timestamp")
    nothing = spark.createDataFrame([], ddl((*table.columns, *table.memory)))
    made = table.rows(past, nothing, Moment(until, rules))
    found = made.withColumn("batch_id", F.lit(0).cast("bigint"))
    return found.where("NOT open").drop("open"), found.where("open").drop("open", "batch_id")
