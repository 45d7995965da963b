"""What several processes of one hub bring, and cost: one and N, in turns, on the same machine.

`python -m benchmarks.processes` prints the table of docs/benchmarks/cluster.md. The load generator
is a process of its own and needs a core, too: with two cores its time is what N processes lack.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.brokers import Broker, hubbub
from benchmarks.generator import built

CASES: Final[dict[str, Mapping[str, int]]] = {
    "16 pairs, QoS 0": {"publishers": 16, "subscribers": 16, "pairs": 1, "qos": 0, "window": 100},
    "16 pairs, QoS 1": {"publishers": 16, "subscribers": 16, "pairs": 1, "qos": 1, "window": 20},
    "16 pairs, QoS 0, one at a time": {
        "publishers": 16, "subscribers": 16, "pairs": 1, "qos": 0, "window": 1,
    },
    "2 publishers to 64 readers, QoS 0": {
        "publishers": 2, "subscribers": 64, "qos": 0, "window": 20,
    },
}  # fmt: skip
PAYLOAD: Final = 128


def spent(broker: Broker) -> list[float]:
    """Seconds of CPU of the hub's processes so far, the parent's first."""
    pids = [broker.pid]
    for entry in Path("/proc").glob("[0-9]*/stat"):
        fields = entry.read_text().rpartition(")")[2].split()
        if int(fields[1]) == broker.pid:
            pids.append(int(entry.parent.name))
    return [_seconds(pid) for pid in sorted(pids)]


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(broker: Broker, case: Mapping[str, int], seconds: float) -> tuple[float, float, float]:
    """Deliveries a second; microseconds of CPU for one, of all processes and of the generator."""
    words: dict[str, float] = {
        **case, "port": broker.port, "reader-port": broker.port, "pid": broker.pid,
        "payload": PAYLOAD, "seconds": seconds, "warm-up": seconds / 4,
    }  # fmt: skip
    command = [str(built("load")), *(f"--{name}={value}" for name, value in words.items())]
    before = sum(spent(broker))
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{broker.name}: {done.stdout}{done.stderr}")
    said = json.loads(done.stdout)
    each = (sum(spent(broker)) - before) / said["delivered"] * 1e6
    return said["per_second"], each, said["load_us"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.processes")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure [5]")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run [2]")
    parser.add_argument("--processes", type=int, default=2, help="beside one [2]")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} before", end="")
    counts = (1, options.processes)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        hubs = {
            count: stack.enter_context(
                hubbub(f"{count} processes", Path(folder, str(count)), "journal.record=none",
                       f"processes={count}")
            )
            for count in counts
        }  # fmt: skip
        for name, case in CASES.items():
            runs: dict[int, list[tuple[float, float, float]]] = {count: [] for count in counts}
            for turn in range(options.rounds):
                for count in counts if turn % 2 else reversed(counts):
                    runs[count].append(measured(hubs[count], case, options.seconds))
            rows += [_row(name, count, runs[count]) for count in counts]
    print(f", {os.getloadavg()[0]:.1f} after\n")
    print("| MQTT, in memory | processes | deliveries/s | CPU of the hub, µs each | generator |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))


def _row(name: str, count: int, runs: list[tuple[float, float, float]]) -> str:
    rate, each, load = (statistics.median(column) for column in zip(*runs, strict=True))
    low, high = min(run[1] for run in runs), max(run[1] for run in runs)
    figures = f"{rate:,.0f} | {each:.2f} ({low:.2f} to {high:.2f}) | {load:.2f}"
    return f"| {name} | {count} | {figures} |"


if __name__ == "__main__":
    main()
