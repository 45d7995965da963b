"""What a message costs a program that only passes it on, in C and in Python, beside real brokers.

`python -m benchmarks.floors` (ten minutes) loads mosquitto, nats-server, the hub and floors
(`floor.c`; `floor.py` on sockets and, as the hub is, on uvloop, plain and compiled by mypyc) with
`load.c`, taking turns, and prints medians of broker CPU, in brackets the part of the cheaper
mosquitto. Then the rows whose aims are of a journal on disk, beside floors that keep one. It says
which part of an aim no program of its language, or on its loop, could reach. Never judges.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, Missing, ended, free_port, hubbub, mosquitto, wait_for
from benchmarks.generator import built, compiled
from benchmarks.mqtt import COMPILED, Cell, measure

CELLS: Final = (
    Cell(1, 1, 0, 1, rate=2_000), Cell(1, 1, 1, 1, rate=2_000),
    Cell(50, 50, 0, 1, pairs=True, rate=10_000),
    Cell(1, 1, 0, 1), Cell(1, 1, 1, 1), Cell(1, 100, 0, 1), Cell(1, 100, 1, 1),
    Cell(100, 1, 0, 1), Cell(100, 1, 1, 1),
    Cell(50, 50, 0, 1, pairs=True), Cell(50, 50, 1, 1, pairs=True),
    Cell(1, 1, 0, 20), Cell(1, 1, 1, 20), Cell(1, 1, 0, 500),
    Cell(100, 1, 0, 20), Cell(50, 50, 0, 20, pairs=True),
    Cell(1, 1, 0, 20, topics=50), Cell(1, 1, 0, 500, topics=50),
    Cell(1, 1, 0, 1, topics=50), Cell(1, 1, 1, 1, topics=50),
)  # fmt: skip
ON_DISK: Final = (
    Cell(100, 1, 0, 1), Cell(100, 1, 1, 1), Cell(1, 1, 0, 20), Cell(1, 1, 0, 20, payload=4096),
    Cell(1, 1, 1, 1), Cell(1, 1, 1, 1, rate=2_000), Cell(50, 50, 1, 1, pairs=True),
)  # fmt: skip
MOSQUITTO: Final = "mosquitto"
NATS: Final = "nats-server"
HUB: Final = "Hubbub, compiled"
PLAIN: Final = "Hubbub, plain"
C: Final = "floor, C"
MYPYC: Final = "floor, compiled"
UVLOOP: Final = "the same on uvloop"
PYTHON: Final = "floor, plain, on uvloop"
FLOOR: Final = (sys.executable, "-m", "benchmarks.floor")


@contextmanager
def nats(folder: Path) -> Iterator[Broker]:
    """nats-server's MQTT, which wants JetStream for its sessions."""
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        raise Missing("no nats-server: on Debian, apt install nats-server")
    port, file = free_port(), folder / "nats.conf"
    file.write_text(
        f'server_name: bench\nlisten: "127.0.0.1:{free_port()}"\n'
        f'jetstream {{ store_dir: "{folder}/nats" }}\nmqtt {{ listen: "127.0.0.1:{port}" }}\n'
    )
    with running(NATS, port, program, "-c", str(file)) as broker:
        yield broker


@contextmanager
def running(name: str, port: int, *command: str | Path) -> Iterator[Broker]:
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
    with ended(process):
        wait_for(port, process)
        yield Broker(name, port, process.pid)


def measurable(broker: str, cell: Cell) -> bool:
    """The floor in Python looks at one packet of a read; at QoS 1 nats-server stores."""
    if broker in (PYTHON, MYPYC, UVLOOP):
        return cell.window == 1 or (cell.qos == 0 and not cell.topics)
    return broker != NATS or cell.qos == 0


Found = dict[tuple[Cell, str], list[float]]


def measured(brokers: list[Broker], cells: Iterable[Cell], rounds: int, seconds: float) -> Found:
    """Brokers take turns in each row, rows in each round."""
    load, found = built("load"), Found()
    for number in range(rounds):
        for cell in cells:
            for broker in brokers:
                if measurable(broker.name, cell):
                    cost = measure(load, broker, cell, seconds).cost
                    found.setdefault((cell, broker.name), []).append(cost)
        print(f"Round {number + 1} of {rounds} is done.", file=sys.stderr)
    return found


