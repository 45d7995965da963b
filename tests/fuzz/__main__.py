"""Fuzz the parsers: `make fuzz MINUTES=10`, or `python -m tests.fuzz --minutes 10 [TARGET …]`.

The time is shared among the targets, each in a process of its own at low priority, a minute of one
after the other. With atheris inputs are chosen by what they reach of the source; without it, or
where the hot path is compiled, they are changed at random. What fails is kept in build/fuzz and its
place is said; then it belongs into tests/fuzz/corpus with the change that mends it. With --goals a
target that had as many inputs as GOALS says, in all runs together, is left out; all counts stand in
build/fuzz/counts.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
import traceback
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

OUT: Final = Path("build/fuzz")
NICE: Final = 15
SLICE_SECONDS: Final = 60.0  # of one target, then it is another one's turn
HANG_SECONDS: Final = 60  # of one input, in a process that does nothing else
LIMIT_MB: Final = 2048
CORPUS: Final = Path(__file__).parent / "corpus"
GOAL: Final = 10_000_000
GOALS: Final = {  # an input of "connection" is two connections; these are of our own files
    "connection": 500_000, "acl": 1_000_000, "passwords": 1_000_000, "mosquitto_conf": 200_000,
    "journal_table": 1_000_000, "scram": 1_000_000, "token": 1_000_000, "control": 1_000_000,
    "payload": 1_000_000, "journal_file": 1_000_000, "names": 1_000_000, "cluster": 1_000_000,
}  # fmt: skip


class Result(NamedTuple):
    target: str
    executions: int
    failed: bool


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--plain", action="store_true", help="change inputs at random")
    parser.add_argument("--goals", action="store_true", help="until all had enough inputs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        return child(chosen.targets[0], chosen.minutes * 60, chosen.plain)
    known = sorted(folder.name for folder in CORPUS.iterdir())
    for name in chosen.targets:
        if name not in known:
            parser.error(f"expected some of {', '.join(known)}, got {name}")
    names = chosen.targets or known
    plain = chosen.plain or not guided()
    results = taken_in_turns(names, chosen.minutes * 60, plain, chosen.goals)
    total = sum(result.executions for result in results)
    failed = sorted({result.target for result in results if result.failed})
    print(f"{total:,} executions, {len(failed)} of {len(names)} targets failed {' '.join(failed)}")
    return 1 if failed else 0


def taken_in_turns(names: list[str], seconds: float, plain: bool, goals: bool) -> list[Result]:
    """A slice of each at least, until the time is over. One that failed has no other turn."""
    until, results, left = time.monotonic() + seconds, list[Result](), list(names)
    share = min(SLICE_SECONDS, seconds / len(names))
    while left:
        for name in list(left):
            if len(results) >= len(names) and time.monotonic() > until:
                return results
            if goals and counted(name) >= GOALS.get(name, GOAL):
                left.remove(name)
                continue
            result = run(name, share, plain)
            results.append(result)
            if goals:
                (OUT / f"{name}.count").write_text(str(counted(name) + result.executions))
            if result.failed:
                left.remove(name)
    return results


def counted(name: str) -> int:
    """How many inputs a target had so far, in all runs with goals."""
    file = OUT / f"{name}.count"
    return int(file.read_text()) if file.exists() else 0


def guided() -> bool:
    """Whether coverage can guide: atheris is there, and what it shall look at is Python."""
    compiled = importlib.util.find_spec("hubbub.core.topics")
    if compiled is not None and compiled.origin is not None and not compiled.origin.endswith("py"):
        print("The hot path is compiled: inputs are changed at random, without coverage.")
        return False
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: inputs are changed at random, without coverage.")
        return False
    return True


def run(name: str, seconds: float, plain: bool) -> Result:
    command = [sys.executable, "-m", "tests.fuzz", "--child", name, "--minutes", f"{seconds / 60}"]
    command += ["--plain"] if plain else []
    begun = time.monotonic()
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        preexec_fn=lambda: os.nice(NICE) and None,
    )  # fmt: skip
    said = re.findall(r"number_of_executed_units: (\d+)", done.stdout)
    executions = int(said[-1]) if said else 0
    rate = executions / (time.monotonic() - begun)
    how = "at random" if plain else "by coverage"
    print(f"{name:16} {executions:12,} executions {how}, {rate:8,.0f} a second", flush=True)
    if done.returncode:
        print(done.stdout[-4000:])
    return Result(name, executions, done.returncode != 0)


def child(name: str, seconds: float, plain: bool) -> int:
    """Fuzz one target; the exit code is not 0 if an input failed."""
    OUT.mkdir(parents=True, exist_ok=True)
    if plain:
        return _at_random(name, seconds)
    import atheris

    with atheris.instrument_imports(include=["hubbub"]):
        from tests.fuzz.bounds import bounded
        from tests.fuzz.targets import TARGETS
    grown = OUT / name
    grown.mkdir(exist_ok=True)
    options = [
        f"-max_total_time={max(int(seconds), 1)}", f"-rss_limit_mb={LIMIT_MB}", "-max_len=4096",
        f"-timeout={HANG_SECONDS}", f"-artifact_prefix={OUT}/{name}-", "-print_final_stats=1",
        str(grown), str(CORPUS / name),
    ]  # fmt: skip
    atheris.Setup([sys.argv[0], *options], bounded(TARGETS[name]))
    atheris.Fuzz()
    return 0


def _at_random(name: str, seconds: float) -> int:
    from tests.fuzz.bounds import bounded
    from tests.fuzz.mutate import inputs
    from tests.fuzz.targets import TARGETS, corpus

    feed = bounded(TARGETS[name])
    until, times, failed = time.monotonic() + seconds, 0, 0
    for data in inputs(Random(), list(corpus(name))):
        if not times % 100 and time.monotonic() > until:
            break
        times += 1
        try:
            feed(data)
        except Exception:
            file = OUT / f"{name}-crash-{sha256(data).hexdigest()[:16]}"
            file.write_bytes(data)
            print(f"{traceback.format_exc()}\nkept as {file}: {data!r}")
            failed = 1
            break
    print(f"number_of_executed_units: {times}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
