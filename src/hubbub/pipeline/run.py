"""The pipeline: one streaming query over the journal, and all tables written batch by batch.

Called by `hubbub pipeline run` and by programs with a Spark session. The order of a batch is in
`_Batches.write` and nowhere else:

    count it · messages · readings · the other tables · alerts · then _progress.json

A table is written only if the batch has rows that concern it; alerts are published once all is
written, and again if the batch runs again: the hub knows which it already took.

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
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import ALL, TABLES, alerts
from hubbub.pipeline.tables.table import Moment, Spanning, Table, ddl, names

EVERY: Final = 2.0  # seconds between batches; one costs about a second of two cores
ROWS: Final = 100_000  # of the journal in one batch: bounds memory when there is much to catch up
ROWS_PER_FILE: Final = 20_000  # smaller batches become one file a table
PATIENCE: Final = 15.0  # seconds a batch gets to end before it is cut short

NAMES: Final = tuple(table.name for table in ALL)

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


Publish = Callable[[int, list[alerts.Found]], None]  # the batch, and what to publish in order


class Report(NamedTuple):
    """What a batch did: rows of the journal it read, and how many more are committed.

    `tables`: seconds each table took; those that the batch did not concern are not there.
    """

    batch: int
    seq: int
    rows: int
    messages: int
    behind: int
    seconds: float
    tables: dict[str, float]


def run(
    spark: SparkSession,
    data: str | Path,
    stop: threading.Event,
    report: Callable[[Report], None] = lambda report: None,
    *,
    every: float = EVERY,
    once: bool = False,
    skip_lost: bool = False,
    rules: Rules = NO_RULES,
    publish: Publish | None = None,
) -> None:
    """Write the tables of a data directory until `stop` is set; with `once`, what is there now.

    `publish` is given the alerts that `rules` find, batch by batch; without it they are only
    written to their table.

    Returns after a whole batch, or after PATIENCE in the midst of one. Raises DirectoryError if
    the tables cannot be written, and JournalError if the journal cannot be read: rows that
    retention removed before they were read are one case, unless `skip_lost`.
    """
    layout = Layout(data)
    layout.prepare(NAMES)
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        batches = _Batches(layout, report, rules, publish)
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
        self,
        layout: Layout,
        report: Callable[[Report], None],
        rules: Rules,
        publish: Publish | None,
    ) -> None:
        self.layout = layout
        self.report = report
        self.rules = rules
        self.publish = publish
        self.idle = threading.Lock()
        self._journal = Journal(str(layout.data))
        self._took: dict[str, float] = {}

    def write(self, frame: DataFrame, batch: int) -> None:
        """The rows of a batch into all tables."""
        with self.idle:
            begun = time.monotonic()
            self._took = {}
            rows = timed(frame, self.rules)
            if self.rules.timed():
                rows = rows.persist()  # else reading the journal again costs less than a cache
            try:
                counted = self._count(rows)
                if counted is None:
                    self._nothing(batch)
                    return
                if counted.rows < ROWS_PER_FILE:
                    rows = rows.coalesce(1)
                self._tables(rows, batch, counted)
            finally:
                rows.unpersist()
            self._alerts(frame.sparkSession, batch, counted)
            self.layout.advance(Progress(batch, counted.seq, counted.until))
            self._say(batch, counted, time.monotonic() - begun)

    def _say(self, batch: int, counted: _Counted, seconds: float) -> None:
        behind = self._journal.committed() - counted.seq
        messages = counted.events["messages"]
        seq, rows = counted.seq, counted.rows
        self.report(Report(batch, seq, rows, messages, behind, seconds, self._took))

    def _count(self, rows: DataFrame) -> _Counted | None:
        """One pass over all rows of the batch."""
        events = [F.count_if(F.expr(table.event(self.rules))) for table in TABLES]
        found = rows.agg(F.max("seq"), F.max("time").cast("string"), F.count("*"), *events).first()
        assert found is not None
        if not found[2]:
            return None
        of_tables = {table.name: count for table, count in zip(TABLES, found[3:], strict=True)}
        return _Counted(found[0], found[1], found[2], of_tables)

    def _tables(self, rows: DataFrame, batch: int, counted: _Counted) -> None:
        for table in TABLES:
            begun = time.monotonic()
            if isinstance(table, Table):
                written = self._append(table, rows, batch, counted)
            else:
                written = self._span(table, rows, batch, counted)
            if written:
                self._took[table.name] = time.monotonic() - begun

    def _nothing(self, batch: int) -> None:
        """All rows of the range are gone, and `skip_lost` says to go on."""
        for table in TABLES:
            if isinstance(table, Spanning):
                self.layout.carry_on(table.name, batch)

    def _append(self, table: Table, rows: DataFrame, batch: int, counted: _Counted) -> bool:
        if not counted.events[table.name]:
            return False
        place = self.layout.scratch(table.name)
        table.rows(rows, self.rules).write.partitionBy(*table.by).parquet(str(place))
        self.layout.append(table.name, batch, place)
        return True

    def _span(self, table: Spanning, rows: DataFrame, batch: int, counted: _Counted) -> bool:
        files = self.layout.carried(table.name, batch - 1)
        if not counted.events[table.name] and not (table.clocked and files):
            self.layout.carry_on(table.name, batch)
            return False
        found = table.rows(rows, _read(rows.sparkSession, table, files), self._moment(counted))
        place = self.layout.scratch(table.name)
        _split(table, found.coalesce(1), place)
        self.layout.append(table.name, batch, place / "open=false")
        self.layout.carry(table.name, batch, place / "open=true")
        return True

    def _moment(self, counted: _Counted) -> Moment:
        until = F.lit(counted.until).cast("timestamp")
        return Moment(until, self.rules, self._journal.segment_of(counted.seq))

    def _alerts(self, spark: SparkSession, batch: int, counted: _Counted) -> None:
        """What the rules find in the rows that this batch added to the tables."""
        if not self.rules.alert:
            return
        begun = time.monotonic()
        for table in TABLES:
            files = self.layout.files(table.name, batch - 1, batch)
            _read(spark, table, files).createOrReplaceTempView(table.name)
        found = alerts.find(spark, self.rules.alert, counted.until)
        if not found:
            return
        place = self.layout.scratch(alerts.NAME)
        alerts.frame(spark, found).coalesce(1).write.parquet(str(place))
        self.layout.append(alerts.NAME, batch, place)
        if self.publish is not None:
            self.publish(batch, found)
        self._took[alerts.NAME] = time.monotonic() - begun


def _split(table: Spanning, found: DataFrame, place: Path) -> None:
    """Write closed and open rows apart; only open ones keep what the table remembers."""
    if not table.memory:
        found.write.partitionBy("open").parquet(str(place))
        return
    found = found.persist()
    counts = found.agg(F.count_if(~F.col("open")), F.count_if("open")).first()
    assert counts is not None
    if counts[0]:
        closed = found.where("NOT open").select(*names(table.columns))
        closed.write.parquet(str(place / "open=false"))
    if counts[1]:
        found.where("open").drop("open").write.parquet(str(place / "open=true"))
    found.unpersist()


def _read(spark: SparkSession, table: Table | Spanning, files: list[Path]) -> DataFrame:
    """Files of a table, those of its open rows with what it remembers."""
    schema = ddl((*table.columns, *table.memory) if isinstance(table, Spanning) else table.columns)
    if not files:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*(str(file) for file in files))


class _Counted(NamedTuple):
    """A batch in numbers: its last seq and time, its rows, and those that concern each table."""

    seq: int
    until: str
    rows: int
    events: dict[str, int]
