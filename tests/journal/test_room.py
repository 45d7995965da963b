"""How much of a disk is kept free, and when more is taken again."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from hubbub import schema
from hubbub.core.low import LASTS
from hubbub.core.scarce import WEIGHT
from hubbub.journal.roll import roll
from hubbub.journal.room import OFTEN, Room
from hubbub.journal.segments import Directory
from hubbub.schema import Row
from tests.journal.rows import Desk, message

MB = 1_000_000


class Disk:
    """A file system of a size, with so much free; in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        self.size = self.free = size
        monkeypatch.setattr(os, "statvfs", self._look)

    def _look(self, path: object) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=self.free, f_blocks=self.size, f_frsize=1)


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    found = Directory(tmp_path)
    found.state.mkdir()
    return found


@pytest.mark.parametrize(
    ("size", "segment", "snapshot", "mark"),
    [
        (10_000 * MB, 4 * MB, 0, 500 * MB),  # a twentieth
        (10_000_000 * MB, 4 * MB, 0, 1 << 30),  # but not of a large disk
        (10_000 * MB, 200 * MB, 0, 600 * MB),  # three segments
        (160 * MB, 64 * MB, 0, 15 * MB),  # of a small one three that it holds 32 of
        (1_000 * MB, 10 * MB, 200 * MB, 430 * MB),  # and two snapshots
    ],
)
def test_the_mark(
    directory: Directory, monkeypatch: pytest.MonkeyPatch, size: int, segment: int, snapshot: int,
    mark: int,
) -> None:  # fmt: skip
    disk = Disk(monkeypatch, size)
    room = Room(directory, segment)
    disk.free = mark
    assert room.look(snapshot, snapshot, 0) == ""
    disk.free = mark - 1
    assert "are kept free" in room.look(snapshot, snapshot, 1)
    disk.free = mark * 5 // 4 - 1  # it does not flicker
    assert room.look(snapshot, snapshot, 100) != ""
    disk.free = mark * 5 // 4 + 1
    assert "has to last" in room.look(snapshot, snapshot, 200)
    assert room.look(snapshot, snapshot, 200 + LASTS) == ""


