"""A real hub in a process of its own, for tests that need one; `tests.command` has commands.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Self, TextIO, TypeVar

from tests.nursery import Nursery

ROOT = Path(__file__).parents[1]
Said = TypeVar("Said", str, bytes)


class Forked:
    """A process that a nursery forked, with what tests ask of a `Popen` that has text.

    `errors`: the file of its stderr, or PIPE, or STDOUT; without `fed` its stdin is empty.
    """

    def __init__(
        self,
        nursery: Nursery,
        argv: Sequence[str],
        given: dict[str, str],
        errors: Path | int = subprocess.PIPE,
        fed: bool = False,
        cwd: Path | None = None,
    ) -> None:
        self._nursery, self._asking = nursery, threading.Lock()
        reading, out = os.pipe()
        self.stdout: TextIO | None = os.fdopen(reading)
        self.stdin: TextIO | None = None
        self.stderr: TextIO | None = None
        theirs, said = [out], _path(out)
        if isinstance(errors, Path):
            said = str(errors.absolute())
        elif errors == subprocess.PIPE:
            reading, writing = os.pipe()
            self.stderr = os.fdopen(reading)
            theirs.append(writing)
            said = _path(writing)
        stdin = os.devnull
        if fed:
            reading, writing = os.pipe()
            self.stdin = os.fdopen(writing, "w")
            theirs.append(reading)
            stdin = _path(reading)
        place = str(cwd or os.getcwd())
        self.pid = nursery.fork(argv, _path(out), said, stdin=stdin, environment=given, cwd=place)
        for one in theirs:
            os.close(one)
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for one in (self.stdin, self.stdout, self.stderr):
            if one is not None:
                with suppress(BrokenPipeError):
                    one.close()
        self.wait()

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

    def communicate(self, input: str = "", timeout: float | None = None) -> tuple[str, str]:
        out, *errors = self._said([one.read for one in self._streams()], input.encode(), timeout)
        return out, "".join(errors)

    def all_bytes(self, stdin: bytes, seconds: float) -> tuple[bytes, bytes]:
        """What it prints until it ends, as it printed it."""
        reads: list[Callable[[], bytes]] = [one.buffer.read for one in self._streams()]
        out, *errors = self._said(reads, stdin, seconds)
        return out, b"".join(errors)

    def _streams(self) -> list[TextIO]:
        return [one for one in (self.stdout, self.stderr) if one is not None]

    def _said(
        self, reads: Sequence[Callable[[], Said]], stdin: bytes, seconds: float | None
    ) -> list[Said]:
        """All of it; who has not ended in time is killed, and hung."""
        hung = threading.Event()

        def end() -> None:
            hung.set()
            self.kill()

        killing = threading.Timer(seconds or 0.0, end)
        if seconds is not None:
            killing.start()
        with ThreadPoolExecutor(2) as readers:
            said = [readers.submit(read) for read in reads]
            if self.stdin is not None and not self.stdin.closed:
                with suppress(BrokenPipeError):
                    self.stdin.buffer.write(stdin)
                    self.stdin.close()
        self.wait()
        killing.cancel()
        if hung.is_set():
            raise subprocess.TimeoutExpired(f"process {self.pid}", seconds or 0.0)
        return [one.result() for one in said]


def _path(descriptor: int) -> str:
    """By which another process opens it."""
    return f"/proc/{os.getpid()}/fd/{descriptor}"


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
            return Forked(nursery(), ["hubbub", *words], environment, log)
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
