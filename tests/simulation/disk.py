"""A disk that remembers what was synced, and forgets the rest when the power is lost.

The files are real; all calls by which the journal reaches them are watched, and among these those
that make things last (`os.fsync` and its kin). `synced` is what each file held when it was last
synced, `names` what each folder did.

    power lost      every file: what was synced, or that and any parts of what came later; every
                    name: as synced, or as it is
    killed          all files as they are: the system still has what was written

`countdown` ends the process in the middle of things: so many calls that change something from now.
`fail` makes the next calls of some kinds raise instead, whatever they would do. A file whose sync
failed is never made durable any more, until what was not is cut off or written anew: the system
has thrown away what it could not write, and says so only once.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import mmap
import os
import random
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from hubbub.journal import gathered, intake

SYNCS = frozenset(("fsync", "fdatasync"))
CHANGES = SYNCS | {"pwrite", "ftruncate", "truncate", "replace", "unlink", "link"}
# What else a journal asks of its directory: by module, because libraries call them by that name.
LOOKS: dict[ModuleType, tuple[str, ...]] = {
    os: ("open", "pread", "stat", "fstat", "listdir", "scandir", "mkdir"),
    io: ("open",),
    builtins: ("open",),
    mmap: ("mmap",),
    fcntl: ("flock",),
}
READS = frozenset(name for names in LOOKS.values() for name in names)
ATOM = 8  # bytes that are written together, for sure less than a disk's sector
FOLDERS = ("", "log", "state", "quarantine")


class Ended(BaseException):
    """Nothing that the hub does after this happens."""


class Disk:
    """The disk under one data directory. Nothing else may use it meanwhile."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.synced: dict[int, bytes] = {}
        self.names: dict[Path, dict[str, int]] = {}
        self.countdown = -1
        self.failures: list[OSError] = []
        self.failed = 0  # how many calls did
        self.off = False
        self._failing: frozenset[str] = frozenset()
        self._skipped = 0
        self._busy = False
        self._real: dict[str, Callable[..., Any]] = {name: getattr(os, name) for name in CHANGES}
        self._looks = {
            (module, name): getattr(module, name)
            for module, names in LOOKS.items()
            for name in names
        }
        self._spoiled: set[int] = set()
        self._handles: dict[int, int] = {}  # a number of a file is not used again while it is open

    @contextmanager
    def watched(self) -> Iterator[None]:
        for name in CHANGES:
            setattr(os, name, self._watch(name))
        for (module, name), real in self._looks.items():
            setattr(module, name, self._look(name, real))
        try:
            yield
        finally:
            for name, real in self._real.items():
                setattr(os, name, real)
            for (module, name), real in self._looks.items():
                setattr(module, name, real)
            for handle in self._handles.values():
                os.close(handle)

    def fail(self, kinds: frozenset[str], error: int, count: int, skip: int = 0) -> None:
        """After `skip` more calls of these kinds so many fail with that error."""
        self.failures = [OSError(error, "injected") for _ in range(count)]
        self._failing, self._skipped = kinds, skip

    def heal(self) -> int:
        """Nothing fails any more; how many calls had failed since it was asked last."""
        self.failures = []
        failed, self.failed = self.failed, 0
        return failed

    def _may_fail(self, name: str) -> None:
        if not self.failures or name not in self._failing:
            return
        if self._skipped:
            self._skipped -= 1
            return
        self.failed += 1
        raise self.failures.pop(0)

    def _look(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self.failures and not self._busy and arguments and self._ours(arguments[0]):
                self._may_fail(name)
            return real(*arguments, **named)

        return call

    def _ours(self, what: Any) -> bool:
        """Whether a path, or an open file, is of this directory."""
        if hasattr(what, "fileno"):
            what = what.fileno()
        if isinstance(what, int):
            if what < 0:
                return False
            what = os.readlink(f"/proc/self/fd/{what}")
        return os.fsdecode(what).startswith(str(self.root))

    @contextmanager
    def _own(self) -> Iterator[None]:
        """What the disk does itself does not fail."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def _watch(self, name: str) -> Callable[..., Any]:
        real = self._real[name]
        sync = name in SYNCS

        def call(*arguments: Any) -> Any:
            try:
                self._count(name)
            except OSError:
                if sync:
                    with self._own():
                        self._spoil(arguments[0])
                raise
            with self._own():
                if sync:
                    self.sync(arguments[0])
                    return None
                if name == "pwrite":
                    self._refresh(*arguments)
                elif name in ("ftruncate", "truncate"):
                    self._cut(*arguments)
                if name == "pwrite" and len(arguments[1]) > 1 and self._dies_now():
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2])
                    self._lose()
                return real(*arguments)

        return call

    def _spoil(self, fd: int) -> None:
        """What was not durable when a sync failed is not tried again; what was, is."""
        found = os.fstat(fd)
        if os.pread(fd, found.st_size, 0) != self.synced.get(self._kept(fd), b""):
            self._spoiled.add(found.st_ino)

    def _refresh(self, fd: int, data: bytes, at: int) -> None:
        """All that was not durable in a file is written anew: another sync will try again."""
        found = os.fstat(fd)
        if at <= len(self.synced.get(found.st_ino, b"")) and at + len(data) >= found.st_size > at:
            self._spoiled.discard(found.st_ino)

    def _cut(self, file: int | Path, size: int) -> None:
        """What was not durable is gone."""
        number = os.stat(file).st_ino
        if size <= len(self.synced.get(number, b"")):
            self._spoiled.discard(number)

    def _dies_now(self) -> bool:
        return self.countdown == 0 and not self.off

    def _lose(self) -> None:
        self.off = True
        raise Ended

    def _count(self, name: str) -> None:
        if self.off:
            raise Ended
        if self._dies_now() and self.chance.random() < 0.5:
            self._lose()
        if self._dies_now():
            return  # in the middle of the call, if it is a write
        if self.countdown > 0:
            self.countdown -= 1
        self._may_fail(name)

    def sync(self, fd: int) -> None:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            folder = Path(os.readlink(f"/proc/self/fd/{fd}"))
            self.names[folder] = {one.name: one.inode() for one in os.scandir(folder)}
            return
        if self._kept(fd) not in self._spoiled:
            self.synced[found.st_ino] = os.pread(fd, found.st_size, 0)

    def _kept(self, fd: int) -> int:
        """The number of an open file, which no other file gets from now on."""
        number = os.fstat(fd).st_ino
        if number not in self._handles:
            self._handles[number] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        return number

    def has(self, data: bytes) -> bool:
        """Whether it is durable somewhere: a start makes durable what it finds."""
        return any(data in synced for synced in self.synced.values())

    def lose_power(self) -> None:
        """Make the files what they are when the machine starts again."""
        self.off = True
        self.failures = []  # what follows is no hub's doing
        left = {
            path: data
            for folder in (self.root / name for name in FOLDERS)
            for path, data in self._left_of(folder)
        }
        for folder in (self.root / name for name in FOLDERS):
            if folder.exists():
                for path in folder.iterdir():
                    if path.is_file():
                        self._real["unlink"](path)
        for path, data in left.items():
            path.write_bytes(data)
        self.switch_on()
        for path in left:
            handle = os.open(path, os.O_RDONLY)
            self.sync(handle)
            os.close(handle)
        for folder in {path.parent for path in left}:
            self.names[folder] = {one.name: one.inode() for one in os.scandir(folder)}

    def switch_on(self) -> None:
        self.off = False
        self.countdown = -1
        self.failures = []

    def _left_of(self, folder: Path) -> Iterator[tuple[Path, bytes]]:
        before = self.names.get(folder, {})
        now = {}
        if folder.exists():
            now = {one.name: one.inode() for one in os.scandir(folder) if one.is_file()}
        for name in sorted(before.keys() | now.keys()):
            inode = self.chance.choice((before.get(name), now.get(name)))
            if inode is None or (folder / name).is_dir():
                continue
            synced = self.synced.get(inode, b"")
            latest = (folder / name).read_bytes() if inode == now.get(name) else synced
            yield folder / name, self._mixed(synced, latest)

    def _mixed(self, synced: bytes, latest: bytes) -> bytes:
        if synced == latest:
            return latest
        choices = [synced, latest]
        if len(latest) >= len(synced):
            before = synced.ljust(len(latest), b"\0")
            begun = _same(before, latest)
            cut = self.chance.randrange(begun, len(latest) + 1) & -ATOM
            choices += [latest[:cut] + before[cut:], before[:cut] + latest[cut:]]
            choices += [latest[: max(cut, len(synced))], self._parts(before, latest, begun)]
        return self.chance.choice(choices)

    def _parts(self, before: bytes, latest: bytes, begun: int) -> bytes:
        """Some sectors or pages as they were, some as they are."""
        size = self.chance.choice((ATOM, 512, 4096))
        mixed = bytearray(latest)
        for at in range(begun // size * size, len(latest), size):
            if self.chance.random() < 0.5:
                mixed[at : at + size] = before[at : at + size]
        return bytes(mixed)


def _same(one: bytes, other: bytes) -> int:
    """How many bytes at the beginning are the same."""
    return bisect_left(range(len(one)), True, key=lambda at: one[: at + 1] != other[: at + 1])


@contextmanager
def framed(rows: int) -> Iterator[None]:
    """A frame has so many rows at most, and so many are committed at once."""
    with patch.object(gathered, "COMMIT_ROWS", rows), patch.object(intake, "COMMIT_ROWS", rows):
        yield
