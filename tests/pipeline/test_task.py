"""What a task makes of its share of a batch, and which of its files count."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from hubbub import schema
from hubbub.pipeline import task
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import TABLES, audit
from hubbub.pipeline.task import Job, Task, made_by_tasks, shares
from hubbub.pipeline.typed import Typed
from hubbub.schema import Row
from hubbub.spark.options import Options
from hubbub.spark.plan import Span
from hubbub.spark.source import read_range
from tests.spark.fixtures import Writer, publish

DAY = 86_400
SAID = (
    b"", b"{", b"[1]", b'{"a":1,"b":null,"c":"x"}', b'{"a":"\\udcff"}',
    b"[" * 9_999, b'{"a":"\xff"}',
)  # fmt: skip
ROWS = (
    Row(0, 0, schema.CONNECT, b"mqtt", b"dev", properties=b'{"user":"ann"}'),
    publish(0, "a", b'{"t": 1}'),
    publish(1, "a", b"{", content_type=b"application/json"),
    publish(61, "b", b"2"),
    publish(DAY, "plant/1", b"3"),
    Row(0, DAY, schema.DISCONNECT, b"mqtt", b"dev"),
)


@pytest.fixture
def job(writer: Writer, tmp_path: Path) -> Job:
    last = writer.write(*ROWS)
    return made(tmp_path, 0, last, NO_RULES)


def made(folder: Path, after: int, upto: int, rules: Rules) -> Job:
    data = str(folder / "data")
    names = made_by_tasks(TABLES, rules)
    rooms = {name: str(folder / "rooms" / name) for name in names}
    folded = ("calls", "sessions", "deliveries")
    return Job({"path": data}, shares(data, "", Span(after, upto), ()), rooms, folded, rules)


def taken(job: Job) -> task.Done:
    one = Task(job, 0)
    for rows in read_range(Options(job.options), job.ranges[0]):
        one.take(rows)
    return one.done()


def test_each_table_gets_its_rows_in_one_go(job: Job) -> None:
    done = taken(job)
    assert (done.rows, done.seq, done.messages, done.failed) == (6, 6, 4, 1)
    assert done.largest == 8 and done.until.startswith("2026-01-02 12:00:00")
    assert done.concerned == ("sessions",)
    assert sorted(done.took) == ["audit", "messages", "quarantine", "readings"]
    found = {name: pq.read_table(room)["seq"].to_pylist() for name, room in job.rooms.items()}
    assert found == {
        "messages": [2, 3, 4, 5], "readings": [2, 4, 5], "quarantine": [3], "audit": [1],
    }  # fmt: skip
    assert [Path(file).parent.name for file in done.files if "/messages/" in file] == [
        "day=2026-01-01", "day=2026-01-02",
    ]  # fmt: skip
    sums = [tuple(row.values()) for row in done.sums.to_pylist()]
    assert [(topic, minute.minute, *rest) for topic, minute, *rest in sums] == [
        ("a", 0, 2, 9, 0), ("b", 1, 1, 1, 0), ("plant/1", 0, 1, 1, 0),
    ]  # fmt: skip


def test_a_table_of_the_user_comes_later_and_quarantine_after_it(
    writer: Writer, tmp_path: Path
) -> None:
    rules = Rules(table=(Typed("plant", "plant/+", {"t": "$ DOUBLE"}),))
    done = taken(made(tmp_path, 0, writer.write(*ROWS[:4]), rules))
    assert (done.failed, done.concerned) == (1, ("sessions",))
    done = taken(made(tmp_path, 4, writer.write(ROWS[4]), rules))
    assert done.concerned == ("plant",)
    assert "quarantine" not in done.took


def test_rows_of_many_sizes_lie_in_groups_of_some_bytes(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "GROUP_BYTES", 1_000)
    for second in range(5):
        last = writer.write(publish(second, "a", b"x" * 600))
    job = made(tmp_path, 0, last, NO_RULES)
    with monkeypatch.context() as patch:
        patch.setattr("hubbub.spark.source.ROWS_PER_BATCH", 1)
        (file,) = taken(job).files
    assert pq.ParquetFile(file).num_row_groups == 3


def test_a_batch_without_rows_has_one_share() -> None:
    cut = [(one.after, one.upto) for one in shares("d", "i", Span(10, 13), (12,))]
    assert cut == [(10, 12), (12, 13)]
    assert [(one.after, one.upto) for one in shares("d", "i", Span(7, 7), (7,))] == [(7, 7)]


def test_audit_takes_properties_as_they_come() -> None:
    assert [audit._properties(said) for said in SAID] == [
        {}, {}, {}, {"a": "1", "c": "x"}, {"a": "?"}, {}, {},
    ]  # fmt: skip


@pytest.mark.spark
def test_files_of_a_task_that_ran_twice_do_not_count(spark: SparkSession, job: Job) -> None:
    first = taken(job)
    done = task.run(spark, job)
    assert (done.rows, done.messages, done.failed) == (6, 4, 1)
    assert not {*first.files} & {*done.files}
    places = [task.taken_to(room) for room in job.rooms.values()]
    left = [str(file) for place in places for file in place.rglob("*.parquet")]
    assert sorted(left) == sorted(done.files)
    assert {*taken(job).files}, "one that is late writes where nobody looks"
    assert [str(file) for place in places for file in place.rglob("*.parquet")] == left
    assert datetime.fromisoformat(done.until).day == 2
