"""The load generators and the floors in C, compiled when needed; and those in Python, by mypyc.

Called by the modules of this folder that have one beside them. Runs nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.brokers import ROOT, Missing


def built(name: str, *flags: str, called: str = "") -> Path:
    """The path of the generator made from NAME.c, also under another name; compiled again when its
    source, or what all share, is newer.
    """
    if not sys.platform.startswith("linux"):
        raise Missing("not Linux: the generator waits with epoll and reads /proc")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Missing("no C compiler: on Debian, apt install gcc libc6-dev")
    source = Path(__file__).with_name(f"{name}.c")
    program = ROOT / "build" / "benchmarks" / (called or name)
    shared = source.with_name("generator.h")
    made_of = max(one.stat().st_mtime for one in (source, shared))
    if not program.exists() or program.stat().st_mtime < made_of:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([compiler, "-O2", "-Wall", "-o", program, source, *flags], check=True)
    return program


def compiled(name: str) -> tuple[str, ...]:
    """The command of the program NAME.py, compiled by mypyc: again when its source is newer."""
    source = Path(__file__).with_name(f"{name}.py")
    folder = ROOT / "build" / "benchmarks" / "compiled"
    made = next(folder.glob(f"{name}.*.so"), None)
    if made is None or made.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder)
        command = [sys.executable, "-m", "mypyc", "--config-file=", "--ignore-missing-imports"]
        subprocess.run([*command, source.name], cwd=folder, check=True, capture_output=True)
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); import {name}; {name}.main()"
    return sys.executable, "-c", begin
