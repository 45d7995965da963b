"""The whole pipeline over a journal: its tables, a batch that runs again, other readers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from hubbub import schema
from hubbub.errors import DirectoryError, JournalError, SettingError
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.pipeline import run as pipeline
from hubbub.pipeline import task
from hubbub.pipeline.batches import Batches
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.rules import NO_RULES, Alert, Rules
from hubbub.pipeline.run import Report
from hubbub.pipeline.screen import Screen, render
from hubbub.schema import Row
from hubbub.spark.options import Options
from hubbub.spark.source import read_range
from tests.spark.fixtures import Writer, publish

pytestmark = pytest.mark.spark

Run = Callable[[], list[Report]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def once(spark: SparkSession, data: Path) -> Run:
    def run() -> list[Report]:
        reports: list[Report] = []
        pipeline.run(spark, data, threading.Event(), reports.append, once=True)
        return reports

    return run


def ask(second: float) -> Row:
    row = publish(second, "$queue/foo", b"hello", kind=schema.SEND, reply_to=b"$queue/cli")
    return row._replace(client=b"cli")


def answer(second: float, to: int) -> Row:
    row = publish(second, "$queue/cli", b"hello", kind=schema.SEND, ref=to)
    return row._replace(client=b"svc")


def contents(data: Path) -> dict[str, bytes]:
    tables = data / "tables"
    return {
        str(file.relative_to(tables)): file.read_bytes()
        for file in sorted(tables.rglob("*.parquet"))
    }


def rows_of(data: Path, query: str) -> list[tuple[object, ...]]:
    """The answer of a reader that knows nothing of us."""
    found = duckdb.connect()
    found.execute("set timezone = 'UTC'")
    for name in ("messages", "readings", "traffic", "calls"):
        files = data / "tables" / name / "**" / "*.parquet"
        found.execute(f"create view {name} as select * from '{files}'")
    return found.execute(query).fetchall()


def test_open_rows_close_once_and_strangers_read_them(
    writer: Writer, data: Path, once: Run
) -> None:
    first = writer.write(publish(0, "a", b'{"t": 1}'), publish(1, "a", b"2"), ask(2))
    assert [(report.batch, report.seq, report.behind) for report in once()] == [(0, first, 0)]
    view = Screen(data).look()
    assert view is not None and view.counts["traffic_open"] == 2 and view.counts["calls_open"] == 1
    assert rows_of(data, "select * from traffic") == []

    writer.write(answer(3.5, first), publish(59, "a", b"3"), publish(60, "b", b"4"))
    once()
    writer.write(publish(300, "b", b"5"))
    once()

    assert rows_of(data, "select count(*), max(seq) from messages") == [(7, 7)]
    assert rows_of(data, "select topic, path, value from readings order by seq") == [
        ("a", "t", 1.0),
        ("a", "", 2.0),
        ("a", "", 3.0),
        ("b", "", 4.0),
        ("b", "", 5.0),
    ]
    query = "select topic, strftime(minute, '%H:%M'), messages, bytes from traffic order by 2, 1"
    assert rows_of(data, query) == [
        ("$queue/cli", "12:00", 1, 5),
        ("$queue/foo", "12:00", 1, 5),
        ("a", "12:00", 3, 10),
        ("b", "12:01", 1, 1),
    ]
    assert rows_of(data, "select queue, caller, responder, status, latency_ms from calls") == [
        ("foo", "cli", "svc", "answered", 1500.0)
    ]
    frame = pandas.read_parquet(data / "tables" / "messages")
    assert sorted(frame["seq"]) == list(range(1, 8))


def test_a_batch_that_runs_again_changes_nothing(writer: Writer, data: Path, once: Run) -> None:
    first = writer.write(publish(0, "a", b"1"), ask(1))
    once()
    writer.write(answer(2, first), publish(61, "a", b"2"))
    once()
    before = contents(data)
    (data / "tables" / "_checkpoint" / "commits" / "1").unlink()
    assert once() == []
    assert contents(data) == before


@pytest.mark.parametrize("step", ["append", "carry_pieces", "advance"])
def test_a_batch_cut_short_is_made_whole(
    writer: Writer, data: Path, once: Run, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    first = writer.write(publish(0, "a", b"1"), ask(1))
    once()
    writer.write(answer(2, first), publish(61, "a", b"2"))

    def fail(*arguments: object) -> None:
        raise OSError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Layout, step, fail)
        with pytest.raises(JournalError, match="the power is gone"):
            once()
    once()
    assert rows_of(data, "select seq, status from calls") == [(first, "answered")]
    assert rows_of(data, "select topic, messages from traffic order by 1") == [
        ("$queue/cli", 1),
        ("$queue/foo", 1),
        ("a", 1),
    ]
    assert rows_of(data, "select count(*), count(distinct seq) from messages") == [(4, 4)]


def test_batches_of_any_size_give_the_same_tables(
    writer: Writer, data: Path, once: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = 0
    for second in range(0, 200, 20):
        last = writer.write(publish(second, "a", b"1"), ask(second))
        writer.write(answer(second + 0.5, last))
    monkeypatch.setattr(pipeline, "ROWS", 7)
    assert len(once()) == 5
    assert rows_of(data, "select count(*), sum(latency_ms) from calls") == [(10, 5000.0)]
    closed = "select count(*), sum(messages) from traffic where topic = 'a'"
    assert rows_of(data, closed) == [(3, 9)]


def test_it_follows_the_journal_until_it_is_told_to_stop(
    spark: SparkSession, writer: Writer, data: Path
) -> None:
    stop = threading.Event()

    def report(report: Report) -> None:
        if report.batch == 0:
            writer.write(publish(1, "a", b"2"))
        else:
            stop.set()

    writer.write(publish(0, "a", b"1"))
    pipeline.run(spark, data, stop, report, every=0.2)
    assert rows_of(data, "select count(*) from messages") == [(2,)]
    assert spark.streams.active == []


def test_the_journal_may_come_later(spark: SparkSession, data: Path, once: Run) -> None:
    assert once() == []
    assert Screen(data).look() is None
    writer = Writer(data)
    writer.write(publish(0, "a", b"1"))
    writer.close()
    assert [report.rows for report in once()] == [1]


def test_rows_gone_before_they_were_read(
    spark: SparkSession, writer: Writer, data: Path, once: Run, tmp_path: Path
) -> None:
    writer.write(publish(0, "a", b"1"))
    once()
    writer.write(publish(1, "a", b"2"))
    segment = next((data / "log").glob("*.rows"))
    segment.rename(tmp_path / "gone")
    assert Table(str(data)).committed() == 2
    with pytest.raises(JournalError, match="2"):
        once()
    pipeline.run(spark, data, threading.Event(), once=True, skip_lost=True)


def damage(segment: Path) -> None:
    """Its last frame, after what follows the last one if it is compressed or written ahead."""
    whole = segment.read_bytes().rstrip(b"\0")
    segment.write_bytes(whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:])


@pytest.mark.parametrize(
    ("elsewhere", "harm", "error"),
    [
        (False, Path.unlink, "row 1 was asked for, the oldest one kept is 16: .*--skip-lost"),
        (True, Path.unlink, "row 1 was asked for, the oldest one kept is 16: .*--skip-lost"),
        (False, damage, "rows after 0 are damaged .*`hubbub journal repair`.*--skip-lost"),
    ],
)
def test_segments_that_go_or_are_damaged_between_two_looks_at_a_batch(
    spark: SparkSession, data: Path, elsewhere: bool, harm: Callable[[Path], None], error: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Tasks have read it, and what is folded is read again. No table has rows that another lacks,
    and what is missing is counted."""
    writer = Writer(data, segment=1)
    for second in range(0, 40, 2):
        seq = writer.write(ask(second))
        writer.write(answer(second + 1, seq), publish(second + 1, "", kind=schema.CONNECT))
    writer.close()
    directory, said = Directory(data), list[str]()
    segments = iter(directory.segments())
    look = Batches._others if elsewhere else Batches._fold

    def harmed(self: Batches, *given: Any) -> None:
        for first in islice(segments, 10):
            harm(directory.segment(first))
        monkeypatch.setattr(Batches, look.__name__, look)
        look(self, *given)

    def run(skip_lost: bool) -> None:
        monkeypatch.setattr(Batches, look.__name__, harmed)
        to = (data / "url").as_uri() if elsewhere else ""
        pipeline.run(
            spark, data, threading.Event(), once=True, skip_lost=skip_lost, notice=said.append,
            to=to,
        )  # fmt: skip

    with pytest.raises(JournalError, match=error):
        run(False)
    run(True)
    tables = data / ("url" if elsewhere else "tables")

    def count(what: str, table: str) -> int:
        query = f"select {what} from '{tables}/{table}/**/*.parquet'"
        [found] = duckdb.connect().execute(query).fetchall()
        return int(found[0])

    assert count("min(seq)", "messages") == 31, "of sixty rows"
    assert count("count(distinct seq)", "messages") == count("count(*)", "messages") == 20
    assert count("count(*)", "calls") == count("count(*)", "audit") == 10
    lost = 30 if harm is damage else 15  # what was removed before a run began was never its
    assert said == [
        "rows of batch 0 went while it read them; once more",
        f"{lost} rows of the journal before row 60 were gone or damaged, unread",
    ]


