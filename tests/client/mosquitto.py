"""Debian's mosquitto on free ports, for tests of clients that must work with any broker."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port

BINARY = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
MISSING = pytest.mark.skipif(BINARY is None, reason="no mosquitto here: apt install mosquitto")


class Mosquitto:
    """One broker: MQTT on `port`, MQTT over WebSocket on `websocket_port`.

    It keeps its sessions over `restart`, a SIGTERM and a new start.
    """

    def __init__(self, folder: Path, *lines: str) -> None:
        self.port, self.websocket_port = free_port(), free_port()
        self._folder = folder
        self._config = folder / "mosquitto.conf"
        self._config.write_text(
            "\n".join(
                [
                    "persistence true",
                    f"persistence_location {folder}/",
                    "allow_anonymous true",
                    *lines,
                    f"listener {self.port} 127.0.0.1",
                    f"listener {self.websocket_port} 127.0.0.1",
                    "protocol websockets",
                    "",
                ]
            )
        )
        # Started as root it would become a user who may not write here.
        self._config.write_text(f"user root\n{self._config.read_text()}")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, scheme: str = "mqtt") -> str:
        port = self.websocket_port if scheme == "ws" else self.port
        return f"{scheme}://127.0.0.1:{port}"

    def start(self) -> None:
        assert BINARY is not None
        self._process = subprocess.Popen(
            [BINARY, "-c", str(self._config)],
            stdout=subprocess.DEVNULL,
            stderr=(self._folder / "mosquitto.log").open("ab"),
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise AssertionError((self._folder / "mosquitto.log").read_text())

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()


def running(folder: Path, *lines: str) -> Iterator[Mosquitto]:
    """For a fixture."""
    broker = Mosquitto(folder, *lines)
    yield broker
    broker.stop(signal.SIGKILL)
