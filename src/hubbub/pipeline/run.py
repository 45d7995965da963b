"""The pipeline: one streaming query over the journal, and all tables written batch by batch.

Called by `hubbub pipeline run` and by programs with a Spark session. What a batch does is in
`pipeline.batches`; here the query is started and watched, and started again:

    the batch failed                as it is, then cut smaller: see `pipeline.trial`
    Spark's process ended           the same with a new one, if somebody can start it
    the journal, the disk, the hub  an error for the user, who starts it again when that is mended

A batch is bounded in rows, and in bytes by a share of Spark's heap: whatever messages carry, what
is in memory at once is bounded too. Spark keeps the position in its checkpoint. A batch that was
cut short runs again with the same range of rows and the same batch id; one that had become whole
is left as it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from hubbub.errors import DirectoryError, HubbubError, JournalError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline.after import NOWHERE, After, Named, need_local
from hubbub.pipeline.batches import STRICT, Batches, Publish, Report, Work
from hubbub.pipeline.blame import ENDED, Blame, blamed, by_chance, out_of_memory, said_by
from hubbub.pipeline.ground import Ground
from hubbub.pipeline.layout import Fence, Layout, Progress, ends_at, room
from hubbub.pipeline.pace import FEW, IDLE, Pace
from hubbub.pipeline.places import Disk, Place, Remote, settle
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import ALL, alerts, typed
from hubbub.pipeline.tables.table import AnyTable, Derived, ddl
from hubbub.pipeline.trial import Trials
from hubbub.spark.journals import table_at
from hubbub.spark.options import Access, access
from hubbub.spark.start import StartError, died, heap, spent

__all__ = ["NAMES", "PATIENCE", "SESSION", "Publish", "Report", "Source", "run"]

EVERY: Final = 1.0  # seconds between batches; of few rows see `pipeline.pace`
ROWS: Final = 500_000  # of the journal in one batch: see docs/benchmarks/spark.md
HEAP_SHARE: Final = 16  # of it what the rows of a batch carry: Parquet copies a page some six times
STARTS: Final = 3  # of Spark, of which each may be killed before it runs
PATIENCE: Final = 15.0  # seconds a batch gets to end before it is cut short

# Of a Spark that does nothing else. Python must not note the line of each call of Spark, which are
# four calls more.
JAVA: Final = "spark.driver.extraJavaOptions"
SESSION: Final = {
    "spark.python.daemon.module": "hubbub.pipeline.daemon",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Its better compiler is for what runs very often, as rows do and plans do not: compiling plans
    # was two fifths of what small batches cost (docs/benchmarks/spark.md).
    JAVA: "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000",
}
PLANS_ONLY: Final = {JAVA: "-XX:TieredStopAtLevel=1"}  # where Java sees no row at all

NAMES: Final = tuple(table.name for table in ALL)


class Source(NamedTuple):
    """Where the journal is: in the data directory or another one, or at a hub that runs; its
    token, or a file of it, and whom to trust, as the options of `format("hubbub")` say them.
    """

    hub: str = ""
    token_file: str = ""
    token: str = ""
    cafile: str = ""
    directory: str = ""

    def here(self, data: Path) -> Path | None:
        """The directory of the journal; None where only a hub has it. Those of Spark's processes
        that are elsewhere have other working directories.
        """
        return None if self.hub else Path(self.directory or data).absolute()

    def journal(self, data: Path, patience: int = 60, strict: bool = True) -> Journal:
        """`patience`: how long a hub that is away is waited for, in seconds. `strict`: rows that
        are gone are an error."""
        here = self.here(data)
        if here is not None:
            return Journal(str(here), allow_loss=not strict)
        return table_at(self.hub, self.access(patience), strict)

    def access(self, patience: int = 60) -> Access:
        """How a hub is asked."""
        given = {name.lower(): value for name, value in self._shown().items()}
        return access({**given, "reconnectseconds": str(patience)})

    def options(self, data: Path) -> dict[str, str]:
        """The same for `format("hubbub")`."""
        here = self.here(data)
        if here is not None:
            return {"path": str(here)}
        return {"url": self.hub, **self._shown()}

    def reads(self, data: Path, strict: bool) -> dict[str, str]:
        """The same, and whether rows that are gone are an error."""
        return {**self.options(data), STRICT: "true" if strict else "false"}

    def _shown(self) -> dict[str, str]:
        given = {"tokenFile": self.token_file, "token": self.token, "caFile": self.cafile}
        return {name: value for name, value in given.items() if value}


class _Query(NamedTuple):
    """How the one query is made: from where to where, and how often."""

    data: Path
    source: Source
    to: str
    only: tuple[str, ...]
    keep: dict[str, float]
    every: float | None
    once: bool
    skip_lost: bool


def run(
    spark: SparkSession,
    data: str | Path,
    stop: threading.Event,
    report: Callable[[Report], None] = lambda report: None,
    *,
    every: float | None = None,
    once: bool = False,
    skip_lost: bool = False,
    rules: Rules = NO_RULES,
    publish: Publish | None = None,
    only: tuple[str, ...] = NAMES,
    to: str = "",
    keep: dict[str, float] | None = None,
    notice: Callable[[str], None] = lambda said: None,
    again: Callable[[], SparkSession] | None = None,
    source: Source = Source(),  # noqa: B008  # it never changes
    catalog: Named = NOWHERE,
    anew: tuple[str, ...] = (),
) -> None:
    """Write the tables of a data directory until `stop` is set; with `once`, what is there now.

    `every`: seconds between two batches; None = EVERY, and longer while few rows come
    (`pipeline.pace`).
    `publish` is given the alerts that `rules` find, some at a time; without it they are only
    written to their table. `only` names the tables to write; messages always are, and alerts if
    there are rules for them. `to` is a URL for tables and checkpoint instead of the data directory.
    `keep`: days by table, after which rows are removed. `notice` is told in a line what a user
    should know: rows lost, an alert that fails, a batch cut smaller. `again` starts a new Spark
    if its process has ended. `source`: a running hub, or another directory, whose journal is read;
    then the data directory holds the tables and no more. `catalog`: where the tables are tables of
    Iceberg too. `anew`: those of the tables that may be gone, and begin with the next batch then.

    Returns after a whole batch, or after PATIENCE in the midst of one. Raises DirectoryError if
    the tables cannot be written, and JournalError if the journal cannot be read: rows that
    retention removed before they were read are one case, unless `skip_lost`. SettingError: the
    SQL of an alert is wrong.
    """
    layout = Layout(data)
    tables = chosen(only, rules)
    journal = source.journal(layout.data, strict=not skip_lost)
    place = _place(spark, layout, to, tables, rules, journal)
    need_local(catalog, rules.sink, bool(to) or is_remote())
    with room(), _reached(place):
        place.prepare(anew)
    over = threading.Event()
    try:
        with room(), _reached(place):
            missing = place.take_in()
        for said in missing:
            notice(said)
        after = (
            After(
                catalog, layout, tables, keep or {}, notice, rules.sink, lambda: place.spark
            )  # fmt: skip
            if not to
            else None
        )
        trials = Trials(None if to else layout.trial)
        work = Work(
            place, journal, source.reads(layout.data, not skip_lost), tables, rules, report, notice,
            publish, trials,
            Fence(None if to else layout.published), after or _nothing_more,
            after.later if after is not None else _nothing_later,
        )  # fmt: skip
        query = _Query(layout.data, source, to, only, keep or {}, every, once, skip_lost)
        if after is not None:
            after.begin()
        ground = Ground(place, journal, source.here(layout.data) is not None)
        if place.far:
            threading.Thread(target=ground.look, args=(over.wait,), daemon=True).start()
        while not _followed(spark, work, query, stop, ground):
            if died():
                spark = _anew(again, work)
        ground.check()
        if after is not None:
            after.end()
    finally:
        over.set()
        place.release()


def _place(
    spark: SparkSession,
    layout: Layout,
    to: str,
    tables: tuple[AnyTable, ...],
    rules: Rules,
    journal: Journal,
) -> Place:
    if to:
        return Remote(spark, to, tables, rules, journal.shelf.identity)
    return Disk(spark, layout, tables, rules)


@contextmanager
def _reached(place: Place) -> Iterator[None]:
    """What Spark or Hadoop cannot reach, or may not, is said as that before the first batch."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise DirectoryError(
            f"{place.home.root} cannot be read or written: {said_by(error)}. See that it is there, "
            "and what Spark is told of it (spark-defaults.conf), and run it again"
        ) from error


