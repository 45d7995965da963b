"""How fast a new subscriber gets what is retained: mosquitto and Hubbub, in CPU time and in time.

`python -m benchmarks.retained` retains many messages in each broker, then lets new clients
subscribe to all of them, one after the other, and prints medians. The subscriber takes bytes and
looks at none of them but the last: what is measured is the broker. docs/benchmarks/growth.md says
how to read the result.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, Missing, hubbub, mosquitto

WINDOW: Final = 20  # in flight toward one client, in mosquitto and here
PATIENCE: Final = 20.0  # seconds of silence after which a run has failed
NUMBER: Final = 6  # digits in the name and in the payload: all packets are equally long


class Figure(NamedTuple):
    """Messages a second, and microseconds of broker CPU a message."""

    rate: float
    cost: float


def packet(head: int, body: bytes) -> bytes:
    """An MQTT packet of less than 128 bytes behind its length."""
    return bytes((head, len(body))) + body


def text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def retained(number: int, identifier: int = 0) -> bytes:
    """A retained PUBLISH, of QoS 1 if there is a packet id."""
    middle = identifier.to_bytes(2, "big") if identifier else b""
    return packet(
        0x33 if identifier else 0x31,
        text(b"kept/%0*d/x" % (NUMBER, number)) + middle + b"value %0*d" % (NUMBER, number),
    )


def dial(broker: Broker, client: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.port), PATIENCE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(packet(0x10, text(b"MQTT") + b"\x04\x02\0\0" + text(client)))
    expect(sock, b"\x20\x02\0\0")
    return sock


def expect(sock: socket.socket, answer: bytes) -> None:
    got = b""
    while len(got) < len(answer) and (data := sock.recv(len(answer) - len(got))):
        got += data
    if got != answer:
        raise RuntimeError(f"expected {answer!r}, got {got!r}")


def retain(broker: Broker, count: int) -> None:
    """Publish them with QoS 1 and wait for every acknowledgement."""
    with dial(broker, b"keeper") as sock:
        for first in range(0, count, WINDOW):
            last = min(first + WINDOW, count)
            sock.sendall(b"".join(retained(n, n - first + 1) for n in range(first, last)))
            expect(sock, b"".join(b"\x40\x02\0" + bytes((n,)) for n in range(1, last - first + 1)))


def take(broker: Broker, count: int, qos: int) -> Figure:
    """Subscribe once and take everything."""
    size = len(retained(0, qos))
    with dial(broker, b"taker") as sock:
        began, cpu = time.perf_counter(), broker.cpu()
        sock.sendall(packet(0x82, b"\0\1" + text(b"kept/#") + bytes((qos,))))
        expect(sock, b"\x90\x03\0\1" + bytes((qos,)))
        got = acknowledged = 0
        while got < count * size:
            data = sock.recv(1 << 18)
            if not data:
                raise RuntimeError(f"{broker.name} closed the connection")
            got += len(data)
            if qos and got // size > acknowledged:
                ids = range(acknowledged + 1, got // size + 1)
                sock.sendall(b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in ids))
                acknowledged = ids[-1]
        seconds, spent = time.perf_counter() - began, broker.cpu() - cpu
    return Figure(count / seconds, spent * 1e6 / count)


def run(chosen: argparse.Namespace, folder: Path) -> None:
    results: dict[tuple[str, int], list[Figure]] = {}
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(mosquitto("mosquitto", True, folder)),
            stack.enter_context(
                hubbub("Hubbub, record none", folder / "none", "journal.record=none")
            ),
            stack.enter_context(hubbub("Hubbub", folder / "disk")),
        ]
        for broker in brokers:
            retain(broker, chosen.count)
        for _, broker, qos in product(range(chosen.rounds), brokers, (0, 1)):
            results.setdefault((broker.name, qos), []).append(take(broker, chosen.count, qos))
    print(f"| {chosen.count:,} retained | QoS | a second, thousands | broker CPU, µs each |")
    print("|---|---|---|---|")
    for (name, qos), figures in results.items():
        rate = statistics.median(figure.rate for figure in figures) / 1000
        cost = statistics.median(figure.cost for figure in figures)
        print(f"| {name} | {qos} | {rate:.0f} | {cost:.2f} |")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retained", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="messages [10000]")
    parser.add_argument("--rounds", type=int, default=7, help="of each broker and QoS [7]")
    chosen = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:
            os.chmod(folder, 0o755)  # mosquitto, started by root, reads as another user
            run(chosen, Path(folder))
    except Missing as missing:
        print(f"Skipped: {missing}")
    except (RuntimeError, OSError) as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
