"""sd_notify: what a service manager hears of a real hub, from its start to its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.runtime.systemd import notify, still_starting


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listening


@pytest.mark.interop
def test_a_hub_says_when_it_is_ready_and_when_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hubbub", "serve", "--port", "0", "--data", str(tmp_path)]
    hub = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        assert manager.recv(1000) == b"READY=1\nSTATUS=listening"
        hub.send_signal(signal.SIGTERM)
        assert manager.recv(1000).startswith(b"STOPPING=1\n")
        assert hub.wait(20) == 0
    finally:
        hub.kill()
        hub.wait()


@pytest.mark.interop
def test_a_reload_that_was_not_taken_is_in_the_status(
    manager: socket.socket, tmp_path: Path
) -> None:
    """To the manager SIGHUP is done when it was sent."""
    file = tmp_path / "hub.toml"
    file.write_text("")
    words = ("serve", "--config", str(file), "--data", str(tmp_path / "d"), "--port", "0")
    hub = subprocess.Popen([sys.executable, "-m", "hubbub", *words], stdout=subprocess.DEVNULL)
    try:
        assert manager.recv(1000) == b"READY=1\nSTATUS=listening"
        for text, said in (("sesion = 1", b": there is no setting sesion"), ("", b"listening")):
            file.write_text(text)
            hub.send_signal(signal.SIGHUP)
            heard = manager.recv(1000)
            assert heard.startswith(b"STATUS=") and said in heard and b"\n" not in heard
            assert (b"the last reload was not taken" in heard) == bool(text)
    finally:
        hub.terminate()
        hub.wait()


def test_a_start_that_takes_long_asks_for_more_time(manager: socket.socket) -> None:
    still_starting("reading the journal: 1 of 9 MB")
    heard = manager.recv(1000)
    assert heard == b"STATUS=reading the journal: 1 of 9 MB\nEXTEND_TIMEOUT_USEC=60000000"


def test_without_a_manager_or_with_a_dead_one_nothing_happens(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.unlink(os.environ["NOTIFY_SOCKET"])
    notify(READY="1")
    monkeypatch.setenv("NOTIFY_SOCKET", "@nobody-is-there")
    notify(READY="1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify(READY="1")
