"""A failed sync in a real process: fdatasync fails as it does on a bad disk (`faults.c`)."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hubbub.journal import examine
from hubbub.journal.segments import Directory
from hubbub.protocols.mqtt import codec
from tests.interop.test_crash import connected
from tests.journal.rows import payloads
from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop

ALWAYS = 1_000_000


class Disk(NamedTuple):
    faults: Path
    syncs: Path

    def fail(self, times: int) -> None:
        self.faults.write_text(f"{times:<8}")

    def log(self) -> list[tuple[int, int]]:
        """Inode and error of every fdatasync so far."""
        lines = self.syncs.read_text().splitlines()
        return [(int(line.split()[0]), int(line.split()[1])) for line in lines]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """That of the hubs which are started from now on."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: on Debian, apt install gcc libc6-dev")
    library = tmp_path / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", library, "-ldl"], check=True)
    made = Disk(tmp_path / "faults", tmp_path / "syncs")
    made.fail(0)
    made.syncs.touch()
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAULTS", str(made.faults))
    monkeypatch.setenv("SYNCS", str(made.syncs))
    return made


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
    start_hub: StartHub, disk: Disk, tmp_path: Path
) -> None:
    hub = start_hub()
    with connected(hub, "ann") as ann:
        ann.publish("r/1", b"before", 1, retain=True)
        disk.fail(ALWAYS)
        ann.say(codec.publish(b"r/2", b"in trouble", 1, True, 7))
        until(lambda: status(hub)["trouble"])
        assert "Input/output error" in str(status(hub)["trouble"])
        ann.say(codec.subscribe(9, [(b"$SYS/broker/journal/trouble", 0)]))
        ann.hear_until("SUBACK 9: 0")
        said = ann.hear_until("$SYS/broker/journal/trouble=the journal cannot be written: "
                              "Input/output error retain")  # fmt: skip
        assert "PUBACK 7" not in said
        disk.fail(0)
        ann.hear_until("PUBACK 7")
        ann.publish("r/3", b"after", 1, retain=True)
    assert status(hub)["trouble"] == ""
    assert "Input/output error" in (tmp_path / "hub.log").read_text()

    suspects = {inode for inode, error in disk.log() if error}
    assert suspects
    for inode in suspects:
        results = [error for found, error in disk.log() if found == inode]
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
