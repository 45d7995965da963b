"""Whether the pipeline has a cliff: many topics, large payloads, a long run, a large journal.

    python -m benchmarks.cliffs topics [--messages 300000] [--batch N] [1000 10000 100000]
    python -m benchmarks.cliffs payloads [--megabytes 200] [1000 100000 1000000 5000000]
    python -m benchmarks.cliffs memory [--batches 1440] [--minutes N]
    python -m benchmarks.cliffs catalog [--batches 1440]
    python -m benchmarks.cliffs journal [--gigabytes 100]

`topics` and `payloads` make all shipped tables of a journal and say the CPU of all processes, for
the second half of it. `memory` is a day of a batch a minute in simulated time: a batch follows the
other at once, and its rows are a minute later; with a typed table, a window, an alert and a
catalog. It says as a table what is resident after each twentieth, and at the end what Java needs of
it; `--minutes` ends it earlier. `catalog` is the part of the driver that grew in it, by itself: two
tables in a catalog, their merges, and no Spark. `journal` has segments with a frame each, made
larger by nothing: what is asked before each batch of a journal that large.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.pipeline import Memory, cpu_seconds, is_below, stats
from hubbub.core.clock import Clock
from hubbub.journal.table import Table
from hubbub.journal.writer import SEGMENT_BYTES, Journal
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.after import Named
from hubbub.pipeline.compact import tidied, tidy
from hubbub.pipeline.rules import read_rules
from hubbub.schema import PUBLISH, Row
from hubbub.spark.start import end, session
from tests.pipeline.test_catalog import Stage, stranger

FRAME: Final = 500  # rows, or FRAME_BYTES of payloads
FRAME_BYTES: Final = 4_000_000
PARTS: Final = 20  # of a long run, after each of which its memory is said
RULES: Final = """
[[alert]]
name = "hot"
topic = "alerts/hot"
sql = "SELECT seq, value FROM readings WHERE value > 98"

[[table]]
name = "plant"
topics = "plant/+"
columns.t = "$.t DOUBLE NOT NULL"

[[table]]
name = "minutes"
topics = "plant/+"
window = "1 minute"
columns.mean = "avg $.t DOUBLE"
"""


class Day(Clock):
    """A day that began a day ago, and goes on a minute at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._now = (int(time.time()) - 86_400) * 1_000_000

    def stamp(self) -> int:
        self._now += 1
        return self._now

    def minute(self) -> None:
        self._now += 60 * 1_000_000


class Desk:
    """A journal that is written as a hub writes it, a frame at a time."""

    def __init__(
        self, directory: Path, segment: int = SEGMENT_BYTES, clock: Clock | None = None
    ) -> None:
        self._durable: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._journal = Journal(
            directory, clock or Clock(), "os", self._durable.put, segment_bytes=segment
        )
        self._journal.recover(lambda batch: None)

    def write(self, rows: Iterable[Row]) -> None:
        journal, waiting, size = self._journal, 0, 0
        for row in rows:
            journal.append(row)
            waiting, size = waiting + 1, size + len(row.payload)
            if waiting >= FRAME or size >= FRAME_BYTES:
                self._commit()
                waiting = size = 0
        self._commit()

    def _commit(self) -> None:
        while self._journal.pending or self._journal.flying:
            self._journal.commit()
            self._journal.arrived(self._durable.get(timeout=60))

    def close(self) -> None:
        self._journal.close()


