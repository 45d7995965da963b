"""A tidy copy of all tables in a new place, as of their last whole batch: few files, in order.

Called by `hubbub pipeline compact --to`. This is how tables on object storage are compacted, where
nothing can be exchanged at once: readers are pointed to the copy when it is whole, the old place
is removed later. Reads and writes through Spark alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.errors import DirectoryError
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.places import BATCH_ID, Remote, hollow, read_payloads_of, settle
from hubbub.pipeline.sql import closed
from hubbub.pipeline.tables import ALL
from hubbub.pipeline.tables.table import AnyTable, clock, ddl, names

ROWS_PER_FILE: Final = 5_000_000


def copy(spark: SparkSession, data: str | Path, source: str, to: str) -> Iterator[tuple[str, int]]:
    """Write each table under `to`; yields its name and rows. `source` is a URL, "" for `data`.

    Raises DirectoryError if something lies in the new place already, or there are no tables.
    """
    settle(spark)
    if not source:
        read_payloads_of(spark, Layout(data).stands().largest)
    for table in ALL:
        rows = _remote(spark, source, table) if source else _local(spark, data, table)
        days = F.to_date(clock(table)).alias("day")
        kept = names(tuple(column for column in table.columns if column.name != "day"))
        ordered = rows.select(*kept, days).repartitionByRange("day", kept[0])
        ordered = ordered.sortWithinPartitions("day", kept[0])
        try:
            writer = ordered.write.option("maxRecordsPerFile", ROWS_PER_FILE)
            writer.partitionBy("day").parquet(f"{to.rstrip('/')}/{table.name}")
        except AnalysisException as error:
            if error.getCondition() != "PATH_ALREADY_EXISTS":
                raise
            raise DirectoryError(f"{to} is not empty: copy into a new place") from error
        count = rows.count()
        if not count:
            hollow(spark, table, f"{to.rstrip('/')}/{table.name}", ("day",))
        yield table.name, count


def _local(spark: SparkSession, data: str | Path, table: AnyTable) -> DataFrame:
    layout = Layout(data)
    if gone := layout.lacking([table.name]):
        raise layout.lacks_tables(gone)
    return closed(spark, layout, table, layout.stands())


def _remote(spark: SparkSession, source: str, table: AnyTable) -> DataFrame:
    place = Remote(spark, source)
    progress = place.progress()
    if progress is None:
        raise DirectoryError(f"there are no tables in {source}")
    if gone := place.lacking([table.name]):
        raise place.lacks_tables(gone)
    try:
        schema = ddl((*table.columns, BATCH_ID))
        rows = spark.read.schema(schema).parquet(f"{source.rstrip('/')}/{table.name}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return spark.createDataFrame([], schema)
    return rows.where(F.col("batch_id") <= progress.batch)
