"""What it costs that a message comes by one way and leaves by another, beside MQTT over TCP.

`python -m benchmarks.crossing` (two minutes) loads a hub that keeps everything in memory with one
publisher and a hundred readers (`fanout.c`): MQTT and SMQ, each to each, and to readers behind
WebSockets. Then 50 pairs of MQTT over TLS, beside mosquitto's TLS (`load.c`, which needs OpenSSL's
headers for that). Ways and brokers take turns within a round. It measures and never judges;
docs/benchmarks/protocols.md says how to read the result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.brokers import Broker, Missing, hubbub, mosquitto, run_in_folder
from benchmarks.generator import built
from benchmarks.many import COMPILED, certificate

SMQ: Final = 0  # as fanout.c numbers them
MQTT: Final = 1
WEBSOCKET: Final = 2
NAMES: Final = ("SMQ", "MQTT", "MQTT over WebSocket")
WAYS: Final = ((MQTT, MQTT), (MQTT, SMQ), (SMQ, MQTT), (SMQ, SMQ), (MQTT, WEBSOCKET))
WINDOWS: Final = (1, 20)
READERS: Final = 100
PAIRS: Final = 50
AIM: Final = 1.3  # of MQTT to MQTT
TLS_AIM: Final = 1.0  # of mosquitto
HEADERS: Final = Path("/usr/include/openssl/ssl.h")


class Way(NamedTuple):
    """How a message comes, how it leaves, and how many are out."""

    came: int
    leaves: int
    window: int


def loaded(program: Path, broker: Broker, **options: float) -> float:
    """Microseconds of the broker's CPU a delivery. RuntimeError if one was lost or not in order."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    done = subprocess.run([program, f"--pid={broker.pid}", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{broker.name}, {options}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    return float(said["hub_us"] if "hub_us" in said else said["broker_us"])


def crossing(hub: Broker, chosen: argparse.Namespace) -> Iterator[str]:
    """The lines of the table of all ways."""
    program = built("fanout")
    ways = [Way(*way, window) for window, way in product(WINDOWS, WAYS)]
    found: dict[Way, list[float]] = {}
    for _, way in product(range(chosen.rounds), ways):
        cost = loaded(
            program, hub, port=hub.port, to=way.leaves, window=way.window, subscribers=READERS,
            seconds=chosen.seconds, warm_up=chosen.seconds / 4, **{"from": way.came},
        )  # fmt: skip
        found.setdefault(way, []).append(cost)
    yield f"| 1→{READERS}, QoS 0, 64 bytes | window | hub, µs a delivery | of MQTT to MQTT | aim |"
    yield "|---|---|---|---|---|"
    for way, costs in found.items():
        like = Way(MQTT, MQTT, way.window)
        ratio = statistics.median(
            one / other for one, other in zip(costs, found[like], strict=True)
        )
        cells = ("", "") if way == like else (f"{ratio:.2f}", f"{AIM}")
        yield (f"| {NAMES[way.came]} to {NAMES[way.leaves]} | {way.window} | "
               f"{statistics.median(costs):.2f} | {cells[0]} | {cells[1]} |")  # fmt: skip


def secured(brokers: list[Broker], chosen: argparse.Namespace) -> Iterator[str]:
    """The lines of the table of pairs over TLS; the first broker is the one to compare with."""
    if not HEADERS.exists():
        raise Missing("no headers of OpenSSL: on Debian, apt install libssl-dev")
    program = built("load", "-DTLS", "-lssl", "-lcrypto", called="load-tls")
    found: dict[tuple[int, str], list[float]] = {}
    for _, qos, broker in product(range(chosen.rounds), (0, 1), brokers):
        cost = loaded(
            program, broker, port=broker.port, publishers=PAIRS, subscribers=PAIRS, pairs=1,
            qos=qos, tls=1, seconds=chosen.seconds, warm_up=chosen.seconds / 4,
        )  # fmt: skip
        found.setdefault((qos, broker.name), []).append(cost)
    yield f"| {PAIRS} pairs over TLS, one at a time, QoS | " + " | ".join(
        f"{broker.name}, µs" for broker in brokers
    ) + " | of mosquitto | aim |"
    yield "|---" * (len(brokers) + 3) + "|"
    for qos in (0, 1):
        costs = [found[qos, broker.name] for broker in brokers]
        ratio = statistics.median(
            one / other for one, other in zip(costs[-1], costs[0], strict=True)
        )
        cells = " | ".join(f"{statistics.median(one):.2f}" for one in costs)
        yield f"| {qos} | {cells} | {ratio:.2f} | {TLS_AIM} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.crossing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of every row [5]")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run [1.0]")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled package")
    return parser.parse_args()


def run(chosen: argparse.Namespace, folder: Path) -> None:
    compiled = chosen.compiled if chosen.compiled.is_dir() else None
    name = "Hubbub, compiled" if compiled else "Hubbub, plain"
    with ExitStack() as stack:
        hub = stack.enter_context(
            hubbub(name, folder / "clear", "journal.record=none", package=compiled)
        )
        print(*crossing(hub, chosen), "", sep="\n", flush=True)
    cert, key = certificate(folder)
    with ExitStack() as stack:
        peer = mosquitto("mosquitto", True, folder, f"certfile {cert}", f"keyfile {key}")
        settings = ("journal.record=none", f"tls.certificate={cert}", f"tls.key={key}")
        brokers = [
            stack.enter_context(peer),
            stack.enter_context(hubbub(name, folder / "tls", *settings, package=compiled)),
        ]
        print(*secured(brokers, chosen), sep="\n", flush=True)


def main() -> int:
    return run_in_folder(partial(run, arguments()))


if __name__ == "__main__":
    sys.exit(main())
