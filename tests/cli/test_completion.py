"""What a real bash offers after TAB."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub import connect
from tests.process import ROOT, RunningHub

ASK = """
eval "$(_HUBBUB_COMPLETE=source_bash hubbub)"
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*"
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


# What is typed into a shell, TAB included, and what the command then gets.
TYPED = {
    "serve --set journal.rec\td\t": "serve --set journal.record=durable",
    "serve --set a=b --set log.f\tj\t": "serve --set a=b --set log.format=json",
    "ls --url http://127.0.0.1:1 ret\t": "ls --url http://127.0.0.1:1 retained",
}
ONLY_BASH = {"serve --set=journal.record=n\t": "serve --set=journal.record=none"}
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "_HUBBUB_COMPLETE=source_bash"),
    "zsh": (["zsh", "-f", "-i"], "autoload -Uz compinit; compinit -u; _HUBBUB_COMPLETE=source_zsh"),
}


@pytest.mark.interop
@pytest.mark.parametrize("shell", SHELLS)
def test_typed_into_a_shell(shell: str, path: str, tmp_path: Path) -> None:
    """As somebody types it: readline breaks words at `=` and `:`, and zsh does not."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    tool = Path(path.partition(":")[0]) / "hubbub"
    said = '[ "$_HUBBUB_COMPLETE" ] || { echo "got: $*"; exit; }'
    tool.write_text(tool.read_text().replace("exec", f"{said}\nexec"))
    command, source = SHELLS[shell]
    ours, theirs = pty.openpty()
    around = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path),
              "TERM": "dumb", "HUBBUB_URL": ""}  # fmt: skip
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=around, start_new_session=True
    )
    os.close(theirs)
    try:
        begin, _, variable = source.rpartition("; ")
        os.write(ours, f"{begin}\neval \"$({variable} hubbub)\"; echo got: rea''dy\n".encode())
        _until(ours, 1)
        typed = TYPED | (ONLY_BASH if shell == "bash" else {})
        for keys in typed:
            os.write(ours, f"hubbub {keys}\n".encode())
        assert _until(ours, len(typed)) == list(typed.values())
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(terminal: int, count: int) -> list[str]:
    """The next `count` lines that the command said."""
    text = ""
    found: list[str] = []
    while len(found) < count:
        text += os.read(terminal, 65_536).decode(errors="replace")
        found = re.findall(r"(?m)^\r?got: (.*?)\s*$\n", text)
    return found


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
