"""What the pipeline costs: a journal of so many messages made into all tables.

    python -m benchmarks.pipeline [--messages 1000000] [--batch 100000]

The messages are JSON objects with three values, a number, and CBOR, from 1,000 topics, as a hub
would record them. Prints rows a second of the whole run without the start of Spark, the seconds
each table took, and the CPU time of all processes together. The hub is idle (there is none).
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import tempfile
import threading
import time
from pathlib import Path

import cbor2

from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.run import Report
from hubbub.schema import PUBLISH, Row
from hubbub.spark.start import end, session

TOPICS = 1_000
ROWS = 1_000  # of one frame


def fill(directory: Path, messages: int) -> None:
    """A journal of `messages` publishes."""
    durable: queue.SimpleQueue[int] = queue.SimpleQueue()
    journal = Journal(directory, Clock(), "os", durable.put)
    journal.recover(lambda row: None)
    for first in range(0, messages, ROWS):
        for number in range(first, min(first + ROWS, messages)):
            journal.append(message(number))
        while journal.pending or journal.busy:
            journal.commit()
            journal.arrived(durable.get(timeout=30))
    journal.close()


def message(number: int) -> Row:
    place = number % TOPICS
    topic = b"plant/%d/line/%d" % (place // 10, place % 10)
    values = {"temp": 20 + number % 50 / 10, "load": number % 100 / 100, "state": "running"}
    if number % 10 == 0:
        return Row(0, 0, PUBLISH, b"mqtt", b"dev-%d" % place, topic, payload=b"%d" % number)
    if number % 10 == 1:
        return Row(
            0, 0, PUBLISH, b"mqtt", b"dev-%d" % place, topic, payload=cbor2.dumps(values),
            content_type=b"application/cbor",
        )  # fmt: skip
    payload = b'{"temp": %.1f, "load": %.2f, "state": "running"}' % (values["temp"], values["load"])
    return Row(0, 0, PUBLISH, b"mqtt", b"dev-%d" % place, topic, qos=1, payload=payload)


def cpu_seconds() -> float:
    """Of this process and everything below it, whether it has ended or not.

    By descent, since the daemon that starts Spark's Python workers has a process group of its own.
    """
    times, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        times[process] = sum(map(int, fields[11:15]))
    total = sum(time for process, time in times.items() if _is_ours(process, parents))
    return total / os.sysconf("SC_CLK_TCK")


def _is_ours(process: int, parents: dict[int, int]) -> bool:
    while process and process != os.getpid():
        process = parents.get(process, 0)
    return process != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=pipeline.ROWS)
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        fill(directory, chosen.messages)
        measure(directory, chosen.messages, chosen.batch)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(directory: Path, messages: int, batch: int) -> None:
    pipeline.ROWS = batch
    spark = session()
    spark.range(1).count()
    reports: list[Report] = []
    begun, cpu = time.monotonic(), cpu_seconds()
    pipeline.run(spark, directory, threading.Event(), reports.append, once=True)
    took, cpu = time.monotonic() - begun, cpu_seconds() - cpu
    end(spark)
    print(f"{messages} messages, {len(reports)} batches of {batch}, all tables")
    print(f"  {messages / took:12,.0f} messages/s      {took:.1f} s, CPU {cpu:.1f} s")
    print(f"  {cpu / messages * 1e6:12.1f} us of CPU a message")
    for name in reports[0].tables:
        seconds = sum(report.tables.get(name, 0.0) for report in reports)
        print(f"  {name:12} {seconds:6.1f} s")


if __name__ == "__main__":
    main()
