"""What a delivered message costs: mosquitto and Hubbub side by side, in broker CPU time.

`python -m benchmarks.mqtt` starts all brokers on free ports of the loopback, loads them one after
the other with `load.c`, round after round, and prints medians. It measures and never judges: no
test calls it. docs/benchmarks.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import report
from benchmarks.brokers import Broker, hubbub, mosquitto, run_in_folder
from benchmarks.generator import built

FOLDING_SECONDS: Final = 60.0
TICKS: Final = os.sysconf("SC_CLK_TCK")
MIXED: Final = 3  # as a QoS: each message has any


class Cell(NamedTuple):
    """One way to load a broker. `window`: messages a publisher keeps out.

    `pairs`: each subscriber gets the messages of one publisher, not of all. `version`: 4 is 3.1.1.
    `topics`: messages differ, by topic and by length; 0 = all are alike. `rate`: messages a second,
    whatever the broker answers; 0 = as the window lets. `payload`: bytes, where all are alike.
    `aim`, `disk_aim`: what the compiled hub should cost, 1 = as much as the cheaper mosquitto.
    """

    publishers: int
    subscribers: int
    qos: int
    window: int
    pairs: bool = False
    version: int = 4
    topics: int = 0
    rate: int = 0
    payload: int = 16
    aim: float | None = None
    disk_aim: float | None = None

    @property
    def name(self) -> str:
        shape = f"{self.publishers}→{self.subscribers}"
        if self.pairs:
            shape = f"{self.publishers} pairs"
        pace = f"paced {self.rate:,}/s" if self.rate else f"window {self.window}"
        size = f", {self.payload // 1024} KiB" if self.payload >= 1024 else ""
        modern = " MQTT 5" if self.version == 5 else ""
        unlike = f", unlike, {self.topics:,} topics" if self.topics else ""
        qos = "mixed" if self.qos == MIXED else self.qos
        return f"{shape} QoS {qos} {pace}{size}{unlike}{modern}"


class Figure(NamedTuple):
    """One run: microseconds of broker CPU a delivered message, and deliveries a second."""

    cost: float
    rate: float


UNLIKE: Final = tuple(
    Cell(1, 1, qos, window, topics=topics, aim=aim)
    for window, topics, qos, aim in (
        (20, 50, 0, 0.6), (20, 50, 1, 0.6), (20, 50, 2, 0.6), (20, 50, MIXED, 0.6),
        (20, 5_000, 0, 0.6), (20, 5_000, 1, 0.6), (500, 50, 0, None), (500, 50, 1, None),
        (1, 50, 0, 0.9), (1, 50, 1, 0.9))
)  # fmt: skip
ALIKE: Final = (
    Cell(1, 1, 0, 1), Cell(1, 1, 1, 1),
    Cell(1, 100, 0, 1, aim=0.8), Cell(1, 100, 1, 1, aim=0.9),
    Cell(100, 1, 0, 1, aim=0.4, disk_aim=1.0), Cell(100, 1, 1, 1, aim=0.6, disk_aim=1.2),
    Cell(50, 50, 0, 1, pairs=True, aim=0.85), Cell(50, 50, 1, 1, pairs=True, aim=0.85),
    Cell(1, 1, 0, 20), Cell(1, 1, 1, 20, aim=0.15), Cell(1, 1, 2, 20, aim=0.5, disk_aim=1.0),
    Cell(1, 100, 0, 20), Cell(1, 100, 1, 20), Cell(100, 1, 0, 20), Cell(100, 1, 1, 20),
    Cell(50, 50, 0, 20, pairs=True), Cell(50, 50, 1, 20, pairs=True),
    Cell(1, 1, 1, 500, aim=0.15),
    Cell(1, 1, 1, 100, payload=4096, aim=0.4), Cell(1, 1, 0, 20, payload=4096, disk_aim=1.0),
)  # fmt: skip
PACED: Final = (
    Cell(1, 1, 0, 1, rate=2_000, aim=1.1), Cell(1, 1, 1, 1, rate=2_000, aim=1.1),
    Cell(50, 50, 0, 1, pairs=True, rate=10_000, aim=1.0),
)  # fmt: skip
CELLS: Final = (*UNLIKE, *PACED, *ALIKE)
NAGLE: Final = "mosquitto"
NODELAY: Final = "mosquitto, nodelay"
MEMORY: Final = "plain, record none"
DISK: Final = "plain"
FAST: Final = "compiled, record none"
FAST_DISK: Final = "compiled"
MODERN: Final = (NAGLE, MEMORY, FAST)  # are measured with 5.0 too
COMPILED: Final = Path(__file__).parents[1] / "build" / "compiled"

Results = dict[tuple[Cell, str], list[Figure]]
Said = dict[str, Any]  # what the file of results holds


# The load generator


def measure(load: Path, broker: Broker, cell: Cell, seconds: float) -> Figure:
    """Load one broker once. RuntimeError if a message was lost, repeated or out of order."""
    options = {
        "port": broker.port, "pid": broker.pid, "version": cell.version,
        "publishers": cell.publishers, "subscribers": cell.subscribers, "pairs": int(cell.pairs),
        "qos": cell.qos, "window": cell.window, "topics": cell.topics, "rate": cell.rate,
        "seconds": seconds, "warm-up": seconds / 4, "payload": cell.payload,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run([load, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{broker.name}, {cell.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return Figure(said["broker_us"], said["per_second"])


# What the disk costs beside it


def sync_cost(folder: Path, times: int = 50) -> float:
    """Microseconds of one small append that is durable, here: the floor of a waiting client."""
    costs = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            file.write(bytes(1024))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            costs.append((time.perf_counter() - began) * 1e6)
    return statistics.median(costs)


def folding_cost(hub: Broker, data: Path) -> float | None:
    """CPU microseconds a row of the children that fold finished segments; None if none was due.

    It waits until no child is left: only ended ones are in the hub's account.
    """
    children = Path(f"/proc/{hub.pid}/task/{hub.pid}/children")
    until = quiet = time.monotonic() + FOLDING_SECONDS
    while time.monotonic() < min(until, quiet):
        quiet = until if children.read_text() else min(quiet, time.monotonic() + 1)
        time.sleep(0.1)
    fields = Path(f"/proc/{hub.pid}/stat").read_text().rpartition(")")[2].split()
    spent = (int(fields[13]) + int(fields[14])) / TICKS
    folded = max((int(file.stem) for file in data.glob("state/*.rows")), default=0)
    return spent * 1e6 / folded if folded else None


# What else the machine does


def calibration() -> float:
    """Milliseconds that a fixed piece of work takes now."""
    began = time.perf_counter()
    total = 0
    for number in range(300_000):
        total += number
    return (time.perf_counter() - began) * 1000


def kept(results: Results, loops: Sequence[float], sync: float, fold: float | None) -> Said:
    """All figures of whole rounds, as the file of results keeps them."""
    whole = len(loops) - 1
    rows = [
        {"row": cell._asdict() | {"name": cell.name}, "broker": name,
         "cost_us": [round(one.cost, 3) for one in figures[:whole]],
         "per_second": [round(one.rate) for one in figures[:whole]]}
        for (cell, name), figures in results.items()
    ]  # fmt: skip
    return {"date": time.strftime("%Y-%m-%d"), "state": state(), "machine": machine(),
            "loop_ms": [round(one, 2) for one in loops], "sync_us": round(sync),
            "folding_us": fold and round(fold, 2), "rows": rows}  # fmt: skip


def state() -> str:
    """The commit that was measured, or nothing where there is no git."""
    asked = ["git", "-C", str(Path(__file__).parents[1]), "describe", "--always", "--dirty"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip()


def machine() -> str:
    version = subprocess.run(["mosquitto", "-h"], capture_output=True, text=True).stdout
    return (f"{os.cpu_count()} cores, Linux {platform.release()}, CPython "
            f"{platform.python_version()}, {version.partition(chr(10))[0]}")  # fmt: skip


# The program


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mqtt", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: is all in order?")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of every cell [2]")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run [1.0]")
    parser.add_argument(
        "--compiled", type=Path, default=COMPILED, help="the compiled package [build/compiled]"
    )
    parser.add_argument("--cells", default="", help="only rows whose name contains this text")
    parser.add_argument(
        "--data", type=Path, help="directory on the disk to measure [a temporary one]"
    )
    parser.add_argument("--results", type=Path, help="write all figures into this file (JSON)")
    chosen = parser.parse_args()
    wanted, chosen.cells = chosen.cells, [cell for cell in CELLS if chosen.cells in cell.name]
    if not chosen.cells:
        parser.error(f"no row contains {wanted!r}; one is {CELLS[0].name!r}")
    if chosen.quick:
        chosen.rounds, chosen.seconds = 1, 0.4
    return chosen


def run(chosen: argparse.Namespace, folder: Path) -> None:
    cells = chosen.cells
    load = built("load")
    results: Results = {}
    loops = [calibration()]
    sync = sync_cost(folder)
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(mosquitto(NAGLE, False, folder)),
            stack.enter_context(mosquitto(NODELAY, True, folder)),
            stack.enter_context(hubbub(MEMORY, folder / "none", "journal.record=none")),
            stack.enter_context(hubbub(DISK, folder / "disk")),
        ]
        if (chosen.compiled / "hubbub").is_dir():
            quick = {"package": chosen.compiled}
            brokers += [
                stack.enter_context(hubbub(FAST, folder / "fast", "journal.record=none", **quick)),
                stack.enter_context(hubbub(FAST_DISK, folder / "fast-disk", **quick)),
            ]
        with suppress(KeyboardInterrupt):  # the rounds that are whole are said all the same
            for number, cell in product(range(chosen.rounds), cells):
                for broker in brokers:
                    for way in (cell, cell._replace(version=5)):
                        if way.version == 4 or broker.name in MODERN:
                            figure = measure(load, broker, way, chosen.seconds)
                            results.setdefault((way, broker.name), []).append(figure)
                if cell is cells[-1]:
                    loops.append(calibration())
                    print(f"Round {number + 1} of {chosen.rounds} is done.", flush=True)
        folding = folding_cost(brokers[3], folder / "disk")
    if len(loops) == 1:
        raise RuntimeError("No round is whole: there is nothing to say.")
    said = kept(results, loops, sync, folding)
    print("", *report.lines(said), sep="\n")
    if chosen.results is not None:
        chosen.results.parent.mkdir(parents=True, exist_ok=True)
        chosen.results.write_text(report.written(said))


def main() -> int:
    chosen = arguments()
    return run_in_folder(partial(run, chosen), chosen.data)


if __name__ == "__main__":
    sys.exit(main())
