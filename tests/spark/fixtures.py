"""A journal to read, written by the real writer at chosen times, and one Spark for all tests."""

from __future__ import annotations

import os
import queue
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubbub.core.clock import Clock
from hubbub.core.limits import SEGMENT_BYTES
from hubbub.journal.writer import Journal
from hubbub.schema import PUBLISH, Row
from hubbub.spark.start import session
from tests.spark import planners as forking

POSTGRES = Path("/usr/share/java/postgresql.jar")  # a driver has to be there when Spark starts
SECOND = 1_000_000
NOON = 1_767_268_800 * SECOND  # 2026-01-01 12:00 UTC


class StoppedClock(Clock):
    """Shows the time it was set to."""

    def __init__(self) -> None:
        super().__init__()
        self.time = NOON

    def stamp(self) -> int:
        return self.time


class Writer:
    """A journal in a directory. `write` makes rows durable before it returns."""

    def __init__(self, directory: Path, segment: int = SEGMENT_BYTES) -> None:
        self.clock = StoppedClock()
        self._durable: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._journal = Journal(
            directory, self.clock, "os", self._durable.put, segment_bytes=segment
        )
        self._journal.recover(lambda batch: None)

    @property
    def id(self) -> str:
        """What the journal is called in offsets."""
        return self._journal.directory.identity()

    def write(self, *rows: Row) -> int:
        """Rows with their `time` in seconds since NOON; returns the last seq."""
        for row in rows:
            self.clock.time = NOON + int(row.time * SECOND)
            self._journal.append(row._replace(time=0))  # the journal says when
        while self._journal.pending or self._journal.flying:
            self._journal.commit()
            self._journal.arrived(self._durable.get(timeout=10))
        return self._journal.position

    def close(self) -> None:
        self._journal.close()


def publish(second: float, topic: str, payload: bytes = b"1", **columns: object) -> Row:
    """A publish row; `time` is what `Writer.write` takes."""
    row = Row(0, 0, PUBLISH, b"mqtt", b"dev", topic.encode(), payload=payload)
    return row._replace(time=second, **columns)  # type: ignore[arg-type]


def readings_rows(count: int) -> list[Row]:
    return [publish(n / 100, f"plant/{n % 4}/temp", b"%d" % n) for n in range(count)]


@pytest.fixture(scope="session")
def spark(quick_java: None, planners: Path) -> Iterator[SparkSession]:
    jars = {"spark.jars": str(POSTGRES)} if POSTGRES.exists() else {}
    running = session("local[2]", **{"spark.sql.shuffle.partitions": "1", **jars})
    have_planners_forked(Path(os.environ["PYSPARK_PYTHON"]), planners)
    yield running
    running.stop()


def have_planners_forked(script: Path, planners: Path) -> None:
    """By the script that Spark starts as its Python, once for all folders that share a Spark."""
    if script == Path(sys.executable):  # PySpark is not installed here: `hubbub.spark.start`
        return
    plain = script.read_text()
    if forking.__file__ in plain:
        return
    ask = shlex.join([sys.executable, "-I", "-S", forking.__file__, "ask", str(planners)])
    wanted = f'[ {forking.PLANNER} = "$2" ] && [ -S {shlex.quote(str(planners))} ]'
    before = '\n[ "$2" = '
    assert before in plain
    script.write_text(plain.replace(before, f"\n{wanted} && exec {ask}{before}", 1))


@pytest.fixture
def true_planners(planners: Path) -> Iterator[None]:
    """Streams are planned as a user's are: by a Python of their own."""
    away = planners.rename(planners.with_name("away"))
    yield
    away.rename(planners)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "data")
    yield made
    made.close()
