"""What the pipeline costs: a journal of so many messages made into all tables.

    python -m benchmarks.pipeline [--messages 4000000] [--batch 500000 ...] [--subscribers 1]
                                  [--floor]

The messages are JSON objects with three values, a number, and CBOR, from 1,000 topics, as a hub
would record them; `--subscribers` says how many lasting sessions get those of QoS 1. Beside each
thousand stand a call, a connection and a broken payload, and a rule finds some alerts: all eight
tables are fed. Prints messages a second and the CPU time of all processes together, for the
whole run without the start of Spark and for its second half, when the JVM has compiled what is
hot; the seconds that each table took; the bytes they have on the disk; and the most memory that
was resident. With several sizes of batches each has a Spark of its own. There is no hub.

`--floor` says then what Spark alone takes for two of the eight tables: the rows of `messages` from
Parquet to Parquet, and those of `readings` by `from_json` with a schema that is known; without a
source, Python or counting, and the same rows over and over.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cbor2
from pyspark.sql import DataFrame

from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.places import settle
from hubbub.pipeline.rules import Alert, Rules
from hubbub.pipeline.run import Report
from hubbub.schema import ACK, AUDIENCE, CONNECT, DELIVER, DISCONNECT, PUBLISH, SEND, Row
from hubbub.spark.start import end, session

TOPICS = 1_000
ROWS = 1_000  # of one frame
ACKED = 80  # deliveries that one row acknowledges, of a client that keeps up
RULES = Rules(
    alert=(
        Alert(
            "hot", "alerts/hot",
            "SELECT seq, value FROM readings WHERE path = 'temp' AND value > 24.8",
        ),
    )
)  # fmt: skip


def fill(directory: Path, messages: int, subscribers: int = 0) -> None:
    """A journal of `messages` publishes, and beside each thousand what the other tables take.

    `subscribers`: lasting sessions that get, and acknowledge, everything of QoS 1.
    """
    durable: queue.SimpleQueue[int] = queue.SimpleQueue()
    journal = Journal(directory, Clock(), "os", durable.put)
    journal.recover(lambda batch: None)
    names = [b"keeper-%d" % number for number in range(subscribers)]
    for name in names:
        journal.append(Row(0, 0, CONNECT, b"mqtt", name, properties=b'{"lasting":true}'))
    journal.append(Row(0, 0, AUDIENCE, payload=json.dumps(
        [["mqtt", name.decode(), 1] for name in names]).encode()))  # fmt: skip
    audience = journal.position if names else 0
    for first in range(0, messages, ROWS):
        last = min(first + ROWS, messages)
        begun, delivered = journal.position + 1, 0
        for number in range(first, last):
            row = message(number)
            delivered += row.qos
            journal.append(row._replace(ref=audience * row.qos))
        for name in names:
            # The first two of a thousand are of QoS 0.
            for at in range(0, delivered, ACKED):
                ref = begun + 2 + at // 8 * 10
                number = min(ACKED, delivered - at)
                journal.append(Row(0, 0, ACK, b"mqtt", name, ref=ref, number=number))
        for row in beside(journal.position + 1):
            journal.append(row)
        while journal.pending or journal.flying:
            journal.commit()
            journal.arrived(durable.get(timeout=30))
    journal.close()


def beside(seq: int) -> list[Row]:
    """A call, a connection, and a payload that is not what it says; `seq` is that of the first."""
    work, back, client = b"$queue/work", b"$queue/back", b"guest-%d" % seq
    return [
        Row(0, 0, SEND, b"switch", b"asker", work, payload=b"?", reply_to=back, number=seq),
        Row(0, 0, DELIVER, b"switch", b"worker", work, ref=seq, number=seq),
        Row(0, 0, SEND, b"switch", b"worker", back, payload=b"!", ref=seq, number=seq),
        Row(0, 0, ACK, b"switch", b"worker", work, ref=seq, number=seq),
        Row(0, 0, ACK, b"switch", b"asker", back, ref=seq + 2, number=seq),
        Row(0, 0, CONNECT, b"mqtt", client, properties=b'{"address":"10.0.0.1"}'),
        Row(0, 0, DISCONNECT, b"mqtt", client, properties=b'{"reason":""}'),
        Row(0, 0, PUBLISH, b"mqtt", client, b"plant/broken", payload=b"{",
            content_type=b"application/json"),
    ]  # fmt: skip


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


def stats() -> Iterator[tuple[int, list[str]]]:
    """Each process with its fields of /proc/PID/stat from the third on."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue


