"""What Spark calls for each batch: its rows into all tables.

The order of a batch is in `Batches.write` and nowhere else:

    messages and what is made with them · tables of the user · the folded tables · alerts ·
    then the progress

On a disk tasks of Spark make `messages`, and all that needs no more, in one go (`pipeline.task`),
and count in passing. Elsewhere only Spark can write: it reads the journal once for `messages`, and
makes of the rows that this wrote what is made of messages. What is folded is folded here, row after
row, of rows that are read here: a second look by Spark takes several times as much. A table is
written only if the batch has rows that concern it. Alerts are published once all is written, and
again if the batch runs again: the hub knows which it took.

A row that nothing can take (`pipeline.trial`) goes to `quarantine` without Spark. Called by `run`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.accumulators import Accumulator
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from hubbub.errors import DirectoryError, HubbubError, JournalError, Refused
from hubbub.journal.table import Table as Journal
from hubbub.pipeline import task
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.layout import Fence, Progress, ahead, cut_of, ends_at, grown
from hubbub.pipeline.pace import Pace
from hubbub.pipeline.places import Place, read_payloads_of
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables import TABLES, alerts, messages, quarantine, readings
from hubbub.pipeline.tables.table import (
    CARRIED,
    AnyTable,
    Derived,
    Folded,
    Folding,
    Held,
    Made,
    Moment,
    Spanning,
    Summed,
    Table,
    arrow,
    ddl,
)
from hubbub.pipeline.trial import Trials
from hubbub.spark.options import Options
from hubbub.spark.plan import Span
from hubbub.spark.source import joined

STRICT: Final = "failOnDataLoss"  # of `format("hubbub")`
TRIES: Final = 3  # of a batch whose rows go while it reads them

# A name of this pipeline alone, the batch, the number of the first, and what to publish in order.
Publish = Callable[[str, int, int, list[alerts.Found]], None]


class Report(NamedTuple):
    """What a batch did: rows of the journal it read, and how many more are committed.

    `tables`: seconds each table took; those that the batch did not concern are not there. `lost`:
    rows that were gone or damaged. `quarantined`: messages that could not be decoded, where
    `readings` is written and Spark is not another process.
    """

    batch: int
    seq: int
    rows: int
    messages: int
    behind: int
    seconds: float
    tables: dict[str, float]
    lost: int = 0
    quarantined: int = 0


class Counted(NamedTuple):
    """A batch in numbers: its last seq and time, its rows, and the tables they concern.

    `largest`: bytes of its largest payload.
    """

    seq: int
    until: str
    rows: int
    messages: int
    concerned: set[str]
    largest: int = 0


class Work(NamedTuple):
    """What all batches of a run have in common.

    `whole` is called after a batch, with the progress and the one before; `later` now and then,
    while there is none: who lacks some of them may get them. `fence`: up to which row
    alerts were published. `options`: where the journal is, as `format("hubbub")` takes it.
    """

    place: Place
    journal: Journal
    options: dict[str, str]
    tables: tuple[AnyTable, ...]
    rules: Rules
    report: Callable[[Report], None]
    notice: Callable[[str], None]
    publish: Publish | None
    trials: Trials
    fence: Fence
    whole: Callable[[Progress, Progress | None], None] = lambda now, before: None
    later: Callable[[], None] = lambda: None
    pace: Pace | None = None  # None = the next batch begins when Spark likes to


class _Went(JournalError):
    """Rows that one table has were not there any more for another."""


class Batches:
    """`write` is what Spark calls. `idle` is free between batches; `error` is what ended one;
    `before` is what the last whole batch noted.

    `eased`: batches may have more rows again. `taking`: what fails now may be a row's fault.
    """

    def __init__(self, work: Work, before: Progress | None) -> None:
        self.work = work
        self.place = work.place
        self.rules = work.rules
        self.idle = threading.Lock()
        self.error: Exception | None = None
        self.eased = self.taking = self._over = False
        self._made = [table for table in work.tables if not isinstance(table, Derived)]
        self._by_tasks = task.made_by_tasks(work.tables, work.rules)
        self._asked = _asked(self._made, work.rules)
        self._query = ""
        self._events = f"{_bits(self._made, work.rules)} AS events"
        self.before = before
        self._start = work.journal.first() - 1 if self.before is None else None
        self._after = 0  # the row before those of the batch at work
        self._begun = False
        self._looked = time.monotonic()
        self._took: dict[str, float] = {}
        self._quarantined = 0
        self._failed: Accumulator[int] | None = None

    def write(self, frame: DataFrame, batch: int) -> None:
        """The rows of a batch into all tables."""
        with self.idle:
            if self._over:  # to return would be to say that it is whole
                raise JournalError(f"batch {batch} came when the pipeline was ending")
            if self.before is not None and self.before.batch >= batch:
                self._need_last(batch)
                return  # whole, but Spark did not come to say so in its checkpoint
            try:
                self._write(frame, batch)
            except Exception as error:
                self.error = error
                raise
        pace = self.work.pace
        if pace is not None and self.before is not None and not self.eased:
            pace.rest(self.before.seq)

    def between(self) -> None:
        """If no batch is at work, who is behind may be brought up."""
        if self.idle.acquire(blocking=False):
            try:
                self.work.later()
            finally:
                self.idle.release()

    def _need_last(self, batch: int) -> None:
        """A batch that is whole comes again: only the last one can, as it was."""
        assert self.before is not None
        if batch < self.before.batch:
            raise self._stray(f"it begins batch {batch} again")
        self._need_follow(ends_at(self.place.planned(batch)))

    def _need_follow(self, after: int) -> None:
        """The next batch takes the rows behind `after`, and the tables end there. A checkpoint of
        another moment has others. Rows between that nothing can read any more are lost, not left.
        """
        seq = self.before.seq if self.before is not None else after
        if after < seq:
            raise self._stray(f"it goes on after row {after}")
        if after > seq and self.work.options[STRICT] == "true" and self._readable(seq, after):
            lost = f"`--skip-lost` goes on without rows {seq + 1} to {after}"
            raise self._stray(f"it goes on after row {after}", lost)

    def _readable(self, after: int, upto: int) -> bool:
        try:
            return next(iter(self.work.journal.read(after, upto)), None) is not None
        except HubbubError:
            return False

    def _stray(self, does: str, *ways: str) -> DirectoryError:
        assert self.before is not None
        stand = f"batch {self.before.batch} and row {self.before.seq}"
        return self.place.home.strays(self.place.checkpoint, does, stand, *ways)

    def close(self, patience: float) -> bool:
        """No batch begins any more. Whether none is at work, after so many seconds at most.

        Who stops the query must not hold `idle`: Spark waits for the batch that waits for it.
        """
        if self.work.pace is not None:
            self.work.pace.over.set()
        if not self.idle.acquire(timeout=patience):
            return False
        self._over = True
        self.idle.release()
        return True

    def _write(self, frame: DataFrame, batch: int) -> None:
        before, begun = self.before, time.monotonic()
        self._took, self._quarantined = {}, 0
        self.place.spark = frame.sparkSession
        if not self._begun:
            self.place.undo(batch)  # only the first can have been cut short
        self._begun = True
        trials = self.work.trials
        poison = trials.now.poison and trials.now.batch == batch
        trials.begins(batch)
        self.taking = not poison
        counted = self._poison(batch) if poison else self._whole(frame, batch)
        if not counted.rows:
            self._nothing(batch)
            return
        progress = self._grown(counted, batch)
        if not poison:
            self._alerts(frame.sparkSession, progress)
        self.taking = False
        self.place.advance(progress)
        self.before = progress
        self.eased = trials.ends(progress.seq, poison)
        self._say(progress, counted, lost_in(progress, before), time.monotonic() - begun)
        self.work.whole(progress, before)

    def _whole(self, frame: DataFrame, batch: int) -> Counted:
        """All tables, begun again if rows went between two looks at them: each lacks the same."""
        for _ in range(TRIES):
            try:
                return self._tables(frame, batch)
            except _Went:
                self.place.undo(batch)
                self.work.notice(f"rows of batch {batch} went while it read them; once more")
        raise JournalError(
            f"the journal removes rows of batch {batch} faster than they are read: give it more "
            "room (journal.retain_bytes, journal.retain_seconds), or let readers begin at what is "
            "new"
        )

    def _tables(self, frame: DataFrame, batch: int) -> Counted:
        rooms = self.place.rooms(self._by_tasks)
        if rooms:
            done = self._tasks(frame.sparkSession, batch, rooms)
            counted, sums = self._shown(done, batch, rooms), done.sums
        else:
            counted, sums = self._messages(frame, batch), None
        if counted.rows:
            self._others(frame, self._grown(counted, batch), counted, rooms.keys())
            self._sum(self._grown(counted, batch), counted, sums)
            self._fold(self._grown(counted, batch), counted)
        return counted

    def _grown(self, counted: Counted, batch: int) -> Progress:
        seq, until, rows = counted.seq, counted.until, counted.rows
        return grown(self.before, batch, seq, until, rows, counted.largest, self._start)

    def _say(self, progress: Progress, counted: Counted, lost: int, seconds: float) -> None:
        work, seq = self.work, progress.seq
        if lost:
            work.notice(f"{lost} rows of the journal before row {seq} were gone or damaged, unread")
        if astray := ahead(progress.time):
            work.notice(astray)
        behind = work.journal.committed() - seq
        rows, messages = counted.rows, counted.messages
        took = self._took
        report = Report(progress.batch, seq, rows, messages, behind, seconds, took, lost)
        work.report(report._replace(quarantined=self._quarantined))

    def look(self) -> bool:
        """Report what others wrote since the last look, if they did."""
        now, before = self.place.progress(), self.before
        if now is None or now == before:
            return False
        rows = now.seq - (before.seq if before is not None else 0)
        seconds = time.monotonic() - self._looked
        self._looked = time.monotonic()
        self.before = now
        self._say(now, Counted(now.seq, now.time, rows, rows, set()), lost_in(now, before), seconds)
        return True

    # The tables

    def _tasks(self, spark: SparkSession, batch: int, rooms: dict[str, Path]) -> task.Done:
        """The batch as Spark planned it, cut as it is whenever it runs again."""
        journal, planned = self.work.journal, self.place.planned(batch)
        if not planned:  # Spark writes it before it calls: no rows would be taken for all of them
            raise DirectoryError(
                f"the plan of batch {batch} is gone from {self.place.checkpoint} while it was at "
                "work: put it back, or move the tables away, then the next run makes them again "
                "from what the journal still has"
            )
        before = ends_at(self.place.planned(batch - 1))
        if before:
            self._need_follow(before)
        else:
            before = self.before.seq if self.before is not None else journal.first() - 1
        self._after = before
        (where,) = Options(self.work.options).places
        span = Span(before, ends_at(planned))
        parts = task.shares(where, journal.shelf.identity(), span, cut_of(planned, span))
        folded = tuple(table.name for table in self._made if isinstance(table, Folded))
        places = {name: str(room) for name, room in rooms.items()}
        return task.run(spark, task.Job(self.work.options, parts, places, folded, self.rules))

    def _shown(self, done: task.Done, batch: int, rooms: dict[str, Path]) -> Counted:
        """What tasks made gets into the tables."""
        shipped = {one.name for one in TABLES if one.of_messages} if done.messages else set()
        concerned = shipped | {*done.concerned}
        counted = Counted(done.seq, done.until, done.rows, done.messages, concerned, done.largest)
        if done.rows:
            progress = self._grown(counted, batch)
            for table in self._made:
                if table.name in done.took:
                    room = task.taken_to(rooms[table.name])
                    _need_files(room, done.files, self.place.show(table, room, progress))
        self._took |= done.took
        self._quarantined += done.failed
        return counted

    def _messages(self, frame: DataFrame, batch: int) -> Counted:
        """The one pass over all rows of the journal: messages are written, the rest is counted."""
        begun = time.monotonic()
        note = Observation()
        seen = timed(frame, self.rules).selectExpr("*", self._events)
        seen = seen.observe(note, *map(F.expr, _NUMBERS))
        written = self.place.append(messages.TABLE, messages.rows(seen, self.rules), batch)
        counted = _counted(note.get, [table.name for table in self._made])
        first = note.get["first"] or 1
        self._after = self.before.seq if self.before is not None else first - 1
        if counted.rows:
            self._need_follow(first - 1)
        if counted.messages:
            self.place.show(messages.TABLE, written, self._grown(counted, batch))
            self._took["messages"] = time.monotonic() - begun
        return counted

    def _others(
        self, frame: DataFrame, progress: Progress, counted: Counted, made: Collection[str]
    ) -> None:
        """The tables that Spark makes, but those `made` already."""
        read_payloads_of(frame.sparkSession, counted.largest)
        added: DataFrame | None = None
        for table in self._made:
            if table.name in (messages.TABLE.name, *made) or isinstance(table, Summed | Folded):
                continue
            begun = time.monotonic()
            if table.of_messages and added is None:
                added = self.place.appended(messages.TABLE, progress)
            again = None if table.of_messages else Observation()
            rows = frame if added is None or again is not None else added
            if again is not None:
                rows = rows.observe(again, F.count(F.lit(1)).alias("rows"))
            if isinstance(table, Table):
                wrote = self._append(table, rows, progress, counted)
            else:
                wrote = self._span(table, rows, progress, counted)
            if wrote and again is not None:
                _need_all(again.get["rows"], counted)
            if wrote:
                self._took[table.name] = time.monotonic() - begun

    def _sum(self, progress: Progress, counted: Counted, sums: pa.Table | None) -> None:
        """The tables whose rows are sums over messages; `sums` are those that tasks made."""
        until = datetime.fromisoformat(progress.time).replace(tzinfo=UTC)
        for table in self._made:
            if not isinstance(table, Summed):
                continue
            begun = time.monotonic()
            if table.name not in counted.concerned and not self._minute_over(progress):
                self.place.carry_on(table, progress.batch)
                continue
            if sums is None:
                added = self.place.appended(messages.TABLE, progress)
                sums = table.sums(added, self.rules).toArrow()
            parts = sums.cast(arrow(table.columns))
            fold = partial(table.fold, parts, until=until, rules=self.rules)
            self.place.fold(table, fold, progress)
            self._took[table.name] = time.monotonic() - begun

    def _nothing(self, batch: int) -> None:
        """All rows of the range are gone, or nothing can read them."""
        for table in self.work.tables:
            if isinstance(table, CARRIED):
                self.place.carry_on(table, batch)

    def _append(self, table: Table, rows: DataFrame, progress: Progress, counted: Counted) -> bool:
        if table.name not in counted.concerned:
            return False
        if table is quarantine.TABLE and self._all_fit():
            return False
        if table.counts:
            failed = self._failed_of(rows)
            written = self.place.append(table, table.rows(rows, self.rules, failed), progress.batch)
            self._count(failed)
        else:
            written = self.place.append(table, table.rows(rows, self.rules), progress.batch)
        self.place.show(table, written, progress)
        return True

    def _all_fit(self) -> bool:
        """Whether those that count found nothing that is not what it is declared to be."""
        return not self._quarantined and not is_remote() and readings.TABLE in self.work.tables

    def _failed_of(self, rows: DataFrame) -> Accumulator[int] | None:
        """What counts messages that do not fit: one for all batches, since PySpark keeps each."""
        if self._failed is None and not is_remote():
            self._failed = rows.sparkSession.sparkContext.accumulator(0)
        if self._failed is not None:
            self._failed.value = 0
        return self._failed

    def _count(self, failed: Accumulator[int] | None) -> None:
        self._quarantined += failed.value if failed is not None else 0

    def _span(
        self, table: Spanning, rows: DataFrame, progress: Progress, counted: Counted
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
        failed = self._failed_of(rows) if table.memory else None
        found = table.rows(rows, carried, self._moment(progress)._replace(failed=failed))
        self.place.split(table, found.coalesce(1), progress)
        self._count(failed)
        return True

    def _fold(self, progress: Progress, counted: Counted) -> None:
        """The tables whose rows are taken one after the other, from one more look at the batch."""
        folded = [table for table in self.work.tables if isinstance(table, Folded)]
        chosen = [table for table in folded if table.name in counted.concerned]
        begun = time.monotonic()
        events = self._events_for(chosen, progress, counted) if chosen else {}
        segment = self.work.journal.segment_of(progress.seq) if chosen else 0
        for table in folded:
            if table.name not in events:
                self.place.carry_on(table, progress.batch)
                continue
            fold = partial(_folded, table, events[table.name], segment)
            self.place.fold(table, fold, progress)
            self._took[table.name] = time.monotonic() - begun
            begun = time.monotonic()

    def _events_for(
        self, tables: list[Folded], progress: Progress, counted: Counted
    ) -> dict[str, pa.Table]:
        """By table the rows of the batch that concern it, in the order of the journal."""
        found: dict[str, list[pa.RecordBatch]] = {}
        seen = 0
        for rows in joined(self.work.journal.read(self._after, progress.seq)):
            seen += rows.num_rows
            for table in tables:
                if its := table.events(rows):
                    found.setdefault(table.name, []).append(its)
        _need_all(seen, counted)
        return {name: pa.Table.from_batches(some) for name, some in found.items()}

    def _minute_over(self, progress: Progress) -> bool:
        """Whether the watermark came into another minute since the batch before."""
        if self.before is None:
            return False
        late = timedelta(seconds=self.rules.patience())
        marks = (datetime.fromisoformat(one.time) - late for one in (self.before, progress))
        return len({mark.replace(second=0, microsecond=0) for mark in marks}) > 1

    def _moment(self, progress: Progress) -> Moment:
        return Moment(F.lit(progress.time).cast("timestamp"), self.rules)

    # A row that nothing can take

    def _poison(self, batch: int) -> Counted:
        seq = ends_at(self.place.planned(batch))
        row = _plain(next(iter(self.work.journal.read(seq - 1, seq))))
        reason = f"the pipeline failed on this row: {self.work.trials.now.error}"
        found = {name: row[name] for name in ("seq", "time", "topic", "protocol", "client")}
        found |= {"declared": row["content_type"], "reason": reason, "payload": row["payload"]}
        until = row["time"].replace(tzinfo=None).isoformat(" ")
        counted = Counted(seq, until, 1, 0, set())
        table = pa.Table.from_pylist([found], arrow(quarantine.COLUMNS))
        self.place.put(quarantine.TABLE, table, self._grown(counted, batch))
        self._nothing(batch)
        self._quarantined = 1
        self.work.notice(f"row {seq} ({row['topic']}) is in quarantine: {reason}")
        return counted

    # Alerts

    def _alerts(self, spark: SparkSession, progress: Progress) -> None:
        """What the rules find in the rows that this batch added to the tables."""
        work = self.work
        skipped = work.trials.now.skipped
        rules = tuple(rule for rule in self.rules.alert if rule.name not in skipped)
        if not rules or alerts.TABLE not in work.tables:
            return
        begun = time.monotonic()
        for table in self._asked:
            self.place.appended(table, progress).createOrReplaceTempView(table.name)
        name = self._query = self._query or self.place.query()
        fence = work.fence.of(name) if work.publish is not None else progress.seq
        batch = alerts.Batch(progress.seq, progress.time, work.trials.now.since, fence)
        answer = alerts.find(spark, rules, batch, work.trials.asks, self._without)
        try:
            found = answer.rows()
            if found is None:
                return
            written = self.place.append(alerts.TABLE, found, progress.batch)
            self.place.show(alerts.TABLE, written, progress)
        finally:
            answer.release()
        self._publish(name, progress)
        work.fence.note(name, progress.seq)
        self._took[alerts.NAME] = time.monotonic() - begun

    def _publish(self, name: str, progress: Progress) -> None:
        if self.work.publish is None:
            return
        first = 0
        try:
            for piece in alerts.pieces(self.place.appended(alerts.TABLE, progress)):
                self.work.publish(name, progress.batch, first, piece)
                first += len(piece)
        except Refused as error:
            where = f"alerts of batch {progress.batch}"
            self.work.notice(f"{where} are written, and not all published: {error}")

    def _without(self, rule: str, reason: str) -> None:
        self.work.notice(f"alert {rule!r} failed and is left out of this batch: {reason}")


# What a batch is in numbers, counted in passing.
_NUMBERS: Final = (
    "min(seq) AS first",
    "max(seq) AS seq",
    "CAST(max_by(time, seq) AS string) AS until",
    "count(*) AS rows",
    "bit_or(events) AS events",
    "sum(events & 1) AS messages",
    "max(length(payload)) AS largest",
)


def _plain(rows: pa.RecordBatch) -> dict[str, Any]:
    """The only row, its texts even if they are none."""
    return {
        name: column.cast(pa.binary())[0].as_py().decode("utf-8", "replace")
        if pa.types.is_string(column.type)
        else column[0].as_py()
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def _folded(table: Folded, events: pa.Table, segment: int, held: Held) -> Folding:
    return table.fold(events, held, segment)


def _asked(tables: list[Made], rules: Rules) -> list[Made]:
    """The tables whose names stand in the SQL of an alert: who asks one must name it."""
    said = " ".join(rule.sql for rule in rules.alert).lower()
    return [table for table in tables if table.name.lower() in said]


def _bits(tables: list[Made], rules: Rules) -> str:
    """One bit a table that the row concerns. Spark compiles this, but no sums of `observe`."""
    return "+".join(
        f"IF({table.event(rules)}, {1 << place}L, 0L)" for place, table in enumerate(tables)
    )


def _counted(found: dict[str, Any], tables: list[str]) -> Counted:
    events = found["events"] or 0
    concerned = {table for place, table in enumerate(tables) if events >> place & 1}
    return Counted(
        found["seq"] or 0, found["until"] or "", found["rows"], found["messages"] or 0, concerned,
        found["largest"] or 0,
    )  # fmt: skip


def _need_all(seen: int, counted: Counted) -> None:
    if seen != counted.rows:
        raise _Went(f"{counted.rows} rows were read, and then {seen} of them")


def _need_files(room: Path, files: Collection[str], shown: int) -> None:
    made = sum(file.startswith(f"{room}/") for file in files)
    if made != shown:
        raise DirectoryError(
            f"{made} files were written to {room}, and {shown} were there still: somebody removed "
            "the others. Run it again, it begins this batch anew"
        )


def lost_in(now: Progress, before: Progress | None) -> int:
    return now.lost - (before.lost if before is not None else 0)
