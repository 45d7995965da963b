"""Has a message become dearer? Instructions of each flow beside those that were accepted last.

`make guard` counts them (`benchmarks.instructions`) and ends with 1 if one flow costs more than
TOLERANCE above `benchmarks/results/instructions.json`; `make guard ARGS=--accept` writes that file
anew, which belongs to the change that is the reason. Another interpreter has other counts, so the
file says which one it was, and nothing is compared with another. The tests count some flows, and
tolerate more: another processor has another `memcpy`.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Final

from benchmarks.brokers import ROOT
from benchmarks.flows import FLOWS
from benchmarks.instructions import Counted, counted

ACCEPTED: Final = ROOT / "benchmarks" / "results" / "instructions.json"
TOLERANCE: Final = 0.02  # the same code differs by 0.3 % from run to run: addresses, and sets


def interpreter() -> str:
    return f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}"


def dearer(before: dict[str, int], now: dict[str, int], tolerance: float) -> dict[str, float]:
    """The flows above what is tolerated, and by how much of what they cost before."""
    shares = {flow: now[flow] / before[flow] - 1 for flow in now if flow in before}
    return {flow: share for flow, share in shares.items() if share > tolerance}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.guard")
    parser.add_argument("--accept", action="store_true", help="from now on compare with these")
    parser.add_argument("--flows", default="", help="only those whose name has this text")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="0.02 is 2 %%")
    parser.add_argument("--file", type=Path, default=ACCEPTED, help="what was accepted")
    chosen = parser.parse_args()
    known = json.loads(chosen.file.read_text()) if chosen.file.exists() else {}
    if not chosen.accept and known.get("interpreter") != interpreter():
        print(f"Nothing to compare with: {known.get('interpreter')} was counted, {interpreter()}"
              " runs here.")  # fmt: skip
        return 0
    flows = [name for name in FLOWS if chosen.flows in name]
    now = {flow: row[0] for flow, row in counted([Counted(ROOT, {})], flows).items()}
    before: dict[str, int] = known.get("instructions", {})
    for flow, count in now.items():
        change = f"{100 * (count / before[flow] - 1):+6.1f} %" if flow in before else "     new"
        print(f"{flow:32}{count:>12,}{change}")
    if chosen.accept:
        said = {"interpreter": interpreter(), "instructions": {**before, **now}}
        chosen.file.parent.mkdir(exist_ok=True)
        chosen.file.write_text(json.dumps(said, indent=1) + "\n")
        return 0
    found = dearer(before, now, chosen.tolerance)
    for flow, share in found.items():
        print(f"{flow} costs {100 * share:.1f} % more than was accepted: find out why, or accept it"
              " with `make guard ARGS=--accept`", file=sys.stderr)  # fmt: skip
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
