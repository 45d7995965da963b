"""Brokers to be measured: mosquitto and Hubbub on free ports of the loopback, and their CPU time.

Called by the other modules of this folder. Ends exactly the processes it started.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
START_SECONDS: Final = 20.0


class Broker(NamedTuple):
    """A running broker: its column in the table, its port and its process."""

    name: str
    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of CPU time that all its threads have used so far."""
        return time.clock_gettime(~self.pid << 3 | 2)  # the clock of another process (glibc)

    def resident(self) -> int:
        """Bytes of memory it has now."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Missing(Exception):
    """Something this benchmark needs is not on this machine; the text says what to install."""


def run_in_folder(run: Callable[[Path], None], where: Path | None = None) -> int:
    """Measure with a folder of its own, in `where` or where temporary ones are; the exit code.
    What is missing here is said and no failure, a wrong delivery is one.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="hubbub-bench-", dir=where) as folder:
            os.chmod(folder, 0o755)  # mosquitto, started by root, reads as another user
            run(Path(folder))
    except Missing as missing:
        print(f"Skipped: {missing}")
    except RuntimeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """End exactly this process, in order if it can."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def mosquitto(name: str, nodelay: bool, folder: Path, *more: str) -> Iterator[Broker]:
    """Debian's mosquitto: nothing is persisted, no queue overflows, all else by default. `more`:
    lines of its settings.
    """
    program = shutil.which("mosquitto", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        raise Missing("no mosquitto: on Debian, apt install mosquitto")
    port = free_port()
    settings = (
        f"listener {port} 127.0.0.1", "allow_anonymous true", "max_queued_messages 0",
        "connection_messages false", f"set_tcp_nodelay {str(nodelay).lower()}", *more,
    )  # fmt: skip
    file = folder / f"mosquitto-{port}.conf"
    file.write_text("\n".join(settings) + "\n")
    process = subprocess.Popen([program, "-c", file], stderr=subprocess.DEVNULL, text=True)
    with ended(process):
        wait_for(port, process)
        yield Broker(name, port, process.pid)


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise RuntimeError(f"{process.args!r} does not listen on port {port}")


def source(tree: Path) -> Path:
    """Where the package lies in a checkout, or in a directory of a compiled one."""
    return tree / "src" if (tree / "src").is_dir() else tree


def packages(compiled: Path) -> dict[str, Path | None]:
    """The hub's forms by name, and where each lies: plain, and compiled where that was made."""
    found: dict[str, Path | None] = {"plain": None}
    if compiled.is_dir():
        found["compiled"] = source(compiled)
    return found


@contextmanager
def hubbub(name: str, data: Path, *settings: str, package: Path | None = None) -> Iterator[Broker]:
    """`hubbub serve` as it is, with its data in that directory; `package`: from where instead."""
    command = [sys.executable, "-m", "hubbub", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(data)]
    for setting in ("log.level=warning", *settings):
        command += ["--set", setting]
    environment = {"PYTHONPATH": str(ROOT / "src"), **os.environ}  # build/compiled, if asked
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with ended(process):
        yield Broker(name, banner_port(process), process.pid)


def banner_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"listening on [^ ]*:(\d+):", line):
            return int(found[1])
    raise RuntimeError(f"{process.args!r} said no port")
