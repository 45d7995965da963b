"""What users of stock clients feel: paho as it comes, at mosquitto and Hubbub side by side.

`python -m benchmarks.stock` starts the brokers on free ports of the loopback and has paho, whose
socket keeps Nagle's algorithm, talk to one after the other, round after round. Such a client holds
back its second small packet until the kernel at the broker acknowledges the first, and a kernel
that has nothing to say takes 40 ms for that: the rows here are those in which it happens.

It measures and never judges: no test calls it. docs/benchmarks/protocols.md says how to read the
result.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.brokers import Broker, Missing, hubbub, mosquitto

WAIT: Final = 60.0
MOSQUITTO: Final = "mosquitto"
MEMORY: Final = "Hubbub, record none"
DISK: Final = "Hubbub"
COLUMNS: Final = (MOSQUITTO, MEMORY, DISK)


class Figure(NamedTuple):
    """One run: milliseconds, and microseconds of broker CPU a message."""

    milliseconds: float
    cost: float


class Client:
    """paho of 3.1.1 in its own thread, with a queue instead of a callback."""

    def __init__(self, broker: Broker, *wishes: tuple[str, int]) -> None:
        self.heard: queue.Queue[tuple[bytes, float]] = queue.Queue()
        self._ready: queue.Queue[None] = queue.Queue()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv311
        )
        self.paho.on_connect = lambda *_: self._ready.put(None)
        self.paho.on_subscribe = lambda *_: self._ready.put(None)
        self.paho.on_message = self._hear
        self.paho.connect("127.0.0.1", broker.port)
        self.paho.loop_start()
        self._ready.get(timeout=WAIT)
        if wishes:
            self.paho.subscribe(list(wishes))
            self._ready.get(timeout=WAIT)

    def _hear(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        self.heard.put((bytes(message.payload), time.perf_counter()))

    def hear(self, count: int) -> list[tuple[bytes, float]]:
        """So many messages, and when each came."""
        return [self.heard.get(timeout=WAIT) for _ in range(count)]

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextmanager
def clients(broker: Broker, *wishes: Sequence[tuple[str, int]]) -> Iterator[list[Client]]:
    """One client for each list of wishes."""
    made = [Client(broker, *wish) for wish in wishes]
    try:
        yield made
    finally:
        for one in made:
            one.close()


# The rows


# Each measures seconds, and says how many messages they were.
Measure = Callable[[Broker], tuple[float, int]]


def mixed(broker: Broker) -> tuple[float, int]:
    """600 messages, QoS 1 and 2 in turn, until a subscriber of both has them all."""
    with clients(broker, [("mixed", 2)], []) as (receiver, sender):
        began = time.perf_counter()
        for number in range(600):
            sender.paho.publish("mixed", b"%d" % number, 1 + number % 2)
        return receiver.hear(600)[-1][1] - began, 600


def own(broker: Broker) -> tuple[float, int]:
    """2,000 messages of QoS 1 to oneself, as fast as paho takes them."""
    with clients(broker, [("own", 1)]) as (client,):
        began = time.perf_counter()
        for _ in range(2000):
            client.paho.publish("own", b"x", 1)
        return client.hear(2000)[-1][1] - began, 2000


def call(broker: Broker) -> tuple[float, int]:
    """A request and its answer, both of QoS 2, one after the other: each of 40."""
    with clients(broker, [("answer", 2)], [("ask", 2)]) as (asker, server):
        server.paho.on_message = lambda client, *_: client.publish("answer", b"yes", 2)
        took = []
        for _ in range(40):
            began = time.perf_counter()
            asker.paho.publish("ask", b"?", 2)
            took.append(asker.hear(1)[0][1] - began)
        return statistics.median(took), 40


def paced(qos: int) -> Measure:
    """100 messages a second for two seconds: how long one takes, as a median."""

    def measure(broker: Broker) -> tuple[float, int]:
        with clients(broker, [("paced", qos)], []) as (receiver, sender):
            sent = []
            for _ in range(200):
                sent.append(time.perf_counter())
                sender.paho.publish("paced", b"x", qos)
                time.sleep(0.01)
            came = [when for _, when in receiver.hear(200)]
            return statistics.median([b - a for a, b in zip(sent, came, strict=True)]), 200

    return measure


ROWS: Final[dict[str, Measure]] = {
    "600 messages, QoS 1 and 2 mixed, received": mixed,
    "2,000 messages of QoS 1 to oneself": own,
    "a request and its answer of QoS 2": call,
    "one of 100 a second, QoS 0": paced(0),
    "one of 100 a second, QoS 1": paced(1),
    "one of 100 a second, QoS 2": paced(2),
}


# The table


def measured(broker: Broker, row: Measure) -> Figure:
    before = broker.cpu()
    seconds, messages = row(broker)
    return Figure(seconds * 1e3, (broker.cpu() - before) * 1e6 / messages)


def table(results: dict[tuple[str, str], list[Figure]]) -> None:
    print("\n| paho 3.1.1 | " + " | ".join(f"{name}, ms | CPU" for name in COLUMNS) + " |")
    print("|---" * (1 + 2 * len(COLUMNS)) + "|")
    for row in ROWS:
        cells = []
        for name in COLUMNS:
            figures = results[row, name]
            cells.append(f"{statistics.median(one.milliseconds for one in figures):.1f}")
            cells.append(f"{statistics.median(one.cost for one in figures):.0f}")
        print(f"| {row} | {' | '.join(cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stock", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every row [5]")
    chosen = parser.parse_args()
    results: dict[tuple[str, str], list[Figure]] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as name, ExitStack() as stack:
            folder = Path(name)
            folder.chmod(0o755)  # mosquitto, started by root, reads as another user
            brokers = [
                stack.enter_context(mosquitto(MOSQUITTO, False, folder)),
                stack.enter_context(hubbub(MEMORY, folder / "none", "journal.record=none")),
                stack.enter_context(hubbub(DISK, folder / "disk")),
            ]
            for _ in range(chosen.rounds):
                for row, measure in ROWS.items():
                    for broker in brokers:
                        figure = measured(broker, measure)
                        results.setdefault((row, broker.name), []).append(figure)
            table(results)
    except Missing as missing:
        print(f"Skipped: {missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
