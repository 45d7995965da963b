"""A PostgreSQL of Debian's for one test, with no other user and nobody else on it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.spark.fixtures import POSTGRES

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """A server on a free port of the loopback, in a directory of its own."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="hubbub-pg-"))
        # `runuser` would stay between, and stops itself when it hears that its child was stopped.
        other = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
        self._as = other if os.getuid() == 0 else []
        if self._as:
            shutil.chown(self.place, "postgres")
        self.port = free_port()
        made = [str(PROGRAMS[-1] / "initdb"), "-D", f"{self.place}/data", "-U", "hub"]
        made += ["-A", "trust", "-N"]
        subprocess.run([*self._as, *made], check=True, stdout=subprocess.DEVNULL)
        self._server = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        options = ["-p", str(self.port), "-k", str(self.place), "-c", "fsync=off"]
        command = [str(PROGRAMS[-1] / "postgres"), "-D", f"{self.place}/data", *options]
        self._server = subprocess.Popen([*self._as, *command], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            asked = ["-h", "127.0.0.1", "-p", str(self.port)]  # it listens before it takes anybody
            if subprocess.run([PROGRAMS[-1] / "pg_isready", "-q", *asked]).returncode == 0:
                return self._server
            time.sleep(0.1)
            if self._server.poll() is not None:  # one that was killed is not all gone yet
                self._server = subprocess.Popen([*self._as, *command], stderr=subprocess.DEVNULL)
        raise AssertionError("PostgreSQL did not start")

    def stop(self) -> None:
        """At once: whoever is connected has to go."""
        self._server.send_signal(signal.SIGINT)
        try:
            self._server.wait(3)
        except subprocess.TimeoutExpired:  # one of its processes does not go, as after a SIGSTOP
            self.signal(signal.SIGKILL)
            self._server.wait(10)

    def processes(self) -> list[int]:
        """The server and what it made: each connection has a process."""
        first = self._server.pid
        made = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, made)]

    def crash(self) -> None:
        """By `kill -9` of all of it, and begin again."""
        gone = self.processes()
        self.signal(signal.SIGKILL)
        self._server.wait(30)
        limit = time.monotonic() + 30
        while any(map(_runs, gone)) and time.monotonic() < limit:
            time.sleep(0.05)  # as long as one is left its port is taken
        self.start()

    def recovered(self) -> None:
        """It takes connections before it has read what it logged, and refuses them."""
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            with contextlib.suppress(subprocess.CalledProcessError):
                self.ask("select 1")
                return
            time.sleep(0.1)
        raise AssertionError("PostgreSQL did not recover")

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            os.kill(process, number)

    def ask(self, sql: str) -> list[str]:
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "hub", "-d", "postgres"]
        done = subprocess.run([*command, "-AtXc", sql], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?connectTimeout=5"


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if not PROGRAMS or not POSTGRES.exists():
        pytest.skip("PostgreSQL and its driver are not installed: tests/setup.sh")
    server = Postgres()
    yield server
    server.stop()
    shutil.rmtree(server.place, ignore_errors=True)
