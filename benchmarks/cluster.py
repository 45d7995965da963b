"""What a cluster costs: a hub that is a node beside one that is alone, and traffic between two.

`python -m benchmarks.cluster` starts a nats-server and hubs on the loopback. Columns are medians of
`--rounds`, taken in turns. docs/benchmarks/cluster.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, Missing, ended, free_port, hubbub, wait_for
from benchmarks.consumers import consume, fill
from benchmarks.generator import built
from hubbub.protocols.mqtt import codec

WINDOW: Final = 1000
PAYLOAD: Final = 128
PINGS: Final = 2000
BURST: Final = 200  # messages of QoS 1 or 0 on their way to a session, for its CPU
RELAYED: Final = 40_000  # in a run of that
TOPICS: Final = 50  # of messages that differ
QUEUED: Final = 20_000  # messages that wait for a consumer
WARM_UP: Final = 0.25  # of a run, before it counts


@contextmanager
def nats() -> Iterator[str]:
    program = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")
    if program is None:
        raise Missing("no nats-server: on Debian, apt install nats-server")
    port = free_port()
    command = [program, "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
    with ended(process):
        wait_for(port, process)
        yield f"nats://127.0.0.1:{port}"


def load(
    broker: Broker, qos: int, window: int, seconds: float, reader: Broker | None = None,
    topics: int = 0,
) -> dict[str, float]:  # fmt: skip
    words = {
        "port": broker.port, "pid": broker.pid, "qos": qos, "window": window, "seconds": seconds,
        "warm-up": seconds * WARM_UP, "payload": PAYLOAD, "topics": topics,
        "reader-port": reader.port if reader else 0,
    }  # fmt: skip
    command = [built("load"), *(f"--{name}={value}" for name, value in words.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{broker.name}: {done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))


def latencies(writer: Broker, reader: Broker, qos: int) -> list[float]:
    """Milliseconds from a publish at one node to its delivery at the other, one after another."""
    far, near = _dial(reader, b"reader"), _dial(writer, b"writer")
    far.sendall(codec.subscribe(1, [(b"ping", qos)]))
    far.recv(100)
    time.sleep(0.5)
    found = []
    for number in range(PINGS):
        packet = codec.publish(b"ping", b"%016d" % number, qos, False, 1 + number % 60_000)
        began = time.perf_counter()
        near.sendall(packet)
        got = far.recv(1000)
        found.append((time.perf_counter() - began) * 1000)
        if qos:
            far.sendall(codec.acknowledgement(codec.PUBACK, _packet_id(got)))
            near.recv(100)
    return found


def _packet_id(packet: bytes) -> int:
    at = 4 + int.from_bytes(packet[2:4], "big")
    return int.from_bytes(packet[at : at + 2], "big")


def _dial(broker: Broker, name: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(codec.connect(name, True, 60))
    sock.recv(100)
    return sock


def session(broker: Broker) -> socket.socket:
    """The client of a session that lasts; it begins where it comes first."""
    sock = socket.create_connection(("127.0.0.1", broker.port), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(codec.connect(b"session", False, 60))
    sock.recv(4)
    return sock


def relayed(home: Broker, other: Broker, qos: int, where: Broker) -> tuple[list[float], float]:
    """Of a session at `home` whose client is at `where`: the milliseconds of single messages from a
    writer at home, and the microseconds of CPU of both nodes for one of many.
    """
    far, near = session(where), _dial(home, b"writer")
    far.settimeout(10)
    far.sendall(codec.subscribe(1, [(b"ping", qos)]))
    far.recv(100)
    waits = []
    for number in range(PINGS):
        packet = codec.publish(b"ping", b"%016d" % number, qos, False, 1 + number % 60_000)
        began = time.perf_counter()
        near.sendall(packet)
        got = far.recv(1000)
        waits.append((time.perf_counter() - began) * 1000)
        if not got.endswith(packet[-16:]):
            raise RuntimeError(f"expected message {number}, got {got[:100]!r}")
        if qos:
            far.sendall(codec.acknowledgement(codec.PUBACK, _packet_id(got)))
            near.recv(100)
    before = _cpu(home) + _cpu(other)
    for _ in range(RELAYED // BURST):
        _burst(near, far, qos)
    spent = _cpu(home) + _cpu(other) - before
    for sock in (far, near):
        sock.sendall(codec.DISCONNECT_PACKET)
        sock.close()
    return waits, spent / RELAYED * 1e6


def _burst(near: socket.socket, far: socket.socket, qos: int) -> None:
    packets = [codec.publish(b"ping", bytes(PAYLOAD), qos, False, 1 + n) for n in range(BURST)]
    near.sendall(b"".join(packets))
    size = len(packets[0])
    kept = b""
    left = BURST
    while left:
        kept += far.recv(65536)
        whole = len(kept) // size
        if qos and whole:
            ends = range(size - PAYLOAD, whole * size, size)
            ids = [int.from_bytes(kept[end - 2 : end], "big") for end in ends]
            far.sendall(b"".join(codec.acknowledgement(codec.PUBACK, one) for one in ids))
        kept = kept[whole * size :]
        left -= whole
    answers = 4 * BURST if qos else 0
    while answers:
        answers -= len(near.recv(min(answers, 65536)))


def _cpu(broker: Broker) -> float:
    """Seconds that its process had so far."""
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def same_node(alone: Broker, node: Broker, given: argparse.Namespace) -> None:
    print("| broker CPU, µs a message, reader at the same node | alone | in a cluster | more |")
    print("|---|---|---|---|")
    for qos in (0, 1):
        rows: dict[str, list[float]] = {alone.name: [], node.name: []}
        for _ in range(given.rounds):
            for broker in (alone, node):
                said = load(broker, qos, 100, given.seconds)
                rows[broker.name].append(said["broker_us"])
        before, after = (statistics.median(costs) for costs in rows.values())
        more = 100 * (after / before - 1)
        print(f"| QoS {qos} | {before:.2f} | {after:.2f} | {more:+.1f} % |", flush=True)


def node_to_node(a: Broker, b: Broker, given: argparse.Namespace) -> None:
    print("\n| from node to node | messages/s | CPU of the sender's, µs | p50 ms | p99 ms |")
    print("|---|---|---|---|---|")
    for qos in (0, 1):
        runs = [load(a, qos, WINDOW, given.seconds, b) for _ in range(given.rounds)]
        rate = statistics.median(run["per_second"] for run in runs)
        cost = statistics.median(run["broker_us"] for run in runs)
        waits = sorted(latencies(a, b, qos))
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        print(f"| QoS {qos} | {rate:,.0f} | {cost:.2f} | {p50:.2f} | {p99:.2f} |", flush=True)


def unlike(a: Broker, b: Broker, given: argparse.Namespace) -> None:
    """Messages that differ, in topic and length, beside the same with the reader at their node."""
    print("\n| messages that differ, to a reader | messages/s | CPU of both nodes, µs a message |")
    print("|---|---|---|")
    for qos, window, reader in product((0, 1), (1, 20, 500), (None, b)):
        runs = []
        for _ in range(given.rounds):
            before = _cpu(a) + _cpu(b)
            rate = load(a, qos, window, given.seconds, reader, TOPICS)["per_second"]
            spent = _cpu(a) + _cpu(b) - before
            runs.append((rate, spent / (rate * given.seconds * (1 + WARM_UP)) * 1e6))
        rate, cost = (statistics.median(column) for column in zip(*runs, strict=True))
        where = "at another node" if reader else "at the same node"
        print(f"| {where}, QoS {qos}, window {window} | {rate:,.0f} | {cost:.2f} |", flush=True)


def sessions(a: Broker, b: Broker, given: argparse.Namespace) -> None:
    print("\n| to a session, its client | CPU of both nodes, µs a message | p50 ms | p99 ms |")
    print("|---|---|---|---|")
    session(a).close()
    time.sleep(0.5)
    for qos in (0, 1):
        for name, where in (("at home", a), ("relayed by another node", b)):
            found = [relayed(a, b, qos, where) for _ in range(given.rounds)]
            waits = sorted(wait for one, _ in found for wait in one)
            cost = statistics.median(one for _, one in found)
            p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
            print(f"| QoS {qos}, {name} | {cost:.2f} | {p50:.2f} | {p99:.2f} |", flush=True)


def queues(a: Broker, b: Broker, given: argparse.Namespace) -> None:
    """One consumer, of a queue that is at home at `a`."""
    print("\n| from a queue, its consumer | messages/s | CPU of both nodes, µs a message |")
    print("|---|---|---|")
    for qos, (name, where) in product((0, 1), (("at its home", a), ("at another node", b))):
        runs = []
        for _ in range(given.rounds):
            fill(a, 1, QUEUED)
            time.sleep(0.5)
            began, before = time.monotonic(), _cpu(a) + _cpu(b)
            consume(where, b"consumer", range(1), qos, QUEUED)
            spent = _cpu(a) + _cpu(b) - before
            runs.append((QUEUED / (time.monotonic() - began), spent / QUEUED * 1e6))
        rate, cost = (statistics.median(column) for column in zip(*runs, strict=True))
        print(f"| {name}, QoS {qos} | {rate:,.0f} | {cost:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.cluster")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure [5]")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run [1.0]")
    parser.add_argument("--compiled", type=Path, help="the compiled package")
    given = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        memory, package = "journal.record=none", given.compiled
        url = stack.enter_context(nats())
        alone = stack.enter_context(hubbub("alone", folder / "alone", memory, package=package))
        a, b = [
            stack.enter_context(
                hubbub(
                    name, folder / name, memory, f"cluster.url={url}", f"cluster.name={name}",
                    package=package,
                )
            )
            for name in ("a", "b")
        ]  # fmt: skip
        same_node(alone, a, given)
        for measure in (node_to_node, unlike, sessions, queues):
            measure(a, b, given)


if __name__ == "__main__":
    main()
