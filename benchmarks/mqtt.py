"""What a delivered message costs: mosquitto and Hubbub side by side, in broker CPU time.

`python -m benchmarks.mqtt` starts all brokers on free ports of the loopback, loads them one after
the other with `load.c`, round after round, and prints medians. It measures and never judges: no
test calls it. docs/benchmarks.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, Missing, hubbub, mosquitto
from benchmarks.generator import built

FOLDING_SECONDS: Final = 60.0
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Cell(NamedTuple):
    """One way to load a broker. `window`: messages a publisher keeps out.

    `pairs`: each subscriber gets the messages of one publisher, not of all. `version`: 4 is 3.1.1.
    `topics`: messages differ, by topic and by length; 0 = all are alike.
    """

    publishers: int
    subscribers: int
    qos: int
    window: int
    pairs: bool = False
    version: int = 4
    topics: int = 0

    @property
    def name(self) -> str:
        shape = f"{self.publishers}→{self.subscribers}"
        if self.pairs:
            shape = f"{self.publishers} pairs"
        modern = " MQTT 5" if self.version == 5 else ""
        unlike = f", unlike, {self.topics:,} topics" if self.topics else ""
        return f"{shape} QoS {self.qos} window {self.window}{unlike}{modern}"


class Figure(NamedTuple):
    """One run: microseconds of broker CPU a delivered message, and deliveries a second."""

    cost: float
    rate: float


SHAPES: Final = ((1, 1, False), (1, 100, False), (100, 1, False), (50, 50, True))
UNLIKE: Final = tuple(
    Cell(1, 1, qos, window, topics=topics)
    for window, topics, qos in ((20, 50, 0), (20, 50, 1), (20, 50, 2), (20, 5_000, 0),
                                (20, 5_000, 1), (1, 50, 0), (1, 50, 1))
)  # fmt: skip
CELLS: Final = (
    *UNLIKE,
    *(Cell(publishers, subscribers, qos, window, pairs)
      for window, (publishers, subscribers, pairs), qos in product((1, 20), SHAPES, (0, 1))),
    Cell(1, 1, 2, 20),
)  # fmt: skip
NAGLE: Final = "mosquitto"
NODELAY: Final = "mosquitto, nodelay"
MEMORY: Final = "Hubbub, record none"
DISK: Final = "Hubbub"
COLUMNS: Final = (NAGLE, NODELAY, MEMORY, DISK)
MODERN: Final = (NAGLE, MEMORY)  # are measured with 5.0 too

Results = dict[tuple[Cell, str], list[Figure]]


# The load generator


def measure(load: Path, broker: Broker, cell: Cell, seconds: float, payload: int) -> Figure:
    """Load one broker once. RuntimeError if a message was lost, repeated or out of order."""
    options = {
        "port": broker.port, "pid": broker.pid, "version": cell.version,
        "publishers": cell.publishers, "subscribers": cell.subscribers, "pairs": int(cell.pairs),
        "qos": cell.qos, "window": cell.window, "topics": cell.topics, "seconds": seconds,
        "warm-up": seconds / 4, "payload": payload,
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

UNQUIET: Final = 1.15  # between the fastest and the slowest of the same loop; alone it is 1.03


def calibration() -> float:
    """Milliseconds that a fixed piece of work takes now."""
    began = time.perf_counter()
    total = 0
    for number in range(300_000):
        total += number
    return (time.perf_counter() - began) * 1000


def quietness(loops: Sequence[float]) -> str:
    """Whether these figures may be compared with those of another day."""
    least, most = min(loops), max(loops)
    noisy = "WAS NOT" if most > UNQUIET * least else "was"
    return f"The machine {noisy} quiet: the same loop took {least:.1f} to {most:.1f} ms."


def kept(results: Results, loops: Sequence[float], file: Path) -> None:
    """Write all figures down, round by round."""
    rows = [
        {"row": cell.name, "broker": name, "cost_us": [round(one.cost, 3) for one in figures],
         "per_second": [round(one.rate) for one in figures]}
        for (cell, name), figures in results.items()
    ]  # fmt: skip
    said = {"date": time.strftime("%Y-%m-%d"), "loop_ms": [round(one, 2) for one in loops],
            "rows": rows}  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(said, indent=1) + "\n")


# The table


def table(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    """Median (least) cost of each, and the ratio to the cheaper mosquitto."""
    yield f"| broker CPU, µs a delivery | {NAGLE} | {NODELAY} | {MEMORY} | ratio | {DISK} | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for cell in cells:
        middle = {name: statistics.median(costs(results, cell, name)) for name in COLUMNS}
        least = {name: min(costs(results, cell, name)) for name in COLUMNS}
        shown = {name: f"{middle[name]:.2f} ({least[name]:.2f})" for name in COLUMNS}
        peer = min(middle[NAGLE], middle[NODELAY])
        yield (
            f"| {cell.name} | {shown[NAGLE]} | {shown[NODELAY]} "
            f"| {shown[MEMORY]} | **{middle[MEMORY] / peer:.2f}** {spread(results, cell, MEMORY)} "
            f"| {shown[DISK]} | **{middle[DISK] / peer:.2f}** {spread(results, cell, DISK)} |"
        )


def spread(results: Results, cell: Cell, name: str) -> str:
    """The least and the greatest ratio of one round, in which the brokers took turns."""
    rounds = zip(*(costs(results, cell, one) for one in (name, NAGLE, NODELAY)), strict=True)
    ratios = [cost / min(peers) for cost, *peers in rounds]
    return f"({min(ratios):.2f} to {max(ratios):.2f})"


def costs(results: Results, cell: Cell, name: str) -> list[float]:
    return [figure.cost for figure in results[cell, name]]


def rates(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    yield "| deliveries a second, thousands | " + " | ".join(COLUMNS) + " |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    for cell in cells:
        medians = [
            statistics.median(figure.rate for figure in results[cell, name]) for name in COLUMNS
        ]
        yield f"| {cell.name} | " + " | ".join(f"{rate / 1000:.1f}" for rate in medians) + " |"


def versions(results: Results, cells: Sequence[Cell]) -> Iterator[str]:
    """What 5.0 costs beside 3.1.1, where nothing of it is used."""
    columns = " | ".join(f"{name} 3.1.1 | 5.0 | ratio" for name in MODERN)
    yield f"| broker CPU, µs a delivery | {columns} |"
    yield "|---" * (1 + 3 * len(MODERN)) + "|"
    for cell in cells:
        shown = []
        for name in MODERN:
            old = statistics.median(costs(results, cell, name))
            new = statistics.median(costs(results, cell._replace(version=5), name))
            shown.append(f"{old:.2f} | {new:.2f} | **{new / old:.2f}**")
        yield f"| {cell.name} | {' | '.join(shown)} |"


# The program


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mqtt", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: is all in order?")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every cell [5]")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run [1.0]")
    parser.add_argument(
        "--payload", type=int, default=16, help="bytes of a message, at least 8 [16]"
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
    print(f"A durable write of 1 KiB takes {sync_cost(folder):.0f} µs here.", flush=True)
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(mosquitto(NAGLE, False, folder)),
            stack.enter_context(mosquitto(NODELAY, True, folder)),
            stack.enter_context(hubbub(MEMORY, folder / "none", "journal.record=none")),
            stack.enter_context(hubbub(DISK, folder / "disk")),
        ]
        for number, cell in product(range(chosen.rounds), cells):
            for broker in brokers:
                for way in (cell, cell._replace(version=5)):
                    if way.version == 4 or broker.name in MODERN:
                        figure = measure(load, broker, way, chosen.seconds, chosen.payload)
                        results.setdefault((way, broker.name), []).append(figure)
            if cell is cells[-1]:
                loops.append(calibration())
                print(f"Round {number + 1} of {chosen.rounds} is done.", flush=True)
        folding = folding_cost(brokers[-1], folder / "disk")
    for lines in (table, rates, versions):
        print("", *lines(results, cells), sep="\n")
    print(f"\n{quietness(loops)}")
    if chosen.results is not None:
        kept(results, loops, chosen.results)
    if folding is not None:
        print(f"\nFolding finished segments, in a child process: {folding:.2f} µs CPU a row.")


def main() -> int:
    chosen = arguments()
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-", dir=chosen.data) as folder:
            os.chmod(folder, 0o755)  # mosquitto, started by root, reads as another user
            run(chosen, Path(folder))
    except Missing as missing:
        print(f"Skipped: {missing}")
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
