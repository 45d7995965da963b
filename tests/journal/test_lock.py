"""A file that one process holds, who is told who does, and whom it belongs to."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubbub.journal.lock import Lock, holder
from tests.journal.rows import SOURCE, descriptors

HOLD = """
import pathlib, sys
from hubbub.journal.lock import Lock
Lock(pathlib.Path(sys.argv[1])).wait()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_holder_is_named_and_the_system_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(
        command, cwd=SOURCE, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        assert Lock(path).take() == holder(path) == str(other.pid)
        other.kill()
        other.wait()
    assert holder(path) == ""
    lock = Lock(path)
    assert lock.take() == "" and holder(path) == str(os.getpid())
    lock.release()
    assert holder(path) == ""


def test_asking_for_the_holder_makes_no_file(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") == ""
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_says_nothing_is_held_by_somebody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with Lock(path):
        path.write_bytes(b"")
        assert holder(path) == "unknown"


def test_who_cannot_sign_does_not_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "ftruncate", full)
        for lock in (Lock.take, Lock.wait):
            with pytest.raises(OSError, match="full"):
                lock(Lock(tmp_path / "lock"))
    assert descriptors() == before
    lock_again = Lock(tmp_path / "lock")
    assert lock_again.take() == ""
    lock_again.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_a_lock_made_by_root_belongs_to_whom_the_folder_does(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1235)
    with Lock(tmp_path / "lock"):
        found = (tmp_path / "lock").stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (1234, 1235, 0o640)
