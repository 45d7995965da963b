"""`hubbub journal repair`: every kind of damage, dry and in earnest; what could be read is kept."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from hubbub.core.state import State
from hubbub.errors import DirectoryError, HubbubError, UnreadableError
from hubbub.journal import examine
from hubbub.journal.repair import repair
from hubbub.journal.segments import Directory
from tests.core.recording import seqs
from tests.journal.damage import (
    BEYOND_REPAIR,
    DAMAGE,
    DAMAGED,
    MIDDLE,
    REFUSED,
    RIGHT,
    SNAPSHOTS,
    UNREAD,
)
from tests.journal.history import NEWEST_ROW, folded_by_and_by
from tests.journal.rows import BLOCK, Desk, bad_blocks, flip, message, payloads, tree

REPAIRED = sorted(set(DAMAGE) - BEYOND_REPAIR)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folded_by_and_by(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Directory:
    return Directory(Path(shutil.copytree(made, tmp_path / "data")))


def mended(directory: Directory, dry_run: bool = False) -> list[str]:
    said: list[str] = []
    repair(directory, dry_run, said.append)
    return said


def found(directory: Directory) -> tuple[set[tuple[str, str]], dict[str, int]]:
    """What a hub finds: sessions and retained messages, each of which it can read."""
    state = State()
    desk = Desk(directory.path, state.apply)
    assert all(desk.journal.read(seq) is not None for seq in state.needed())
    desk.write(message(b"next"))
    assert desk.journal.read(desk.journal.position) is not None
    desk.close()
    return set(state.sessions), seqs(state)


@pytest.mark.parametrize("name", DAMAGE)
def test_what_would_be_done_changes_nothing(directory: Directory, name: str) -> None:
    DAMAGE[name].do(directory)
    before = tree(directory.path)
    try:
        said = mended(directory, dry_run=True)
    except HubbubError:
        assert name in BEYOND_REPAIR
    else:
        assert all(line.startswith(("would ", "lost: ", "a start ")) for line in said)
    assert tree(directory.path) == before


@pytest.mark.parametrize("name", REPAIRED)
def test_after_it_a_hub_starts_and_nothing_is_gone_that_was_there(
    directory: Directory, name: str
) -> None:
    damage = DAMAGE[name]
    damage.do(directory)
    dry = mended(directory, dry_run=True)
    said = mended(directory)
    assert [line.removeprefix("would ") for line in dry] == said or not dry, (dry, said)
    there = [seq for seq in range(1, NEWEST_ROW + 1) if seq not in damage.lost]
    sessions, retained = found(directory)
    if not damage.states:
        assert sessions == {("mqtt", "ann")}
    kept = set(there) if damage.states else set(there) | {2, 3, 4}  # of those snapshots know
    assert {f"r/{seq - 2}": seq for seq in kept if seq > 1} == {
        topic: seq for topic, seq in retained.items() if topic != "room/temp"
    }
    assert len(payloads(directory.path, allow_loss=True)) >= len(there)
    verdict = examine.verify(directory)
    assert not verdict.refusal and not verdict.unread
    assert all("are lost" in text for text in verdict.wrong), verdict.wrong


@pytest.mark.parametrize("name", REPAIRED)
def test_what_was_replaced_is_in_quarantine(directory: Directory, name: str) -> None:
    DAMAGE[name].do(directory)
    before = tree(directory.path)
    mended(directory)
    now = set(tree(directory.path).values())
    small = {"format", "log/committed"}
    assert all(data in now for path, data in before.items() if path not in small)


@pytest.mark.parametrize("name", REPAIRED)
def test_there_is_nothing_to_do_a_second_time(directory: Directory, name: str) -> None:
    DAMAGE[name].do(directory)
    mended(directory)
    again = mended(directory)
    assert all(line.startswith("lost: rows") for line in again), again


def test_each_block_of_a_segment_that_cannot_be_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(directory.path)
    for number in range(20):
        desk.write(message(bytes(900), b"r/x%d" % number, retain=True))
    desk.close()
    path = directory.segment(NEWEST_ROW)
    bad_blocks(monkeypatch, path, 2, 4)
    with pytest.raises(UnreadableError):
        Desk(directory.path)
    said = mended(directory)
    assert any("save " in line and "the disk cannot read the rest" in line for line in said)
    lost = sum(line.startswith("lost: rows") for line in said)
    assert 1 <= lost <= 2
    sessions, retained = found(directory)
    assert sessions and {f"r/{number}" for number in range(6)} <= set(retained)
    gone = {f"r/x{number}" for number in range(20)} - set(retained)
    assert 2 <= len(gone) <= 10, "a block holds two frames and pieces of two others"


@pytest.mark.parametrize("seqs", [SNAPSHOTS, SNAPSHOTS[:1], SNAPSHOTS[1:]])
def test_snapshots_that_cannot_be_read(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, seqs: tuple[int, ...]
) -> None:
    for seq in seqs:
        bad_blocks(monkeypatch, directory.snapshot(seq), 0)
    said = mended(directory)
    assert sum("the disk cannot read it" in line for line in said) == len(seqs)
    assert found(directory)[0] == {("mqtt", "ann")}
    assert examine.verify(directory).wrong == []


def test_an_error_of_the_machine_ends_it_and_nothing_was_done(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(directory.segment(MIDDLE), BLOCK)
    before = tree(directory.path)

    def no_memory(*_: object) -> bytes:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", no_memory)
        with pytest.raises(UnreadableError, match="not enough memory"):
            mended(directory)
    assert {name: data for name, data in tree(directory.path).items() if name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }


def test_a_hub_at_work_is_left_alone(directory: Directory) -> None:
    desk = Desk(directory.path)
    for dry_run in (True, False):
        with pytest.raises(DirectoryError, match=f"is used by process {os.getpid()}"):
            mended(directory, dry_run)
    desk.close()


def test_a_place_without_a_journal(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DirectoryError, match="holds no journal"):
            mended(Directory(path))
    assert list(tmp_path.iterdir()) == []


def test_what_would_be_done_is_said_on_a_file_system_that_is_read_only(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many become when a disk fails."""
    flip(directory.segment(MIDDLE), 4000)
    real = os.open

    def open_(path: str | Path, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_)
    assert any(line.startswith("would mend") for line in mended(directory, dry_run=True))
    with pytest.raises(UnreadableError, match="read-only: look at the system's log why"):
        mended(directory)


def test_verify_agrees_with_the_table(made: Path, tmp_path: Path) -> None:
    wrong = {}
    for name, damage in DAMAGE.items():
        path = Path(shutil.copytree(made, tmp_path / name.replace(" ", "-")))
        damage.do(Directory(path))
        verdict = examine.verify(examine.suspect_of(path))
        code = DAMAGED if verdict.wrong else RIGHT
        code = REFUSED if verdict.refusal else UNREAD if verdict.unread else code
        if code != damage.verdict:
            wrong[name] = (code, verdict)
    assert not wrong, wrong
