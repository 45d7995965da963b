"""How large a cluster can become: `python -m benchmarks.scale` (a minute and a half).

    costs.py   what an event costs a node: the hub's own code, in this process
    check.py   one, two and three real hubs over a real nats-server, beside what costs.py says
    model.py   the same costs for 100 nodes

Prints the tables of docs/design/scale.md and draws its pictures into docs/images.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from typing import Final

import matplotlib

from benchmarks.brokers import ROOT
from benchmarks.cluster import nats
from benchmarks.scale import check, costs, model
from benchmarks.scale.model import Figures, Frame, Load

matplotlib.use("svg")
from matplotlib import pyplot as plt  # noqa: E402

NODES: Final = (2, 3, 5, 10, 20, 50, 100)
PER_NODE: Final = 100_000.0  # clients, and messages a second: 100 nodes have 10 million of each
MEMORY: Final = 8 << 30
TAKE: Final = 4.6e-6  # seconds: nats-py hands over a small message among many, nats-server 2.9
IMAGES: Final = ROOT / "docs" / "images"
LABELS: Final = {
    "told": "every node is told everything (today)",
    "asked": "homes are told, routes are asked for",
}
# What is drawn: of the figures, its title, unit, the wall, and by what the figure is divided.
DRAWN: Final = (
    ("memory", "What a node remembers of the others", "GiB", 8.0, 2.0**30),
    ("storm", "All clients come again within ten minutes", "cores of a node", 1.0, 1.0),
    ("frames", "Frames through NATS, one server's rate as the wall", "a second", 736_000.0, 1.0),
)


def load(nodes: int) -> Load:
    return Load(nodes, clients=PER_NODE * nodes, messages=PER_NODE * nodes)


def checked(measured: costs.Costs) -> Frame:
    """Print what the model says of real hubs beside what they took; what a frame costs them.

    A message that comes alone is a frame: what it costs more than its content is the waking.
    """
    found: dict[str, dict[int, check.Spent]] = {"one": {}, "many": {}, "client": {}}
    with tempfile.TemporaryDirectory() as folder, nats() as url:
        turn, send = asyncio.run(check.sending(url))
        for count in (1, 2, 3):
            with check.nodes(url, Path(folder), count) as hubs:
                for name, run in (
                    ("one", lambda: check.messages(hubs, 1)),  # noqa: B023
                    ("many", lambda: check.messages(hubs, check.BURST)),  # noqa: B023
                    ("client", lambda: check.clients(hubs)),  # noqa: B023
                ):
                    found[name][count] = check.least([run() for _ in range(check.ROUNDS)])
    one = found["one"]
    wake = (one[2].there + one[3].there) / 2 - measured.take - TAKE
    frame = Frame(turn, send, wake, TAKE)
    tell = 2 * (measured.tell_client + measured.tell_filter)
    hear = 2 * (measured.hear_client + measured.hear_filter)
    alone = frame.wake + frame.take
    print("\nframes: " + ", ".join(f"{n} {v * 1e6:.1f} µs" for n, v in frame._asdict().items()))
    print()
    print("| real hubs, µs of CPU | where it is: model | measured | elsewhere: model | measured |")
    print("|---|---|---|---|---|")
    for name, title, frames, here, there in (
        ("one", "a message of 128 bytes", 1.0, measured.send, measured.take),
        ("many", f"one of {check.BURST} together", 1 / check.BURST, measured.send, measured.take),
        ("client", "a client comes, subscribes and goes", float(check.FRAMES), tell, hear),
    ):
        for count in (2, 3):
            took, others = found[name][count], count - 1
            here_in_all = (
                found[name][1].here + frames * frame.turn + others * (here + frames * frame.send)
            )
            row = here_in_all, took.here, there + frames * alone, took.there
            figures = " | ".join(f"{each * 1e6:.1f}" for each in row)
            print(f"| {title}: {count} nodes | {figures} |")
    return frame


def table(measured: costs.Costs, frame: Frame) -> None:
    columns = "nodes", "way", "between", "interest", "all come", "memory", "joining", "frames/s"
    print(f"\n| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    for nodes in NODES:
        for way in model.WAYS:
            found = model.figures(load(nodes), measured, frame, way)
            print(f"| {nodes} | {way} | {_row(found)} |")
    print()
    for nodes in (3, 10, 100):
        told, asked = (
            model.most_clients(load(nodes), measured, frame, way, MEMORY) / 1e6
            for way in model.WAYS
        )
        print(f"{nodes} nodes: at most {told:.1f} million clients told, {asked:.1f} asked")


def _row(found: Figures) -> str:
    shares = (f"{100 * one:.1f} %" for one in (found.traffic, found.interest, found.storm))
    rest = f"{found.memory / 2**20:,.0f} MiB", f"{found.joining:.1f} s", f"{found.frames:,.0f}"
    return " | ".join((*shares, *rest))


def draw(measured: costs.Costs, frame: Frame) -> None:
    for name, title, unit, wall, by in DRAWN:
        figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
        for way in model.WAYS:
            all_of_them = (model.figures(load(nodes), measured, frame, way) for nodes in NODES)
            found = [getattr(one, name) / by for one in all_of_them]
            axes.plot(NODES, found, marker="o", label=LABELS[way])
        axes.axhline(wall, linestyle="--", color="gray")
        axes.set(title=title, xlabel="nodes, each with 100,000 clients and messages/s", ylabel=unit)
        axes.set_yscale("log")
        axes.legend()
        figure.savefig(IMAGES / f"scale-{name}.svg", metadata={"Date": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.scale")
    parser.add_argument("--draw", action="store_true", help="the pictures, too")
    given = parser.parse_args()
    measured = costs.measure()
    for name, value in measured._asdict().items():
        print(f"{name:14} " + (f"{value * 1e6:8.2f} µs" if value < 0.01 else f"{value:8.0f} bytes"))
    frame = checked(measured)
    table(measured, frame)
    if given.draw:
        draw(measured, frame)


if __name__ == "__main__":
    main()
