"""`hubbub serve -c mosquitto.conf`: a hub where mosquitto was, with mosquitto's own clients."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import Authority
from tests.process import ROOT, RunningHub

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        shutil.which("mosquitto_pub") is None or shutil.which("mosquitto_passwd") is None,
        reason="no mosquitto_pub and mosquitto_passwd here: apt install mosquitto-clients",
    ),
]
WAIT = 20


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


class Installation:
    """A folder as mosquitto has it, and the hub that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.secure = free_port(), free_port()
        self.authority = Authority(folder / "tls")
        self.user("ann", "secret")
        (folder / "acl").write_text("user ann\ntopic readwrite a/#\ntopic read $SYS/#\n")
        (folder / "conf.d").mkdir()
        (folder / "conf.d/tls.conf").write_text(
            f"listener {self.secure}\ncertfile {self.authority.sign('localhost', server=True)}\n"
        )
        (folder / "mosquitto.conf").write_text(
            f"pid_file /run/mosquitto.pid\npersistence true\n"
            f"persistence_location {folder}/lib/\npassword_file {folder}/users\n"
            f"acl_file {folder}/acl\nlistener {self.port} 127.0.0.1\ninclude_dir {folder}/conf.d\n"
        )
        command = (sys.executable, "-m", "hubbub", "serve", "-v", "-c", "mosquitto.conf")
        self.log = folder / "hub.log"
        self.hub = subprocess.Popen(
            command,
            cwd=folder,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        assert self.hub.stdout is not None
        self.banner = ""
        while "Try in another terminal" not in self.banner:
            line = self.hub.stdout.readline()
            assert line, self.log.read_text()
            self.banner += line

    def user(self, name: str, password: str) -> None:
        (self.folder / "users").touch()
        command = ("mosquitto_passwd", "-b", str(self.folder / "users"), name, password)
        subprocess.run(command, check=True, timeout=WAIT, capture_output=True)

    def publish(self, *options: str, secure: bool = False) -> int:
        where = ("-h", "127.0.0.1", "-p", str(self.port))
        if secure:
            trust = ("--cafile", str(self.authority.file))
            where = ("-h", "localhost", "-p", str(self.secure), *trust)  # type: ignore[assignment]
        command = ("mosquitto_pub", *where, "-q", "1", *options)
        return subprocess.run(command, timeout=WAIT, capture_output=True).returncode

    def subscribe(self, *options: str) -> str:
        command = ("mosquitto_sub", "-h", "127.0.0.1", "-p", str(self.port), "-W", "10", *options)
        done = subprocess.run(command, timeout=WAIT, capture_output=True, text=True)
        return done.stdout

    def reload(self) -> None:
        before = self.log.read_text().count("was read again")
        self.hub.send_signal(signal.SIGHUP)
        until = time.monotonic() + WAIT
        while self.log.read_text().count("was read again") == before:
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    made = Installation(tmp_path)
    yield made
    made.hub.kill()
    made.hub.wait(WAIT)
    assert made.hub.stdout is not None
    made.hub.stdout.close()


ANN = ("-u", "ann", "-P", "secret")


def test_an_installation_of_mosquitto(installation: Installation) -> None:
    publish = installation.publish
    assert "listening on 127.0.0.1:" in installation.banner and "HTTP" not in installation.banner
    assert "over TLS only" in installation.banner
    assert (installation.folder / "lib").is_dir()
    assert "pid_file /run/mosquitto.pid has no effect" in installation.log.read_text()
    assert publish(*ANN, "-t", "a/b", "-m", "kept", "-r") == 0
    assert publish(*ANN, "-t", "a/s", "-m", "safe", "-r", secure=True) == 0
    assert publish("-t", "a/b", "-m", "x") != 0, "nobody without a name"
    assert publish("-u", "ann", "-P", "wrong", "-t", "a/b", "-m", "x") != 0
    publish(*ANN, "-t", "b", "-m", "not allowed", "-r")
    assert installation.subscribe(*ANN, "-t", "#", "-C", "2", "-v") == "a/b kept\na/s safe\n"


def test_the_files_are_read_again(installation: Installation) -> None:
    bob = ("-u", "bob", "-P", "two")
    assert installation.publish(*bob, "-t", "c", "-m", "x", "-r") != 0
    installation.user("bob", "two")
    (installation.folder / "acl").write_text("user bob\ntopic c\n")
    installation.reload()
    assert installation.publish(*bob, "-t", "c", "-m", "x", "-r") == 0
    assert installation.subscribe(*bob, "-t", "c", "-C", "1") == "x\n"
    (installation.folder / "users").write_text("damaged\n")
    installation.reload()
    assert "users:1: expected NAME:HASH" in installation.log.read_text()
    assert installation.publish(*bob, "-t", "c", "-m", "x") == 0, "it goes on with the old"


def test_what_cannot_be_followed_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "mosquitto.conf").write_text("# one\nplugin /usr/lib/dynsec.so\n")
    command = (sys.executable, "-m", "hubbub", "serve", "-c", "mosquitto.conf")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2
    assert done.stderr.startswith("hubbub: mosquitto.conf:2: plugin /usr/lib/dynsec.so: ")


def test_the_flags_mean_what_they_mean_there(tmp_path: Path) -> None:
    port = free_port()
    hub = RunningHub(tmp_path / "data", "-p", str(port), "-v")
    try:
        assert hub.address.startswith("127.0.0.1:")
        command = ("mosquitto_pub", "-p", str(port), "-t", "a", "-m", "b")
        assert subprocess.run(command, timeout=WAIT).returncode == 0
    finally:
        hub.stop()
