"""A backup, also of a journal that is written meanwhile, and a hub that starts from it."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from hubbub.errors import DirectoryError, JournalError, UnreadableError
from hubbub.journal import examine, roll
from hubbub.journal.backup import backup, restore
from hubbub.journal.lock import Lock
from hubbub.journal.repair import repair
from hubbub.journal.segments import Directory
from tests.core.recording import shape
from tests.journal.history import written
from tests.journal.rows import Desk, flip, message, payloads
from tests.journal.test_format import state_of


@pytest.mark.parametrize("link", [False, True])
def test_there_and_back(tmp_path: Path, link: bool) -> None:
    data = written(tmp_path / "data")
    assert backup(data, tmp_path / "copy", link) == 18
    assert restore(tmp_path / "copy", tmp_path / "again") == (18, [])
    assert payloads(tmp_path / "again") == payloads(data)
    assert shape(state_of(tmp_path / "again")) == shape(state_of(data))


@pytest.mark.parametrize("link", [False, True])
def test_which_bridges_are_cut_off_is_in_it(tmp_path: Path, link: bool) -> None:
    """Put back, a hub connected them all, and what waited left a second time."""
    data = written(tmp_path / "data")
    Directory(data).cut_off.write_text('["far"]')
    backup(data, tmp_path / "copy", link)
    Directory(data).cut_off.write_text("[]")
    restore(tmp_path / "copy", tmp_path / "again")
    assert Directory(tmp_path / "again").cut_off.read_text() == '["far"]'


def test_how_far_its_clock_was_set_is_in_it(tmp_path: Path) -> None:
    """Put back, all sessions were over that were away when it was made."""
    data = written(tmp_path / "data")
    Directory(data).behind.write_text("600000000 5\n")
    backup(data, tmp_path / "copy", link=False)
    restore(tmp_path / "copy", tmp_path / "again")
    assert Directory(tmp_path / "again").behind.read_text() == "600000000 5\n"


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


CALLS = ("open", "pwrite", "pread", "fsync", "replace", "unlink", "mkdir")


@pytest.mark.parametrize("call", CALLS)
def test_a_restore_that_stops_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """What it leaves is refused, or nothing, or all; and it can be run again."""
    data = written(tmp_path / "data")
    backup(data, tmp_path / "copy", False)
    expected, target = shape(state_of(data)), tmp_path / "again"
    if call != "fsync":
        monkeypatch.setattr(os, "fsync", lambda fd: None)
    real = getattr(os, call)
    turns, failed = [0, 0], True

    def failing(*given: object, **named: object) -> object:
        turns[0] += 1
        if 0 <= turns[0] - turns[1] <= 1:  # a read is tried twice
            raise OSError(errno.EIO, "injected")
        return real(*given, **named)

    while failed:
        turns[:] = [0, turns[1] + 1 + turns[1] // 8]
        failed = False
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            try:
                restore(tmp_path / "copy", target)
            except UnreadableError:
                failed = True
        if failed and not target.exists():
            continue
        if failed and any(target.iterdir()):
            with pytest.raises(DirectoryError, match=r"run it again|is missing"):
                Desk(target)
            assert examine.verify(examine.suspect_of(target)).refusal
        restored = restore(tmp_path / "copy", target).last if failed else 18
        assert restored == 18 and shape(state_of(target)) == expected
        assert not Directory(target).restoring.exists()
        shutil.rmtree(target)


def test_force_lists_what_is_missing(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    backup(data, tmp_path / "copy", False)
    copy = Directory(tmp_path / "copy")
    flip(copy.segment(15), -9)
    with pytest.raises(JournalError, match="--force puts back what is there"):
        restore(tmp_path / "copy", tmp_path / "again")
    restored = restore(tmp_path / "copy", tmp_path / "again", force=True)
    assert restored.last == 18
    assert any("rows 15 to 17 are lost" in text for text in restored.missing)
    desk = Desk(tmp_path / "again")
    assert desk.journal.position == 18
    assert any("rows 15 to 17 are lost" in text for text in desk.journal.reports)
    desk.close()


def test_what_no_hub_could_start_on_is_not_put_back_by_force(tmp_path: Path) -> None:
    backup(written(tmp_path / "data"), tmp_path / "copy", False)
    copy = Directory(tmp_path / "copy")
    os.unlink(copy.segment(1))
    os.unlink(copy.snapshot(14))
    with pytest.raises(JournalError, match="a hub could not start on it"):
        restore(tmp_path / "copy", tmp_path / "again", force=True)
    assert not (tmp_path / "again").exists()


def test_a_damaged_frame_in_history_stops_no_backup(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    flip(Directory(data).segment(1), 4000)
    assert backup(data, tmp_path / "copy", False) == 18
    assert examine.verify(Directory(tmp_path / "copy")).wrong


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_root_leaves_nothing_that_the_hubs_user_could_not_use(tmp_path: Path) -> None:
    """A backup by cron, a restore by hand: all files belong to whom the directory does."""
    data = written(tmp_path / "data")
    place = tmp_path / "place"
    place.mkdir()
    for path in (data, *data.rglob("*"), place):
        os.chown(path, 1234, 1235)
    os.unlink(data / "state" / "lock")
    backup(data, place / "copy", False)
    restore(place / "copy", place / "again")
    repair(Directory(data), False, lambda text: None)
    for path in (*data.rglob("*"), *place.rglob("*")):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235), path
        assert not path.stat().st_mode & 0o007, path


def test_no_roll_goes_on_while_files_are_copied(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    held: list[str] = []

    def look(size: int) -> None:
        other = Lock(data / "state" / "lock")
        held.append(other.take())
        other.release()

    backup(data, tmp_path / "copy", False, look)
    assert len(held) > 3 and all(held), "each copy is made while the roller has to wait"
    assert Lock(data / "state" / "lock").take() == ""
