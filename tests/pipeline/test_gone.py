"""What a pipeline stands on is taken away from under it: it ends soon, and says what is gone.

Taken are the whole directory, the journal or parts of it, the tables or parts of them; before the
first batch, in the midst of one, and between two. What is put back, or was left, is whole after
the next run.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hubbub.errors import DirectoryError, JournalError, SettingError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline import sql, task
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.batches import Batches
from hubbub.pipeline.compact import drop
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.typed import Typed
from tests.pipeline.test_run import rows_of
from tests.spark.fixtures import Writer, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(200)]

ROWS: Final = 300
SECONDS: Final = 120.0  # in which it ends, on a machine that may be busy

REMOVED: Final = "tables was removed, moved or replaced while this pipeline wrote there"
# By what is taken: where it lies, and the error.
TAKEN: Final = {
    "all": (".", REMOVED),
    "journal": ("log", "ends at row 0, and had 300 when this began"),
    "name": ("id", "is gone: it was removed, moved or unmounted while the pipeline read it"),
    "tables": ("tables", REMOVED),
    "table": ("tables/readings", "tables lacks readings, which batches up to "),
    "progress": ("tables/_progress.json", "_progress.json is gone: put it back, or move"),
    "checkpoint": ("tables/_checkpoint", "tables has tables but their checkpoint is gone"),
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal for three batches, which no hub writes any more."""
    monkeypatch.setattr(pipeline, "ROWS", ROWS // 3)
    writer = Writer(tmp_path / "data", segment=20_000)
    for first in range(0, ROWS, 20):
        writer.write(*(publish(n, "a", b"%d" % n) for n in range(first, first + 20)))
    writer.close()
    return tmp_path / "data"


def away(data: Path, what: str) -> Callable[[], None]:
    place = (data / what).resolve()

    def take() -> None:
        if place.exists():
            place.rename(data.with_name("away"))

    return take


def back(data: Path, what: str) -> None:
    place = (data / what).resolve()
    shutil.rmtree(place, ignore_errors=True)  # what was made there since
    data.with_name("away").rename(place)


def once(spark: SparkSession, data: Path, *anew: str) -> list[str]:
    """What a run of all that is there says."""
    said: list[str] = []
    pipeline.run(spark, data, threading.Event(), once=True, notice=said.append, anew=anew)
    return said


def add(data: Path, rows: int) -> None:
    """Rows of the journal, as of a hub that runs again."""
    writer = Writer(data)
    writer.write(*(publish(ROWS + n, "a", b"%d" % n) for n in range(rows)))
    writer.close()


def error_of(spark: SparkSession, data: Path, report: Callable[..., None], once: bool) -> str:
    """What it ends with, in time."""
    stop = threading.Event()
    late = threading.Timer(SECONDS, stop.set)
    late.start()
    try:
        with pytest.raises((DirectoryError, JournalError)) as raised:
            pipeline.run(spark, data, stop, report, once=once, every=None if once else 0.2)
    finally:
        late.cancel()
    assert not stop.is_set(), "it went on as if nothing was"
    return str(raised.value)


def whole(spark: SparkSession, data: Path) -> None:
    pipeline.run(spark, data, threading.Event(), once=True)
    for table in ("messages", "readings"):
        query = f"select count(*), count(distinct seq) from {table}"
        assert rows_of(data, query) == [(ROWS, ROWS)], table


def each(*ways: object) -> list[object]:
    """All that is taken, in one of these ways in turn: what is said does not hang on the way.
    `make soak` does all of them in all."""
    return [
        pytest.param(what, way, marks=() if n % len(ways) == m else pytest.mark.soak)
        for n, what in enumerate(TAKEN)
        for m, way in enumerate(ways)
    ]


@pytest.mark.parametrize(("what", "once"), each(True, False))
def test_in_the_midst_of_a_batch(
    spark: SparkSession, data: Path, what: str, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, expected = TAKEN[what]
    take, run, batches = away(data, place), task.run, list[int]()

    def taken(session: SparkSession, job: task.Job) -> task.Done:
        batches.append(job.ranges[0].after)
        if len(batches) == 2:
            take()
        return run(session, job)

    with monkeypatch.context() as patch:
        patch.setattr(task, "run", taken)
        assert expected in error_of(spark, data, lambda report: None, once)
    back(data, place)
    whole(spark, data)


@pytest.mark.parametrize(("what", "behind"), each(100, 0))
def test_between_two_batches(spark: SparkSession, data: Path, what: str, behind: int) -> None:
    """While rows wait, and while the pipeline waits for rows."""
    place, expected = TAKEN[what]
    take = away(data, place)

    def taken(report: pipeline.Report) -> None:
        if report.behind <= behind and not data.with_name("away").exists():
            take()

    assert expected in error_of(spark, data, taken, once=False)
    back(data, place)
    whole(spark, data)


@pytest.mark.parametrize("what", ["all", "journal", "name", "tables"])
def test_before_the_first_batch(
    spark: SparkSession, data: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, expected = TAKEN[what]
    take, start = away(data, place), pipeline._start

    def taken(*given: Any) -> StreamingQuery:
        take()
        return start(*given)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "_start", taken)
        assert expected in error_of(spark, data, lambda report: None, once=True)
    back(data, place)
    whole(spark, data)


def test_a_segment_is_said_as_rows_that_are_lost(spark: SparkSession, data: Path) -> None:
    second = sorted((data / "log").glob("*.rows"))[1].relative_to(data)
    away(data, str(second))()
    assert "are lost" in error_of(spark, data, lambda report: None, once=True)
    back(data, str(second))
    whole(spark, data)


def test_what_was_written_where_tables_had_been_is_no_begin(tmp_path: Path) -> None:
    """Spark makes directories that are not there: of a checkpoint without its first batch."""
    layout = Layout(tmp_path)
    (layout.checkpoint / "offsets").mkdir(parents=True)
    (layout.checkpoint / "offsets" / "7").touch()
    layout.prepare(("messages",))
    layout.release()
    assert not layout.checkpoint.exists()


@pytest.mark.parametrize("part", ["_open", "_checkpoint", "_checkpoint/metadata", "_progress.json"])
def test_tables_of_which_a_part_is_gone_are_refused(
    spark: SparkSession, data: Path, part: str
) -> None:
    whole(spark, data)
    away(data, f"tables/{part}")()
    with pytest.raises(DirectoryError, match="is gone: put it back, or move"):
        pipeline.run(spark, data, threading.Event(), once=True)
    back(data, f"tables/{part}")
    whole(spark, data)


# A table that is gone when a run begins


@pytest.mark.parametrize("emptied", [False, True])
def test_a_table_that_is_gone_is_not_taken_for_new(
    spark: SparkSession, data: Path, emptied: bool
) -> None:
    whole(spark, data)
    for table in ("readings", "calls"):
        away = data / "tables" / table
        away.rename(data.with_name(table))
        if emptied:
            away.mkdir()
    add(data, 10)
    with pytest.raises(DirectoryError) as raised:
        once(spark, data)
    said = str(raised.value)
    assert "tables lacks readings, calls, which batches up to 2 wrote: put back what was" in said
    assert "backfill NAME` makes readings again" in said and "--anew readings,calls`" in said
    assert Layout(data).stands().batch == 2, "nothing was written"
    with pytest.raises(SettingError, match=r"\[TABLE_OR_VIEW_NOT_FOUND\].*`readings`"):
        sql.views(spark, data)
        sql.ask(spark, data, "SELECT count(*) FROM readings")
    for table in ("readings", "calls"):
        shutil.rmtree(data / "tables" / table, ignore_errors=True)
        data.with_name(table).rename(data / "tables" / table)
    assert once(spark, data) == []
    assert rows_of(data, "select count(*), count(distinct seq) from readings") == [(310, 310)]


def test_a_table_that_is_gone_begins_anew_where_that_is_said(
    spark: SparkSession, data: Path
) -> None:
    whole(spark, data)
    shutil.rmtree(data / "tables/readings")
    shutil.rmtree(data / "tables/traffic")
    add(data, 100)
    assert once(spark, data, "readings", "traffic", "calls") == [
        "readings was gone, with what batches 0 to 2 wrote: their rows are missing in it until "
        "`hubbub pipeline backfill readings` makes it again",
        "traffic was gone, with what batches 0 to 2 wrote: their rows are missing in it until "
        "`hubbub pipeline backfill traffic` makes it again",
    ]
    assert rows_of(data, "select count(*), min(seq) from readings") == [(100, 301)]
    # What was open when the table went closes in it: only what had closed before is missing.
    assert once(spark, data, "readings") == [], "it is there"
    for table in ("readings", "traffic"):
        backfill(spark, Layout(data), table, NO_RULES)
    assert rows_of(data, "select count(*), count(distinct seq) from readings") == [(400, 400)]
    counted = rows_of(data, "select count(distinct minute), sum(messages) from traffic")
    assert counted == [(6, 360)], "minutes that are over, each with all of its messages"


def test_a_table_that_is_gone_is_made_again_of_messages(spark: SparkSession, data: Path) -> None:
    whole(spark, data)
    shutil.rmtree(data / "tables/readings")
    shutil.rmtree(data / "tables/calls")
    assert backfill(spark, Layout(data), "readings", NO_RULES) == (ROWS, 0)
    with pytest.raises(DirectoryError, match="lacks calls, which batches up to 2 wrote"):
        once(spark, data)
    shutil.rmtree(data / "tables/messages")
    with pytest.raises(DirectoryError, match="lacks messages, which batches up to 2 wrote"):
        backfill(spark, Layout(data), "readings", NO_RULES)
    assert Layout(data).files("readings", -1, 2), "it is as it was"


def test_retention_leaves_a_table_that_is_there(tmp_path: Path) -> None:
    """Also one that had all its rows in groups that are over."""
    layout = Layout(tmp_path)
    layout.prepare(("sessions",))
    layout.empty("sessions", False, Path.touch)
    layout.advance(Progress(0, 1, "2026-01-01 12:00:00", 0, "", 0))
    for group in (0, 7):
        place = layout.root / f"sessions/batch_id={group}"
        place.mkdir(exist_ok=True)
        (place / f"part-{group:010}-000.parquet").write_text("rows")
        os.utime(place / f"part-{group:010}-000.parquet", (0, 0))
        now = Progress(group + 7, 99, "2026-03-01 12:00:00", group + 7, "", 0)
        assert drop(layout, "sessions", now, 1) == 1
        assert layout.lacking(["sessions"]) == []
    layout.release()
    found = [str(one.relative_to(layout.root)) for one in (layout.root / "sessions").rglob("*.*")]
    assert found == ["sessions/batch_id=14/part-none.parquet"]


def test_open_rows_that_are_damaged_put_no_row_into_quarantine(
    spark: SparkSession, data: Path
) -> None:
    """They fail each batch alike: it is not cut down to rows that are not to blame."""
    taken = list[Path]()

    def damage(report: pipeline.Report) -> None:
        if not taken:
            taken.extend(Layout(data).carried("traffic", report.batch))
            whole_file = taken[0].read_bytes()
            taken[0].write_bytes(whole_file[: len(whole_file) // 2])
            data.with_name("away").write_bytes(whole_file)

    assert "has open rows and cannot be read" in error_of(spark, data, damage, once=True)
    taken[0].write_bytes(data.with_name("away").read_bytes())
    whole(spark, data)


@pytest.mark.parametrize("part", ["", "/readings.whole"])
def test_what_a_batch_has_written_is_gone_before_it_is_shown(
    spark: SparkSession, data: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = task.run

    def cleaned(session: SparkSession, job: task.Job) -> task.Done:
        done = run(session, job)
        shutil.rmtree(data / f"tables/_tmp{part}")
        return done

    with monkeypatch.context() as patch:
        patch.setattr(task, "run", cleaned)
        assert "it begins th" in error_of(spark, data, lambda report: None, once=True)
    whole(spark, data)


def test_a_file_that_a_task_cannot_write_is_no_row_s_fault(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Python says it of any file: a worker that may open no more, a disk that is read-only."""
    run = task.run

    def refused(session: SparkSession, job: task.Job) -> task.Done:
        return run(session, job._replace(rooms=dict.fromkeys(job.rooms, "/dev/null/room")))

    with monkeypatch.context() as patch:
        patch.setattr(task, "run", refused)
        said = error_of(spark, data, lambda report: None, once=True)
    assert "NotADirectoryError" in said and "no row of the journal did this" in said
    whole(spark, data)


def test_who_begins_with_larger_batches_waits_for_no_batch_that_waits_for_him(
    spark: SparkSession, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch comes just when the query is stopped: once both waited for ever."""
    layout = Layout(data)
    layout.root.mkdir()
    layout.trial.write_text(json.dumps({"batch": 0, "rows": 50, "until": 10**6, "found": True}))
    arrived, write, stopped = threading.Event(), Batches.write, StreamingQuery.stop

    def late(self: Batches, frame: DataFrame, batch: int) -> None:
        if self.eased:
            arrived.set()
        write(self, frame, batch)

    def stop(query: StreamingQuery) -> None:
        arrived.wait(5)
        stopped(query)

    monkeypatch.setattr(Batches, "write", late)
    monkeypatch.setattr(StreamingQuery, "stop", stop)
    over = threading.Thread(target=whole, args=(spark, data), daemon=True)
    over.start()
    over.join(SECONDS)
    assert not over.is_alive(), "it waits for ever"
    whole(spark, data)


def test_a_table_is_gone_until_a_run_may_begin_it_anew(spark: SparkSession, data: Path) -> None:
    """A run that was refused for something else had made it: nobody was told what it lacks."""
    own = Typed("climate", "a", {"x": "$.x DOUBLE"})

    def once(*anew: str, own: Typed = own) -> list[str]:
        said: list[str] = []
        pipeline.run(
            spark, data, threading.Event(), once=True, notice=said.append, anew=anew,
            rules=Rules(table=(own,)),
        )  # fmt: skip
        return said

    once()
    shutil.rmtree(data / "tables/readings")
    with pytest.raises(SettingError, match="x was double, is string"):
        once("readings", own=Typed("climate", "a", {"x": "$.x STRING"}))
    with pytest.raises(DirectoryError, match="tables lacks readings, which batches up to 2 wrote"):
        once()
    assert once("readings") == [
        "readings was gone, with what batches 0 to 2 wrote: their rows are missing in it until "
        "`hubbub pipeline backfill readings` makes it again"
    ]