def shown(found: Found, cells: Iterable[Cell], columns: tuple[str, ...], title: str) -> None:
    print(f"\n| {title} | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for cell in cells:
        mine = {name: some for (one, name), some in found.items() if one == cell}
        costs = {name: statistics.median(some) for name, some in mine.items()}
        costs[MOSQUITTO] = min(costs[MOSQUITTO], costs["nodelay"])
        texts = (part(costs, name) if name in costs else "" for name in columns)
        print(f"| {cell.name} | {' | '.join(texts)} |", flush=True)


def part(costs: dict[str, float], name: str) -> str:
    said = f"{costs[name]:.2f}"
    return said if name == MOSQUITTO else f"{said} ({costs[name] / costs[MOSQUITTO]:.2f})"


def in_memory(cells: list[Cell], rounds: int, seconds: float, folder: Path) -> None:
    python, mypyc, c, guest = (free_port() for _ in range(4))
    with ExitStack() as stack:
        brokers = [stack.enter_context(one) for one in (
            mosquitto(MOSQUITTO, False, folder), mosquitto("nodelay", True, folder), nats(folder),
            hubbub(HUB, folder / "hub", "journal.record=none", package=COMPILED),
            hubbub(PLAIN, folder / "plain", "journal.record=none"),
            running(C, c, built("floor"), str(c)),
            running(PYTHON, python, *FLOOR, "--uvloop", str(python)),
            running(MYPYC, mypyc, *compiled("floor"), str(mypyc)),
            running(UVLOOP, guest, *compiled("floor"), "--uvloop", str(guest)),
        )]  # fmt: skip
        found = measured(brokers, cells, rounds, seconds)
    columns = (MOSQUITTO, NATS, HUB, C, MYPYC, UVLOOP, PLAIN, PYTHON)
    shown(found, cells, columns, "broker CPU, µs a delivery")


def on_disk(cells: list[Cell], rounds: int, seconds: float, folder: Path) -> None:
    python, mypyc, guest = (free_port() for _ in range(3))
    with ExitStack() as stack:
        brokers = [stack.enter_context(one) for one in (
            mosquitto(MOSQUITTO, False, folder), mosquitto("nodelay", True, folder),
            hubbub(HUB, folder / "kept", package=COMPILED),
            running(PYTHON, python, *FLOOR, "--uvloop", str(python), folder / "plain"),
            running(MYPYC, mypyc, *compiled("floor"), str(mypyc), folder / "mypyc"),
            running(
                UVLOOP, guest, *compiled("floor"), "--uvloop", str(guest), folder / "uvloop",
            ),
        )]  # fmt: skip
        found = measured(brokers, cells, rounds, seconds)
    columns = (MOSQUITTO, HUB, MYPYC, UVLOOP, PYTHON)
    shown(found, cells, columns, "with a journal on disk but mosquitto")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.floors")
    parser.add_argument("--rounds", type=int, default=3, help="of each row [3]")
    parser.add_argument("--seconds", type=float, default=0.8, help="of each run [0.8]")
    parser.add_argument("--disk", action="store_true", help="only the rows with a journal")
    parser.add_argument("--cells", default="", help="only the rows whose name has this text")
    chosen = parser.parse_args()
    if not (COMPILED / "hubbub").is_dir():
        raise Missing("no compiled hub: make compiled")
    with tempfile.TemporaryDirectory(prefix="hubbub-floors-") as folder:
        Path(folder).chmod(0o755)  # mosquitto, started by root, reads as another user
        if not chosen.disk:
            cells = [cell for cell in CELLS if chosen.cells in cell.name]
            in_memory(cells, chosen.rounds, chosen.seconds, Path(folder))
        cells = [cell for cell in ON_DISK if chosen.cells in cell.name]
        on_disk(cells, chosen.rounds, chosen.seconds, Path(folder))


if __name__ == "__main__":
    main()
