"""How fast Spark reads a journal: all columns, beside native Parquet of the same rows.

    python -m benchmarks.source [--messages 6000000] [--rounds 4] [--sessions 5]

Two tasks on two cores. The rows are publishes of 1,000 devices with a JSON payload of 90 bytes
that differs from row to row. The journal lies there as a hub leaves it (frames of 1,000 rows), once
more with its segments compressed, and as Parquet that Spark wrote (snappy, its default, and zstd);
each is read by equally many tasks, all columns, into Spark's `noop` sink. `nothing read` is a
source that hands out one batch of these rows over and over: what Spark itself takes for a source
in Python.

They take turns, and of the rounds of a session the best counts. A JVM compiles the same query well
or badly as it happens, and keeps to it: so there are several sessions, each with a JVM of its own,
and what is printed is the median of them, with the least and the most. Others may use the machine:
CPU time (of the JVM and its Python workers) stands beside the clock. Last comes AvailableNow over a
directory, and over HTTP from a hub that runs beside; the start of a query, with a planning process
of its own, is in it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks import pipeline
from benchmarks.pipeline import stats
from hubbub.journal.compact import compact
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.schema import PUBLISH, Row
from hubbub.spark.source import ROWS_PER_BATCH, HubbubDataSource, joined
from hubbub.spark.start import end, session
from tests.process import RunningHub

TASKS = 2
NAMES = {
    "plain": "journal",
    "packed": "journal, compressed",
    "snappy": "Parquet, snappy",
    "zstd": "Parquet, zstd",
    "still": "nothing read",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sessions", type=int, default=5)
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        pipeline.message = message
        pipeline.fill(place / "plain", chosen.messages)
        shutil.copytree(place / "plain", place / "packed")
        compact(Directory(place / "packed"))
        found = [measure(place, chosen.rounds) for _ in range(chosen.sessions)]
        table(place, chosen.messages, found)
        with_hub(place, chosen.messages, chosen.rounds)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def message(number: int) -> Row:
    place, payload = (
        number % 1000,
        b'{"ts":%d,"temp":%.3f,"rpm":%.1f,"state":"running","id":"%016x"}',
    )
    values = (1_767_268_800_000 + 7 * number, _RANDOM.gauss(20, 5), _RANDOM.uniform(0, 3000))
    topic = b"plant/%d/line/%d" % (place // 10, place % 10)
    return Row(
        0, 0, PUBLISH, b"mqtt", b"dev-%d" % place, topic, qos=1,
        payload=payload % (*values, _RANDOM.getrandbits(64)),
    )  # fmt: skip


_RANDOM = random.Random(7)


class Best:
    """The best of several rounds: seconds of the clock, and of the processors."""

    def __init__(self) -> None:
        self.wall = self.cpu = float("inf")

    def time(self, work: Callable[[], None]) -> None:
        begun, cpu = time.monotonic(), workers_seconds()
        work()
        self.wall = min(self.wall, time.monotonic() - begun)
        self.cpu = min(self.cpu, workers_seconds() - cpu)


def workers_seconds() -> float:
    """CPU of what this process started and what that started, as far as it runs still."""
    parents: dict[int, int] = {}
    times: dict[int, int] = {}
    for process, fields in stats():
        parents[process] = int(fields[1])
        times[process] = sum(map(int, fields[11:13]))
    return sum(time for process, time in times.items() if _is_below(process, parents)) / os.sysconf(
        "SC_CLK_TCK"
    )


def _is_below(process: int, parents: dict[int, int]) -> bool:
    parent = parents.get(process, 0)
    return parent == os.getpid() or (parent > 1 and _is_below(parent, parents))


def started() -> SparkSession:
    # Else the larger files of Parquet would be cut into more tasks than the journal.
    return session(f"local[{TASKS}]", **{"spark.sql.files.maxPartitionBytes": "1g"})


def measure(place: Path, rounds: int) -> dict[str, Best]:
    """The best of each reader in a session of its own."""
    spark = started()
    try:
        rows = source(spark, place / "plain")
        for codec in ("snappy", "zstd"):
            if not (place / codec).exists():
                rows.write.option("compression", codec).parquet(str(place / codec))
        spark.dataSource.register(Still)
        read = {
            "plain": rows,
            "packed": source(spark, place / "packed"),
            "snappy": spark.read.parquet(str(place / "snappy")),
            "zstd": spark.read.parquet(str(place / "zstd")),
            "still": spark.read.format("still").load(str(place / "plain")),
        }
        for frame in read.values():
            assert frame.rdd.getNumPartitions() == TASKS
            drain(frame)
        best = {name: Best() for name in read}
        for _ in range(rounds):
            for name, frame in read.items():
                best[name].time(lambda frame=frame: drain(frame))  # type: ignore[misc]
        return best
    finally:
        end(spark)


def table(place: Path, messages: int, found: list[dict[str, Best]]) -> None:
    """Print the sessions' medians, and how far they lie apart."""
    print(f"{messages:,} messages, all columns, {TASKS} tasks; median of {len(found)} sessions")
    for name, text in NAMES.items():
        rates = [messages / best[name].wall for best in found]
        ratios = [best["snappy"].wall / best[name].wall for best in found]
        cpu = statistics.median(best[name].cpu for best in found)
        megabytes = f"{size(place / name):.0f} MB" if name != "still" else ""
        print(
            f"  {text:20}{statistics.median(rates):12,.0f} rows/s"
            f"  x{statistics.median(ratios):.2f} of snappy ({min(ratios):.2f} to {max(ratios):.2f})"
            f"  {cpu / messages * 1e6:.2f} us CPU a row  {megabytes}"
        )


class Still(DataSource):
    """The rows of a journal's first large batch, over and over, as many as the journal has."""

    @classmethod
    def name(cls) -> str:
        return "still"

    def schema(self) -> StructType:
        return HubbubDataSource(self.options).schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return StillReader(self.options["path"])


class StillReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self.path = path

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        table = Table(self.path)
        batch = next(joined(table.read(0, ROWS_PER_BATCH)))
        for _ in range(table.committed() // TASKS // batch.num_rows):
            yield batch


def with_hub(place: Path, messages: int, rounds: int) -> None:
    hub = RunningHub(place / "plain")
    places = {"directory": {"path": str(hub.data)}, "HTTP": {"url": hub.url("http")}}
    spark = started()
    try:
        for name, options in places.items():
            best = Best()
            for number in range(rounds):
                checkpoint = place / "checkpoints" / f"{name}{number}"
                best.time(lambda: follow(spark, options, checkpoint))  # noqa: B023
            print(
                f"  AvailableNow, {name:10}{messages / best.wall:10,.0f} rows/s"
                f"  {best.cpu / messages * 1e6:.2f} us CPU a row"
            )
    finally:
        end(spark)
        hub.stop()


def source(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("hubbub").option("minPartitions", str(TASKS)).load(str(path))


def drain(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def follow(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
    rows = spark.readStream.format("hubbub").options(**options).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
