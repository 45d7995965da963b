"""What a real bash offers after TAB."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub import connect
from tests.process import ROOT, RunningHub

ASK = """
eval "$(_HUBBUB_COMPLETE=source_bash hubbub)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_hubbub_completion hubbub
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    tool = tmp_path / "bin/hubbub"
    tool.parent.mkdir()
    tool.write_text(f'#!/bin/sh\nexec {sys.executable} -m hubbub "$@"\n')
    tool.chmod(0o755)
    return f"{tool.parent}:{os.environ['PATH']}"


def offered(path: str, *words: str, url: str = "") -> list[str]:
    around = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "HUBBUB_URL": url}
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", "hubbub", *words],
        env=around, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.interop
def test_settings_and_tables(path: str) -> None:
    found = offered(path, "serve", "--set", "journal.s")
    assert "journal.segment_bytes=" in found
    assert all(one.startswith("journal.s") for one in found)
    assert set(offered(path, "serve", "--set", "journal.rec")) == {
        "journal.record=all", "journal.record=durable", "journal.record=none"
    }  # fmt: skip
    assert offered(path, "serve", "--set", "nothing.like.it") == []
    assert offered(path, "pipeline", "run", "--tables", "messages,rea") == ["messages,readings"]
    assert offered(path, "pipeline", "tables", "quar") == ["quarantine"]
    assert "retained" in offered(path, "ls", "re")


@pytest.mark.interop
async def test_queues_of_the_hub_that_is_meant(path: str, hub: RunningHub) -> None:
    async with connect(hub.url("mqtt")) as client:
        for name in ("jobs", "jobs-late", "other", "jobs;rm -r"):
            await client.publish(f"$queue/{name}", b"x", 1)
    for url, typed in ((hub.url("http"), ()), ("", ("--url", hub.url("http")))):
        found = offered(path, "switch", "call", *typed, "jo", url=url)
        assert found == ["jobs", "jobs-late"], "and none that a shell takes for more than a name"
    assert offered(path, "switch", "call", "jo", url="http://127.0.0.1:1") == []
    assert offered(path, "switch", "call", "jo", url="nonsense") == []
