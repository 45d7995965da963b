"""What a pipeline costs that has little to do, where that goes, and how soon it has begun.

    python -m benchmarks.idle [--rate 1] [--seconds 60] [--spans 4] [-- --every 1 …]

A hub, one message every 1/RATE seconds (0: none at all), and `hubbub pipeline run` with the options
after `--`. First the time from its start to the first table; then, for each span, the CPU of the
pipeline as a share of one core: its Java (the compilers, the garbage collector, all else), the
driver, and of all other processes that it has; the same for each batch; how old messages were when
`readings` had them; and its memory: resident, and with what several processes share counted once.
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
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from benchmarks.pipeline import cpu_seconds, is_below, stats
from benchmarks.tables import seen_in
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.publish import Publisher
from hubbub.spark.hub import Hub
from hubbub.spark.options import access
from tests.process import RunningHub

TICKS = os.sysconf("SC_CLK_TCK")
COMPILERS = ("C1 Compiler", "C2 Compiler", "Sweeper")
COLLECTORS = ("GC Thread", "G1 ", "VM Thread")


class Spent(NamedTuple):
    """Seconds of CPU so far."""

    total: float
    compilers: float
    collectors: float
    java: float
    driver: float

    def since(self, before: Spent) -> Spent:
        return Spent(*(now - then for now, then in zip(self, before, strict=True)))

    def said(self, seconds: float) -> str:
        """As shares of so many seconds."""
        rest = self.java - self.compilers - self.collectors
        others = self.total - self.java - self.driver
        shares = (self.total, self.compilers, self.collectors, rest, self.driver, others)
        total, *parts = (f"{share / seconds:.1%}" for share in shares)
        names = ("compilers", "collectors", "other Java", "driver", "other processes")
        return f"{total} of a core: {', '.join(map(' '.join, zip(parts, names, strict=True)))}"


def spent(driver: int) -> Spent:
    java = java_of(driver)
    threads: Counter[str] = Counter()
    for task in Path(f"/proc/{java}/task").glob("*/stat"):
        name, _, fields = task.read_text().partition("(")[2].rpartition(")")
        ticks = sum(map(int, fields.split()[11:13]))
        threads["compilers"] += ticks if name.startswith(COMPILERS) else 0
        threads["collectors"] += ticks if name.startswith(COLLECTORS) else 0
    alone = {process: sum(map(int, fields[11:13])) for process, fields in stats()}
    return Spent(
        cpu_seconds(driver), threads["compilers"] / TICKS, threads["collectors"] / TICKS,
        alone.get(java, 0) / TICKS, alone.get(driver, 0) / TICKS,
    )  # fmt: skip


def java_of(driver: int) -> int:
    """The process of Java that a driver started, 0 before it did."""
    for process, fields in stats():
        if int(fields[1]) == driver and Path(f"/proc/{process}/comm").read_text() == "java\n":
            return process
    return 0


def memory(driver: int) -> str:
    parents = {process: int(fields[1]) for process, fields in stats()}
    found: Counter[str] = Counter()
    for process in parents:
        if is_below(process, driver, parents):
            for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                name, _, said = line.partition(":")
                if name in ("Rss", "Pss"):
                    found[name] += int(said.split()[0])
                    found[f"{name} of Java"] += (
                        int(said.split()[0]) if process == java_of(driver) else 0
                    )
    return ", ".join(f"{name} {kilobytes / 1e3:,.0f} MB" for name, kilobytes in found.items())


def measure(directory: Path, chosen: argparse.Namespace) -> None:
    hub = RunningHub(directory / "data", "--set", "journal.durability=os")
    over = threading.Event()
    sender = threading.Thread(target=send, args=(hub, chosen.rate, over))
    sender.start()
    begun = time.monotonic()
    pipeline = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "hubbub",
            "pipeline",
            "run",
            "--data",
            str(hub.data),
            *chosen.options,
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        layout = Layout(hub.data)
        while layout.progress() is None and (chosen.rate or time.monotonic() < begun + 30):
            time.sleep(0.02)
        cpu = cpu_seconds(pipeline.pid)
        print(f"first batch whole after {time.monotonic() - begun:.1f} s, {cpu:.1f} s of CPU")
        for span in range(chosen.spans):
            watch(pipeline.pid, layout, span, chosen.seconds)
    finally:
        over.set()
        sender.join()
        pipeline.send_signal(signal.SIGTERM)
        pipeline.wait()
        hub.stop()


def watch(driver: int, layout: Layout, span: int, seconds: float) -> None:
    def batches() -> int:
        progress = layout.progress()
        return progress.batch + 1 if progress is not None else 0

    before, first, begun = spent(driver), batches(), time.monotonic()
    waits = seen_in(layout, seconds)
    took, made, cost = time.monotonic() - begun, batches() - first, spent(driver).since(before)
    print(f"{span * seconds:5.0f} s later, load {os.getloadavg()[0]:.1f}: {cost.said(took)}")
    if made:
        print(f"        {made} batches, {cost.total / made:.2f} s of CPU each")
    if len(waits) > 1:
        cuts = statistics.quantiles(waits, n=20)
        print(f"        {len(waits)} messages: half within {cuts[9]:.2f} s, 95 % {cuts[18]:.2f} s")
    print(f"        {memory(driver)}", flush=True)


def send(hub: RunningHub, rate: float, over: threading.Event) -> None:
    publisher = Publisher(Hub(hub.url("http"), access({})))
    number = 0
    while rate and not over.wait(1 / rate):
        payload = json.dumps({"sent": time.time(), "temp": number / 10})
        publisher.send(
            f"idle/{number}/0", 0, [{"topic": f"plant/{number % 9}", "payload": payload}]
        )
        number += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--spans", type=int, default=4)
    parser.add_argument("options", nargs="*")
    directory = Path(tempfile.mkdtemp(prefix="hubbub-bench-"))
    try:
        measure(directory, parser.parse_args())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
