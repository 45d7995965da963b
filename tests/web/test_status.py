"""The status on a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.process import RunningHub

pytestmark = pytest.mark.interop


def test_the_terminal_says_how_many_are_left_out(hub: RunningHub) -> None:
    for number in range(3):
        call("pub", f"$queue/q{number}", "-m", "x", "--url", hub.url("mqtt"))
    said = call("status", "--url", hub.url("http"), "--limit", "2")
    assert "queues (2 of 3)" in said
    assert "clients (" not in said


def call(*options: str) -> str:
    command = (sys.executable, "-m", "hubbub", *options)
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
