"""A directory written by this version, kept: every later one reads it, or says what to do.

`python -m tests.journal.test_format` writes it anew; that is for a new format version only.
"""

from __future__ import annotations

import io
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from hubbub.core.state import State
from hubbub.errors import DirectoryError
from hubbub.journal import examine, exchange
from hubbub.journal.content import HEADER_BYTES
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.schema import FORMAT_VERSION, Row
from tests.core.recording import shape
from tests.journal.history import FIRST, SECOND, written
from tests.journal.rows import Desk

KEPT = Path(__file__).parent / "format-1"


def state_of(path: Path) -> State:
    state = State()
    desk = Desk(path, state.apply)
    assert desk.journal.reports == []
    desk.close()
    return state


def rows_of(path: Path) -> list[Row]:
    frames, out = Frames(path), io.BytesIO()
    exchange.export_arrow(frames, frames.first() - 1, frames.committed(), out)
    out.seek(0)
    return list(exchange.rows_in(io.BufferedReader(out)))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


def test_its_rows_are_read(kept: Path) -> None:
    rows = [row._replace(seq=0, time=0) for row in rows_of(kept)]
    assert rows[: len(FIRST) + len(SECOND)] == FIRST + SECOND
    assert examine.verify(Directory(kept)).wrong == []


def test_its_state_is_the_same_as_of_a_new_one(kept: Path, tmp_path: Path) -> None:
    assert shape(state_of(kept)) == shape(state_of(written(tmp_path / "new")))


def test_it_is_written_on(kept: Path) -> None:
    desk = Desk(kept)
    assert desk.write(FIRST[0]) == 19
    desk.close()
    assert len(rows_of(kept)) == 19


def test_a_newer_version_is_refused_with_a_way_forward(kept: Path) -> None:
    (kept / "format").write_text(f"hubbub journal {FORMAT_VERSION + 1}\n")
    with pytest.raises(DirectoryError, match="use the hubbub that wrote it, or another directory"):
        Desk(kept)


def test_a_newer_file_is_refused_too(kept: Path) -> None:
    path = Directory(kept).segment(18)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, 8, FORMAT_VERSION + 1)
    struct.pack_into("<I", data, 48, 0)
    struct.pack_into("<I", data, 48, zlib.crc32(data[:HEADER_BYTES]))
    path.write_bytes(data)
    with pytest.raises(DirectoryError, match="made by a newer hubbub; update"):
        Desk(kept)
    assert "newer hubbub" in examine.verify(Directory(kept)).wrong[0]
    table = Table(str(kept))  # as Spark reads it
    with pytest.raises(DirectoryError, match="made by a newer hubbub; update"):
        list(table.read(0, table.committed()))


if __name__ == "__main__":
    shutil.rmtree(KEPT, ignore_errors=True)
    written(KEPT)
    for lock in KEPT.rglob("lock"):
        lock.unlink()
