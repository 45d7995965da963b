"""How many instructions a message costs, flow by flow: the same figure on a busy machine.

`python -m benchmarks.instructions` speaks the bytes of each flow to a hub in this process, without
sockets, and lets valgrind count what the second half of the rounds added. Beside the same run of
another checkout (`--tree DIR`, or a directory of a compiled one) it says what a change costs.
docs/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.brokers import ROOT
from benchmarks.flows import EACH, FLOWS, NODE

WARM: Final = 20  # rounds, until every cache has what it will have
ROUNDS: Final = 30
VALGRIND: Final = [
    "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
]  # fmt: skip


class Counted:
    """One checkout, by the directory that has `hubbub`, and what else its process is told."""

    def __init__(self, tree: Path, more: dict[str, str]) -> None:
        self.path = tree / "src" if (tree / "src").is_dir() else tree
        self.name = NODE if more else str(tree)[-20:]
        self._more = more

    def count(self, flow: str) -> int:
        """Instructions of a message: what more rounds cost, each."""
        self._run(flow, 1, [])  # so that both find the modules compiled to bytecode
        fewer, more = (
            _references(self._run(flow, rounds, VALGRIND)) for rounds in (WARM, WARM + ROUNDS)
        )
        return (more - fewer) // (ROUNDS * EACH)

    def _run(self, flow: str, rounds: int, under: list[str]) -> str:
        environment = {
            **os.environ, "PYTHONPATH": f"{self.path}:{ROOT}", "PYTHONHASHSEED": "0",
            "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache"), **self._more,
        }  # fmt: skip
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling takes longer than the flow
        run = subprocess.run(
            [*under, sys.executable, "-m", "benchmarks.instructions", "--flow", flow, str(rounds)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if run.returncode:
            raise RuntimeError(run.stderr)
        return run.stderr


def _references(said: str) -> int:
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def counted(trees: list[Counted], flows: list[str]) -> dict[str, list[int]]:
    """Two at a time: what else runs does not change the figure."""
    with ThreadPoolExecutor(2) as pool:
        waits = {flow: [pool.submit(tree.count, flow) for tree in trees] for flow in flows}
        return {flow: [one.result() for one in row] for flow, row in waits.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.instructions")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; two are compared")
    parser.add_argument("--cluster", action="store_true", help="beside it the hub as a node")
    parser.add_argument("--flows", default="", help="only those whose name has this text")
    parser.add_argument("--flow", nargs=2, metavar=("NAME", "ROUNDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.flow:
        one = FLOWS[given.flow[0]]()
        for _ in range(int(given.flow[1])):
            one()
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
