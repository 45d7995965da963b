"""Rows and journals for the tests of this folder."""

from __future__ import annotations

import errno
import os
import queue
import struct
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from hubbub.core.clock import Clock
from hubbub.journal.batch import Batch
from hubbub.journal.content import Content, Header
from hubbub.journal.frame import Frame
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.journal.writer import Journal
from hubbub.schema import KINDS, PUBLISH, Row

SOURCE = Path(__file__).parents[2] / "src"
BLOCK = 4096

LONG = st.integers(-(2**63), 2**63 - 1)
TIME = st.integers(0, 2**53)
TEXT = st.text(max_size=20).map(str.encode)
BYTES = st.binary(max_size=40)

any_row = st.builds(
    Row, st.just(0), TIME, st.sampled_from(sorted(KINDS)), TEXT, TEXT, TEXT, TEXT,
    st.integers(0, 2), st.booleans(), BYTES, TEXT, TEXT, BYTES, LONG, LONG, TIME, TEXT,
)  # fmt: skip


def numbered(rows: list[Row], first: int = 1) -> list[Row]:
    return [row._replace(seq=seq) for seq, row in enumerate(rows, first)]


any_rows = st.lists(any_row, min_size=1, max_size=40).map(numbered)


def message(payload: bytes, topic: bytes = b"room/temp", retain: bool = False) -> Row:
    return Row(0, 0, PUBLISH, b"mqtt", b"ann", topic, qos=1, retain=retain, payload=payload)


def forged(data: bytes, at: int, place: int, number: int, form: str = "<q") -> bytes:
    """A file whose frame at `at` has that number at a place of its own, and the right checksum."""
    made = bytearray(data)
    struct.pack_into(form, made, at + place, number)
    (size,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", made, at + 4, zlib.crc32(memoryview(made)[at + 8 : at + size]))
    return bytes(made)


def _each(apply: Callable[[Row], None], batch: Batch) -> None:
    for row in batch.rows():
        apply(row)


class Desk:
    """A journal and what a hub's loop does with it: commit, wait for the thread, take it in."""

    def __init__(
        self,
        path: Path,
        apply: Callable[[Row], None] = lambda row: None,
        durability: str = "disk",
        progress: Callable[[int], None] = lambda size: None,
        **settings: Any,
    ) -> None:
        self.durable: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.journal = Journal(path, Clock(), durability, self.durable.put, **settings)
        try:
            self.journal.recover(partial(_each, apply), progress)
        except BaseException:
            self.journal.close()
            raise

    def write(self, *rows: Row) -> int:
        """Append rows and see them on the disk; return the last seq."""
        for row in rows:
            self.journal.append(row)
        while self.journal.pending:
            self.journal.commit()
            self.settle()
        return self.journal.position

    def settle(self) -> None:
        self.journal.arrived(self.durable.get(timeout=10))

    def close(self) -> None:
        self.journal.close()


def payloads(path: Path, allow_loss: bool = False) -> list[bytes]:
    """The payloads of all rows, as a reader of the table sees them."""
    table = Table(str(path), allow_loss)
    batches = table.read(table.first() - 1, table.committed())
    return [value.as_py() for batch in batches for value in batch.column("payload")]


def end_of(directory: Directory, first: int) -> int:
    """Where the frames of a segment end and its zeros begin, if it has any."""
    return max(at + size for at, size in places(directory, first))


def places(directory: Directory, first: int) -> list[tuple[int, int]]:
    """Where the frames of a segment begin and how long they are."""
    return [(found.at, found.size) for found in frames_of(directory.segment(first))]


def frames_of(path: Path, following: int = 0) -> list[Frame]:
    """The frames of a healed file."""
    with Content(path) as content:
        return content.rows_frames(following)


def header_of(path: Path) -> Header | None:
    with Content(path) as content:
        return content.header()


def bad_blocks(monkeypatch: pytest.MonkeyPatch, path: Path, *blocks: int) -> None:
    """From now on the disk cannot read these blocks of 4 KiB of a file; as the kernel, a read that
    begins before one ends there.
    """
    inode, pread = path.stat().st_ino, os.pread

    def read(fd: int, size: int, at: int) -> bytes:
        if os.fstat(fd).st_ino == inode:
            for block in sorted(blocks):
                if block * BLOCK <= at < (block + 1) * BLOCK:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                if at < block * BLOCK < at + size:
                    size = block * BLOCK - at
                    break
        return pread(fd, size, at)

    monkeypatch.setattr(os, "pread", read)


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def flip(path: Path, at: int) -> None:
    """Damage a file at that place, from its end if that is negative."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x55
    path.write_bytes(data)


def tree(path: Path) -> dict[str, bytes]:
    """Every file below a folder, as it is."""
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file()
    }
