"""The pipeline: one streaming query over the journal, and all tables written batch by batch.

Called by `hubbub pipeline run` and by programs with a Spark session. The order of a batch is in
`_Batches.write` and nowhere else:

    count it · messages · readings · traffic · calls · then _progress.json

Spark keeps the position in its checkpoint. A batch that was cut short runs again with the same
range of rows and the same batch id, and puts the same files in the same places.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from hubbub.errors import JournalError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.tables import TABLES
from hubbub.pipeline.tables.messages import MESSAGE
from hubbub.pipeline.tables.table import Spanning, Table, ddl

EVERY: Final = 2.0  # seconds between batches; one costs about a second of two cores
ROWS: Final = 100_000  # of the journal in one batch: bounds memory when there is much to catch up
ROWS_PER_FILE: Final = 20_000  # smaller batches become one file a table
PATIENCE: Final = 15.0  # seconds a batch gets to end before it is cut short

NAMES: Final = tuple(table.name for table in TABLES)

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class Report(NamedTuple):
    """What a batch did: rows of the journal it read, and how many more are committed."""

    batch: int
    seq: int
    rows: int
    messages: int
    behind: int
    seconds: float


def run(
    spark: SparkSession,
    data: str | Path,
    stop: threading.Event,
    report: Callable[[Report], None] = lambda report: None,
    *,
    every: float = EVERY,
    once: bool = False,
    skip_lost: bool = False,
) -> None:
    """Write the tables of a data directory until `stop` is set; with `once`, what is there now.

    Returns after a whole batch, or after PATIENCE in the midst of one. Raises DirectoryError if
    the tables cannot be written, and JournalError if the journal cannot be read: rows that
    retention removed before they were read are one case, unless `skip_lost`.
    """
    layout = Layout(data)
    layout.prepare(NAMES)
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        batches = _Batches(spark, layout, report)
        query = _start(spark, layout, batches, every, once, skip_lost)
        _watch(query, batches, stop)
    finally:
        layout.release()


def _start(
    spark: SparkSession,
    layout: Layout,
    batches: _Batches,
    every: float,
    once: bool,
    skip_lost: bool,
) -> StreamingQuery:
    rows = (
        spark.readStream.format("hubbub")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS))
        .option("failOnDataLoss", "false" if skip_lost else "true")
        .load(str(layout.data))
    )
    writer = rows.writeStream.queryName("hubbub").foreachBatch(batches.write)
    writer = writer.option("checkpointLocation", str(layout.checkpoint))
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every} seconds").start()


def _watch(query: StreamingQuery, batches: _Batches, stop: threading.Event) -> None:
    """Wait for the end, or for `stop`: then let the batch at work end first."""
    try:
        while query.isActive and not stop.wait(0.2):
            pass
        if batches.idle.acquire(timeout=PATIENCE):
            query.stop()
            batches.idle.release()
        query.stop()
        error = query.exception()
    except StreamingQueryException as raised:
        error = raised
    # While everything is being stopped Spark's helpers may be gone before us.
    if error is not None and not stop.is_set():
        raise JournalError(said_by(error)) from error


def said_by(error: PySparkException) -> str:
    """What went wrong in one line: our own error or Python's, if one is inside Spark's."""
    text = str(error).strip()
    for pattern in (r"hubbub\.errors\.\w+: (.+)", r"^(\w+(?:Error|Exception): .+)"):
        found = re.findall(pattern, text, re.MULTILINE)
        if found:
            return str(found[-1]).strip()
    return text.splitlines()[0]


class _Batches:
    """What Spark calls for each batch. `idle` is free between batches."""

    def __init__(
        self, spark: SparkSession, layout: Layout, report: Callable[[Report], None]
    ) -> None:
        self.spark = spark
        self.layout = layout
        self.report = report
        self.idle = threading.Lock()
        self._journal = Journal(str(layout.data))

    def write(self, frame: DataFrame, batch: int) -> None:
        """The rows of a batch into all tables."""
        with self.idle:
            begun = time.monotonic()
            rows = frame.persist()
            try:
                counted = self._count(rows)
                if counted is None:
                    self._nothing(batch)
                    return
                if counted.rows < ROWS_PER_FILE:
                    rows = rows.coalesce(1)
                self._tables(rows, batch, counted)
            finally:
                frame.unpersist()
            self.layout.advance(Progress(batch, counted.seq, counted.until))
            took = time.monotonic() - begun
            behind = self._journal.committed() - counted.seq
            self.report(Report(batch, counted.seq, counted.rows, counted.messages, behind, took))

    def _count(self, rows: DataFrame) -> _Counted | None:
        """One pass that also fills the cache."""
        found = rows.agg(
            F.max("seq"), F.max("time").cast("string"), F.count("*"), F.count_if(F.expr(MESSAGE))
        ).first()
        assert found is not None
        return _Counted(*found) if found[2] else None

    def _tables(self, rows: DataFrame, batch: int, counted: _Counted) -> None:
        for table in TABLES:
            if isinstance(table, Spanning):
                self._span(table, rows, batch, counted)
            elif counted.messages:
                self._append(table, rows, batch)

    def _nothing(self, batch: int) -> None:
        """All rows of the range are gone, and `skip_lost` says to go on."""
        for table in TABLES:
            if isinstance(table, Spanning):
                self.layout.carry_on(table.name, batch)

    def _append(self, table: Table, rows: DataFrame, batch: int) -> None:
        place = self.layout.scratch(table.name)
        table.rows(rows).write.partitionBy(*table.by).parquet(str(place))
        self.layout.append(table.name, batch, place)

    def _span(self, table: Spanning, rows: DataFrame, batch: int, counted: _Counted) -> None:
        until = F.lit(counted.until).cast("timestamp")
        found = table.rows(rows, self._carried(table, batch - 1), until)
        place = self.layout.scratch(table.name)
        found.coalesce(1).write.partitionBy("open").parquet(str(place))
        self.layout.append(table.name, batch, place / "open=false")
        self.layout.carry(table.name, batch, place / "open=true")

    def _carried(self, table: Spanning, batch: int) -> DataFrame:
        files = [str(file) for file in self.layout.carried(table.name, batch)]
        schema = ddl(table.columns)
        if not files:
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(*files)


class _Counted(NamedTuple):
    """A batch in numbers: its last seq and time, its rows, and how many are messages."""

    seq: int
    until: str
    rows: int
    messages: int
