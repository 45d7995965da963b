"""Consumers that come to queues in which much waits: what a message costs, and what others wait.

`python -m benchmarks.consumers` (a minute) puts 100,000 messages into one queue, and again into
1,000 queues in turns, so that those of one queue lie apart. The hub is started again, then MQTT
clients consume them all while another client says that it is alive. At QoS 0 what was written is
acknowledged, at QoS 1 each message is. It measures and never judges; docs/benchmarks/growth.md
says how to read the result.
"""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, hubbub, packages, run_in_folder
from benchmarks.flows import acknowledged
from benchmarks.many import entered, received, waits
from benchmarks.mqtt import COMPILED
from hubbub.protocols.mqtt import codec

TOGETHER: Final = 500  # PUBLISHes on their way, and queues of a SUBSCRIBE
NAME: Final = b"$queue/q%04d"
SIZE: Final = 64  # bytes of a payload


class Load(NamedTuple):
    queues: int
    consumers: int
    qos: int

    def __str__(self) -> str:
        return f"{self.consumers} of {self.queues:,} queues, QoS {self.qos}"


LOADS: Final = (Load(1, 1, 0), Load(1, 1, 1), Load(1_000, 20, 0), Load(1_000, 20, 1))


def fill(broker: Broker, queues: int, messages: int) -> None:
    with entered(broker, b"publisher") as sock:
        for begin in range(0, messages, TOGETHER):
            numbers = range(begin, min(begin + TOGETHER, messages))
            sock.sendall(b"".join(
                codec.publish(NAME % (one % queues), bytes(SIZE), 1, packet_id=1 + one - begin)
                for one in numbers
            ))  # fmt: skip
            received(sock, 4 * len(numbers))


def consume(broker: Broker, client: bytes, queues: range, qos: int, messages: int) -> None:
    """All that is there in these, each acknowledged as it comes."""
    with entered(broker, client) as sock:
        for begin in range(0, len(queues), TOGETHER):
            wanted = [(NAME % one, qos) for one in queues[begin : begin + TOGETHER]]
            sock.sendall(codec.subscribe(1, wanted))
        left, buffer = messages, b""
        while left:
            buffer += sock.recv(1 << 18)
            whole, heard = 0, []
            for begin, body, end in codec.packets(buffer):
                whole = end
                if buffer[begin] >> 4 == codec.PUBLISH:
                    heard.append(body)
            if qos:
                sock.sendall(acknowledged(buffer, heard))
            left -= len(heard)
            buffer = buffer[whole:]


def consumed(broker: Broker, load: Load, messages: int) -> str:
    """µs of CPU a message, seconds until all had theirs, and the longest wait of another, ms."""

    def all_of_them() -> None:
        workers = []
        for number in range(load.consumers):
            own = range(number, load.queues, load.consumers)
            asked = (broker, b"consumer-%d" % number, own, load.qos, messages // load.consumers)
            workers.append(Thread(target=consume, args=asked))
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    began, cpu = time.monotonic(), broker.cpu()
    waited = waits(broker, all_of_them)
    cost = (broker.cpu() - cpu) / messages * 1e6
    return f"{cost:.1f} | {time.monotonic() - began:.1f} | {waited[-1] * 1e3:.0f}"


def run(messages: int, compiled: Path, folder: Path) -> None:
    print("| consumers | hub | µs of CPU a message | seconds | another client waited, ms, most |")
    print("|---|---|---|---|---|")
    for number, load in enumerate(LOADS):
        for name, package in packages(compiled).items():
            opened = partial(hubbub, name, folder / f"{name}-{number}", package=package)
            with opened() as broker:
                fill(broker, load.queues, messages)
            with opened() as broker:
                print(f"| {load} | {name} | {consumed(broker, load, messages)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.consumers")
    parser.add_argument("--messages", type=int, default=100_000, help="in all queues [100000]")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled package")
    given = parser.parse_args()
    return run_in_folder(partial(run, given.messages, given.compiled))


if __name__ == "__main__":
    sys.exit(main())
