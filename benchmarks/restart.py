"""How long a hub takes from its start until it answers, where its disk has very much.

`python -m benchmarks.restart` (three minutes, 4 GB of disk) writes a journal of 5,000,000 rows:
200,000 sessions that last, each with a filter, a million retained messages, and messages that
nobody waits for. A hub is started on it while nothing is folded, so that it reads all rows, and
again when they are (`hubbub journal compact`), so that it has a snapshot. A start ends when one of
the sessions is told that it is there, and has a retained message. Then somebody asks for 10,000 of
these, which lie all over the disk, while another client says that it is alive: the last column is
how long that one waited at most. Beside it stands mosquitto, which was told of the same sessions
and retained messages and has written them to its file (two minutes more). It measures and never
judges; docs/benchmarks/growth.md says how to read the result.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import ROOT, Broker, hubbub, mosquitto, packages, run_in_folder
from benchmarks.journal import journal
from benchmarks.many import entered, received, waits
from benchmarks.mqtt import COMPILED
from hubbub import schema
from hubbub.core.state import lasting_properties
from hubbub.protocols.mqtt import codec
from hubbub.schema import Row

SESSIONS: Final = 200_000
RETAINED: Final = 1_000_000
OTHERS: Final = 3_400_000
PAYLOAD: Final = 200  # bytes
GROUP: Final = 1_000  # rows
SESSION_SECONDS: Final = 86_400
ENDS: Final = 4_000_000_000_000_000  # UTC microseconds, when those sessions do
ANSWER_SECONDS: Final = 60.0


class Start(NamedTuple):
    """Seconds until it answered, CPU seconds and bytes of memory by then. Behind that: until all
    that were asked for had come, CPU for that, and the longest that another one waited.
    """

    seconds: float
    cpu: float
    memory: int
    many_seconds: float
    many_cpu: float
    waited: float


def rows() -> Iterator[Row]:
    row = partial(Row, 0, 0)
    for number in range(SESSIONS):
        client = b"device-%d" % number
        yield row(schema.CONNECT, b"mqtt", client, properties=lasting_properties(SESSION_SECONDS))
        yield row(schema.SUBSCRIBE, b"mqtt", client, b"device/%d/set" % number, qos=1)
        yield row(schema.DISCONNECT, b"mqtt", client, expires=ENDS)
    said = partial(row, schema.PUBLISH, b"mqtt", b"source", qos=1)
    for number in range(RETAINED):  # their names come in no order
        name = b"site/%d/machine/%d" % (number % 100, number * 7919 % RETAINED)
        yield said(topic=name, retain=True, payload=b"%0*d" % (PAYLOAD, number))
    for number in range(OTHERS):
        yield said(topic=b"log/%d" % (number % 1_000), payload=b"%0*d" % (PAYLOAD, number))


def fill(data: Path) -> int:
    """Write them; how many bytes that makes."""
    with journal(data) as made:
        for number, row in enumerate(rows(), 1):
            made.append(row)
            if number % GROUP == 0:
                made.commit()
                made.take_in()  # type: ignore[attr-defined]
    return sum(file.stat().st_size for file in (data / "log").iterdir())


def answers(hub: Broker) -> None:
    """A session is there, and gets what is retained."""
    name = b"site/7/machine/%d" % (7 * 7919 % RETAINED)
    with socket.create_connection(("127.0.0.1", hub.port), ANSWER_SECONDS) as sock:
        asked = codec.connect(b"device-%d" % (SESSIONS // 2), False, 60)
        sock.sendall(asked + codec.subscribe(1, [(name, 0)]))
        got = sock.recv(4, socket.MSG_WAITALL)
        if got != b"\x20\x02\x01\x00":
            raise RuntimeError(f"a session that lasts is not there: {got!r}")
        received(sock, 5 + 3 + 2 + len(name) + PAYLOAD)


def many(broker: Broker) -> tuple[float, float, float]:
    """One in a hundred of what is retained: seconds, CPU seconds, the longest wait of another."""
    size = sum(
        len(codec.publish(b"site/7/machine/%d" % (number * 7919 % RETAINED), bytes(PAYLOAD), 0))
        for number in range(7, RETAINED, 100)
    )
    with entered(broker, b"asks") as asks:

        def ask() -> None:
            asks.sendall(codec.subscribe(1, [(b"site/7/machine/+", 0)]))
            received(asks, 5 + size)

        began, cpu = time.monotonic(), broker.cpu()
        waited = waits(broker, ask)
        return time.monotonic() - began, broker.cpu() - cpu, waited[-1]


def measured(broker: Broker, began: float) -> Start:
    answers(broker)
    found = time.monotonic() - began, broker.cpu(), broker.resident()
    return Start(*found, *many(broker))


def started(data: Path, package: Path | None) -> Start:
    began = time.monotonic()
    with hubbub("hub", data, package=package) as hub:
        return measured(hub, began)


def compact(data: Path) -> None:
    command = [sys.executable, "-m", "hubbub", "journal", "compact", "--data", str(data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def keeping(folder: Path) -> AbstractContextManager[Broker]:
    """A mosquitto that writes all it has to that folder when it ends, and reads it first."""
    lines = ("persistence true", f"persistence_location {folder}/", "user root")
    return mosquitto("mosquitto", True, folder, *lines)


def tell(broker: Broker) -> None:
    """The sessions and the retained messages, as clients do."""
    for number in range(SESSIONS):
        with socket.create_connection(("127.0.0.1", broker.port), ANSWER_SECONDS) as sock:
            asked = codec.connect(b"device-%d" % number, False, 60)
            sock.sendall(asked + codec.subscribe(1, [(b"device/%d/set" % number, 1)]))
            received(sock, 4 + 5)
    with socket.create_connection(("127.0.0.1", broker.port), ANSWER_SECONDS) as sock:
        sock.sendall(codec.connect(b"source", True, 0))
        received(sock, 4)
        for number in range(RETAINED):
            name = b"site/%d/machine/%d" % (number % 100, number * 7919 % RETAINED)
            sock.sendall(codec.publish(name, b"%0*d" % (PAYLOAD, number), 0, True))
        sock.sendall(codec.PINGREQ_PACKET)
        received(sock, 2)


def restarted(folder: Path) -> Start:
    began = time.monotonic()
    with keeping(folder) as broker:
        return measured(broker, began)


def said(name: str, found: list[Start]) -> str:
    most = max(one.seconds for one in found)
    middle = Start(*map(statistics.median, zip(*found, strict=True)))
    times = f"{middle.seconds:.1f} | {most:.1f} | {middle.cpu:.1f} | {middle.memory / 1e9:.2f}"
    asked = f"{middle.many_seconds:.2f} | {middle.many_cpu:.2f} | {middle.waited * 1e3:.0f}"
    return f"| {name} | {times} | {asked} |"


def run(rounds: int, compiled: Path, folder: Path) -> None:
    peer = folder / "mosquitto"
    peer.mkdir()
    with keeping(peer) as broker:
        tell(broker)
    data = folder / "data"
    size = fill(data)
    print(f"{3 * SESSIONS + RETAINED + OTHERS:,} rows, {size / (1 << 30):.2f} GiB")
    print("| start | seconds, median | most | CPU, s | memory, GB | all 10,000: s | CPU | ms |")
    print("|---|---|---|---|---|---|---|---|")
    for snapshot in ("nothing folded", "with a snapshot"):
        for name, package in packages(compiled).items():
            found = [started(data, package) for _ in range(rounds)]
            print(said(f"{name}, {snapshot}", found), flush=True)
        compact(data)
    found = [restarted(peer) for _ in range(rounds)]
    print(said("mosquitto, its file", found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.restart")
    parser.add_argument("--rounds", type=int, default=2, help="of each start [2]")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled package")
    given = parser.parse_args()
    return run_in_folder(partial(run, given.rounds, given.compiled))


if __name__ == "__main__":
    sys.exit(main())