def values(topics: int, messages: int) -> Iterator[Row]:
    for number in range(messages):
        place = number * 7919 % topics  # no topic twice before all were there
        payload = b'{"temp": %.1f, "load": %.2f}' % (20 + number % 50 / 10, number % 100 / 100)
        topic = b"plant/%d/line/%d" % (place // 10, place % 10)
        yield Row(0, 0, PUBLISH, b"mqtt", b"dev-%d" % (place % 1000), topic, payload=payload)


def large(size: int, total: int) -> Iterator[Row]:
    """Payloads that are no JSON and that nothing compresses."""
    noise = os.urandom(size)
    for number in range(max(total // size, 1)):
        payload = number.to_bytes(8, "big") + noise[8:]
        yield Row(0, 0, PUBLISH, b"mqtt", b"camera", b"cam/%d" % (number % 10), payload=payload)


def made(spark: SparkSession, data: Path) -> tuple[float, float, int, Memory]:
    """CPU and seconds of the second half, its messages, and the memory of all."""
    marks = [(cpu_seconds(), time.monotonic(), 0)]

    def report(said: pipeline.Report) -> None:
        marks.append((cpu_seconds(), time.monotonic(), marks[-1][2] + said.messages))

    with Memory() as memory:
        pipeline.run(spark, data, threading.Event(), report, once=True)
    first, last = marks[len(marks) // 2], marks[-1]
    return last[0] - first[0], last[1] - first[1], last[2] - first[2], memory


def topics(folder: Path, counts: list[int], messages: int, batch: int) -> None:
    spark = session("local[2]", **pipeline.SESSION)
    pipeline.ROWS = batch or messages // 4
    for count in (counts[0], *counts):  # the first is for Java to become warm
        data = folder / f"topics-{count}"
        shutil.rmtree(data, ignore_errors=True)
        desk = Desk(data)
        desk.write(values(count, messages))
        desk.close()
        cpu, seconds, seen, memory = made(spark, data)
        each, rate = cpu / seen * 1e6, seen / seconds
        said = f"{each:6.1f} us of CPU a message, {rate:9,.0f} messages/s"
        print(f"{count:9,} topics: {said}, {memory.peak / 1e6:6,.0f} MB", flush=True)
        shutil.rmtree(data)
    end(spark)


def payloads(folder: Path, sizes: list[int], megabytes: int) -> None:
    spark = session("local[2]", **pipeline.SESSION)
    for size in (sizes[0], *sizes):
        data = folder / f"payloads-{size}"
        shutil.rmtree(data, ignore_errors=True)
        desk = Desk(data)
        desk.write(large(size, megabytes * 1_000_000))
        desk.close()
        cpu, seconds, seen, memory = made(spark, data)
        mb = seen * size / 1e6
        said = f"{cpu / mb * 1e3:6.1f} ms of CPU a megabyte, {mb / seconds:6.1f} MB/s"
        print(f"{size:9,} bytes: {said}, {memory.peak / 1e6:6,.0f} MB", flush=True)
        shutil.rmtree(data)
    end(spark)


def memory(folder: Path, batches: int, minutes: float) -> None:
    rules = folder / "rules.toml"
    rules.write_text(RULES)
    spark = session("local[2]", **pipeline.settings_for(read_rules(rules), ""))
    day, stop, begun = Day(), threading.Event(), time.monotonic()
    desk = Desk(folder / "data", clock=day)
    count = 0

    def write() -> None:
        day.minute()
        desk.write(
            Row(0, 0, PUBLISH, b"mqtt", b"dev", b"plant/%d" % (number % 10),
                payload=json.dumps({"t": (count * 7 + number) % 100}).encode())
            for number in range(100)
        )  # fmt: skip

    def report(said: pipeline.Report) -> None:
        nonlocal count
        count += 1
        over = count >= batches or time.monotonic() - begun > minutes * 60
        if count % max(batches // PARTS, 1) == 0 or over:
            sizes = " | ".join(f"{size / 1e6:,.0f}" for size in resident().values())
            print(f"| {count:,} | {time.monotonic() - begun:,.0f} | {sizes} |", flush=True)
        stop.set() if over else write()

    print("| batches | s | " + " | ".join(f"{name}, MB" for name in resident()) + " |")
    print("|---" * 5 + "|")
    write()
    pipeline.run(
        spark, folder / "data", stop, report, every=0.1, rules=read_rules(rules),
        catalog=Named("sqlite"),
    )  # fmt: skip
    desk.close()
    assert spark._jvm is not None, "Spark runs"
    spark._jvm.System.gc()
    java = spark._jvm.Runtime.getRuntime()
    heap = (java.totalMemory() - java.freeMemory()) / 1e6
    print(
        f"Java's heap after a collection: {heap:,.0f} MB; resident {resident()['java'] / 1e6:,.0f}"
    )
    end(spark)


def catalog(folder: Path, batches: int) -> None:
    """What a driver keeps of batches in a catalog: its memory, and its Python objects."""
    stage, before = Stage(folder), None
    print("| batches | MB | objects | snapshots |\n" + "|---" * 4 + "|")
    for number in range(batches):
        now = stage.whole(number, number - number % 1440)
        tidy(stage.layout, {}, now, before)
        if tidied(now, before):
            stage.follower.tidied(now)
        before = now
        if (number + 1) % max(batches // 12, 1) == 0:
            gc.collect()
            kept = len(stranger(stage.layout).snapshots())
            sizes = f"{resident()['driver'] / 1e6:,.0f} | {len(gc.get_objects()):,}"
            print(f"| {number + 1:,} | {sizes} | {kept} |", flush=True)


def resident() -> dict[str, int]:
    """Bytes of Java, of this process, and of the others below it."""
    page, mine, found = os.sysconf("SC_PAGE_SIZE"), os.getpid(), dict(stats())
    parents = {process: int(fields[1]) for process, fields in found.items()}
    sizes = {"java": 0, "driver": 0, "workers": 0}
    for process, fields in found.items():
        if not is_below(process, 0, parents):
            continue
        try:
            name = Path(f"/proc/{process}/comm").read_text().strip()
        except OSError:
            continue
        kind = "driver" if process == mine else "java" if name == "java" else "workers"
        sizes[kind] += int(fields[21]) * page
    return sizes


def journal(folder: Path, gigabytes: int) -> None:
    begun, segments = time.time(), gigabytes * 10**9 // SEGMENT_BYTES
    desk = Desk(folder / "data", segment=1)
    for number in range(segments):
        desk.write([Row(0, 0, PUBLISH, b"mqtt", b"dev", b"plant", payload=b"%d" % number)])
    desk.close()
    files = sorted((folder / "data" / "log").glob("*.rows"))
    for file in files[:-1]:
        os.truncate(file, SEGMENT_BYTES)  # zeros ahead, as of a segment that is being written
    size = sum(file.stat().st_size for file in files)
    print(f"{size / 1e9:,.0f} GB in {len(files):,} segments")
    table = Table(str(folder / "data"))
    last, middle = table.committed(), int((begun + time.time()) / 2 * 1e6)
    timed("its first row and its last", lambda: (table.first(), table.committed()))
    timed("the same again", lambda: (table.first(), table.committed()))
    timed("a batch at its end", lambda: table.shelf.within(last - 10, last, 64 << 20))
    timed("its rows", lambda: sum(batch.num_rows for batch in table.read(last - 10, last)))
    timed("where a moment is", lambda: table.first_at(middle))


def timed(what: str, work: Callable[[], object]) -> None:
    begun, cpu = time.monotonic(), time.process_time()
    found = work()
    took, cpu = time.monotonic() - begun, time.process_time() - cpu
    print(f"  {what}: {took:.3f} s, {cpu:.3f} s of CPU ({found})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["topics", "payloads", "memory", "catalog", "journal"])
    parser.add_argument("sizes", type=int, nargs="*")
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--batch", type=int, default=0, help="rows; by default a fourth of all")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--batches", type=int, default=1440)
    parser.add_argument("--minutes", type=float, default=24 * 60)
    parser.add_argument("--gigabytes", type=int, default=100)
    chosen = parser.parse_intermixed_args()
    folder = Path(tempfile.mkdtemp(prefix="hubbub-scale-"))
    try:
        if chosen.what == "topics":
            topics(folder, chosen.sizes or [1_000, 10_000, 100_000], chosen.messages, chosen.batch)
        elif chosen.what == "payloads":
            sizes = chosen.sizes or [1_000, 100_000, 1_000_000, 5_000_000]
            payloads(folder, sizes, chosen.megabytes)
        elif chosen.what == "memory":
            memory(folder, chosen.batches, chosen.minutes)
        elif chosen.what == "catalog":
            catalog(folder, chosen.batches)
        else:
            journal(folder, chosen.gigabytes)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
