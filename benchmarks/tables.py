"""How soon a message is a row, how long a year of tables takes to plan, and what partitions bring.

    python -m benchmarks.tables fresh [--rate 5000] [--seconds 60]
    python -m benchmarks.tables year [--files 10000]
    python -m benchmarks.tables spread [--messages 500000]

`fresh`: a hub, a publisher over HTTP and `hubbub pipeline run --every 1` on this machine; messages
say when they were sent, and a plain reader looks at the files of `readings` as they appear.
`year`: `messages` as a busy year leaves it, 27 files a day; planning a query of one hour by day.
`spread`: messages a second of decoding in 1, 2 and 4 partitions, in a standalone cluster of a
master and two workers of one core on the loopback; best of four.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.pipeline import cpu_seconds, fill
from hubbub.pipeline import sql
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.publish import Publisher
from hubbub.pipeline.rules import NO_RULES
from hubbub.pipeline.run import NAMES
from hubbub.pipeline.tables import messages, readings
from hubbub.pipeline.tables.table import arrow
from hubbub.spark.hub import Hub
from hubbub.spark.options import access
from hubbub.spark.start import end, session
from tests.process import RunningHub
from tests.spark.cluster import Cluster

WARM = 20.0  # seconds that are not counted: the JVM compiles
ROUNDS = 4
# The workers of the tests spare their executors the better compiler.
EXECUTORS = {"spark.executor.memory": "800m", "spark.executorEnv.JDK_JAVA_OPTIONS": " "}


def fresh(directory: Path, rate: int, seconds: float) -> None:
    hub = RunningHub(directory / "data", "--set", "journal.durability=os")
    command = [sys.executable, "-m", "hubbub", "pipeline", "run", "--data", str(hub.data)]
    pipeline = subprocess.Popen(
        [*command, "--every", "1"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": "src"},
    )
    over = threading.Event()
    sender = threading.Thread(target=send, args=(hub, rate, over))
    sender.start()
    try:
        waits = watch(Layout(hub.data), seconds)
    finally:
        over.set()
        sender.join()
        pipeline.send_signal(signal.SIGTERM)
        pipeline.wait()
        hub.stop()
    cuts = statistics.quantiles(waits, n=100)
    print(f"publish → visible in readings, {rate} messages/s, {len(waits):,} messages seen")
    print(f"  half within {cuts[49]:.2f} s, 95 % within {cuts[94]:.2f} s, 99 % {cuts[98]:.2f} s")


def send(hub: RunningHub, rate: int, over: threading.Event) -> None:
    """A twentieth of a second at a time; each message says when it was sent."""
    publisher = Publisher(Hub(hub.url("http"), access({})))
    batch, begun = 0, time.monotonic()
    while not over.wait(max(begun + batch / 20 - time.monotonic(), 0)):
        now = time.time()
        some = [
            {"topic": f"plant/{n % 100}", "payload": json.dumps({"sent": now, "temp": n / 10})}
            for n in range(rate // 20)
        ]
        publisher.send(f"fresh/{batch}/0", 0, some)
        batch += 1


def watch(layout: Layout, seconds: float) -> list[float]:
    """How old messages are when they are there, once the JVM is warm."""
    while layout.progress() is None:
        time.sleep(0.05)
    time.sleep(WARM)
    return seen_in(layout, seconds)


def seen_in(layout: Layout, seconds: float) -> list[float]:
    """Look for new files of `readings`; how old their messages are when they are there."""
    seen = {part.file for part in layout.files("readings", -1, 1 << 40)}
    waits: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
        for part in layout.files("readings", -1, 1 << 40):
            if part.file in seen or part.first != part.last:
                continue
            seen.add(part.file)
            now = time.time()
            rows = pq.read_table(part.file, columns=["path", "value"])
            sent = rows.filter(pa.compute.equal(rows["path"], "sent"))["value"].to_pylist()
            waits += [now - one for one in sent]
    return waits


def year(directory: Path, files: int) -> None:
    """Hours of `messages`, in the layout of a running pipeline."""
    columns = tuple(column for column in messages.COLUMNS if column.name != "day")
    begin = datetime(2025, 1, 1, tzinfo=UTC)
    root = directory / "tables" / "messages"
    layout = Layout(directory)
    layout.prepare(NAMES)
    for hour in range(files):
        at = begin + timedelta(hours=hour * 8760 / files)
        rows = {column.name: [None] * 100 for column in columns}
        rows |= {"seq": [*range(hour * 100, hour * 100 + 100)], "time": [at] * 100}
        place = root / f"day={at:%Y-%m-%d}" / f"batch_id={at.timetuple().tm_yday}"
        place.mkdir(parents=True, exist_ok=True)
        name = f"part-{hour:010}-to-{hour:010}.parquet"
        pq.write_table(pa.table(rows, schema=arrow(columns)), place / name)
    stamp = "2026-01-01 00:00:00"
    progress = Progress(files, files * 100, stamp, files, stamp, files * 100)
    for name in NAMES:
        layout.carry(name, files, layout.scratch(name))
    layout.advance(progress)
    layout.release()
    spark = session("local[2]")
    spark.range(1).count()
    begun, cpu = time.monotonic(), cpu_seconds()
    sql.views(spark, directory)
    listed, cpu = time.monotonic(), cpu_seconds() - cpu
    found = spark.sql(
        "SELECT * FROM messages WHERE day = '2025-07-01' "
        "AND time >= '2025-07-01 12:00' AND time < '2025-07-01 13:00'"
    )
    found.inputFiles()
    planned = time.monotonic()
    count = found.count()
    done = time.monotonic()
    end(spark)
    print(f"one hour of a year of messages, {files:,} files: {count} rows")
    print(f"  listed in {listed - begun:.2f} s ({cpu:.1f} s of CPU)")
    print(f"  planned in {planned - listed:.2f} s more, answered in {done - planned:.2f} s more")


def spread(directory: Path, count: int) -> None:
    fill(directory / "data", count)
    cluster = Cluster(directory)
    try:
        spark = session(cluster.master, **EXECUTORS)
        for partitions in (1, 2, 4):
            work = partial(decode, spark, directory / "data", partitions)
            took, cpu = min(timed(work) for _ in range(ROUNDS))
            rate = count / took
            print(f"  {partitions} partitions: {rate:10,.0f} messages/s, {cpu:.1f} s of CPU")
        end(spark)
    finally:
        cluster.stop()


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    begun, cpu = time.monotonic(), cpu_seconds()
    work()
    return time.monotonic() - begun, cpu_seconds() - cpu


def decode(spark: SparkSession, data: Path, partitions: int) -> None:
    """By that many tasks: the source itself never makes fewer than there are cores."""
    source = spark.read.format("hubbub").option("minPartitions", str(partitions))
    rows = source.load(str(data)).coalesce(partitions)
    rows = rows.selectExpr("*", "time AS event_time")
    readings.rows(rows, NO_RULES).write.format("noop").mode("overwrite").save()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("fresh", "year", "spread"))
    parser.add_argument("--rate", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=500_000)
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        if chosen.part == "fresh":
            fresh(directory, chosen.rate, chosen.seconds)
        elif chosen.part == "year":
            year(directory, chosen.files)
        else:
            spread(directory, chosen.messages)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
