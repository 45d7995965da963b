"""Each damage that a directory can have, and each file that cannot be read: `verify` and a real
start say the same, with the same exit code, and neither removes what was there.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hubbub.journal.segments import Directory
from tests.interop.faults import Faults, unreadable
from tests.journal.damage import COVERED, DAMAGE, DAMAGED, REFUSED, RIGHT, UNREAD
from tests.journal.history import NEWEST_ROW, folded_by_and_by
from tests.journal.rows import tree
from tests.nursery import COMMANDS, HUB, Nursery

pytestmark = [pytest.mark.interop, pytest.mark.slow]

READY = re.compile(r"listening on 127\.0\.0\.1:\d+")
SECONDS = 20.0


class Said(NamedTuple):
    """How it ended, None for a hub that listens, and what it printed."""

    code: int | None
    text: str


class Place:
    """A directory whose files can become unreadable, and processes at work in it."""

    def __init__(self, folder: Path) -> None:
        self.made = folded_by_and_by(folder / "made")
        self.root = folder / "disk"
        self.root.mkdir()
        self.faults = Faults(folder / "faults", self.root)
        self.nursery = Nursery(self.faults.environment, (*HUB, *COMMANDS))
        self._log = folder / "log"

    def fresh(self) -> Directory:
        shutil.rmtree(self.root)
        return Directory(Path(shutil.copytree(self.made, self.root / "data")))

    def verify(self, directory: Directory) -> Said:
        return self._run("hubbub", "journal", "verify", "--data", str(directory.path))

    def start(self, directory: Directory) -> Said:
        self._log.unlink(missing_ok=True)
        child = self.nursery.start(
            self._log, "hubbub", "serve", "--listen", "127.0.0.1:0", "--data", str(directory.path)
        )
        end = time.monotonic() + SECONDS
        while child.wait(0.02) is None and not READY.search(child.said()):
            assert time.monotonic() < end, child.said()
        if child.code is None:
            child.kill()
            return Said(None, child.said())
        return Said(child.code, child.said())

    def _run(self, *command: str) -> Said:
        self._log.unlink(missing_ok=True)
        code = self.nursery.run(self._log, *command, seconds=SECONDS)
        return Said(code, self._log.read_text())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("place"))
    yield made
    made.nursery.stop()


def kept(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """All that was there is there; `committed`, the lock and the zeros of a segment may change."""
    there = [data.rstrip(b"\0") for data in after.values()]
    for name, data in before.items():
        if name not in ("log/committed", "lock", "state/lock", "format"):
            whole = data.rstrip(b"\0")
            assert any(whole in one for one in there), f"{name} is gone"


@pytest.mark.parametrize("name", DAMAGE)
def test_verify_and_a_start_agree(place: Place, name: str) -> None:
    directory = place.fresh()
    DAMAGE[name].do(directory)
    before = tree(directory.path)
    verified = place.verify(directory)
    assert tree(directory.path) == before, "verify changes nothing"
    assert verified.code == DAMAGE[name].verdict, verified.text
    started = place.start(directory)
    kept(before, tree(directory.path))
    for said in (verified, started):
        assert "Traceback" not in said.text
    if verified.code == REFUSED:
        why = next(line for line in verified.text.splitlines() if line.startswith("a hub does not"))
        assert started.code == REFUSED, started.text
        assert why.partition(": ")[2] in started.text, "in the same words"
    elif verified.code == UNREAD:
        assert started.code == UNREAD, started.text
    else:
        assert started.code is None, started.text
    if verified.code == RIGHT:
        assert "lost" not in started.text


FILES = {
    "newest snapshot": ("state", 5), "older snapshot": ("state", 4),
    "covered segment": ("log", COVERED), "segment": ("log", NEWEST_ROW - 1),
    "last segment": ("log", NEWEST_ROW),
}  # fmt: skip
NEEDED = ("segment", "last segment")


@pytest.mark.parametrize("name", [*FILES, "both snapshots", "committed", "format"])
def test_a_file_that_cannot_be_read(place: Place, name: str) -> None:
    """`verify` says what and where; a start that needs it ends with the same code."""
    directory = place.fresh()
    if name == "both snapshots":
        paths = [f"data/state/{seq:020}.rows" for seq in (4, 5)]
    elif name in FILES:
        folder, number = FILES[name]
        paths = [f"data/{folder}/{number:020}.rows"]
    else:
        paths = ["data/log/committed" if name == "committed" else "data/format"]
    before = tree(directory.path)
    place.faults.set(*(unreadable(path, 0) for path in paths))
    try:
        verified = place.verify(directory)
        started = place.start(directory)
    finally:
        place.faults.clear()
    assert verified.code == UNREAD, verified.text
    assert "Input/output error" in verified.text
    assert "wrong:" not in verified.text and "lost" not in verified.text, verified.text
    needed = name in NEEDED or name not in FILES
    assert started.code == (UNREAD if needed else None), started.text
    for said in (verified, started):
        assert "Traceback" not in said.text and "damaged" not in said.text, said.text
    kept(before, tree(directory.path))
    assert not directory.quarantine.exists()
    assert place.verify(directory).code == RIGHT


def test_the_codes_are_those_of_the_table() -> None:
    assert {damage.verdict for damage in DAMAGE.values()} == {RIGHT, DAMAGED, REFUSED, UNREAD}
