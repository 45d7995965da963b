"""Remote calls over message-switch: calls a second and the hub's CPU time for one.

`python -m benchmarks.switch` starts a hub in memory and one that syncs each promise to the disk,
and loads them with `switch.c`: one caller, eight, and eight beside 10,000 idle queues and 1,000
blocked transfers; over TCP, and over a Unix socket, which is all that the original has. One call is
the seven requests of the original clients. After `make compiled`, PYTHONPATH=build/compiled
measures that. It measures and never judges; docs/benchmarks.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, Missing, hubbub
from benchmarks.generator import built


class Cell(NamedTuple):
    """One way to load a hub; the service works on as many requests at a time as are called."""

    callers: int
    queues: int = 0
    pollers: int = 0
    unix: bool = False

    @property
    def name(self) -> str:
        idle = f", {self.queues:,} queues, {self.pollers:,} pollers" if self.queues else ""
        where = ", Unix socket" if self.unix else ""
        return f"{self.callers} caller{'s' * (self.callers > 1)}{where}{idle}"


CELLS: Final = (
    Cell(1), Cell(1, unix=True), Cell(8), Cell(8, unix=True), Cell(8, 10_000, 1_000),
)  # fmt: skip


def measure(load: Path, hub: Broker, path: Path, cell: Cell, seconds: float) -> tuple[float, float]:
    """Calls a second, microseconds of CPU a call. RuntimeError if an answer was wrong."""
    options = {
        "port": hub.port, "pid": hub.pid, "callers": cell.callers, "workers": cell.callers,
        "queues": cell.queues, "pollers": cell.pollers, "seconds": seconds,
        "warm-up": seconds / 4,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [f"--path={path}"] if cell.unix else []
    done = subprocess.run([load, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{hub.name}, {cell.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return said["per_second"], said["broker_us"]


def run(rounds: int, seconds: float, folder: Path) -> None:
    load = built("switch", "-Wno-format-truncation")
    print("| hub | load | calls a second | µs CPU a call |\n|---|---|---|---|", flush=True)
    with ExitStack() as stack:
        hubs = []
        for name, *settings in (("record none", "journal.record=none"), ("on disk",)):
            data = folder / name.split()[-1]
            path = data.with_suffix(".sock")
            hub = stack.enter_context(hubbub(name, data, f"queue.socket={path}", *settings))
            hubs.append((hub, path))
        for hub, path in hubs:
            for cell in CELLS:
                figures = [measure(load, hub, path, cell, seconds) for _ in range(rounds)]
                rate, cost = (statistics.median(column) for column in zip(*figures, strict=True))
                print(f"| {hub.name} | {cell.name} | {rate:,.0f} | {cost:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every row [3]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2.0]")
    parser.add_argument("--data", type=Path, help="directory on the disk to measure")
    chosen = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-", dir=chosen.data) as folder:
            run(chosen.rounds, chosen.seconds, Path(folder))
    except Missing as missing:
        print(f"Skipped: {missing}")
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
