"""A copy of a journal, made while a hub writes it, and put back into an empty directory.

    1. hold DIR/state/lock    nothing is folded, compressed or removed meanwhile
    2. read `committed`       what is copied ends there
    3. copy snapshots and segments; of the last segment the frames up to the committed row

Finished files never change, so they may be linked instead of copied. A backup is a journal's
directory like any other: readers can read it, a hub could start in it. It gets its name when it
is whole and on the disk. `restore` looks at every byte before it believes one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal.examine import directory_of, verify
from hubbub.journal.segments import (
    FORMAT,
    HEADER_BYTES,
    Directory,
    mapped,
    sync_folder,
    walk,
    write_whole,
)

Progress = Callable[[int], None]


def backup(source: Path, target: Path, link: bool, progress: Progress = lambda size: None) -> int:
    """Copy the journal in `source` to the new directory `target`; return its last row.

    `link`: finished files become hard links, on the same file system. Raises DirectoryError if
    `target` is there already or cannot be written, JournalError if there is no journal.
    """
    directory = directory_of(source)
    if target.exists():
        raise DirectoryError(f"{target} is there already: name a new directory for the backup")
    unfinished = target.with_name(target.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    with _no_roller(directory):
        committed = directory.committed()
        copy = Directory(unfinished)
        for folder in (copy.log, copy.state):
            folder.mkdir(parents=True)
        for seq in directory.snapshots():
            if seq <= committed:
                _copy(directory.snapshot(seq), copy.snapshot(seq), link, progress)
        for first, following in directory.spans():
            if first > committed:
                continue
            if following and following <= committed + 1:
                _copy(directory.segment(first), copy.segment(first), link, progress)
            else:
                _copy_upto(directory.segment(first), copy.segment(first), committed, progress)
    _finish(copy, committed, directory.identity())
    os.rename(unfinished, target)
    sync_folder(target.parent)
    return committed


def restore(source: Path, target: Path, progress: Progress = lambda size: None) -> int:
    """Copy a backup into `target`, which is empty or not there; return its last row.

    Raises JournalError, and writes nothing, if the backup is damaged.
    """
    directory = directory_of(source)
    if target.exists() and any(target.iterdir()):
        raise DirectoryError(f"{target} is not empty: move it away, or restore somewhere else")
    verdict = verify(directory)
    if verdict.wrong:
        raise JournalError(f"{source} is damaged: {'; '.join(verdict.wrong)}")
    copy = Directory(target)
    for folder in (copy.log, copy.state):
        folder.mkdir(parents=True, exist_ok=True)
    for seq in directory.snapshots():
        _copy(directory.snapshot(seq), copy.snapshot(seq), False, progress)
    committed = directory.committed()
    for first in directory.segments():
        _copy_upto(directory.segment(first), copy.segment(first), committed, progress)
    _finish(copy, committed, directory.identity())
    return committed


@contextlib.contextmanager
def _no_roller(directory: Directory) -> Iterator[None]:
    """Wait for the roller's present step, and keep it from the next one."""
    with open(directory.state / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy(source: Path, target: Path, link: bool, progress: Progress) -> None:
    if link:
        os.link(source, target)
    else:
        shutil.copyfile(source, target)
        _sync(target)
    progress(target.stat().st_size)


def _copy_upto(source: Path, target: Path, committed: int, progress: Progress) -> None:
    """Only the whole frames up to the committed row: the rest may still be written or cut."""
    data = mapped(source)
    end = HEADER_BYTES
    for found in walk(data):
        if found.first > committed:
            break
        end = found.at + found.size  # also of a damaged one: kept as it is, for `verify` to tell
        if found.last >= committed:
            break
    with open(target, "wb") as file:
        file.write(memoryview(data)[:end])
        file.flush()
        os.fsync(file.fileno())
    progress(end)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _finish(copy: Directory, committed: int, identity: str) -> None:
    if identity:
        copy.identify(identity)
    write_whole(copy.log / "committed", committed.to_bytes(8, "little"))
    sync_folder(copy.state)
    write_whole(copy.path / "format", FORMAT.encode())  # the last: without it it is no journal
