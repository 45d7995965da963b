"""What a node of a large cluster has to do, from what its events cost: arithmetic, no clock.

Two ways in which nodes learn what the others want:

    told   each node tells every other one each client and filter: what the hub does today
    asked  names have a home node by their hash, which is told; who publishes to a name asks there
           once, and is told when that changes. Filters with wildcards go to all, as today

`figures` is pure; `python -m benchmarks.scale` fills it with measured costs and draws it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from benchmarks.scale.costs import Costs

HOMES: Final = 2  # nodes that know a name, in the way `asked`
ROUTE_BYTES: Final = 300  # of one that was asked for and is remembered
WAYS: Final = ("told", "asked")


class Load(NamedTuple):
    """Of the whole cluster. `wanted`: how many other nodes a message goes to, on average; `life`:
    seconds from a client's coming to its coming again; `filters`: each client's own, literal ones;
    `ticks`: in how many frames a second a node gathers what it says to one other; `storm`: the
    seconds in which all clients come again.
    """

    nodes: int
    clients: float
    messages: float
    wanted: float = 1.0
    life: float = 3600.0
    filters: float = 1.0
    ticks: float = 500.0
    storm: float = 600.0


class Frame(NamedTuple):
    """Seconds of the processor that NATS and its library cost a hub beside what a frame says.

    `turn` and `wake`: once for all frames that leave, or come, together. `send`, `take`: for each.
    """

    turn: float
    send: float
    wake: float
    take: float


class Figures(NamedTuple):
    """Of one node: shares of one core, bytes, seconds. `traffic`: messages between nodes with their
    frames; `interest`: who comes, goes and wants what; `storm`: the same while all come again;
    `joining`: what a node does before it knows all; `frames`: through NATS, of the whole cluster.
    """

    traffic: float
    interest: float
    storm: float
    memory: float
    joining: float
    frames: float


def figures(load: Load, costs: Costs, frame: Frame, way: str = "told") -> Figures:
    """What a node does beside what its own clients cost it."""
    others = load.nodes - 1
    here, messages = load.clients / load.nodes, load.messages / load.nodes
    wanted = min(load.wanted, others)
    partners = min(others, messages * wanted / load.ticks) if wanted else 0
    frames = load.ticks * partners
    turns = load.ticks * (frame.turn + frame.wake) if others else 0.0
    traffic = messages * wanted * (costs.send + costs.take)
    traffic += turns + frames * (frame.send + frame.take)
    tell = costs.tell_client + load.filters * costs.tell_filter
    hear = costs.hear_client + load.filters * costs.hear_filter
    hold = costs.hold_client + load.filters * costs.hold_filter
    if way == "told":
        told, known, asks = others, load.clients - here, 0.0
    else:  # one question and its answer for each client that publishes, then it is remembered
        told, known, asks = min(HOMES, others), here * min(HOMES, others), here
    ask = 2 * (costs.send + costs.take) if others else 0.0
    event = told * (tell + hear) * 2 + (ask if asks else 0.0)  # it comes and it goes
    memory = known * hold + asks * ROUTE_BYTES
    beats = others * (costs.beat + frame.send + frame.take)
    return Figures(
        traffic, here / load.life * event + beats, here / load.storm * event, memory,
        known * hear, frames * load.nodes,
    )  # fmt: skip


def most_clients(load: Load, costs: Costs, frame: Frame, way: str, memory: float) -> float:
    """How many fit into so many bytes at each node, and into a whole core while all come again."""
    found = figures(load, costs, frame, way)
    return load.clients * min(memory / found.memory, 1 / found.storm)