def settings_for(rules: Rules, to: str) -> dict[str, str]:
    """Those of a Spark which does nothing but write these tables, `to` = at a URL or not."""
    rows = to or rules.table or rules.alert or rules.sink
    return SESSION if rows else SESSION | PLANS_ONLY


def _nothing_more(now: object, before: object) -> None:
    """What is done after a batch where files cannot be exchanged."""


def _nothing_later() -> None:
    """Nor while there is none."""


def _unheard(said: str) -> None:
    """A notice where nobody is."""


def chosen(only: tuple[str, ...], rules: Rules) -> tuple[AnyTable, ...]:
    wanted = {*only, "messages", *([alerts.NAME] if rules.alert else [])}
    wanted |= {"quarantine"} if rules.table else set()
    shipped = [table for table in ALL if table.name in wanted]
    # What does not fit a table of the user is known when `quarantine` is written.
    before = sum(table.name in ("messages", "readings") for table in shipped)
    return (*shipped[:before], *typed.tables_of(rules), *shipped[before:])


def _anew(again: Callable[[], SparkSession] | None, work: Work) -> SparkSession:
    batch = work.trials.now.batch
    error = f"{ENDED} {f'in batch {batch}' if batch >= 0 else 'between two batches'}"
    if again is None:
        raise JournalError(f"{error}: run it again, with more --memory; what fails is cut smaller")
    work.notice(f"{error}; it is started again")
    for _ in range(STARTS - 1):
        try:
            return again()
        except StartError as failed:
            work.notice(f"{failed}; once more")
    return again()


