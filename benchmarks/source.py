"""How fast Spark reads a journal: all columns, beside native Parquet of the same rows.

    python -m benchmarks.source [--messages 6000000] [--rounds 5]

One session and two cores. The rows are publishes of 1,000 devices with a JSON payload of 90 bytes
that differs from row to row. The journal lies there as a hub leaves it (frames of 1,000 rows), once
more with its segments compressed, and as Parquet that Spark wrote (snappy, its default, and zstd);
each is read by equally many tasks, all columns, into Spark's `noop` sink. The four take turns, and
the best round of each counts: others may use the machine, so CPU time (of the JVM and its Python
workers) stands beside it. Then AvailableNow over a directory, and over HTTP from a hub that runs
beside; the start of a query, with a planning process of its own, is in it. Prints rows a
second, and the ratio to Parquet.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks import pipeline
from benchmarks.pipeline import stats
from hubbub.journal.compact import compact
from hubbub.journal.segments import Directory
from hubbub.schema import PUBLISH, Row
from hubbub.spark.start import end, session
from tests.process import RunningHub

TASKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=6_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    # Else the larger files of Parquet would be cut into more tasks than the journal.
    spark = session(f"local[{TASKS}]", **{"spark.sql.files.maxPartitionBytes": "1g"})
    try:
        measure(spark, place, chosen.messages, chosen.rounds)
    finally:
        end(spark)
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


def measure(spark: SparkSession, place: Path, messages: int, rounds: int) -> None:
    plain, packed = place / "plain", place / "packed"
    pipeline.message = message
    pipeline.fill(plain, messages)
    shutil.copytree(plain, packed)
    compact(Directory(packed))
    rows = source(spark, plain)
    for codec in ("snappy", "zstd"):
        rows.write.option("compression", codec).parquet(str(place / codec))
    read = {
        "journal": (rows, plain),
        "journal, compressed": (source(spark, packed), packed),
        "Parquet, snappy": (spark.read.parquet(str(place / "snappy")), place / "snappy"),
        "Parquet, zstd": (spark.read.parquet(str(place / "zstd")), place / "zstd"),
    }
    print(f"{messages:,} messages, all columns, {TASKS} tasks on two cores, best of {rounds}")
    best = {name: Best() for name in read}
    for _ in range(rounds):
        for name, (frame, _folder) in read.items():
            best[name].time(lambda frame=frame: drain(frame))  # type: ignore[misc]
    against = best["Parquet, snappy"]
    for name, (frame, folder) in read.items():
        found = best[name]
        print(
            f"  {name:22}{messages / found.wall:12,.0f} rows/s"
            f"  x{against.wall / found.wall:.2f} of snappy (CPU x{against.cpu / found.cpu:.2f})"
            f"  {found.cpu / messages * 1e6:.2f} us CPU a row  {size(folder):.0f} MB"
            f"  {frame.rdd.getNumPartitions()} tasks"
        )
    with_hub(spark, plain, place, messages, rounds)


def with_hub(spark: SparkSession, plain: Path, place: Path, messages: int, rounds: int) -> None:
    hub = RunningHub(plain)
    places = {"directory": {"path": str(plain)}, "HTTP": {"url": hub.url("http")}}
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
