"""A backup, also of a journal that is written meanwhile, and a hub that starts from it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import examine, roll
from hubbub.journal.backup import backup, restore
from hubbub.journal.segments import Directory
from tests.core.recording import shape
from tests.journal.history import written
from tests.journal.rows import Desk, message, payloads
from tests.journal.test_format import state_of


@pytest.mark.parametrize("link", [False, True])
def test_there_and_back(tmp_path: Path, link: bool) -> None:
    data = written(tmp_path / "data")
    assert backup(data, tmp_path / "copy", link) == 18
    assert restore(tmp_path / "copy", tmp_path / "again") == (18, [])
    assert payloads(tmp_path / "again") == payloads(data)
    assert shape(state_of(tmp_path / "again")) == shape(state_of(data))


def test_a_hub_that_writes_on_does_not_change_a_backup_of_links(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    backup(data, tmp_path / "copy", True)
    before = payloads(tmp_path / "copy")
    desk = Desk(data, segment_bytes=1)
    for number in range(3):
        desk.write(message(b"%d" % number))
        roll.roll(desk.journal.directory, roll.bases(desk.journal.directory)[-2])
        desk.journal.rolled()
    desk.close()
    assert payloads(tmp_path / "copy") == before
    assert examine.verify(Directory(tmp_path / "copy")).wrong == []


def test_while_it_is_written_and_folded(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "data", segment_bytes=20_000)
    desk.write(message(b"0", retain=True))
    over = threading.Event()
    numbers: list[int] = []

    def copy() -> None:
        while not over.is_set() and len(numbers) < 8:
            target = tmp_path / f"copy{len(numbers)}"
            numbers.append(backup(tmp_path / "data", target, link=bool(len(numbers) % 2)))

    thread = threading.Thread(target=copy)
    thread.start()
    number = 1
    while thread.is_alive() and number < 2_000:
        desk.write(message(b"%d" % number, retain=True))
        number += 1
        if desk.journal.roll_due():
            roll.roll(desk.journal.directory, roll.bases(desk.journal.directory)[-2])
            desk.journal.rolled()
    over.set()
    thread.join()
    desk.close()
    for index, last in enumerate(numbers):
        copied = Directory(tmp_path / f"copy{index}")
        assert examine.verify(copied).wrong == [], index
        assert [int(one) for one in payloads(copied.path)] == list(range(last))
    assert len(numbers) == 8


def test_a_backup_never_replaces_anything(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    (tmp_path / "copy").mkdir()
    with pytest.raises(DirectoryError, match="is there already"):
        backup(data, tmp_path / "copy", False)
    backup(data, tmp_path / "good", False)
    with pytest.raises(DirectoryError, match="is not empty"):
        restore(tmp_path / "good", data)


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    backup(data, tmp_path / "copy", False)
    path = Directory(tmp_path / "copy").segment(1)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(JournalError, match="is damaged"):
        restore(tmp_path / "copy", tmp_path / "again")
    assert not (tmp_path / "again").exists()