def cpu_seconds(top: int = 0) -> float:
    """Of a process, by default this one, and everything below it, whether it has ended or not.

    By descent, since the daemon that starts Spark's Python workers has a process group of its own.
    """
    times, parents = {}, {}
    for process, fields in stats():
        parents[process] = int(fields[1])
        times[process] = sum(map(int, fields[11:15]))
    total = sum(time for process, time in times.items() if is_below(process, top, parents))
    return total / os.sysconf("SC_CLK_TCK")


def is_below(process: int, top: int, parents: dict[int, int]) -> bool:
    """Whether a process is `top`, 0 = this one, or descends from it."""
    top = top or os.getpid()
    while process and process != top:
        process = parents.get(process, 0)
    return process != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[pipeline.ROWS])
    parser.add_argument("--subscribers", type=int, default=0)
    parser.add_argument("--floor", action="store_true")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        fill(directory, chosen.messages, chosen.subscribers)
        for batch in chosen.batch:
            measure(directory, chosen.messages, batch)
            if chosen.floor:
                floor(directory)
            shutil.rmtree(directory / "tables")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def measure(directory: Path, messages: int, batch: int) -> None:
    pipeline.ROWS = batch
    spark = session(**pipeline.SESSION)
    spark.range(1).count()
    reports: list[Report] = []
    marks = [(time.monotonic(), cpu_seconds())]

    def report(said: Report) -> None:
        reports.append(said)
        marks.append((time.monotonic(), cpu_seconds()))

    with Memory() as memory:
        pipeline.run(spark, directory, threading.Event(), report, once=True, rules=RULES)
    end(spark)
    print(f"{messages} messages, {len(reports)} batches of {batch}, all tables")
    half = len(reports) // 2
    say("all, from a cold start", reports, marks)
    say("the second half, warm", reports[half:], marks[half:])
    print(f"  {memory.peak / 1e6:12,.0f} MB of memory at most, all processes")
    size = sum(file.stat().st_size for file in (directory / "tables").rglob("*.parquet"))
    print(f"  {size / messages:12,.1f} bytes on the disk each")
    for name in reports[-1].tables:
        seconds = sum(report.tables.get(name, 0.0) for report in reports[half:])
        print(f"  {name:12} {seconds:6.1f} s of the second half")


JSON = "from_json(CAST(payload AS string), 'temp double, load double, state string')"
LEAVES = """explode(array(
    struct('temp' AS path, v.temp AS value, CAST(NULL AS string) AS text),
    struct('load' AS path, v.load AS value, CAST(NULL AS string) AS text),
    struct('state' AS path, CAST(NULL AS double) AS value, v.state AS text))) AS leaf"""
CONTEXT = ("seq", "time", "event_time", "topic", "protocol", "client")
ROUNDS = 6  # of which the first two do not count


def floor(directory: Path) -> None:
    spark = session(**pipeline.SESSION)
    settle(spark)
    rows = spark.read.parquet(str(directory / "tables" / "messages"))
    rows = rows.where(f"seq <= {pipeline.ROWS}").drop("day", "batch_id")
    leaves = rows.selectExpr(*CONTEXT, f"{JSON} AS v").selectExpr(*CONTEXT, LEAVES)
    count = rows.count()
    for name, frame in {
        "messages": rows, "readings": leaves.selectExpr(*CONTEXT, "leaf.*")
    }.items():  # fmt: skip
        taken = [written(frame, directory / "floor") for _ in range(ROUNDS)]
        cpu, seconds = min(taken[2:])
        each = cpu / count * 1e6
        print(f"  {count / seconds:12,.0f} messages/s  {each:6.1f} us of CPU each: Spark's {name}")
    end(spark)


def written(frame: DataFrame, place: Path) -> tuple[float, float]:
    """Seconds of CPU, and of the clock."""
    begun, cpu = time.monotonic(), cpu_seconds()
    frame.write.mode("overwrite").parquet(str(place))
    return cpu_seconds() - cpu, time.monotonic() - begun


def say(what: str, reports: list[Report], marks: list[tuple[float, float]]) -> None:
    messages = sum(report.messages for report in reports)
    took, cpu = (last - first for first, last in zip(marks[0], marks[-1], strict=True))
    print(
        f"  {messages / took:12,.0f} messages/s  {cpu / messages * 1e6:6.1f} us of CPU each: {what}"
    )


class Memory:
    """The most that this process and all below it had resident together, looked at often."""

    def __init__(self) -> None:
        self.peak = 0
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look)

    def __enter__(self) -> Memory:
        self._watch.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        self._watch.join()

    def _look(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._over.wait(0.5):
            found = dict(stats())
            parents = {process: int(fields[1]) for process, fields in found.items()}
            ours = (f for process, f in found.items() if is_below(process, 0, parents))
            self.peak = max(self.peak, sum(int(fields[21]) for fields in ours) * page)


if __name__ == "__main__":
    main()