def test_a_batch_is_bounded_by_what_its_rows_carry(
    writer: Writer, data: Path, once: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a share of Spark's heap; one message may be larger, and then comes alone."""
    monkeypatch.setattr(pipeline, "heap", lambda spark: 16 * 100_000)
    for n in range(7):
        writer.write(publish(n, "big", os.urandom(30_000)))
    writer.write(publish(8, "huge", os.urandom(250_000)))
    writer.write(publish(9, "small"), publish(10, "small"))
    assert [report.rows for report in once()] == [3, 3, 1, 1, 2]
    query = "select count(*), count(distinct seq), sum(octet_length(payload)) from messages"
    assert rows_of(data, query) == [(10, 10, 7 * 30_000 + 250_000 + 2)]
    assert Layout(data).stands().largest == 250_000


def test_a_row_that_nothing_can_take_stops_nothing(
    spark: SparkSession, writer: Writer, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by cutting its batch smaller, and goes to quarantine as it is."""
    writer.write(publish(0, "a"), publish(1, "b", b"\0"), publish(2, "a"))

    def fragile(batches: Iterable[pa.RecordBatch], job: task.Job) -> Iterator[pa.RecordBatch]:
        for rows in read_range(Options(job.options), job.ranges[0]):
            if b"\0" in rows["payload"].to_pylist():
                raise ValueError("it burns")
        yield from work(batches, job)

    work = task.work
    monkeypatch.setattr(task, "work", fragile)
    said: list[str] = []
    pipeline.run(spark, data, threading.Event(), once=True, notice=said.append)
    assert rows_of(data, "select seq from messages order by seq") == [(1,), (3,)]
    query = f"select seq, topic, payload, reason from '{data}/tables/quarantine/**/*.parquet'"
    found = duckdb.connect().execute(query).fetchall()
    (seq, topic, payload, reason) = found[0]
    assert (len(found), seq, topic, payload) == (1, 2, "b", b"\0")
    assert "it burns" in reason
    assert any("its rows 1 to 3 come 1 at a time" in one for one in said)
    assert "row 2 (b) is in quarantine" in said[-1]
    assert Layout(data).stands().lost == 0


def test_java_is_spared_what_only_rows_need() -> None:
    """Without a table or an alert of the user, and on a disk, it sees none."""
    rules = Rules(alert=(Alert("hot", "a", "SELECT 1"),))
    assert "TieredStopAtLevel=1" in pipeline.settings_for(NO_RULES, "")[pipeline.JAVA]
    for rows in (pipeline.settings_for(rules, ""), pipeline.settings_for(NO_RULES, "file:///a")):
        assert rows == pipeline.SESSION


def test_alerts_are_asked_whatever_tables_are_chosen() -> None:
    rules = Rules(alert=(Alert("hot", "alerts/hot", "SELECT 1"),))
    assert [table.name for table in pipeline.chosen(("readings",), rules)] == [
        "messages", "readings", "alerts",
    ]  # fmt: skip
    assert len(pipeline.chosen(("readings",), Rules())) == 2


def test_a_journal_that_is_damaged_or_another_one(writer: Writer, data: Path, once: Run) -> None:
    writer.write(publish(0, "a", b"1"))
    once()
    writer.write(publish(1, "a", b"2"))
    identity = data / "id"
    ours = identity.read_text()
    identity.write_text("0123456789abcdef\n")
    with pytest.raises(JournalError, match="checkpoint of another hub: .* or start with a new"):
        once()
    identity.write_text(ours)
    segment = next((data / "log").glob("*.rows"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    with pytest.raises(JournalError, match="damaged .* `hubbub journal repair` sets the damaged"):
        once()
    segment.write_bytes(whole)
    once()
    assert rows_of(data, "select count(*), max(seq) from messages") == [(2, 2)]


def test_tables_without_their_checkpoint_are_refused(writer: Writer, data: Path, once: Run) -> None:
    writer.write(publish(0, "a", b"1"))
    once()
    (data / "tables" / "_checkpoint").rename(data / "elsewhere")
    with pytest.raises(DirectoryError, match="checkpoint is gone: put it back, or move"):
        once()


def test_an_alert_that_cannot_be_asked_is_said_before_there_are_rows(
    spark: SparkSession, data: Path
) -> None:
    wrong = Rules(alert=(Alert("hot", "alerts/hot", "SELECT valu FROM readings"),))
    with pytest.raises(SettingError, match="alert 'hot': .*`valu`"):
        pipeline.run(spark, data, threading.Event(), once=True, rules=wrong)
    assert Layout(data).writer() is None


def test_one_pipeline_a_directory(data: Path, once: Run) -> None:
    layout = Layout(data)
    layout.prepare(pipeline.NAMES)
    with pytest.raises(DirectoryError, match="another pipeline"):
        once()
    layout.release()


def test_progress_is_a_small_file(writer: Writer, data: Path, once: Run) -> None:
    writer.write(publish(0, "a", b"1"))
    once()
    said = json.loads((data / "tables" / "_progress.json").read_text())
    assert said == {
        "version": 2,
        "batch_id": 0,
        "seq": 1,
        "time": "2026-01-01 12:00:00",
        "group": 0,
        "since": "2026-01-01 12:00:00",
        "rows": 1,
        "lost": 0,
        "largest": 1,
        "open": "_open/*/batch_id=0",
        "tables": sorted(pipeline.NAMES),
    }
    assert not (data / "tables" / "_tmp").exists()
    assert render(Screen(data).look()) is not None  # type: ignore[arg-type]
