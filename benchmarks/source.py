"""How fast Spark reads a journal: all columns, beside native Parquet of the same rows.

    python -m benchmarks.source [--messages 2000000] [--rounds 5]

One session and two cores. The journal lies there as a hub leaves it (frames of 1,000 rows), once
more with its segments compressed, and as Parquet that Spark wrote (snappy, its default, and zstd);
each is read by equally many tasks, all columns, into Spark's `noop` sink. The four take turns, and
the best round of each counts: others may use the machine. Then AvailableNow over a directory and
over HTTP from a hub that runs beside. Prints rows a second, and the ratio to Parquet.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.pipeline import fill
from hubbub.journal.compact import compact
from hubbub.journal.segments import Directory
from hubbub.spark.start import end, session
from tests.process import RunningHub

TASKS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    spark = session(f"local[{TASKS}]")
    try:
        measure(spark, place, chosen.messages, chosen.rounds)
    finally:
        end(spark)
        shutil.rmtree(place, ignore_errors=True)


def measure(spark: SparkSession, place: Path, messages: int, rounds: int) -> None:
    plain, packed = place / "plain", place / "packed"
    fill(plain, messages)
    shutil.copytree(plain, packed)
    compact(Directory(packed))
    rows = source(spark, plain)
    for codec in ("snappy", "zstd"):
        rows.write.option("compression", codec).parquet(str(place / codec))
    read = {
        "journal": rows,
        "journal, compressed": source(spark, packed),
        "Parquet, snappy": spark.read.parquet(str(place / "snappy")),
        "Parquet, zstd": spark.read.parquet(str(place / "zstd")),
    }
    print(f"{messages:,} messages, all columns, {TASKS} tasks of two cores, best of {rounds}")
    print(f"{'':24}{'rows/s':>12}{'/ snappy':>10}{'/ zstd':>8}{'MB':>8}{'tasks':>7}")
    best = {name: 0.0 for name in read}
    for _ in range(rounds):
        for name, frame in read.items():
            best[name] = max(best[name], messages / timed(lambda frame=frame: drain(frame)))  # type: ignore[misc]
    folders = {"journal": plain, "journal, compressed": packed}
    for name, rate in best.items():
        folder = folders.get(name) or place / name.rpartition(" ")[2]
        print(
            f"{name:24}{rate:12,.0f}{rate / best['Parquet, snappy']:10.2f}"
            f"{rate / best['Parquet, zstd']:8.2f}{size(folder):8.0f}"
            f"{read[name].rdd.getNumPartitions():7}"
        )
    with_hub(spark, plain, place, messages, rounds)


def with_hub(
    spark: SparkSession, plain: Path, place: Path, messages: int, rounds: int
) -> None:
    hub = RunningHub(plain)
    try:
        for name, options in (("directory", {"path": str(plain)}), ("HTTP", {"url": hub.url("http")})):
            best = 0.0
            for number in range(rounds):
                checkpoint = place / "checkpoints" / f"{name}{number}"
                best = max(best, messages / timed(lambda: follow(spark, options, checkpoint)))  # noqa: B023
            print(f"AvailableNow, {name:10}{best:12,.0f} rows/s")
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


def timed(work: Callable[[], None]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def size(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    main()
