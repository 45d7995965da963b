"""System calls that fail in a real process, at will: the Python side of `faults.c`.

    faults = Faults(folder, root)            calls below `root` can fail
    subprocess.Popen(…, env=os.environ | faults.environment)
    faults.set(Fault("open", errno.EMFILE))  the next open fails, once
    faults.clear()

A fault may be set and cleared while the process runs. All processes with that environment share
one count of calls, also one whose parent was killed.
"""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ALWAYS: Final = 2**32 - 1
RULES: Final = 8
READS: Final = "read pread sendfile mmap"  # where an unreadable block is met

_RULE: Final = struct.Struct("<IIIIIIq16s64s144s")
_HEAD: Final = struct.Struct("<256s256s")
_COUNTS: Final = struct.Struct("<II")
_COUNTS_AT: Final = 16  # of a rule


class Fault(NamedTuple):
    """The calls `first` to `last` of those that match fail with `error`, from when it is set.

    `ops`: words of `faults.c`, or `*`. `role`: `hub` (and commands), `roller`, or `*`. `path`: a
    pattern for the path below the root. `at`: instead, the block at that place of a file cannot
    be read.
    """

    ops: str
    error: int = errno.EIO
    first: int = 1
    last: int = 1
    role: str = "*"
    path: str = "*"
    at: int = -1

    def __str__(self) -> str:
        """As `parsed` reads it."""
        name = errno.errorcode.get(self.error, "0")
        last = "" if self.last == ALWAYS else self.last
        block = [f"at={self.at}"] if self.at >= 0 else []
        ops, span = self.ops.replace(" ", "+"), f"{self.first}-{last}"
        return " ".join([ops, name, span, self.role, self.path, *block])

    @classmethod
    def parsed(cls, text: str) -> Fault:
        ops, name, span, role, path, *block = text.split()
        first, _, last = span.partition("-")
        at = int(block[0].removeprefix("at=")) if block else -1
        error = getattr(errno, name) if name != "0" else 0
        end = int(last) if last else ALWAYS
        return cls(ops.replace("+", " "), error, int(first), end, role, path, at)


class Call(NamedTuple):
    """A call that was made; its `error` or 0."""

    role: str
    op: str
    error: int
    inode: int
    path: str


def unreadable(path: str, at: int, role: str = "*") -> Fault:
    """The 4 KiB at that place of a file: EIO for a read, SIGBUS for who has mapped it."""
    return Fault(READS, errno.EIO, 1, ALWAYS, role, path, at)


class Faults:
    """What fails for the processes that are started with `environment`. Our files: in `folder`."""

    def __init__(self, folder: Path, root: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.trace = folder / "trace"
        self.tracing = False  # each call while faults are set is a line in `trace`
        control = folder / "control"
        control.write_bytes(_HEAD.pack(bytes(root), b"").ljust(mmap.PAGESIZE, b"\0"))
        with control.open("r+b") as file:
            self._control = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        library = folder / "faults.so"
        _compile(library)
        self.environment = {"LD_PRELOAD": str(library), "FAULTS": str(control)}

    def move(self, root: Path) -> None:
        """From now on it is about this folder."""
        _HEAD.pack_into(self._control, 0, bytes(root), self._control[256:512].rstrip(b"\0"))

    def calls_made(self) -> list[Call]:
        """What was traced."""
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        found = [line.split(" ", 5) for line in lines]
        return [Call(role, op, int(error), int(n), path) for role, _, op, error, n, path in found]

    def set(self, *faults: Fault) -> None:
        """These and no others."""
        self.clear()
        for number, one in enumerate(faults):
            _RULE.pack_into(
                self._control, _HEAD.size + number * _RULE.size, 1, one.error, one.first, one.last,
                0, 0, one.at, one.role.encode(), one.ops.encode(), one.path.encode(),
            )  # fmt: skip
        self._trace(self.tracing)

    def _trace(self, wanted: bool) -> None:
        self._control[256:512] = (bytes(self.trace) if wanted else b"").ljust(256, b"\0")

    def clear(self) -> None:
        """Nothing fails, nothing was counted."""
        self._trace(False)
        self._control[_HEAD.size : _HEAD.size + RULES * _RULE.size] = bytes(RULES * _RULE.size)

    def stop(self) -> None:
        """Nothing fails any more; the counts stay."""
        self._trace(False)
        for number in range(RULES):
            at = _HEAD.size + number * _RULE.size
            self._control[at : at + 4] = bytes(4)

    def calls(self, number: int = 0) -> int:
        """How many calls that fault has matched."""
        return self._counts(number)[0]

    def failed(self, number: int = 0) -> int:
        """How many of them failed."""
        return self._counts(number)[1]

    def _counts(self, number: int) -> tuple[int, int]:
        at = _HEAD.size + number * _RULE.size + _COUNTS_AT
        calls, failed = _COUNTS.unpack_from(self._control, at)
        return calls, failed


def _compile(library: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: on Debian, apt install gcc libc6-dev")
    source = Path(__file__).with_name("faults.c")
    options = ("-shared", "-fPIC", "-O1", "-Wall", "-Werror")
    subprocess.run([compiler, *options, source, "-o", library, "-ldl"], check=True)
