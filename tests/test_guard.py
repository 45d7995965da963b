"""The hot path has not become dearer: instructions of messages that differ, beside the accepted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from benchmarks import guard
from benchmarks.flows import FLOWS

needs_valgrind = pytest.mark.skipif(
    shutil.which("valgrind") is None, reason="no valgrind here: apt install valgrind"
)


def test_what_is_dearer() -> None:
    before = {"same": 1000, "a little": 1000, "much": 1000, "cheaper": 1000, "gone": 1000}
    now = {"same": 1000, "a little": 1019, "much": 1021, "cheaper": 1, "new": 10**9}
    assert dict(guard.dearer(before, now, 0.02)) == {"much": pytest.approx(0.021)}


@pytest.mark.slow
@needs_valgrind
def test_messages_that_differ_cost_what_was_accepted() -> None:
    accepted = json.loads(guard.ACCEPTED.read_text())
    if accepted["interpreter"] != guard.interpreter():
        pytest.skip(f"counted on {accepted['interpreter']}, this is {guard.interpreter()}")
    command = [sys.executable, "-m", "benchmarks.guard", "--flows", "unlike"]
    done = subprocess.run([*command, "--tolerance", "0.1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("%") == len([name for name in FLOWS if "unlike" in name])
