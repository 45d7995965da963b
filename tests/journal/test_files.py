"""Files that are there whole or not at all, whatever call fails, and whom they belong to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hubbub.journal import files
from hubbub.journal.files import Replacement, make_folder, remove, write_at, write_whole
from tests.journal.rows import descriptors

CALLS = ("open", "fchown", "pwrite", "fsync", "replace")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("turn", [1, 2])
def test_a_replacement_is_whole_or_as_before_whatever_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, turn: int
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"before")
    if os.geteuid() == 0:
        os.chown(tmp_path, 1234, 1234)
    before, real, turns = descriptors(), getattr(os, call), [turn]

    def failing(*given: object, **named: object) -> object:
        turns[0] -= 1
        if not turns[0]:
            raise OSError(errno.EIO, "injected")
        return real(*given, **named)

    failed = False
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing)
        try:
            write_whole(path, b"after, and longer")
        except OSError:
            failed = True
    assert path.read_bytes() in (b"before", b"after, and longer")
    if not failed:
        assert path.read_bytes() == b"after, and longer"
    assert descriptors() == before
    write_whole(path, b"again")
    assert path.read_bytes() == b"again" and [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:7], at))
    write_at(fd, b"0123456789" * 5, 3)
    assert os.pread(fd, 99, 0) == bytes(3) + b"0123456789" * 5
    os.close(fd)


def test_room_is_used_and_cut(tmp_path: Path) -> None:
    room = tmp_path / "reserve"
    room.write_bytes(bytes(100_000))
    inode = room.stat().st_ino
    with Replacement(tmp_path / "file", room) as new:
        write_at(new.fd, b"short", 0)
        os.ftruncate(new.fd, 5)
    assert (tmp_path / "file").read_bytes() == b"short"
    assert (tmp_path / "file").stat().st_ino == inode and not room.exists()


def test_folders_are_made_down_to_the_last_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    make_folder(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3 and (tmp_path / "a").stat().st_mode & 0o777 == 0o750


def test_what_is_removed_stays_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    (tmp_path / "file").write_bytes(b"")
    remove(tmp_path / "file")
    assert synced == [tmp_path] and not list(tmp_path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_what_root_makes_belongs_to_whom_the_folder_does(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1235)
    make_folder(tmp_path / "a" / "b")
    write_whole(tmp_path / "a" / "b" / "file", b"x")
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "file"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1235), path
