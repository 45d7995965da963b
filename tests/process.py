"""A real hub in a process of its own, for tests that need one.

Most are forked from one that has imported a hub (`tests.nursery`), and then run as `python -m`
runs them: the imports were most of the processor time that a start takes.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from tests.nursery import Nursery

ROOT = Path(__file__).parents[1]


class Forked:
    """A process that a nursery forked, with what tests ask of a `Popen`."""

    def __init__(self, nursery: Nursery, argv: Sequence[str], log: Path, given: dict[str, str]):
        reading, writing = os.pipe()
        self._nursery, self._asking = nursery, threading.Lock()
        out = f"/proc/{os.getpid()}/fd/{writing}"
        self.pid = nursery.fork(argv, out, str(log.absolute()), environment=given, cwd=os.getcwd())
        os.close(writing)
        self.stdout: TextIO | None = os.fdopen(reading)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with self._asking:
            if self.returncode is None:
                self.returncode = self._nursery.ended(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + timeout if timeout is not None else None
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@functools.cache
def nursery() -> Nursery:
    """That of this process; it ends with it."""
    return Nursery({})


class RunningHub:
    """`hubbub serve` on one free port of the loopback; `address` is HOST:PORT.

    `under` is a program that starts it, with its options. `program` is the `hubbub` of another
    environment, which sees nothing of this source. With either it is not forked.
    """

    under: tuple[str, ...] = ()

    def __init__(self, data: Path, *options: str, program: Path | None = None) -> None:
        self.data = data
        words = ["serve", "--listen", "127.0.0.1:0", "--data", str(data), *options]
        self.process = self._begun(words, program)
        self.banner = ""
        self.address = self._read_address()

    def _begun(self, words: list[str], program: Path | None) -> subprocess.Popen[str] | Forked:
        log = self.data.parent / "hub.log"
        environment = {**os.environ, "PYTHONPATH": "" if program else str(ROOT / "src")}
        if not self.under and program is None and nursery().fits(environment):
            return Forked(nursery(), ["hubbub", *words], log, environment)
        ours = (sys.executable, "-m", "hubbub")
        command = [*self.under, *((str(program),) if program else ours), *words]
        with log.open("ab") as errors:
            return subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            )

    def _read_address(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner += line
            if found := re.search(r"listening on (\S+?):? ", line + " "):
                return found[1]
        log = (self.data.parent / "hub.log").read_text()
        raise AssertionError(f"the hub did not start:\n{self.banner}{log}")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def url(self, scheme: str) -> str:
        return f"{scheme}://{self.address}"

    def memory(self) -> tuple[int, int]:
        """MiB: at its most, and now."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        sizes = [re.search(rf"{name}:\s+(\d+)", text) for name in ("VmHWM", "VmRSS")]
        most, now = (int(found[1]) // 1024 if found else 0 for found in sizes)
        return most, now

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, wait, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(20)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code


StartHub = Callable[..., RunningHub]
