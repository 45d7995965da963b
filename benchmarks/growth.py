"""How the cost of a delivery grows: with readers, topics, bytes, connections and subscriptions.

`python -m benchmarks.growth --draw` (ten minutes) loads mosquitto and the compiled hub with
`load.c`, taking turns, at ten times more of one thing at a time, and draws both curves into
docs/images/growth.svg. A line that bends upward says where something is not as it should be. Each
axis has brokers of its own, so none carries what another left. Never judges.
"""

from __future__ import annotations

import argparse
import resource
import socket
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib

from benchmarks.brokers import ROOT, Broker, Missing, hubbub, mosquitto
from benchmarks.generator import built
from benchmarks.mqtt import COMPILED, Cell, measure
from hubbub.protocols.mqtt import codec

matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

IMAGE: Final = ROOT / "docs" / "images" / "growth.svg"
EACH: Final = 10_000  # filters of one client, the bound of the hub
PACKET: Final = 1000  # filters of one SUBSCRIBE
PATIENCE: Final = 60.0


class Axis(NamedTuple):
    """What grows: `cell` is the load for a number; `beside` how many filters others have."""

    name: str
    numbers: tuple[int, ...]
    cell: Callable[[int], Cell]
    beside: bool = False


AXES: Final = (
    Axis("readers of each message", (1, 10, 100, 1_000, 10_000), lambda n: Cell(1, n, 0, 1)),
    Axis("topics, messages unlike", (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000),
         lambda n: Cell(1, 1, 0, 20, topics=n)),
    Axis("bytes of a payload", (16, 256, 4_096, 65_536, 1_048_576),
         lambda n: Cell(1, 1, 0, 4, payload=n)),
    Axis("connections, half of them readers", (20, 200, 2_000, 18_000),
         lambda n: Cell(n // 2, n // 2, 0, 1, pairs=True)),
    Axis("subscriptions of others", (1, 1_000, 10_000, 100_000, 1_000_000),
         lambda n: Cell(1, 1, 0, 20, topics=50), beside=True),
)  # fmt: skip
HUB: Final = "Hubbub, compiled"
PEER: Final = "mosquitto"

Curves = dict[str, list[float]]


@contextmanager
def others(broker: Broker, count: int) -> Iterator[None]:
    """Clients that have so many filters in all, a tenth with a wildcard, and get nothing."""
    with ExitStack() as stack:
        for first in range(0, count, EACH):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            sock.settimeout(PATIENCE)
            sock.sendall(codec.connect(b"others-%d" % first, True, 600))
            heard(sock, 4)
            for number in range(first, min(first + EACH, count), PACKET):
                names = range(number, min(number + PACKET, count))
                wanted = [(b"site/%d/%s/state" % (n, b"x" if n % 10 else b"+"), 0) for n in names]
                sock.sendall(codec.subscribe(1, wanted))
                heard(sock, 4 + len(wanted) + (len(wanted) > 125))
        yield


def heard(sock: socket.socket, size: int) -> None:
    while size > 0:
        got = len(sock.recv(size))
        if not got:
            raise RuntimeError("a broker closed a connection of who only subscribes")
        size -= got


def curves(axis: Axis, rounds: int, seconds: float) -> Curves:
    """The median costs of both brokers at each number."""
    load, found = built("load"), {HUB: [], PEER: []}  # type: tuple[Path, Curves]
    with tempfile.TemporaryDirectory(prefix="hubbub-growth-") as folder, ExitStack() as stack:
        Path(folder).chmod(0o755)  # mosquitto, started by root, reads as another user
        brokers = [
            stack.enter_context(mosquitto(PEER, True, Path(folder))),
            stack.enter_context(hubbub(
                HUB, Path(folder) / "data", "journal.record=none",
                package=COMPILED)),
        ]  # fmt: skip
        for number in axis.numbers:
            costs: Curves = {HUB: [], PEER: []}
            with ExitStack() as beside:
                for broker in brokers if axis.beside else ():
                    beside.enter_context(others(broker, number))
                for _ in range(rounds):
                    for broker in brokers:
                        cost = measure(load, broker, axis.cell(number), seconds).cost
                        costs[broker.name].append(cost)
            for name, some in costs.items():
                found[name].append(statistics.median(some))
            said = f"{found[PEER][-1]:.2f} | {found[HUB][-1]:.2f}"
            print(f"| {axis.name} | {number:,} | {said} |", flush=True)
    return found


def draw(all_of_them: list[tuple[Axis, Curves]]) -> None:
    count = len(all_of_them)
    figure, places = plt.subplots(
        count, 1, squeeze=False, figsize=(6, 2.4 * count), layout="constrained"
    )
    for place, (axis, found) in zip(places[:, 0], all_of_them, strict=True):
        for name, costs in found.items():
            place.plot(axis.numbers, costs, marker="o", label=name)
        place.set(xscale="log", yscale="log", xlabel=axis.name, ylabel="broker CPU, µs a delivery")
        place.legend()
    figure.savefig(IMAGE, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.growth")
    parser.add_argument("--rounds", type=int, default=3, help="of each point [3]")
    parser.add_argument("--seconds", type=float, default=0.6, help="of each run [0.6]")
    parser.add_argument("--axes", default="", help="only those whose name contains this text")
    parser.add_argument("--draw", action="store_true", help="the picture, too")
    chosen = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # brokers inherit it
    if not (COMPILED / "hubbub").is_dir():
        raise Missing("no compiled hub: make compiled")
    print("| what grows | | mosquitto | Hubbub, compiled |\n|---|---|---|---|")
    axes = [axis for axis in AXES if chosen.axes in axis.name]
    found = [(axis, curves(axis, chosen.rounds, chosen.seconds)) for axis in axes]
    if chosen.draw:
        draw(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
