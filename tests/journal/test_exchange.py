"""Rows out and in again: the same rows, or a reason why not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import examine, exchange
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.schema import Row
from tests.journal.history import FIRST, written
from tests.journal.rows import Desk, any_rows
from tests.journal.test_format import rows_of

FORMS = [exchange.export_lines, exchange.export_arrow]


def exported(path: Path, export: object, after: int = 0) -> io.BytesIO:
    frames, out = Frames(path), io.BytesIO()
    assert callable(export)
    assert export(frames, after, frames.committed(), out) == frames.committed() - after
    return io.BytesIO(out.getvalue())


@pytest.mark.parametrize("export", FORMS)
def test_the_same_rows_come_back(tmp_path: Path, export: object) -> None:
    data = written(tmp_path / "data")
    rows = exchange.rows_in(exported(data, export))
    assert exchange.import_rows(rows, tmp_path / "again") == (1, 18)
    assert rows_of(tmp_path / "again") == rows_of(data)
    assert examine.verify(Directory(tmp_path / "again")).wrong == []
    folded: list[Row] = []
    desk = Desk(tmp_path / "again", folded.append)
    assert desk.write(FIRST[0]) == 19
    assert len(folded) == 18
    desk.close()


@settings(max_examples=30)
@given(any_rows)
def test_any_row_as_json(rows: list[Row]) -> None:

    lines = b"".join(json.dumps(exchange._said(row)).encode() + b"\n" for row in rows)
    assert list(exchange.rows_in(io.BytesIO(lines))) == rows


def test_without_its_beginning_the_messages_are_there(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    rows = exchange.rows_in(exported(data, exchange.export_lines, after=14))
    assert exchange.import_rows(rows, tmp_path / "again") == (15, 18)
    desk = Desk(tmp_path / "again")
    assert desk.journal.reports == []
    read = desk.journal.read(18)
    assert read is not None and read.payload == b"last"
    desk.close()


@pytest.mark.parametrize(
    "line, says",
    [
        (b"no JSON", "line 2 is no row"),
        (b"[1]", "line 2 is no row"),
        (b'{"sequence": 1}', "there is no column 'sequence'"),
        (b'{"seq": "2", "kind": "nonsense"}', "unknown kind"),
        (b'{"seq": "3", "kind": "publish"}', "row 3: expected row 2"),
        (b'{"seq": "2", "kind": "publish", "payload_base64": "%"}', "line 2 is no row"),
        (
            b'{"seq": "2", "kind": "publish", "time": "1969-12-31T23:59:59.999999Z"}',
            "row 2 is older than the row before it",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    source = io.BytesIO(b'{"seq": "1", "kind": "publish"}\n' + line + b"\n")
    with pytest.raises(JournalError, match=says):
        exchange.import_rows(exchange.rows_in(source), tmp_path)
    assert Directory(tmp_path).segments() == []


def test_only_into_an_empty_directory(tmp_path: Path) -> None:
    data = written(tmp_path)
    with pytest.raises(DirectoryError, match="is not empty"):
        exchange.import_rows(iter([]), data)
