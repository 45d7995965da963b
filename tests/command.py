"""Commands of Hubbub beside a test, in processes of their own.

    done = hubbub("status", "--url", …)       until it ends; `ran` has bytes
    with started("sub", …) as sub: …          while the test goes on

They are forked as hubs are (`tests.process`): most of what a command cost were imports. Who tests
what Python does before it has a program, or a terminal, starts a Python of his own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.process import ROOT, Forked, nursery

SECONDS = 60.0
Started = subprocess.Popen[str] | Forked


def started(
    *words: str,
    errors: int = subprocess.PIPE,
    fed: bool = False,
    cwd: Path | None = None,
) -> Started:
    """`errors`: STDOUT puts them where all else is said. `fed`: its stdin is a pipe, else empty."""
    environment = _environment({})
    if nursery().fits(environment):
        return Forked(nursery(), ["hubbub", *words], environment, errors, fed, cwd)
    return subprocess.Popen(
        _command(words), stdout=subprocess.PIPE, stderr=errors, text=True, cwd=cwd,
        stdin=subprocess.PIPE if fed else subprocess.DEVNULL, env=environment,
    )  # fmt: skip


def ran(
    *words: str,
    stdin: bytes = b"",
    errors: int = subprocess.PIPE,
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    environment = _environment(variables or {})
    if not nursery().fits(environment):
        return subprocess.run(
            _command(words), stdout=subprocess.PIPE, stderr=errors, input=stdin, cwd=cwd,
            env=environment, timeout=SECONDS,
        )  # fmt: skip
    with Forked(nursery(), ["hubbub", *words], environment, errors, True, cwd) as process:
        out, err = process.all_bytes(stdin, SECONDS)
    return subprocess.CompletedProcess(words, process.wait(), out, err)


def hubbub(
    *words: str, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = ran(*words, stdin=stdin.encode(), cwd=cwd)
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(words, done.returncode, out, err)


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}


def _command(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "hubbub", *words]
