"""Files that are there whole or not at all, and last when they are said to.

What the journal asks of a file system beyond reading and writing, each thing said once: a write
that is complete, a file that takes its name when it is on the disk, a folder whose changes last,
and an owner. Whoever works as root in a hub's directory (a backup by cron, `sudo hubbub journal
compact`) leaves files that the hub's own user can use. Knows nothing of what the files hold.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder last."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, that lasts; nothing if it is there."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o750)
        os.close(opened(folder, os.O_RDONLY))
        sync_folder(folder.parent)


def remove(path: Path) -> None:
    """Remove a file, so that it does not come back with the next start of the machine."""
    os.unlink(path)
    sync_folder(path.parent)


def opened(path: Path, flags: int) -> int:
    """Open a file, and give one that root made to whom its folder belongs."""
    fd = os.open(path, flags, 0o640)
    try:
        if os.geteuid() == 0:
            folder, file = os.stat(path.parent), os.fstat(fd)
            if (folder.st_uid, folder.st_gid) != (file.st_uid, file.st_gid):
                os.fchown(fd, folder.st_uid, folder.st_gid)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of `data`; a short write goes on where it stopped and so meets the error."""
    done = os.pwrite(fd, data, at)
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], at + done)


def write_whole(path: Path, data: bytes | bytearray) -> None:
    """Create or replace a file so that after a crash it is there whole or as before."""
    with Replacement(path) as new:
        write_at(new.fd, data, 0)


class Replacement:
    """A file that takes its name only when it is whole and on the disk.

    Leaving the `with` block by an exception removes what was written. `room`: a file that is not
    needed otherwise, in the blocks of which the new one is written; who writes cuts it to length.
    """

    def __init__(self, path: Path, room: Path | None = None) -> None:
        self.path = path
        self._new = path.with_name(f"{path.name}.new")
        self._room = room

    def __enter__(self) -> Replacement:
        if self._room is not None:
            os.replace(self._room, self._new)
        emptied = os.O_TRUNC if self._room is None else 0
        try:
            self.fd = opened(self._new, os.O_RDWR | os.O_CREAT | emptied)
        except OSError:
            self._discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self.fd)
                os.replace(self._new, self.path)
                sync_folder(self.path.parent)
        finally:
            os.close(self.fd)
            self._discard()

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # what stays is overwritten by the next try
            os.unlink(self._new)
