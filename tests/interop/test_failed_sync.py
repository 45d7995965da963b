"""A failed sync in a real process: fdatasync fails as it does on a bad disk (`faults.c`)."""

from __future__ import annotations

import errno
import json
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.journal import examine
from hubbub.journal.segments import Directory
from hubbub.protocols.mqtt import codec
from tests.interop.faults import ALWAYS, Fault, Faults
from tests.interop.test_crash import connected
from tests.journal.rows import payloads
from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop

SYNC_FAILS = Fault("fdatasync", errno.EIO, 1, ALWAYS)
SYNC_WORKS = Fault("fdatasync", 0)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """That of the hubs which are started from now on."""
    made = Faults(tmp_path / "faults", tmp_path / "data")
    made.tracing = True
    made.set(SYNC_WORKS)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def syncs(disk: Faults) -> list[tuple[int, int]]:
    """Inode and error of every fdatasync so far."""
    return [(one.inode, one.error) for one in disk.calls_made() if one.op == "fdatasync"]


def status(hub: RunningHub) -> dict[str, object]:
    with urllib.request.urlopen(f"http://{hub.address}/api/v1/status", timeout=20) as answer:
        said: dict[str, dict[str, object]] = json.load(answer)
    return said["journal"]


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_file_whose_sync_failed_is_never_believed(
    start_hub: StartHub, disk: Faults, tmp_path: Path
) -> None:
    hub = start_hub()
    with connected(hub, "ann") as ann:
        ann.publish("r/1", b"before", 1, retain=True)
        disk.set(SYNC_FAILS)
        ann.say(codec.publish(b"r/2", b"in trouble", 1, True, 7))
        until(lambda: status(hub)["trouble"])
        assert "Input/output error" in str(status(hub)["trouble"])
        ann.say(codec.subscribe(9, [(b"$SYS/broker/journal/trouble", 0)]))
        ann.hear_until("SUBACK 9: 0")
        said = ann.hear_until("$SYS/broker/journal/trouble=the journal cannot be written: "
                              "Input/output error retain")  # fmt: skip
        assert "PUBACK 7" not in said
        disk.set(SYNC_WORKS)
        ann.hear_until("PUBACK 7")
        ann.publish("r/3", b"after", 1, retain=True)
    assert status(hub)["trouble"] == ""
    assert "Input/output error" in (tmp_path / "hub.log").read_text()

    suspects = {inode for inode, error in syncs(disk) if error}
    assert suspects
    for inode in suspects:
        results = [error for found, error in syncs(disk) if found == inode]
        assert 0 not in results[results.index(5) :], "a sync was tried again and believed"
    readable = [b"before", b"in trouble", b"after"]
    assert [one for one in payloads(hub.data) if one in readable] == readable

    hub.stop(signal.SIGKILL)
    assert len(Directory(hub.data).segments()) == 2
    assert examine.verify(examine.directory_of(hub.data), lambda done: None).wrong == []
    with connected(start_hub(), "bob") as bob:
        bob.say(codec.subscribe(9, [(b"r/#", 0)]))
        heard = bob.hear_until("r/3=after retain")
        assert {"r/1=before retain", "r/2=in trouble retain"} <= set(heard)