def test_a_fold_that_begins_and_ends_lets_nobody_in(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves the mark: on a small disk there would be room for a moment, again and again."""
    disk, room = Disk(monkeypatch, 1_000 * MB), Room(directory, 10 * MB)
    disk.free = 300 * MB
    for now in range(60):
        assert room.look(100 * MB, 100 * MB, now, folding=now % 4 == 0) != ""
    assert room.look(100 * MB, 100 * MB, 56 + LASTS) != ""
    assert room.look(100 * MB, 100 * MB, 57 + LASTS) == ""  # the last fold ended at 57


def test_what_the_operator_says_counts(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, room = Disk(monkeypatch, 10_000 * MB), Room(directory, 200 * MB)
    room.least = 7 * MB
    disk.free = 8 * MB
    assert room.look(0, 0, 0) == ""
    disk.free = 6_990_000
    assert room.look(0, 0, 0) == "the disk has 7.0 MB left, and 7.0 MB are kept free"


def test_room_for_a_snapshot_is_not_needed_twice(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `reserve` has, and what a roller has written of a snapshot, is there for it."""
    disk, room = Disk(monkeypatch, 1_000 * MB), Room(directory, 10 * MB)
    disk.free = 420 * MB
    assert room.look(200 * MB, 200 * MB, 0) != ""
    directory.reserve.write_bytes(b"")
    os.truncate(directory.reserve, 150 * MB)
    assert "has to last" in room.look(200 * MB, 200 * MB, 0)
    directory.reserve.rename(directory.state / "1.rows.new")
    assert room.look(200 * MB, 200 * MB, LASTS) == ""
    assert room.left == 420 * MB + 150 * MB - 10 * MB - 200 * MB


def test_what_is_shared_out_is_the_same_whatever_a_fold_is_at(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots come and go, and others are kept room for: what users took before is not taken
    again. A byte that stays takes its place in the log, and five times that.
    """
    disk, room = Disk(monkeypatch, 1_000 * MB), Room(directory, 10 * MB)
    disk.free = 800 * MB
    room.look(50 * MB, 50 * MB, 0)
    assert room.shared == 100 * MB
    spare = room.spare
    assert spare == (800 - 30 - 5 * 50) * MB
    for name, size in (("1.rows.new", 30), ("1.rows", 50), ("2.rows.new", 20), ("2.rows", 50)):
        path = directory.state / name
        path.write_bytes(b"")
        os.truncate(path, size * MB)
        disk.free = (800 - sum(one.stat().st_size for one in directory.state.iterdir()) // MB) * MB
        room.look(50 * MB, 50 * MB, 0, folding=name.endswith("new"))
        assert room.spare == spare
        if name.endswith("new"):
            path.unlink()
    directory.reserve.write_bytes(b"")
    os.truncate(directory.reserve, 60 * MB)
    disk.free -= 60 * MB
    room.look(50 * MB, 50 * MB, 0)
    assert room.spare == spare
    disk.free -= MB
    room.look(51 * MB, 51 * MB, 0)
    assert room.spare == spare - WEIGHT * MB


def test_what_is_shared_out_ends_where_nothing_more_is_taken(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large disk that is by its size, and by what the operator says if that is set."""
    disk, room = Disk(monkeypatch, 10_000_000 * MB), Room(directory, 4 * MB)
    disk.free = 1 << 30
    assert room.look(0, 0, 0) == "" and room.spare == 0
    assert room.shared == 4 << 30
    room.least = 7 * MB
    disk.free = 8 * MB
    assert room.look(0, 0, 0) == "" and room.spare == MB


def test_it_is_looked_often_while_little_is_left_to_share_out(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one user took several shares between two looks."""
    disk, room = Disk(monkeypatch, 10_000 * MB), Room(directory, 64 * MB)
    for free in (1_600, 1_000, 600):
        disk.free = free * MB
        room.look(0, 0, 0)
        assert room.unseen * WEIGHT <= room.shared // OFTEN + 6 * MB


def test_a_file_that_a_roll_takes_away_in_that_moment_is_no_room(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, room = Disk(monkeypatch, 1_000 * MB), Room(directory, 10 * MB)
    disk.free = 100 * MB
    assert room.look(100 * MB, 100 * MB, 0) != ""
    for there in (directory.state / "1.new", directory.reserve):
        there.symlink_to("gone")  # it is listed, and cannot be asked
        assert room.look(100 * MB, 100 * MB, 1) != "", "what stays was taken until the next look"


def test_a_system_that_says_nothing_has_room(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: object) -> None:
        raise OSError(5, "no answer")

    monkeypatch.setattr(os, "statvfs", fail)
    assert Room(directory, MB).look(0, 0, 0) == ""


def test_a_snapshot_that_a_roll_has_written_needs_no_room_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The roll goes on to compress and remove: all were refused meanwhile, and for 5 s more."""
    desk = Desk(tmp_path, segment_bytes=100_000)
    told: list[bool] = []

    def look(snapshot: int, stays: int, now: float, folding: bool) -> str:
        told.append(folding)
        return ""

    monkeypatch.setattr(desk.journal.room, "look", look)
    desk.write(Row(0, 0, schema.CREATE, topic=b"$queue/q"))
    for _ in range(2):
        for _ in range(15):
            desk.write(message(bytes(9_000)))
        command = desk.journal.roll_due()
        assert command is not None
        desk.journal.no_room(folding=True)
        roll(desk.journal.directory, int(command[5]))
        desk.journal.no_room(folding=True)
        desk.journal.rolled()
    desk.journal.no_room(folding=False)
    assert told == [True, False, True, False, False]
    desk.close()
