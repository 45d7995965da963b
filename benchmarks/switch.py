"""Remote calls over message-switch: calls a second and the hub's CPU time for one.

`python -m benchmarks.switch` starts a hub in memory, one that leaves syncing to the system and one
that syncs each promise to the disk, and loads them with `switch.c`: one caller, eight, and eight
beside 10,000 idle queues and 1,000 blocked transfers; over TCP, and over a Unix socket, which is
all that the original has. One call is the seven requests of the original clients. After `make
compiled`, PYTHONPATH=build/compiled measures that.

`--tree DIR`, once or several times, measures the hubs of other checkouts, or of directories of
compiled ones, instead: in each round all of them take their turn, in one order and then in the
other, and each is compared with the first. `--original PATH` puts a server that runs already before
them, at its Unix socket (or its port): the original message-switch, or any that speaks the same.
With its `--statedir` that never syncs, so its peer is the hub with durability "os". It measures and
never judges; docs/benchmarks/protocols.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import ROOT, Broker, hubbub, run_in_folder, source
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


class Hub(NamedTuple):
    """A hub to be measured, and its Unix socket; a port of 0 is none."""

    broker: Broker
    path: Path | None

    def has(self, cell: Cell) -> bool:
        return self.path is not None if cell.unix else self.broker.port != 0


class Figure(NamedTuple):
    """Of one run; the CPU time is 0 where the process is not known."""

    per_second: float
    cpu_us: float


CELLS: Final = (
    Cell(1), Cell(1, unix=True), Cell(8), Cell(8, unix=True), Cell(8, 10_000, 1_000),
)  # fmt: skip
PROMISES: Final = {
    "record none": "journal.record=none",
    "durability os": "journal.durability=os",
    "on disk": "journal.durability=disk",
}
ORIGINAL: Final = "original"


def measure(load: Path, hub: Hub, cell: Cell, seconds: float) -> Figure:
    """RuntimeError if an answer was wrong."""
    options = {
        "port": hub.broker.port, "pid": hub.broker.pid, "callers": cell.callers,
        "workers": cell.callers, "queues": cell.queues, "pollers": cell.pollers,
        "seconds": seconds, "warm-up": seconds / 4,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    words += [f"--path={hub.path}"] if cell.unix else []
    done = subprocess.run([load, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{hub.broker.name}, {cell.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return Figure(said["per_second"], said["broker_us"])


def original(where: str, pid: int) -> Hub:
    """A server that runs on this machine, at a port or at a Unix socket."""
    port = int(where) if where.isdecimal() else 0
    return Hub(Broker(ORIGINAL, port, pid), None if port else Path(where))


def started(stack: ExitStack, folder: Path, promise: str, trees: list[Path]) -> list[Hub]:
    """A hub of each tree that promises so much."""
    hubs = []
    for number, tree in enumerate(trees):
        data = folder / f"{promise.split()[-1]}{number}"
        path = data.with_suffix(".sock")
        settings = (f"queue.socket={path}", PROMISES[promise])
        name = f"{promise}, {str(tree)[-20:]}" if len(trees) > 1 else promise
        package = None if tree == ROOT else source(tree)
        hubs.append(Hub(stack.enter_context(hubbub(name, data, *settings, package=package)), path))
    return hubs


def compared(
    load: Path, hubs: list[Hub], cell: Cell, rounds: int, seconds: float
) -> list[list[Figure]]:
    """A row for each round, a figure for each hub; every second round begins with the last one."""
    rows = []
    for number in range(rounds):
        turns = hubs if number % 2 == 0 else hubs[::-1]
        figures = [measure(load, hub, cell, seconds) for hub in turns]
        rows.append(figures if turns is hubs else figures[::-1])
    return rows


def say(cell: Cell, hubs: list[Hub], rows: list[list[Figure]]) -> None:
    """The medians of all rounds, and of how many calls each made for one of the first hub's."""
    for at, hub in enumerate(hubs):
        rate = statistics.median(row[at].per_second for row in rows)
        cost = statistics.median(row[at].cpu_us for row in rows)
        said = f"| {cell.name} | {hub.broker.name} | {rate:,.0f} | {cost:.0f} |"
        if len(hubs) > 1:
            ratios = sorted(row[at].per_second / row[0].per_second for row in rows)
            middle = statistics.median(ratios)
            said += f" {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        print(said, flush=True)


def run(chosen: argparse.Namespace, folder: Path) -> None:
    load = built("switch", "-Wno-format-truncation")
    first = [original(chosen.original, chosen.original_pid)] if chosen.original else []
    trees = [tree.resolve() for tree in chosen.tree or [ROOT]]
    several = len(first) + len(trees) > 1
    print("| load | hub | calls a second | µs CPU a call |" + " of the first |" * several)
    print("|---|---|---|---|" + "---|" * several, flush=True)
    for promise in (name for name in PROMISES if chosen.promise in name):
        with ExitStack() as stack:
            hubs = first + started(stack, folder, promise, trees)
            for cell in (cell for cell in CELLS if chosen.cells in cell.name):
                able = [hub for hub in hubs if hub.has(cell)]
                say(cell, able, compared(load, able, cell, chosen.rounds, chosen.seconds))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switch", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every row [3]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2.0]")
    parser.add_argument("--data", type=Path, help="directory on the disk to measure")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; several compare")
    parser.add_argument("--promise", default="", help="only the hubs whose name has this text")
    parser.add_argument("--cells", default="", help="only the loads whose name has this text")
    parser.add_argument("--original", metavar="PATH|PORT", help="a server that runs")
    parser.add_argument("--original-pid", type=int, default=0, help="its process, for its CPU time")
    chosen = parser.parse_args()
    return run_in_folder(partial(run, chosen), chosen.data)


if __name__ == "__main__":
    sys.exit(main())
