"""The pipeline: one streaming query over the journal, and all tables written batch by batch.

Called by `hubbub pipeline run` and by programs with a Spark session. The order of a batch is in
`_Batches.write` and nowhere else:

    messages · readings · the other tables · alerts · then the progress

The rows of the journal are read once for `messages`, and counted in passing; what is made of
messages is made of the rows that this wrote, which Spark reads back ten times as fast. A table is
written only if the batch has rows that concern it. Alerts are published once all is written, and
again if the batch runs again: the hub knows which it already took.

Spark keeps the position in its checkpoint. A batch that was cut short runs again with the same
range of rows and the same batch id; one that had become whole is left as it is.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from hubbub.errors import JournalError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline.compact import tidy
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.layout import Layout, Progress, grown
from hubbub.pipeline.places import Disk, Place, Remote, settle
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import ALL, TABLES, alerts, messages, readings
from hubbub.pipeline.tables.table import AnyTable, Derived, Moment, Spanning, Table, ddl

EVERY: Final = 1.0  # seconds between batches
ROWS: Final = 500_000  # of the journal in one batch: see docs/benchmarks.md, "The pipeline"
PATIENCE: Final = 15.0  # seconds a batch gets to end before it is cut short

NAMES: Final = tuple(table.name for table in ALL)
_NAMED: Final = tuple(table.name for table in TABLES)


# A name of this pipeline alone, the batch, and what to publish in order.
Publish = Callable[[str, int, list[alerts.Found]], None]


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
    only: tuple[str, ...] = NAMES,
    to: str = "",
    keep: dict[str, float] | None = None,
) -> None:
    """Write the tables of a data directory until `stop` is set; with `once`, what is there now.

    `publish` is given the alerts that `rules` find, batch by batch; without it they are only
    written to their table. `only` names the tables to write; messages always are. `to` is a URL
    for tables and checkpoint instead of the data directory. `keep`: days by table, after which
    rows are removed.

    Returns after a whole batch, or after PATIENCE in the midst of one. Raises DirectoryError if
    the tables cannot be written, and JournalError if the journal cannot be read: rows that
    retention removed before they were read are one case, unless `skip_lost`. SettingError: the
    SQL of an alert is wrong.
    """
    layout = Layout(data)
    place = Remote(spark, to) if to else Disk(spark, layout)
    place.prepare(_chosen(only))
    journal = Journal(str(layout.data))
    batches = _Batches(place, journal, _chosen(only), rules, report, publish)
    if not to:
        batches.whole = partial(tidy, layout, keep or {})
    try:
        settle(spark)
        _try(spark, rules)
        write = batches.write
        if is_remote():  # then Spark is another process, which gets the work and not the callbacks
            write = partial(
                _far, layout=layout, to=to, only=only, rules=rules, publish=publish, keep=keep or {}
            )
        query = _start(_rows(spark, layout, skip_lost), write, place.checkpoint, every, once)
        _watch(query, batches, stop, is_remote())
    except PySparkException as error:
        raise JournalError(said_by(error)) from error
    finally:
        place.release()


def _chosen(only: tuple[str, ...]) -> tuple[AnyTable, ...]:
    return tuple(table for table in ALL if table.name in (*only, "messages"))


def _rows(spark: SparkSession, layout: Layout, skip_lost: bool) -> DataFrame:
    source = spark.readStream.format("hubbub").option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", str(ROWS))
    source = source.option("failOnDataLoss", "false" if skip_lost else "true")
    return source.load(str(layout.data))


def _try(spark: SparkSession, rules: Rules) -> None:
    """Ask the alerts of tables without rows: what is wrong is said now, not with some message."""
    if rules.alert and not is_remote():
        apart = spark.newSession()
        for table in TABLES:
            nothing = apart.createDataFrame([], ddl(table.columns))
            nothing.createOrReplaceTempView(table.name)
        alerts.find(apart, rules.alert, 0, "")


def _start(
    rows: DataFrame,
    write: Callable[[DataFrame, int], None],
    checkpoint: str,
    every: float,
    once: bool,
) -> StreamingQuery:
    writer = rows.writeStream.queryName("hubbub").foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint)
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every} seconds").start()


def _watch(query: StreamingQuery, batches: _Batches, stop: threading.Event, far: bool) -> None:
    """Wait for the end, or for `stop`: then let the batch at work end first."""
    try:
        while query.isActive and not stop.wait(0.2):
            if far:
                batches.look()
        if far:
            _let_end(query, batches)
        elif batches.idle.acquire(timeout=PATIENCE):
            query.stop()
            batches.idle.release()
        query.stop()
        error = query.exception()
    except StreamingQueryException as raised:
        error = raised
    # While everything is being stopped Spark's helpers may be gone before us.
    if error is not None and not stop.is_set():
        raise JournalError(said_by(error)) from error


def _let_end(query: StreamingQuery, batches: _Batches) -> None:
    """Wait for the batch at work in another process: until it is whole, or Spark does nothing."""
    limit = time.monotonic() + PATIENCE
    batches.look()
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < limit:
        if batches.look():
            return
        time.sleep(0.2)
    batches.look()


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
        place: Place,
        journal: Journal,
        tables: tuple[AnyTable, ...],
        rules: Rules,
        report: Callable[[Report], None],
        publish: Publish | None,
    ) -> None:
        self.place = place
        self.rules = rules
        self.report = report
        self.publish = publish
        self.idle = threading.Lock()
        self.whole: Callable[[Progress, Progress | None], None] = lambda now, before: None
        self._journal = journal
        self._tables = tables
        self._before = place.progress()
        self._begun = False
        self._looked = time.monotonic()
        self._took: dict[str, float] = {}

    def write(self, frame: DataFrame, batch: int) -> None:
        """The rows of a batch into all tables."""
        with self.idle:
            before = self._before
            if before is not None and before.batch >= batch:
                return  # whole, but Spark did not come to say so in its checkpoint
            begun = time.monotonic()
            self._took = {}
            self.place.spark = frame.sparkSession
            if not self._begun:
                self.place.undo(batch)  # only the first can have been cut short
            self._begun = True
            counted = self._messages(frame, batch)
            if not counted.rows:
                self._nothing(batch)
                return
            progress = grown(before, batch, counted.seq, counted.until, counted.rows)
            self._others(frame, progress, counted)
            self._alerts(frame.sparkSession, progress)
            self.place.advance(progress)
            self._before = progress
            self._say(progress, counted, time.monotonic() - begun)
            self.whole(progress, before)

    def _say(self, progress: Progress, counted: _Counted, seconds: float) -> None:
        behind = self._journal.committed() - progress.seq
        seq, rows, messages = progress.seq, counted.rows, counted.messages
        self.report(Report(progress.batch, seq, rows, messages, behind, seconds, self._took))

    def look(self) -> bool:
        """Report what others wrote since the last look, if they did."""
        now, before = self.place.progress(), self._before
        if now is None or now == before:
            return False
        rows = now.seq - (before.seq if before is not None else 0)
        seconds = time.monotonic() - self._looked
        self._looked = time.monotonic()
        self._before = now
        self._say(now, _Counted(now.seq, now.time, rows, rows, set()), seconds)
        return True

    def _messages(self, frame: DataFrame, batch: int) -> _Counted:
        """The one pass over all rows of the journal: messages are written, the rest is counted."""
        begun = time.monotonic()
        note = Observation()
        seen = timed(frame, self.rules).withColumn("events", self._events()).observe(
            note, F.max("seq").alias("seq"), F.max("time").cast("string").alias("until"),
            F.count("*").alias("rows"), F.bit_or("events").alias("events"),
            F.sum(F.col("events").bitwiseAND(1)).alias("messages"),
        )  # fmt: skip
        written = self.place.append(messages.TABLE, messages.rows(seen, self.rules), batch)
        found = note.get
        concerned = {
            table for place, table in enumerate(_NAMED) if (found["events"] or 0) >> place & 1
        }
        counted = _Counted(
            found["seq"] or 0,
            found["until"] or "",
            found["rows"],
            found["messages"] or 0,
            concerned,
        )
        if counted.messages:
            before = self._before
            progress = grown(before, batch, counted.seq, counted.until, counted.rows)
            self.place.show(messages.TABLE, written, progress)
            self._took["messages"] = time.monotonic() - begun
        return counted

    def _events(self) -> Column:
        """One bit a table that the row concerns. Spark compiles this, but no sums of `observe`."""
        bits = "+".join(
            f"IF({table.event(self.rules)}, {1 << place}, 0)" for place, table in enumerate(TABLES)
        )
        return F.expr(bits)

    def _others(self, frame: DataFrame, progress: Progress, counted: _Counted) -> None:
        added = self.place.appended(messages.TABLE, progress)
        for table in self._tables:
            if table is messages.TABLE or isinstance(table, Derived):
                continue
            begun = time.monotonic()
            rows = added if table.of_messages else frame
            if isinstance(table, Table):
                wrote = self._append(table, rows, progress, counted)
            else:
                wrote = self._span(table, rows, progress, counted)
            if wrote:
                self._took[table.name] = time.monotonic() - begun

    def _nothing(self, batch: int) -> None:
        """All rows of the range are gone, and `skip_lost` says to go on."""
        for table in self._tables:
            if isinstance(table, Spanning):
                self.place.carry_on(table, batch)

    def _append(self, table: Table, rows: DataFrame, progress: Progress, counted: _Counted) -> bool:
        if table.name not in counted.concerned:
            return False
        if table is not readings.TABLE:
            written = self.place.append(table, table.rows(rows, self.rules), progress.batch)
        else:
            failed = None if is_remote() else rows.sparkSession.sparkContext.accumulator(0)
            found = readings.rows(rows, self.rules, failed)
            written = self.place.append(table, found, progress.batch)
            if failed is not None and not failed.value:
                counted.concerned.discard("quarantine")  # nothing declared that is not so
        self.place.show(table, written, progress)
        return True

    def _span(
        self, table: Spanning, rows: DataFrame, progress: Progress, counted: _Counted
    ) -> bool:
        if table.name not in counted.concerned and not (
            table.clocked and self._minute_over(progress)
        ):
            self.place.carry_on(table, progress.batch)
            return False
        carried = self.place.carried(table, progress.batch - 1)
        if carried is None:
            schema = ddl((*table.columns, *table.memory))
            carried = rows.sparkSession.createDataFrame([], schema)
        found = table.rows(rows, carried, self._moment(progress))
        self.place.split(table, found.coalesce(1), progress)
        return True

    def _minute_over(self, progress: Progress) -> bool:
        """Whether the watermark came into another minute since the batch before."""
        if self._before is None:
            return False
        late = timedelta(seconds=self.rules.patience())
        marks = (datetime.fromisoformat(one.time) - late for one in (self._before, progress))
        return len({mark.replace(second=0, microsecond=0) for mark in marks}) > 1

    def _moment(self, progress: Progress) -> Moment:
        until = F.lit(progress.time).cast("timestamp")
        return Moment(until, self.rules, self._journal.segment_of(progress.seq))

    def _alerts(self, spark: SparkSession, progress: Progress) -> None:
        """What the rules find in the rows that this batch added to the tables."""
        if not self.rules.alert or alerts.TABLE not in self._tables:
            return
        begun = time.monotonic()
        for table in TABLES:
            self.place.appended(table, progress).createOrReplaceTempView(table.name)
        found = alerts.find(spark, self.rules.alert, progress.seq, progress.time)
        if not found:
            return
        rows = alerts.frame(spark, found).coalesce(1)
        self.place.show(
            alerts.TABLE, self.place.append(alerts.TABLE, rows, progress.batch), progress
        )
        if self.publish is not None:
            self.publish(self._name(spark), progress.batch, found)
        self._took[alerts.NAME] = time.monotonic() - begun

    def _name(self, spark: SparkSession) -> str:
        """The id of Spark's query: as long as its checkpoint lives, batches have one numbering."""
        said = spark.read.text(f"{self.place.checkpoint}/metadata").first()
        assert said is not None
        return str(json.loads(said[0])["id"])


def _far(
    frame: DataFrame,
    batch: int,
    layout: Layout,
    to: str,
    only: tuple[str, ...],
    rules: Rules,
    publish: Publish | None,
    keep: dict[str, float],
) -> None:
    """A batch in a process of the Spark Connect server, which starts with nothing each time."""
    spark = frame.sparkSession
    place = Remote(spark, to) if to else Disk(spark, layout)
    journal = Journal(str(layout.data))
    batches = _Batches(place, journal, _chosen(only), rules, lambda report: None, publish)
    if not to:
        batches.whole = partial(tidy, layout, keep)
    batches.write(frame, batch)


class _Counted(NamedTuple):
    """A batch in numbers: its last seq and time, its rows, and the tables they concern."""

    seq: int
    until: str
    rows: int
    messages: int
    concerned: set[str]
