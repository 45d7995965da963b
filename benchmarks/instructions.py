"""How many instructions a message costs, flow by flow: the same figure on a busy machine.

`python -m benchmarks.instructions` speaks the bytes of each flow to a hub in this process, without
sockets, and lets valgrind count what the second half of the rounds added. Beside the same run of
another checkout (`--tree DIR`, or a directory of a compiled one) it says what a change costs.
docs/benchmarks/instructions.md says more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.brokers import ROOT, source
from benchmarks.flows import EACH, FLOWS, NODE

WARM: Final = 20  # rounds, until every cache has what it will have
ROUNDS: Final = 30
VALGRIND: Final = [
    "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
]  # fmt: skip


class Counted:
    """One checkout, by the directory that has `hubbub`, and what else its process is told."""

    def __init__(self, tree: Path, more: dict[str, str]) -> None:
        self.path = source(tree)
        self.name = NODE if more else str(tree)[-20:]
        self._more = more

    def count(self, flows: list[str]) -> dict[str, int]:
        """Instructions of a message: what more rounds cost, each."""
        self._run(flows, [])  # so that modules are compiled to bytecode
        done = self._run(flows, VALGRIND)
        references = {
            pid: int(count.replace(",", "")) for pid, count in _REFERENCES.findall(done.stderr)
        }
        found: dict[str, list[int]] = {}
        for line in done.stdout.splitlines():
            flow, _, pid = line.rpartition(" ")
            found.setdefault(flow, []).append(references[pid])
        return {flow: (more - fewer) // (ROUNDS * EACH) for flow, (fewer, more) in found.items()}

    def _run(self, flows: list[str], under: list[str]) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ, "PYTHONPATH": f"{self.path}:{ROOT}", "PYTHONHASHSEED": "0",
            "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache"), **self._more,
        }  # fmt: skip
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling takes longer than the flow
        command = [*under, sys.executable, "-m", "benchmarks.instructions", "--count", *flows]
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-") as folder:  # what forks leave
            environment["TMPDIR"] = folder
            run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if run.returncode:
            raise RuntimeError(run.stderr)
        return run


_REFERENCES: Final = re.compile(r"==(\d+)== I\s+refs:\s+([\d,]+)")


def speak(flows: list[str]) -> None:
    """Each flow in two processes of its own, WARM rounds and ROUNDS more; says which ones.

    They are forked: what the imports cost, most of it all under valgrind, is paid once.
    """
    for flow in flows:
        for rounds in (WARM, WARM + ROUNDS):
            pid = os.fork()
            if not pid:
                one = FLOWS[flow]()
                for _ in range(rounds):
                    one()
                os._exit(0)
            if os.waitpid(pid, 0)[1]:
                sys.exit(f"{flow} failed")
            print(flow, pid, flush=True)


def counted(trees: list[Counted], flows: list[str]) -> dict[str, list[int]]:
    """Two at a time: what else runs does not change the figure."""
    halves = [half for half in (flows[::2], flows[1::2]) if half]
    with ThreadPoolExecutor(2) as pool:
        waits = [[pool.submit(tree.count, half) for half in halves] for tree in trees]
        found = [dict(pair for one in row for pair in one.result().items()) for row in waits]
    return {flow: [one[flow] for one in found] for flow in flows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.instructions")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; two are compared")
    parser.add_argument("--cluster", action="store_true", help="beside it the hub as a node")
    parser.add_argument("--flows", default="", help="only those whose name has this text")
    parser.add_argument("--count", nargs="+", default=[], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        speak(given.count)
        return
    trees = [Counted(tree.resolve(), {}) for tree in given.tree or [ROOT]]
    trees += [Counted(ROOT, {NODE: "1"})] * given.cluster
    print(f"{'instructions a message':32}" + "".join(f"{tree.name:>22}" for tree in trees))
    for flow, row in counted(trees, [name for name in FLOWS if given.flows in name]).items():
        said = "".join(f"{one:>22,}" for one in row)
        change = f"{100 * (row[-1] / row[0] - 1):+8.1f} %" if len(row) > 1 else ""
        print(f"{flow:32}{said}{change}", flush=True)


if __name__ == "__main__":
    main()
