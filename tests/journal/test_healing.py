"""What a start begins from, in every state that snapshots and quarantine can be in."""

from __future__ import annotations

import errno
import os
import shutil
import zlib
from pathlib import Path

import pytest

from hubbub.core.state import State
from hubbub.errors import DirectoryError, JournalError, UnreadableError
from hubbub.journal import examine
from hubbub.journal.content import Header
from hubbub.journal.healing import Choice, choose, set_aside, take_back
from hubbub.journal.roll import bases, roll
from hubbub.journal.segments import Directory
from tests.core.recording import seqs
from tests.journal.history import folded_by_and_by
from tests.journal.rows import Desk, bad_blocks, flip, tree

NEWEST, BEFORE = 5, 4


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snapshots, compressed segments, two that are not folded; all from row 1 on."""
    return folded_by_and_by(tmp_path_factory.mktemp("made") / "data")


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Directory:
    return Directory(Path(shutil.copytree(made, tmp_path / "data")))


def kept(directory: Directory) -> tuple[set[tuple[str, str]], dict[str, int]]:
    """What a start finds: sessions and retained messages."""
    state = State()
    desk = Desk(directory.path, state.apply)
    for seq in state.needed():
        assert desk.journal.read(seq) is not None
    desk.close()
    return set(state.sessions), seqs(state)


ALL = ({("mqtt", "ann")}, {f"r/{number}": number + 2 for number in range(6)})


def chosen(directory: Directory) -> tuple[int, str, int, int]:
    """The row, the folder, and how many notes of each sort there are."""
    found = choose(directory)
    assert not found.refusal
    return found.seq, found.path.parent.name, len(found.notes), len(found.unread)


def test_the_newest(directory: Directory) -> None:
    assert chosen(directory) == (NEWEST, "state", 0, 0)
    assert kept(directory) == ALL


def test_the_newest_is_damaged(directory: Directory) -> None:
    flip(directory.snapshot(NEWEST), -100)
    assert chosen(directory) == (BEFORE, "state", 1, 0)
    assert kept(directory) == ALL


def test_the_newest_cannot_be_read(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_blocks(monkeypatch, directory.snapshot(NEWEST), 0)
    before = tree(directory.state)
    assert chosen(directory) == (BEFORE, "state", 0, 1)
    assert kept(directory) == ALL
    assert tree(directory.state) == before and not directory.quarantine.exists()
    verdict = examine.verify(directory)
    assert verdict.wrong == [] and verdict.refusal == "" and verdict.unread


def test_none_can_be_read(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    for seq in (BEFORE, NEWEST):
        bad_blocks(monkeypatch, directory.snapshot(seq), 0)
    before = tree(directory.path)
    with pytest.raises(UnreadableError, match="Input/output error"):
        Desk(directory.path)
    after = tree(directory.path)
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE])
def test_an_error_of_the_machine_is_gone_around_by_nobody(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The older snapshot would do, but so will the newer one in a moment."""

    def failing(*_: object) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", failing)
    with pytest.raises(OSError, match=os.strerror(number)):
        choose(directory)


def test_both_are_gone(directory: Directory) -> None:
    shutil.rmtree(directory.state)
    found = choose(directory)
    assert "is compressed, but no whole snapshot covers it" in found.refusal
    with pytest.raises(DirectoryError, match="is compressed"):
        Desk(directory.path)
    assert examine.verify(directory).refusal == found.refusal


def test_one_in_quarantine_that_reads_well_is_used_again(directory: Directory) -> None:
    for seq in (BEFORE, NEWEST):
        set_aside(directory, directory.snapshot(seq))
        os.unlink(directory.snapshot(seq))
    flip(directory.quarantine / directory.snapshot(NEWEST).name, -100)
    found = choose(directory)
    assert (found.seq, found.path.parent) == (BEFORE, directory.quarantine)
    (note,) = found.notes
    assert "reads well, and is used again" in note


def test_a_snapshot_that_is_taken_back_has_its_place_and_the_damaged_one_is_kept(
    directory: Directory,
) -> None:
    good = directory.snapshot(NEWEST).read_bytes()
    set_aside(directory, directory.snapshot(NEWEST))
    for seq in (BEFORE, NEWEST):
        data = directory.snapshot(seq).read_bytes()
        os.unlink(directory.snapshot(seq))
        directory.snapshot(seq).write_bytes(data[:-9])
    assert kept(directory) == ALL
    assert directory.snapshot(NEWEST).read_bytes() == good
    assert good[:-9] in tree(directory.quarantine).values()


@pytest.mark.parametrize("junk", ["folder", "text", "empty", "dangling", "newer", "segment"])
def test_what_else_lies_in_quarantine_stops_no_start(directory: Directory, junk: str) -> None:
    directory.quarantine.mkdir()
    path = directory.quarantine / directory.snapshot(NEWEST + 1).name
    newer = bytearray(Header(9, 0, 9).encode())
    newer[8], newer[48:52] = 99, bytes(4)
    newer[48:52] = zlib.crc32(newer).to_bytes(4, "little")
    match junk:
        case "folder":
            path.mkdir()
        case "dangling":
            path.symlink_to("/nowhere")
        case _:
            segment = directory.segment(1).read_bytes()
            said = {"text": b"see above", "newer": bytes(newer), "segment": segment, "empty": b""}
            path.write_bytes(said[junk])
    assert chosen(directory) == (NEWEST, "state", 0, 0)
    for seq in (BEFORE, NEWEST):
        flip(directory.snapshot(seq), -100)
    assert choose(directory).refusal, "and is not taken for a snapshot"


def test_a_file_in_quarantine_that_cannot_be_read_stops_no_start(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_one = set_aside(directory, directory.snapshot(BEFORE))
    data = kept_one.read_bytes()
    os.unlink(kept_one)
    kept_one.write_bytes(data)
    bad_blocks(monkeypatch, kept_one, 0)
    assert chosen(directory) == (NEWEST, "state", 0, 0)
    for seq in (BEFORE, NEWEST):
        flip(directory.snapshot(seq), -100)
    assert choose(directory).refusal


def test_a_log_that_begins_later_needs_a_snapshot(directory: Directory) -> None:
    os.unlink(directory.segment(1))
    shutil.rmtree(directory.state)
    assert "the log begins after row 1" in choose(directory).refusal


def test_a_roll_never_begins_without_the_snapshot_that_it_needs(directory: Directory) -> None:
    """Both snapshots are damaged, and retention took what they had been folded of: a snapshot of
    the rest would be one without sessions, and the next start would believe it.
    """
    os.unlink(directory.segment(1))
    for seq in (BEFORE, NEWEST):
        flip(directory.snapshot(seq), -100)
    base = bases(directory)[-2]
    for _ in range(2):
        with pytest.raises(JournalError, match="the log begins after row 1"):
            roll(directory, base)
        assert directory.snapshots() == []
    assert len(tree(directory.quarantine)) == 2
    with pytest.raises(DirectoryError, match="the log begins after row 1"):
        Desk(directory.path)


def test_a_roll_of_a_whole_log_needs_no_snapshot(directory: Directory) -> None:
    for seq in (BEFORE, NEWEST):
        flip(directory.snapshot(seq), -100)
    roll(directory, bases(directory)[-2])
    assert kept(directory) == ALL


def test_taking_back_what_has_its_place_changes_nothing(directory: Directory) -> None:
    before = tree(directory.path)
    take_back(directory, Choice(NEWEST, directory.snapshot(NEWEST), [], [], []))
    assert tree(directory.path) == before
