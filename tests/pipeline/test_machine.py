"""What a machine does to a pipeline: its disk is full, its Java is killed. Each says what to do."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hubbub.errors import DirectoryError, JournalError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline import task
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.trial import KILLS, Trials
from hubbub.spark.start import StartError
from tests.disk import small_disk
from tests.pipeline.test_cli import COMMAND
from tests.pipeline.test_run import rows_of
from tests.spark.fixtures import Writer, publish

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture
def small(writer: Writer, tmp_path: Path) -> Iterator[Path]:
    """A data directory whose tables have a file system of 3 MiB."""
    with small_disk(tmp_path / "data" / "tables", mib=3) as tables:
        yield tables


def test_a_full_disk(spark: SparkSession, writer: Writer, small: Path) -> None:
    data, dice = small.parent, random.Random(1)
    writer.write(publish(0, "a", b"1"))
    pipeline.run(spark, data, threading.Event(), once=True)
    writer.write(*(publish(n, "a", dice.randbytes(100_000)) for n in range(1, 60)))
    with pytest.raises(DirectoryError, match="the disk is full: make room, or let the tables lie"):
        pipeline.run(spark, data, threading.Event(), once=True)
    assert rows_of(data, "select count(*) from readings") == [(1,)]
    subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
    pipeline.run(spark, data, threading.Event(), once=True)
    query = "select count(*), count(distinct seq), sum(octet_length(payload)) from messages"
    assert rows_of(data, query) == [(60, 60, 59 * 100_000 + 1)]


@pytest.mark.pure
def test_a_machine_too_busy_to_start_a_python(
    spark: SparkSession, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark says of it comes true only now and then, so it is said for it here."""
    writer.write(publish(0, "a", b"1"))

    def busy(*given: object) -> StreamingQuery:
        raise PySparkException("Task 0 failed: Python worker failed to connect back.\n\tat java…")

    with monkeypatch.context() as patch, pytest.raises(JournalError, match="fewer pipelines"):
        patch.setattr(pipeline, "_start", busy)
        said: list[str] = []
        pipeline.run(spark, tmp_path / "data", threading.Event(), once=True, notice=said.append)
    assert said == ["a Python that Spark started was not ready within ten seconds; once more"] * 5
    pipeline.run(spark, tmp_path / "data", threading.Event(), once=True)
    assert rows_of(tmp_path / "data", "select count(*) from readings") == [(1,)]


@pytest.mark.parametrize(("rows", "kills"), [(2, 1), (1, KILLS + 1)])
def test_a_python_that_is_killed_ends_nothing(
    spark: SparkSession, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    rows: int, kills: int,
) -> None:  # fmt: skip
    """As the kernel does where memory is out, with what large messages become in a worker. Nor
    does a batch of one row, killed again and again, put it into quarantine.
    """
    data, made, said, begun = tmp_path / "data", task.run, list[str](), list[int]()
    writer.write(*(publish(n, "a", b"%d" % n) for n in range(rows)))

    def killed(session: SparkSession, job: task.Job) -> task.Done:
        begun.append(len(begun))
        if len(begun) <= kills:
            session.range(1).mapInArrow(end_of_this, "id long").collect()
        return made(session, job)

    def end_of_this(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from batches

    monkeypatch.setattr(task, "run", killed)
    pipeline.run(spark, data, threading.Event(), once=True, notice=said.append)
    reason = "a Python that made its tables was killed: out of memory?"
    again = [one for one in said if "come 1 at a time" not in one]
    assert again == [f"batch 0 failed and begins again: {reason}"] * kills
    assert rows_of(data, "select count(*), count(distinct seq) from readings") == [(rows, rows)]
    files = f"'{data}/tables/quarantine/**/*.parquet'"
    assert rows_of(data, f"select count(*) from {files}") == [(0,)]


@pytest.mark.parametrize("there", [False, True])
def test_a_python_that_plans_and_is_killed_ends_nothing(
    true_planners: None, spark: SparkSession, writer: Writer, tmp_path: Path, there: bool
) -> None:
    """Between two looks at the journal, or with a look asked for, which Spark says otherwise."""
    data, said, stop = tmp_path / "data", list[str](), threading.Event()
    writer.write(publish(0, "a", b"1"))

    def kill() -> None:
        try:
            until(lambda: Layout(data).progress() is not None)
            planner = planner_of(os.getpid())
            if there:
                os.kill(planner, signal.SIGSTOP)
                time.sleep(3)  # Spark asks each second
            os.kill(planner, signal.SIGKILL)
            writer.write(publish(1, "a", b"2"))
            until(lambda: Layout(data).stands().seq == 2)
        finally:
            stop.set()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        pipeline.run(spark, data, stop, every=0.5, notice=said.append)
    finally:
        stop.set()
        killer.join()
    assert said == ["the Python that plans batches for Spark was killed: out of memory?; once more"]
    assert rows_of(data, "select count(*), count(distinct seq) from readings") == [(2, 2)]


def test_a_java_that_is_killed_is_started_again(
    quick_java: None, writer: Writer, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    writer.write(publish(0, "a", b"1"))
    process = subprocess.Popen(
        [*COMMAND, "run", "--data", str(data), "--every", "0.5"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: Layout(data).progress() is not None)
        os.kill(java_of(process.pid), signal.SIGKILL)
        writer.write(publish(1, "a", b"2"))
        until(lambda: Layout(data).stands().seq == 2)
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert "Spark's process ended between two batches; it is started again\n" in out, out
    assert "Traceback" not in out, out
    assert rows_of(data, "select count(*), count(distinct seq) from readings") == [(2, 2)]


def test_a_java_that_is_killed_before_spark_runs_is_said(
    quick_java: None, writer: Writer, tmp_path: Path
) -> None:
    """In a line. Where a pipeline starts it again, it is tried three times."""
    writer.write(publish(0, "a", b"1"))
    process = subprocess.Popen(
        [*COMMAND, "run", "--data", str(tmp_path / "data"), "--once"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: starting(process.pid) != 0)
        os.kill(starting(process.pid), signal.SIGKILL)
        out, _ = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 1 and "Traceback" not in out, out
    assert "hubbub: Spark's process (Java) ended while it started" in out, out


@pytest.mark.pure
def test_a_java_that_is_killed_again_and_again_ends_a_pipeline() -> None:
    said: list[str] = []
    work: Any = SimpleNamespace(notice=said.append, trials=Trials())
    tries = iter([StartError("killed"), StartError("killed"), None, *[StartError("killed")] * 3])

    def again() -> Any:
        if error := next(tries):
            raise error
        return "a session"

    assert str(pipeline._anew(again, work)) == "a session"
    assert said[1:] == ["killed; once more"] * 2
    with pytest.raises(StartError):
        pipeline._anew(again, work)


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 150
    while not done():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.2)


def java_of(process: int) -> int:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    (java,) = (one for one in children if "java" in Path(f"/proc/{one}/comm").read_text())
    return int(java)


def starting(process: int) -> int:
    """The Java that it started, or what is to become it; 0 for none yet."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    with suppress(OSError):
        for one in children:
            if b"SparkSubmit" in Path(f"/proc/{one}/cmdline").read_bytes():
                return int(one)
    return 0


def planner_of(process: int) -> int:
    """The Python that plans the newest stream."""
    tasks = Path(f"/proc/{java_of(process)}/task").glob("*/children")
    children = [int(one) for task in tasks for one in task.read_text().split()]
    return max(one for one in children if b"hubbub.spark.planner" in _command(one))


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:  # a worker of Spark that has ended since
        return b""
