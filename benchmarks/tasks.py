"""What Spark's tasks get of a journal of unlike rows, and what a query of few columns costs.

    python -m benchmarks.tasks [--small 1000000] [--large 2000] [--rounds 3]

The journal has rows of 20 bytes and, behind them, rows of a MiB: all of the bytes lie in a fifth of
a percent of the rows. It is read by two tasks on two cores into Spark's `noop` sink, cut by rows,
as it was once, and as it is cut now: they take turns in one session. Then each task is read alone,
and `balance` is what the larger one takes of the CPU of both: 50 % would be even.

Then `SELECT topic, count(*) … GROUP BY topic`, of all columns and of `columns = topic`, of the
journal as a hub writes it and compressed.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from benchmarks.source import workers_seconds
from hubbub.core.clock import Clock
from hubbub.journal.compact import compact
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal
from hubbub.schema import PUBLISH, Row
from hubbub.spark.options import Options
from hubbub.spark.plan import Range, Span, Wanted, by_rows
from hubbub.spark.source import HubbubDataSource, Reader
from hubbub.spark.start import end, session

TASKS = 2
GROUP = 1_000  # rows of one frame; large ones come alone


class ByRows(HubbubDataSource):
    """The source as it planned before."""

    @classmethod
    def name(cls) -> str:
        return "byrows"

    def reader(self, schema: StructType) -> Reader:
        return RowsReader(*self._wanted(schema))


class RowsReader(Reader):
    def partitions(self) -> list[InputPartition]:
        parts = super().partitions()
        ranges = [part for part in parts if isinstance(part, Range)]
        span = Span(ranges[0].after, ranges[-1].upto)
        (ends,) = by_rows([span], TASKS)
        return [*Wanted(ranges[0].place, ranges[0].journal, span).cut(ends)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=1_000_000)
    parser.add_argument("--large", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        fill(place / "unlike", chain(small(chosen.small), large(chosen.large)))
        fill(place / "plain", medium(chosen.small))
        shutil.copytree(place / "plain", place / "packed")
        compact(Directory(place / "packed"))
        spark = session(f"local[{TASKS}]")
        spark.dataSource.register(ByRows)
        try:
            tasks(spark, place / "unlike", chosen.rounds)
            for name in ("plain", "packed"):
                columns(spark, place / name, chosen.rounds)
        finally:
            end(spark)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def fill(directory: Path, rows: Iterator[Row]) -> None:
    durable: queue.SimpleQueue[int] = queue.SimpleQueue()
    journal = Journal(directory, Clock(), "os", durable.put)
    journal.recover(lambda batch: None)
    for row in rows:
        journal.append(row)
        if journal.position % GROUP == 0 or len(row.payload) > GROUP:
            settle(journal, durable)
    settle(journal, durable)
    journal.close()


def settle(journal: Journal, durable: queue.SimpleQueue[int]) -> None:
    while journal.pending or journal.flying:
        journal.commit()
        journal.arrived(durable.get(timeout=30))


def small(count: int) -> Iterator[Row]:
    for number in range(count):
        topic = b"plant/%d" % (number % 100)
        yield Row(0, 0, PUBLISH, b"mqtt", b"dev", topic, payload=b"%020d" % number)


def medium(count: int) -> Iterator[Row]:
    """Rows whose payload is most of them: 500 bytes, half of which compress."""
    for number in range(count):
        topic = b"plant/%d" % (number % 100)
        payload = os.urandom(125).hex().encode() + b"." * 250
        yield Row(0, 0, PUBLISH, b"mqtt", b"dev", topic, payload=payload)


def large(count: int) -> Iterator[Row]:
    payload = os.urandom(1 << 20)
    for number in range(count):
        yield Row(0, 0, PUBLISH, b"mqtt", b"cam", b"cam/%d" % (number % 10), payload=payload)


def tasks(spark: SparkSession, path: Path, rounds: int) -> None:
    """The same rows, cut both ways."""
    ways = {"byrows": "by rows", "hubbub": "by cost"}
    readers = {"byrows": RowsReader, "hubbub": Reader}
    frames = {way: spark.read.format(way).load(str(path)) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for frame in frames.values():
        drain(frame)
    for _ in range(rounds):
        for way, frame in frames.items():
            seconds[way].append(clock(lambda frame=frame: drain(frame)))  # type: ignore[misc]
    for way, name in ways.items():
        options = Options({"path": str(path), "maxPartitions": str(TASKS)})
        begun = time.monotonic()
        parts = readers[way](options).partitions()
        planned = time.monotonic() - begun
        ranges = [part for part in parts if isinstance(part, Range)]
        alone = [min(cpu(lambda part=part: drain(one_of(spark, part))) for _ in range(rounds))  # type: ignore[misc]
                 for part in ranges]  # fmt: skip
        rows = " + ".join(f"{part.upto - part.after:,}" for part in ranges)
        print(
            f"{name}: {statistics.median(seconds[way]):.2f} s ({min(seconds[way]):.2f} to "
            f"{max(seconds[way]):.2f}), tasks of {rows} rows, balance "
            f"{max(alone) / sum(alone):.0%}, planned in {planned * 1000:.1f} ms"
        )


def one_of(spark: SparkSession, part: Range) -> DataFrame:
    """A task's rows, in one task."""
    reader = spark.read.format("hubbub").option("maxPartitions", "1")
    reader = reader.option("startingOffsets", str(part.after + 1))
    return reader.option("endingOffsets", str(part.upto + 1)).load(part.place)


def columns(spark: SparkSession, path: Path, rounds: int) -> None:
    """The same query, of all columns and of one."""
    ways: dict[str, dict[str, str]] = {"all columns": {}, "columns=topic": {"columns": "topic"}}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + 1):
        for way, options in ways.items():
            rows = spark.read.format("hubbub").options(**options).load(str(path))
            query = rows.groupBy("topic").count()
            begun = workers_seconds()
            took = clock(query.collect)
            if turn:
                seconds[way].append(took)
                spent[way].append(workers_seconds() - begun)
    for way, found in seconds.items():
        print(
            f"{path.name}, {way}: {statistics.median(found):.2f} s "
            f"({min(found):.2f} to {max(found):.2f}), {statistics.median(spent[way]):.2f} s of CPU"
        )


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def cpu(work: Callable[[], object]) -> float:
    begun = workers_seconds()
    work()
    return workers_seconds() - begun


def clock(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
