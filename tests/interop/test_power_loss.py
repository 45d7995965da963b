"""The power is lost: what was acknowledged is on a real file system that saw no goodbye.

A hub works on a file system in an image; at a random moment what clients were promised is frozen,
and the image is cloned, all of it at one moment (by reflink). The clone is what a disk would hold:
whatever the system still had in memory is not in it. It is mounted (its own journal is replayed),
a hub starts there, and all that was promised must be there. Then it goes on from there.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.promises import (
    Ledger,
    publish,
    queue_missing,
    retained_wrong,
    send,
    subscribe,
    take,
)
from tests.process import RunningHub

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

ROUNDS = 10
IMAGE_BYTES = 400 << 20  # btrfs and xfs take no less than a quarter of it for themselves
MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
CHANGED = ("journal.segment_bytes=65536", "journal.segment_seconds=1", "session.inflight=1000")
OPTIONS = tuple(word for one in CHANGED for word in ("--set", one))


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[None]:
    place.mkdir(exist_ok=True)
    # Of a copied image the kernel would say that it is mounted already: xfs, btrfs have ids.
    done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this user or machine mounts no images: {done.stderr.strip()}")
    try:
        yield
    finally:
        until = time.monotonic() + 20
        while subprocess.run(["umount", place], capture_output=True).returncode:
            assert time.monotonic() < until, f"{place} stays in use"
            time.sleep(0.1)  # a roller outlives its hub for a moment


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, on a file system that clones files at one moment."""
    missing = [tool for tool, *_ in MAKE.values() if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {missing[0]} here: apt install e2fsprogs btrfs-progs xfsprogs")
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    disk = folder / "disk"
    with open(disk, "wb") as file:
        file.truncate(4 * IMAGE_BYTES)
    subprocess.run([*MAKE["xfs"], "-m", "reflink=1", disk], check=True)
    with mounted(disk, tmp_path / "shelf"):
        yield tmp_path / "shelf"
    shutil.rmtree(folder)


def work(hub: RunningHub, ledger: Ledger, stop: threading.Event) -> None:
    """Publish and send until the hub is gone."""
    while not stop.is_set():
        publish(hub.port, ledger, 30, 2, size=1500)
        send(hub.port, ledger, 5, 2)
        time.sleep(0.05)


def hub_on(place: Path) -> RunningHub:
    """A hub whose data lies there, and whose log does not: it stays open."""
    (place / "data").mkdir(exist_ok=True)
    data = place.with_name("data")
    if not data.is_symlink():
        data.symlink_to(place / "data")
    return RunningHub(data, *OPTIONS)


def lose_power(image: Path, place: Path, ledger: Ledger, chance: random.Random) -> Ledger:
    """Let a hub work and lose the power at some moment; return what had been promised by then."""
    with mounted(image, place):
        hub = hub_on(place)
        try:
            subscribe(hub.port, "away")
            stop = threading.Event()
            worker = threading.Thread(target=work, args=(hub, ledger, stop))
            worker.start()
            time.sleep(chance.uniform(0.3, 2.5))
            promised, lost = ledger.copy(), image.with_suffix(".lost")
            subprocess.run(["cp", "--reflink=always", image, lost], check=True)
            stop.set()
        finally:
            hub.stop(signal.SIGKILL)
        worker.join()
    promised.retained = ledger.retained  # what was sent a moment later may be there, too
    os.replace(image.with_suffix(".lost"), image)
    return promised


@pytest.mark.parametrize("kind", MAKE)
def test_what_was_acknowledged_survives(kind: str, shelf: Path, tmp_path: Path) -> None:
    image, place, chance = shelf / "disk", tmp_path / "mounted", random.Random(kind)
    with open(image, "wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([*MAKE[kind], image], check=True)
    ledger = Ledger()
    for _ in range(ROUNDS):
        ledger = lose_power(image, place, ledger, chance)
        with mounted(image, place):
            hub = hub_on(place)
            try:
                missing = sorted(int(one.split()[0]) for one in take(hub.port, ledger, "away", 60))
                assert missing == [], f"of {len(ledger.messages)}"
                assert retained_wrong(hub.port, ledger, 10) == {}
                assert queue_missing(hub.port, ledger, 10) == set()
            finally:
                assert hub.stop() == 0
            log = (tmp_path / "hub.log").read_text()
            assert "Traceback" not in log and " lost" not in log, log
            verify = [sys.executable, "-m", "hubbub", "journal", "verify", "--data"]
            said = subprocess.run([*verify, place / "data"], capture_output=True, text=True)
            assert said.returncode == 0, said.stdout + said.stderr
    assert ledger.messages and ledger.queued and ledger.retained
