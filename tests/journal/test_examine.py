"""Looking at a directory, and telling what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubbub.errors import DirectoryError
from hubbub.journal import examine
from hubbub.journal.lock import holder
from hubbub.journal.segments import Directory
from tests.journal.history import FIRST, SECOND, written
from tests.journal.rows import Desk, message, places

ROWS = len(FIRST) + len(SECOND) + 1


def test_the_inventory(tmp_path: Path) -> None:
    directory = Directory(written(tmp_path))
    found = examine.inventory(directory)
    assert [(one.kind, one.first, one.last) for one in found.files] == [
        ("snapshot", 14, 14), ("segment", 1, 14), ("segment", 15, 17), ("segment", 18, 18),
    ]  # fmt: skip
    assert (found.first, found.committed, found.quarantine) == (1, ROWS, [])
    assert found.bytes == examine.total_bytes(directory)


def test_what_is_right_is_right(tmp_path: Path) -> None:
    sizes: list[int] = []
    verdict = examine.verify(Directory(written(tmp_path)), sizes.append)
    assert (verdict.wrong, verdict.noted) == ([], [])
    assert verdict.rows >= ROWS and verdict.bytes == sum(sizes)


def test_every_bit_of_a_frame_matters(tmp_path: Path) -> None:
    directory = Directory(written(tmp_path))
    path = directory.segment(1)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        assert examine.verify(directory).wrong, f"the flipped bit of byte {at} was not seen"


def test_a_damaged_snapshot(tmp_path: Path) -> None:
    directory = Directory(written(tmp_path))
    path = directory.snapshot(14)
    path.write_bytes(path.read_bytes()[:-1])
    assert examine.verify(directory).wrong == [
        "00000000000000000014.rows: a damaged snapshot, the one before it is used",
        "00000000000000000014.rows: damaged at byte 3808",
    ]


def test_a_missing_segment(tmp_path: Path) -> None:
    directory = Directory(written(tmp_path))
    directory.segment(15).unlink()
    assert examine.verify(directory).wrong == ["rows 15 to 17 are lost"]


def test_a_lost_end(tmp_path: Path) -> None:
    directory = Directory(written(tmp_path))
    directory.segment(18).unlink()
    assert examine.verify(directory).wrong == ["rows 18 to 18 are lost"]


def test_an_unfinished_write_is_no_damage(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one"))
    path = desk.journal.directory.segment(1)
    ((at, size),) = places(desk.journal.directory, 1)
    begun = path.read_bytes()[at : at + size // 2]
    with open(path, "r+b") as file:
        file.seek(at + size)
        file.write(begun)
    assert holder(tmp_path / "lock")
    verdict = examine.verify(desk.journal.directory)
    assert verdict.wrong == [] and "not finished" in verdict.noted[0]
    desk.close()
    assert not holder(tmp_path / "lock")


def test_what_a_hub_is_writing_just_now_is_no_damage(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.write(message(b"one"))
    committed = (desk.journal.directory.log / "committed").read_bytes()
    desk.write(message(b"two"))
    desk.write(message(b"three"))
    desk.close()
    directory = desk.journal.directory
    (directory.log / "committed").write_bytes(committed)
    _, (at, size), _ = places(directory, 1)
    with open(directory.segment(1), "r+b") as file:
        file.seek(at + size // 2)
        file.write(bytes(size // 4))
    verdict = examine.verify(directory)
    assert verdict.wrong == [] and "after row 1 are not finished" in verdict.noted[0]


def test_a_directory_without_a_journal(tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="holds no journal"):
        examine.directory_of(tmp_path)
