"""A copy of a journal, made while a hub writes it, and put back into an empty directory.

    1. hold DIR/state/lock    nothing is folded, compressed or removed meanwhile
    2. read `committed`       what is copied ends there
    3. copy snapshots and segments; of the last segment the frames up to the committed row
    4. copy what is in no row: which bridges are cut off by hand, or what waits for them would
       leave, and how far the rows are behind the clock, or sessions that are away would be over

Finished files never change, so they may be linked instead of copied. A backup is a journal's
directory like any other: readers can read it, a hub could start in it. It gets its name when it
is whole and on the disk. `restore` looks at every byte before it believes one, and what it writes
is no journal for a hub before it is all there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hubbub.errors import DirectoryError, JournalError, UnreadableError
from hubbub.journal import files
from hubbub.journal.content import HEADER_BYTES, Content, told
from hubbub.journal.examine import directory_of, verify
from hubbub.journal.files import make_folder, opened, sync_folder, write_at, write_whole
from hubbub.journal.lock import Lock
from hubbub.journal.segments import FORMAT, Directory, committed_bytes

Progress = Callable[[int], None]


class Restored(NamedTuple):
    """The last row that is there, and what is missing (`force`), in words."""

    last: int
    missing: list[str]


def backup(source: Path, target: Path, link: bool, progress: Progress = lambda size: None) -> int:
    """Copy the journal in `source` to the new directory `target`; return its last row.

    `link`: finished files become hard links, on the same file system. Raises DirectoryError if
    `target` is there already or `source` holds no journal, UnreadableError if the machine
    cannot read or write now.
    """
    with told(target):
        return _backup(directory_of(source), target, link, progress)


def _backup(directory: Directory, target: Path, link: bool, progress: Progress) -> int:
    if target.exists():
        raise DirectoryError(f"{target} is there already: name a new directory for the backup")
    unfinished = target.with_name(target.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    make_folder(directory.state)
    with Lock(directory.state / "lock"):  # the roller ends its step, and waits with the next
        committed = directory.committed()
        copy = Directory(unfinished)
        for folder in (copy.log, copy.state):
            make_folder(folder)
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
    _finish(copy, committed, directory)
    os.rename(unfinished, target)
    sync_folder(target.parent)
    return committed


def restore(
    source: Path, target: Path, progress: Progress = lambda size: None, force: bool = False
) -> Restored:
    """Copy a backup into `target`, which is empty, not there, or holds a restore that stopped.

    Raises DirectoryError if there is none; JournalError, and writes nothing, if it is damaged,
    with `force` only if a hub could not start on it; UnreadableError if the machine cannot read
    or write now.
    """
    with told(target):
        return _restore(directory_of(source), target, progress, force)


def _restore(directory: Directory, target: Path, progress: Progress, force: bool) -> Restored:
    verdict = verify(directory)
    if verdict.unread and not force:
        raise UnreadableError("; ".join(verdict.unread))
    _check(directory.path, verdict.refusal, verdict.wrong, force)
    copy = Directory(target)
    _begin(copy)
    committed = directory.committed()
    for seq in directory.snapshots():
        _copy(directory.snapshot(seq), copy.snapshot(seq), False, progress)
    for first in directory.segments():
        _copy_upto(directory.segment(first), copy.segment(first), committed, progress)
    _finish(copy, committed, directory)
    files.remove(copy.restoring)
    return Restored(committed, verdict.wrong)


def _check(source: Path, refusal: str, wrong: list[str], force: bool) -> None:
    if refusal:
        raise JournalError(f"{source} cannot be put back, a hub could not start on it: {refusal}")
    if wrong and not force:
        raise JournalError(
            f"{source} is damaged: {'; '.join(wrong)}. "
            "--force puts back what is there, without that"
        )


def _begin(copy: Directory) -> None:
    """Make the folders of an empty directory, marked as unfinished: no hub starts on half of it."""
    path = copy.path
    if copy.restoring.exists():
        for old in (copy.log, copy.state):
            shutil.rmtree(old, ignore_errors=True)
    elif path.exists() and any(path.iterdir()):
        raise DirectoryError(f"{path} is not empty: move it away, or restore somewhere else")
    make_folder(path)
    write_whole(copy.restoring, b"a backup is being put back\n")
    for folder in (copy.log, copy.state):
        make_folder(folder)


def _copy(source: Path, target: Path, link: bool, progress: Progress) -> None:
    if link:
        os.link(source, target)
    else:
        with Content(source) as content, _new(target) as file:
            _copy_bytes(content, content.size, file)
    progress(target.stat().st_size)


def _copy_upto(source: Path, target: Path, committed: int, progress: Progress) -> None:
    """Only the whole frames up to the committed row: the rest may still be written or cut."""
    with Content(source) as content, _new(target) as file:
        end = HEADER_BYTES
        for found in content.frames():
            if found.first > committed:
                break
            end = found.at + found.size  # also of a damaged one: `verify` is to tell
            if found.last >= committed:
                break
        _copy_bytes(content, end, file)
    progress(end)


def _copy_bytes(content: Content, end: int, file: BinaryIO) -> None:
    done = 0
    while done < end and (piece := content.view(done, 1 << 20)[: end - done]):
        write_at(file.fileno(), piece, done)
        done += len(piece)
    os.fsync(file.fileno())


def _new(path: Path) -> BinaryIO:
    """A file of whom the folder belongs to: who restores as root is not who runs the hub."""
    return open(path, "xb", opener=lambda _, flags: opened(path, flags))


def _finish(copy: Directory, committed: int, source: Directory) -> None:
    if identity := source.identity():
        copy.identify(identity)
    for place, there in ((copy.cut_off, source.cut_off), (copy.behind, source.behind)):
        with contextlib.suppress(FileNotFoundError):
            write_whole(place, there.read_bytes())
    write_whole(copy.log / "committed", committed_bytes(committed))
    sync_folder(copy.state)
    write_whole(copy.path / "format", FORMAT.encode())  # the last: without it it is no journal