def _followed(
    spark: SparkSession, work: Work, query: _Query, stop: threading.Event, ground: Ground
) -> bool:
    """Follow the journal; False if that is to begin anew, with batches of another size."""
    work.place.spark = spark
    batches, memory = None, out_of_memory()
    try:
        settle(spark, isinstance(work.place, Disk) and not is_remote())
        before = work.place.progress()  # at a URL a job of Spark: once for all who ask
        _lessen(work, before)
        _try(spark, work)
        if query.every is None and not query.once and not is_remote():
            work = work._replace(pace=Pace(work.journal, spent))
        batches = Batches(work, before)
        write: Callable[[DataFrame, int], None] = batches.write
        if is_remote():  # then Spark is another process, which gets the work and not the callbacks
            write = partial(_far, query=query, rules=work.rules, publish=work.publish)
        rows = _rows(spark, query, min(work.trials.now.rows or ROWS, ROWS))
        started = _start(rows, write, work.place.checkpoint, query)
        return _watch(started, batches, stop, ground)
    except (PySparkException, Py4JError, OSError) as error:
        # While everything is being stopped Spark's helpers may be gone before us.
        if stop.is_set():
            return True
        ground.check()
        at_work = batches is not None and batches.error is not None
        if (said := by_chance(error, at_work)) and work.trials.late(at_work):
            work.notice(f"{said}; once more")
            return False
        _fail(work.trials, blamed(error, batches, memory), work.notice)
        return False
    finally:
        if batches is not None:
            batches.close(0)


def _fail(trials: Trials, blame: Blame, notice: Callable[[str], None]) -> None:
    """The batch at work begins again, unless that has come to nothing too often."""
    trials.fails(*blame)
    if trials.now.hopeless:
        raise JournalError(
            f"batch {trials.now.batch} failed {trials.now.failed} times ({blame.reason}), and "
            "nothing that was tried helps: mend what that names and run it again, it goes on from "
            "the last whole batch"
        )
    if not blame.reason.startswith(ENDED):  # that is said where it is started again
        notice(f"batch {trials.now.batch} failed and begins again: {blame.reason}")


