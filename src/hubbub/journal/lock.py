"""A file that one process holds at a time (flock), and that says which.

The system lets go of it when the process ends, however it ends. Used for the directory (the hub)
and for its finished files (the roller, a backup); the pipeline has a directory of its own.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hubbub.journal.files import opened


class Lock:
    """`take` or `wait`, then `release`; `with Lock(path)` waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def take(self) -> str:
        """Hold the file; return "" or, if another process has it, that one's id."""
        self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._sign()
        except BlockingIOError:
            holder = _said_by(self._fd)
            self.release()
            return holder
        except OSError:
            self.release()
            raise
        return ""

    def wait(self) -> None:
        """Hold the file as soon as nobody else does."""
        self._open()
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self._sign()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Lock:
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open(self) -> None:
        self._fd = opened(self.path, os.O_RDWR | os.O_CREAT)

    def _sign(self) -> None:
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)


def holder(path: Path) -> str:
    """The id of the process that holds a file, "" if none does. Creates and changes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said_by(fd)
    finally:
        os.close(fd)
    return ""


def _said_by(fd: int) -> str:
    return os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
