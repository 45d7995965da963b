"""What a user sees of a roll that fails, in a real hub: a line, the status, the metrics."""

from __future__ import annotations

import errno
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from hubbub.journal.segments import Directory
from tests.interop.faults import ALWAYS, Fault, Faults
from tests.interop.test_crash import connected
from tests.interop.test_failed_sync import status
from tests.process import StartHub

pytestmark = [pytest.mark.interop, pytest.mark.slow]

FAULTS = {
    "the roller cannot open files": Fault("open", errno.EMFILE, 1, ALWAYS, "roller"),
    "no process can be made": Fault("fork", errno.EAGAIN, 1, ALWAYS, "hub"),
    "no pipe can be made": Fault("pipe", errno.EMFILE, 1, ALWAYS, "hub"),
}
SAID = {
    "the roller cannot open files": "Too many open files; this process may not open more files",
    "no process can be made": "Resource temporarily unavailable",
    "no pipe can be made": "Too many open files",
}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """That of the hubs which are started from now on."""
    made = Faults(tmp_path / "faults", tmp_path / "data")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def until(is_so: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("name", FAULTS)
def test_a_roll_that_fails_is_told_once_everywhere(
    start_hub: StartHub, disk: Faults, tmp_path: Path, name: str
) -> None:
    hub = start_hub("--set", "journal.segment_bytes=65536")
    with connected(hub, "ann") as ann:
        disk.set(FAULTS[name])
        for number in range(9):
            ann.publish(f"r/{number}", bytes(20_000), 1, retain=True)
        until(lambda: "not folded" in str(status(hub)["trouble"]))
        time.sleep(1.5)  # several sweeps
        assert SAID[name] in str(status(hub)["trouble"])
        with urllib.request.urlopen(f"http://{hub.address}/metrics", timeout=20) as answer:
            metrics = answer.read().decode()
        assert "\nhubbub_journal_trouble 1.0\n" in metrics
        said = (tmp_path / "hub.log").read_text()
        assert said.count("could not be folded") == 1, said
        assert "Traceback" not in said and "Exception ignored" not in said, said
        disk.clear()
        ann.publish("r/9", b"goes on", 1, retain=True)
    assert Directory(hub.data).snapshots() == []
    assert len(Directory(hub.data).segments()) >= 2 and not Directory(hub.data).quarantine.exists()