def _lessen(work: Work, before: Progress | None) -> None:
    """Take back what Spark planned for a batch that failed often enough, to plan less."""
    trials, place = work.trials, work.place
    batch = before.batch + 1 if before is not None else 0
    now = trials.now
    if now.batch != batch or not now.spent or is_remote():
        return
    if now.rule:
        if now.bad_rule:
            rule = trials.blame()
            work.notice(f"batch {batch} failed twice at alert {rule!r}, which is left out of it")
        return
    upto = ends_at(place.planned(batch))
    if not upto or now.poison:
        return
    after = ends_at(place.planned(batch - 1)) or work.journal.first() - 1
    place.forget_plan(batch)
    trials.cut(upto - after, upto)
    work.notice(
        f"batch {batch} failed twice ({now.error or 'it never ended'}): its rows {after + 1} to "
        f"{upto} come {trials.now.rows} at a time"
    )


def _rows(spark: SparkSession, query: _Query, rows: int) -> DataFrame:
    source = spark.readStream.format("hubbub").option("startingOffsets", "earliest")
    source = source.option("maxOffsetsPerTrigger", str(rows))
    source = source.option("maxBytesPerTrigger", str(heap(spark) // HEAP_SHARE))
    if query.every is None and is_remote():  # there a batch cannot be held back
        source = source.option("minOffsetsPerTrigger", str(FEW))
        source = source.option("maxTriggerDelay", f"{IDLE:.0f}")
    if not is_remote():
        source = source.option("maxPartitions", str(spark.sparkContext.defaultParallelism))
    return source.options(**query.source.reads(query.data, not query.skip_lost)).load()


def _try(spark: SparkSession, work: Work) -> None:
    """Ask the alerts of tables without rows: what is wrong is said now, not with some message."""
    if work.rules.alert and not is_remote():
        apart = spark.newSession()
        for table in work.tables:
            if not isinstance(table, Derived):
                nothing = apart.createDataFrame([], ddl(table.columns))
                nothing.createOrReplaceTempView(table.name)
        alerts.check(apart, work.rules.alert)


def _start(
    rows: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: str, query: _Query
) -> StreamingQuery:
    writer = rows.writeStream.queryName("hubbub").foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint)
    if query.once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{query.every or EVERY} seconds").start()


def _watch(query: StreamingQuery, batches: Batches, stop: threading.Event, ground: Ground) -> bool:
    """Wait for the end, or for `stop`: then let the batch at work end first.

    False if batches may have more rows again.
    """
    far = is_remote()
    while query.isActive and not stop.wait(0.2):
        if far:
            batches.look()
        if gone := _gone(ground):
            batches.close(PATIENCE)  # it fails with what it misses
            query.stop()
            raise gone
        batches.between()
        if batches.eased and batches.close(PATIENCE):
            query.stop()
            return False
    if far:
        _let_end(query, batches)
    elif not batches.close(PATIENCE):
        batches.work.trials.stops()
    query.stop()
    error = query.exception()
    if error is not None and not stop.is_set():
        raise error
    return True


def _gone(ground: Ground) -> HubbubError | None:
    try:
        ground.glance()
    except HubbubError as error:
        return error
    except OSError:
        pass  # the machine cannot look now; who reads or writes there says more
    return None


def _let_end(query: StreamingQuery, batches: Batches) -> None:
    """Wait for the batch at work in another process: until it is whole, or Spark does nothing."""
    limit = time.monotonic() + PATIENCE
    batches.look()
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < limit:
        if batches.look():
            return
        time.sleep(0.2)
    batches.look()


def _far(
    frame: DataFrame, batch: int, query: _Query, rules: Rules, publish: Publish | None
) -> None:
    """A batch in a process of the Spark Connect server, which starts with nothing each time."""
    spark = frame.sparkSession
    layout = Layout(query.data)
    tables = chosen(query.only, rules)
    journal = query.source.journal(layout.data, strict=not query.skip_lost)
    place = _place(spark, layout, query.to, tables, rules, journal)
    whole = None if query.to else After(NOWHERE, layout, tables, query.keep, _unheard)
    trials, fence = Trials(), Fence(None if query.to else layout.published)
    work = Work(
        place, journal, query.source.reads(layout.data, not query.skip_lost), tables, rules,
        lambda report: None, _unheard, publish, trials, fence, whole or _nothing_more,
    )  # fmt: skip
    Batches(work, place.progress()).write(frame, batch)
