"""Remote calls over message-switch: calls a second and the hub's CPU time for one.

`python -m benchmarks.switch` starts a hub in memory, one that leaves syncing to the system and one
that syncs each promise to the disk, and loads them with `switch.c`: one caller, eight, and eight
beside 10,000 idle queues and 1,000 blocked transfers; over TCP, and over a Unix socket, which is
all that the original has. One call is the seven requests of the original clients. After `make
compiled`, PYTHONPATH=build/compiled measures that.

`--original /var/run/message-switch/sock --original-pid PID` puts a running message-switch beside
them: each round loads it and the hubs one after the other, over its socket (a number is a TCP port
of this machine). Without its `--statedir` its peer is the hub in memory; with it, it never syncs,
so the peer is the hub with durability "os". It measures and never judges; docs/benchmarks.md says
how to read the result.
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
HUBS: Final = (
    ("record none", "journal.record=none"), ("durability os", "journal.durability=os"),
    ("on disk",),
)  # fmt: skip
ORIGINAL: Final = "original"

Place = tuple[Broker, Path | None]  # a hub, and its Unix socket


def measure(
    load: Path, hub: Broker, path: Path | None, cell: Cell, seconds: float
) -> tuple[float, float]:
    """Calls a second, microseconds of CPU a call (0 if its process is not known).

    RuntimeError if an answer was wrong.
    """
    options = {
        "port": hub.port, "pid": hub.pid, "callers": cell.callers, "workers": cell.callers,
        "queues": cell.queues, "pollers": cell.pollers, "seconds": seconds,
        "warm-up": seconds / 4,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [f"--path={path}"] if cell.unix and path is not None else []
    done = subprocess.run([load, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{hub.name}, {cell.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return said["per_second"], said["broker_us"]


def original(where: str, pid: int) -> Place:
    """A message-switch that runs on this machine, at a port or at a Unix socket."""
    port = int(where) if where.isdecimal() else 0
    return Broker(ORIGINAL, port, pid), None if port else Path(where)


def run(rounds: int, seconds: float, folder: Path, beside: list[Place]) -> None:
    load = built("switch", "-Wno-format-truncation")
    print("| load | hub | calls a second | µs CPU a call |" + " of the original |" * len(beside))
    print("|---|---|---|---|" + "---|" * len(beside), flush=True)
    with ExitStack() as stack:
        hubs = list(beside)
        for name, *settings in HUBS:
            data = folder / name.split()[-1]
            path = data.with_suffix(".sock")
            hub = stack.enter_context(hubbub(name, data, f"queue.socket={path}", *settings))
            hubs.append((hub, path))
        for cell in CELLS:
            able = [one for one in hubs if _can(one, cell)]
            figures = [[measure(load, *one, cell, seconds) for one in able] for _ in range(rounds)]
            say(cell, [hub for hub, _ in able], figures, len(beside))


def _can(one: Place, cell: Cell) -> bool:
    """The original has a port or a socket, never both."""
    hub, path = one
    return path is not None if cell.unix else hub.port != 0


def say(
    cell: Cell, hubs: list[Broker], figures: list[list[tuple[float, float]]], columns: int
) -> None:
    """The medians of all rounds, and beside the original the median of what each round compared."""
    compared = hubs[0].name == ORIGINAL
    for at, hub in enumerate(hubs):
        rate, cost = (statistics.median(one[at][n] for one in figures) for n in (0, 1))
        of = statistics.median(one[at][0] / one[0][0] for one in figures)
        said = f"| {cell.name} | {hub.name} | {rate:,.0f} | {cost:.0f} |"
        print(said + (f" {of:.2f} |" if compared else " |") * columns, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every row [3]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2.0]")
    parser.add_argument("--data", type=Path, help="directory on the disk to measure")
    parser.add_argument("--original", metavar="PATH|PORT", help="a message-switch that runs")
    parser.add_argument("--original-pid", type=int, default=0, help="its process, for its CPU time")
    chosen = parser.parse_args()
    beside = [original(chosen.original, chosen.original_pid)] if chosen.original else []
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-", dir=chosen.data) as folder:
            run(chosen.rounds, chosen.seconds, Path(folder), beside)
    except Missing as missing:
        print(f"Skipped: {missing}")
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
