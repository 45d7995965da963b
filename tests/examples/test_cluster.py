"""`make cluster` in short: three nats-servers, three hubs, a client of each protocol."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.process import ROOT

PROGRAM = shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin")


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)")
def test_a_hub_that_is_killed_comes_back_and_everybody_hears_everybody() -> None:
    command = [sys.executable, "examples/cluster/run.py", "--duration", "4"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.findall(r" s  (.+)", done.stdout)
    assert said[:5] == [
        "three hubs are one",
        "hub b is killed; the other two go on",
        "the others have noticed that b is gone",
        "hub b is back",
        "everybody hears everybody",
    ]
