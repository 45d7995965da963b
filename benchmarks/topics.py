"""What a publish costs among a thousand and among a million subscriptions, and what these weigh.

`python -m benchmarks.topics` fills a broker in this process, a tenth of the filters with
wildcards, and publishes to names that match ten of them: as long as nobody subscribes (the route
is known) and right after somebody has (it is found anew). Each size has a process of its own, for
its memory. docs/benchmarks/growth.md says how to read the result.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.log import Log
from hubbub.core.message import SPELLED, Message, Run, run_of
from hubbub.core.session import Session, Subscription

SIZES: Final = (1_000, 1_000_000)
EACH: Final = 10_000  # filters of one session, the bound of the hub
PROBES: Final = 50  # names that are published to
MATCHING: Final = (
    "probe/{}/value", "probe/{}/value", "probe/{}/value", "probe/{}/value", "probe/{}/value",
    "probe/{}/+", "probe/{}/#", "+/{}/value", "probe/{}/value/#", "+/{}/+",
)  # fmt: skip
LITERAL: Final = "site/{}/line/{}/machine/{}"
WILD: Final = ("site/{}/+/{}/machine/{}", "site/{}/line/{}/{}/#", "+/{}/line/{}/{}")


class Counter(Session):
    """A session that only counts what it gets."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__("count", client, broker.open)
        self.got = 0
        broker.connect(self, broker.own("count", client))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.got += run.count


def others(count: int) -> Iterator[str]:
    """Filters that match no probe, every tenth of them with a wildcard."""
    for number in range(count):
        place = number % 100, number // 100 % 100, number // 10_000
        form = LITERAL if number % 10 else WILD[number // 10 % len(WILD)]
        yield form.format(*place)


def filled(size: int) -> Broker:
    """A broker with so many subscriptions, of which ten match each probe."""
    clock = Clock()
    broker = Broker(clock, Log(clock), "none")
    spelled = (SPELLED, SPELLED, SPELLED)
    for index, form in enumerate(MATCHING):
        session = Counter(broker, f"probe-{index}")
        for number in range(PROBES):
            broker.subscribe(Subscription(session, form.format(number), 0, spelled))
    rest = size - PROBES * len(MATCHING)
    for number, topic_filter in enumerate(others(rest)):
        if number % EACH == 0:
            session = Counter(broker, f"other-{number}")
        broker.subscribe(Subscription(session, topic_filter, 0, spelled))
    return broker


def resident() -> int:
    """Bytes of memory that this process has."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def cost(broker: Broker, rounds: int, anew: bool) -> float:
    """CPU microseconds of a publish that reaches ten sessions."""
    names = [f"probe/{number}/value" for number in range(PROBES)]
    costs = []
    for _ in range(rounds):
        broker.age += anew
        began = time.process_time_ns()
        for name in names:
            route = broker.route(broker.open, name)
            broker.publish(run_of(Message(name, b"20.5"), broker.itself, route))
        costs.append((time.process_time_ns() - began) / 1000 / PROBES)
    return statistics.median(costs)


def measure(size: int, rounds: int) -> dict[str, float]:
    before = resident()
    began = time.process_time()
    broker = filled(size)
    subscribing = time.process_time() - began
    gc.collect()
    gc.freeze()
    found = {
        "known": cost(broker, rounds, False),
        "anew": cost(broker, rounds, True),
        "subscribe": subscribing * 1e6 / size,
        "bytes": (resident() - before) / size,
    }
    got = sum(s.got for s in broker.clients.values() if isinstance(s, Counter))
    if got != 2 * rounds * PROBES * len(MATCHING):
        raise RuntimeError(f"{got} deliveries, expected {2 * rounds * PROBES * len(MATCHING)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topics", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="of all probes [200]")
    parser.add_argument("--size", type=int, help="measure this one here and print JSON")
    chosen = parser.parse_args()
    if chosen.size:
        print(json.dumps(measure(chosen.size, chosen.rounds)))
        return 0
    print("| subscriptions | µs a publish, known | after a change | µs a SUBSCRIBE | bytes each |")
    print("|---|---|---|---|---|")
    for size in SIZES:
        command = [sys.executable, "-m", "benchmarks.topics", "--rounds", str(chosen.rounds)]
        done = subprocess.run(
            [*command, "--size", str(size)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        print(
            f"| {size:,} | {found['known']:.2f} | {found['anew']:.2f} "
            f"| {found['subscribe']:.2f} | {found['bytes']:.0f} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
