"""A real hub in a process of its own, for tests that need one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]


class RunningHub:
    """`hubbub serve` on one free port of the loopback; `address` is HOST:PORT.

    `under` is a program that starts it, with its options. `program` is the `hubbub` of another
    environment, which sees nothing of this source.
    """

    under: tuple[str, ...] = ()

    def __init__(self, data: Path, *options: str, program: Path | None = None) -> None:
        self.data = data
        ours = (sys.executable, "-m", "hubbub")
        command = (*((str(program),) if program else ours), "serve", "--listen", "127.0.0.1:0")
        self.process = subprocess.Popen(
            [*self.under, *command, "--data", str(data), *options],
            stdout=subprocess.PIPE,
            stderr=(data.parent / "hub.log").open("ab"),
            text=True,
            env={**os.environ, "PYTHONPATH": "" if program else str(ROOT / "src")},
        )
        self.banner = ""
        self.address = self._read_address()

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
