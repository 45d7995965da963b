"""What SMQ costs the hub: messages, fan-out, idle connections, and one observer of many clients.

`python -m benchmarks.smq` starts the hub on a free port of the loopback, once without a journal
and once as it comes, loads it with `fanout.c`, and prints medians. It measures and never
judges: no test calls it. docs/benchmarks/protocols.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, hubbub, run_in_folder
from benchmarks.generator import built
from hubbub.protocols.smq import codec

IDLE: Final = 10_000
NAMES: Final = 20_000
SETTLE_SECONDS: Final = 1.5  # a sweep of the hub and more
ANSWER_SECONDS: Final = 30.0
HEAD: Final = b"GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n"
ACCEPTED_BYTES: Final = 17 + 8  # Init with 127.0.0.1, Connack

MEMORY: Final = "record none"
DISK: Final = "default"


class Cell(NamedTuple):
    """One way to load the hub: `window` messages are out, `batch` of them leave in one write.
    `topics`: messages differ, by topic and by length; 0 = all are alike.
    """

    subscribers: int
    window: int
    batch: int
    topics: int = 0

    @property
    def name(self) -> str:
        written = "each in a write" if self.batch == 1 else f"{self.batch} in a write"
        unlike = f", unlike, {self.topics} topics" if self.topics else ""
        return f"1→{self.subscribers} window {self.window}, {written}{unlike}"


CELLS: Final = (
    Cell(1, 1, 1, 50), Cell(1, 20, 1, 50), Cell(1, 1000, 20, 50), Cell(20, 20, 1, 50),
    Cell(1, 1, 1), Cell(1, 20, 1), Cell(1, 1000, 1), Cell(1, 1000, 20),
    Cell(20, 20, 1), Cell(20, 1000, 1), Cell(20, 1000, 20),
)  # fmt: skip


class Figure(NamedTuple):
    """Deliveries a second, and microseconds of CPU a delivery: the hub's and the generator's."""

    rate: float
    hub: float
    load: float


# Messages


def measure(load: Path, hub: Broker, cell: Cell, seconds: float, payload: int) -> Figure:
    """Load the hub once. RuntimeError if a message was lost, repeated or out of order."""
    options = {
        "port": hub.port, "pid": hub.pid, "subscribers": cell.subscribers, "window": cell.window,
        "batch": cell.batch, "topics": cell.topics, "seconds": seconds, "warm-up": seconds / 4,
        "payload": payload,
    }  # fmt: skip
    words = [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run([load, *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{hub.name}, {cell.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return Figure(said["per_second"], said["hub_us"], said["load_us"])


def messages(load: Path, hubs: list[Broker], chosen: argparse.Namespace) -> Iterator[str]:
    found: dict[tuple[Cell, str], list[Figure]] = {}
    for _, cell, hub in product(range(chosen.rounds), CELLS, hubs):
        figure = measure(load, hub, cell, chosen.seconds, chosen.payload)
        found.setdefault((cell, hub.name), []).append(figure)
    for hub in hubs:
        yield f"| {hub.name} | deliveries a second | hub CPU, µs each | generator CPU, µs each |"
        yield "|---|---|---|---|"
        for cell in CELLS:
            rate, cost, own = map(statistics.median, zip(*found[cell, hub.name], strict=True))
            yield f"| {cell.name} | {rate:,.0f} | {cost:.2f} | {own:.2f} |"
        yield ""


# Connections


class Device:
    """A raw socket, connected; `number` is its etid."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.number = 0

    def say(self, message: bytes) -> None:
        self.sock.sendall(codec.framed(message))

    def take(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise RuntimeError("the hub closed a connection")
            data += piece
        return data


@contextmanager
def devices(hub: Broker, count: int, name: str) -> Iterator[list[Device]]:
    """So many connected clients, 500 at a time."""
    with ExitStack() as stack:
        found: list[Device] = []
        for at in range(0, count, 500):
            some = []
            for number in range(at, min(at + 500, count)):
                sock = socket.create_connection(("127.0.0.1", hub.port), ANSWER_SECONDS)
                device = Device(stack.enter_context(sock))
                sock.sendall(
                    HEAD + codec.framed(codec.build_connect(b"%s-%06d" % (name.encode(), number)))
                )
                some.append(device)
            for device in some:
                accepted = device.take(ACCEPTED_BYTES)
                device.number = int.from_bytes(accepted[-4:], "big")
            found += some
        yield found


def idle(hub: Broker, count: int) -> str:
    """What one idle connection costs in memory."""
    with devices(hub, 100, "warmup"):
        time.sleep(SETTLE_SECONDS)
    before = hub.resident()
    with devices(hub, count, "idle"):
        time.sleep(SETTLE_SECONDS)
        each = (hub.resident() - before) / count
    return f"{count:,} idle raw connections: {each / 1024:.2f} KiB of hub memory each."


def observing(hub: Broker, count: int) -> str:
    """One client observes all others, which go at once; until it has heard of each."""
    with devices(hub, 1, f"observer-{count}") as [observer]:
        with devices(hub, count, f"observed-{count}") as others:
            for device in others:
                observer.say(codec.message(codec.OBSERVE, device.number))
            observer.say(codec.message(codec.PING))
            observer.take(3)
            numbers = {device.number for device in others}
            cpu, began = hub.cpu(), time.monotonic()
        heard = observer.take(11 * count)
        seconds, cpu = time.monotonic() - began, hub.cpu() - cpu
    gone = {
        codec.numbers_of(codec.CHANGE, heard[at + 3 : at + 11])[0]
        for at in range(0, len(heard), 11)
    }
    if gone != numbers:
        raise RuntimeError("not every client that went was told of, once")
    return (
        f"{count:,} observed clients go at once: all is told after {seconds:.2f} s, "
        f"{cpu / count * 1e6:.0f} µs of hub CPU each."
    )


def names(hub: Broker, count: int) -> str:
    """One client asks for the numbers of names that nobody had yet, 100 unanswered at a time."""
    with devices(hub, 1, "namer") as [device]:
        cpu, began = hub.cpu(), time.monotonic()
        asked = taken = 0
        while taken < count:
            while asked < min(taken + 100, count):
                device.say(codec.message(codec.CREATE, rest=b"name/%06d" % asked))
                asked += 1
            size = int.from_bytes(device.take(2), "big")
            answer = device.take(size - 2)
            if answer[0] != codec.CREATEACK or answer[1]:
                raise RuntimeError(f"a name was refused: {answer!r}")
            taken += 1
        seconds, cpu = time.monotonic() - began, hub.cpu() - cpu
    return (f"{count:,} new names, {hub.name}: {cpu / count * 1e6:.0f} µs of hub CPU each, "
            f"{count / seconds:,.0f} a second.")  # fmt: skip


# The program


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.smq", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: is all in order?")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of every row [5]")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run [1.0]")
    parser.add_argument("--payload", type=int, default=64, help="bytes of a message [64]")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds = 1, 0.4
    return chosen


def run(chosen: argparse.Namespace, folder: Path) -> None:
    load = built("fanout")
    count = 1000 if chosen.quick else IDLE
    with ExitStack() as stack:
        memory = stack.enter_context(hubbub(MEMORY, folder / "none", "journal.record=none"))
        print(idle(memory, count), flush=True)
        for part in (count // 4, count // 2, count):
            print(observing(memory, part), flush=True)
        disk = stack.enter_context(hubbub(DISK, folder / "disk"))
        for hub in (memory, disk):
            print(names(hub, NAMES), flush=True)
        print("", *messages(load, [memory, disk], chosen), sep="\n")


def main() -> int:
    chosen = arguments()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the hub inherits it
    return run_in_folder(partial(run, chosen))


if __name__ == "__main__":
    sys.exit(main())
