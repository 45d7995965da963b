"""Fuzz the parsers: `make fuzz MINUTES=10`, or `python -m tests.fuzz --minutes 10 [TARGET …]`.

The time is shared among the targets, each in a process of its own at low priority, a minute of one
after the other, --jobs of them at once. With atheris inputs are chosen by what they reach of the
source; without it, or where the hot path is compiled, they are changed at random. What fails is
kept in build/fuzz and its place is said; then it belongs into tests/fuzz/corpus with the change
that mends it. With --goals whoever is furthest behind its goal is next, and who had as many inputs
as GOALS says is left out. The counts stand in build/fuzz/NAME.count, and begin where those of
tests/security.json end: they are of all runs together.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from random import Random
from threading import Lock
from typing import Final, NamedTuple

from tests import security

OUT: Final = Path("build/fuzz")
NICE: Final = 15
SLICE_SECONDS: Final = 60.0  # of one target, then it is another one's turn
HANG_SECONDS: Final = 60  # of one input, in a process that does nothing else
LIMIT_MB: Final = 2048
COLLECTED: Final = 20_000  # objects more, until rings of them are looked for
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
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once")
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
    OUT.mkdir(parents=True, exist_ok=True)
    turns = Turns(names, chosen.minutes * 60, plain, chosen.goals)
    with ThreadPoolExecutor(chosen.jobs) as threads:
        working = [threads.submit(turns.work) for _ in range(chosen.jobs)]
    for one in working:
        one.result()
    results = turns.results
    total = sum(result.executions for result in results)
    failed = sorted({result.target for result in results if result.failed})
    print(f"{total:,} executions, {len(failed)} of {len(names)} targets failed {' '.join(failed)}")
    return 1 if failed else 0


class Turns:
    """Whose turn it is, for some threads that run one target each: a slice of each at least, until
    the time is over. One that failed has no other turn, nor has one that is at its goal.
    """

    def __init__(self, names: list[str], seconds: float, plain: bool, goals: bool) -> None:
        self.results: list[Result] = []
        self._left = list(names)
        self._until = time.monotonic() + seconds
        self._share = min(SLICE_SECONDS, seconds / len(names))
        self._plain = plain
        self._goals = goals
        self._turns: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._lock = Lock()

    def work(self) -> None:
        while name := self._next():
            self._took(run(name, self._share, self._plain))

    def _next(self) -> str:
        """Empty when all is done. Two run the same only if there is no other."""
        with self._lock:
            over = time.monotonic() > self._until
            left = [name for name in self._left if not (over and self._turns[name])]
            left = [name for name in left if not self._goals or reached(name) < 1]
            if not left:
                return ""
            name = min(left, key=self._behind)
            self._turns[name] += 1
            self._running[name] += 1
            return name

    def _behind(self, name: str) -> tuple[int, bool, float]:
        return self._running[name], self._turns[name] > 0, self._progress(name)

    def _progress(self, name: str) -> float:
        return reached(name) if self._goals else self._turns[name]

    def _took(self, result: Result) -> None:
        with self._lock:
            name = result.target
            self.results.append(result)
            self._running[name] -= 1
            if self._goals:
                (OUT / f"{name}.count").write_text(str(counted(name) + result.executions))
            if result.failed and name in self._left:
                self._left.remove(name)


def counted(name: str) -> int:
    """How many inputs a target had so far, in all runs with goals."""
    file = OUT / f"{name}.count"
    if file.exists():
        return int(file.read_text())
    return int(security.known().get("fuzz", {}).get(name, {}).get("inputs", 0))


def reached(name: str) -> float:
    """The part of its goal."""
    return counted(name) / GOALS.get(name, GOAL)


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
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
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
    os.nice(NICE)
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
    gc.freeze()  # what was imported is not looked through again and again
    gc.set_threshold(COLLECTED)
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
