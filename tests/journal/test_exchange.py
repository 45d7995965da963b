"""Rows out and in again: the same rows, or a reason why not."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from hubbub import schema
from hubbub.core import state
from hubbub.errors import DirectoryError, JournalError
from hubbub.journal import examine, exchange
from hubbub.journal.frames import Frames
from hubbub.journal.segments import Directory
from hubbub.schema import Row, column_of
from tests.journal.history import FIRST, written
from tests.journal.rows import Desk, any_rows, message, numbered, tree
from tests.journal.test_format import rows_of

FORMS = [exchange.export_lines, exchange.export_arrow]


def opened(data: bytes) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(data))


def exported(path: Path, export: object, after: int = 0) -> io.BufferedReader:
    frames, out = Frames(path), io.BytesIO()
    assert callable(export)
    assert export(frames, after, frames.committed(), out) == frames.committed() - after
    return opened(out.getvalue())


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
    assert list(exchange.rows_in(opened(lines))) == rows


def test_without_its_beginning_the_messages_are_there(tmp_path: Path) -> None:
    data = written(tmp_path / "data")
    rows = exchange.rows_in(exported(data, exchange.export_lines, after=14))
    assert exchange.import_rows(rows, tmp_path / "again") == (15, 18)
    desk = Desk(tmp_path / "again")
    assert desk.journal.reports == []
    read = desk.journal.read(18)
    assert read is not None and read.payload == b"last"
    desk.close()


ROW = {"seq": "2", "kind": "publish", "topic": "a"}
CONNECT = {"kind": "connect", "protocol": "mqtt", "client": "ann", "topic": ""}
ADOPT = {**CONNECT, "kind": "adopt", "content_type": "a"}  # of a dead node
WRONG: list[tuple[bytes | dict[str, object], str]] = [
    (b"no JSON", "line 2 is no row"),
    (b"[1]", "line 2 is no row"),
    (b"[" * 100_000, "line 2 is no row"),
    (b'{"sequence": 1}', "there is no column 'sequence'"),
    (b'{"seq": 1e400}', "line 2 .* column seq: expected a whole number, got inf"),
    ({"seq": True}, "line 2 .* column seq: expected a whole number"),
    ({"payload_base64": "%"}, "line 2 .* column payload_base64"),
    ({"retain": "no"}, "line 2 .* column retain: expected true or false, got 'no'"),
    ({"topic": 7}, "line 2 .* column topic: expected a text, got 7"),
    ({"kind": "nonsense"}, "row 2, column kind: expected a known kind, .* got b'nonsense'"),
    ({"seq": "3"}, "row 3, column seq: expected 2, got 3"),
    ({"seq": str(2**64)}, "column seq: expected 2, got 18446744073709551616"),
    ({"time": "1969-12-31T23:59:59.999999Z"}, "row 2, column time: it is older"),
    ({"expires": "1969-12-31T23:59:59.999999Z"}, "column expires: expected a time from 1970"),
    ({"qos": 7}, "row 2, column qos: expected 0, 1 or 2, got 7"),
    ({"qos": 300}, "row 2, column qos: expected 0, 1 or 2, got 300"),
    ({"qos": -1}, "row 2, column qos: expected 0, 1 or 2, got -1"),
    ({"ref": str(2**70)}, "row 2, column ref"),
    ({"properties": "no"}, "row 2, column properties: expected a JSON object, or nothing"),
    ({"properties": "[]"}, "row 2, column properties: expected a JSON object, or nothing"),
    ({"topic": "x" * 100_000}, "row 2, column topic: expected 1 to 65535 bytes"),
    ({"topic": "a\0b"}, "row 2, column topic: .* no NUL"),
    ({"topic": "x/#/+"}, "row 2, column topic: .* no wildcards, got b'x/#/\\+'"),
    ({"topic": ""}, "row 2, column topic: expected 1 to 65535 bytes"),
    ({"protocol": "smq", "topic": "x/#", "retain": True}, "row 2, column topic"),
    ({"kind": "subscribe", "protocol": "mqtt", "topic": "x/#/+"}, "column topic: .* a filter"),
    ({"kind": "subscribe", "properties": '{"colour": 1}'}, "column properties"),
    ({"kind": "will", "protocol": "mqtt", "topic": "#"}, "row 2, column topic"),
    ({**CONNECT, "properties": "no"}, "row 2, column properties: expected a JSON object"),
    ({**CONNECT, "properties": "[]"}, "row 2, column properties: expected a JSON object"),
    ({**CONNECT, "properties": '{"expiry": "x"}'}, "properties: expected expiry to be"),
    ({**CONNECT, "properties": '{"expiry": 1e400}'}, "properties: expected expiry to be"),
    ({**CONNECT, "properties": '{"expiry": 99999999999999}'}, "expected expiry from 0 to"),
    ({"kind": "will", "properties": '{"delay": -1}'}, "properties: expected delay from 0 to"),
    ({"properties": '{"user": [["a", 1]]}'}, "column properties: expected user to be pairs"),
    ({"properties": '{"user": [1]}'}, "column properties: expected user to be pairs"),
    ({"content_type": "%FF"}, "column content_type: .* UTF-8"),
    ({"reply_to": "a%00b"}, "column reply_to: .* no NUL"),
    ({"correlation": "x" * 70_000}, "column correlation: expected no more than 65535"),
    ({"kind": "create", "topic": "$queue/q", "properties": '{"colour": 1}'}, "can start on"),
    ({"kind": "audience", "payload": "no"}, "row 2, column payload: .* can start on"),
    ({"kind": "ack", "number": str(2**40)}, "row 2, column number: expected no more than"),
    ({"protocol": "no such thing"}, "row 2, column protocol: expected a name"),
    ({"protocol": "x" * 65}, "row 2, column protocol: expected a name"),
    ({"protocol": "mqtt", "client": "a\0b"}, "row 2, column client: .* no NUL"),
    ({"protocol": "mqtt", "client": "a%00b"}, "row 2, column client: .* no NUL"),
    ({**ADOPT, "subtopic": "nonsense"}, "row 2, column subtopic: .* comes of a dead node"),
    ({**ADOPT, "subtopic": "publish", "topic": "a"}, "row 2, column subtopic"),
    ({**ADOPT, "subtopic": "adopt"}, "row 2, column subtopic"),
    ({**ADOPT, "subtopic": "subscribe", "topic": "x/#/+"}, "column topic: .* a filter"),
    ({**ADOPT, "subtopic": "received", "number": str(2**40)}, "row 2, column number"),
    ({**ADOPT, "subtopic": "connect", "properties": '{"expiry": "x"}'}, "expected expiry to be"),
]


@pytest.mark.parametrize("wrong, says", WRONG)
def test_a_wrong_line_is_named(tmp_path: Path, wrong: bytes | dict[str, object], says: str) -> None:
    line = wrong if isinstance(wrong, bytes) else json.dumps({**ROW, **wrong}).encode()
    source = opened(b'{"seq": "1", "kind": "publish", "topic": "a"}\n' + line + b"\n")
    with pytest.raises(JournalError, match=says) as error:
        exchange.import_rows(exchange.rows_in(source), tmp_path)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_what_came_of_a_dead_node_comes_back(tmp_path: Path) -> None:
    row = Row(0, 0, schema.CONNECT, b"mqtt", b"ann", properties=b'{"lasting":true,"expiry":9}')
    desk = Desk(tmp_path / "one")
    desk.write(*[state.adopting("a", one) for one in (row, row._replace(kind=schema.END))])
    desk.write(state.adopted("a", live=True))
    desk.close()
    lines = exported(tmp_path / "one", exchange.export_lines)
    exchange.import_rows(exchange.rows_in(lines), tmp_path / "two")
    assert rows_of(tmp_path / "two") == rows_of(tmp_path / "one")


def test_time_does_not_go_back(tmp_path: Path) -> None:
    rows = [message(b"")._replace(seq=1, time=5), message(b"")._replace(seq=2, time=4)]
    with pytest.raises(JournalError, match="row 2, column time: it is older"):
        exchange.import_rows(rows, tmp_path)


def test_a_number_without_room_behind_it(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="row 9223372036854775807, column seq"):
        exchange.import_rows([message(b"")._replace(seq=2**63 - 1)], tmp_path)


def test_what_no_arrow_stream_is(tmp_path: Path) -> None:
    source = exported(written(tmp_path / "data"), exchange.export_arrow).read()
    for data in (b"\xff\xff\xff\xffjunk and more of it", b"\xff" * 64, source[:-2000]):
        with pytest.raises(JournalError, match="expected an Arrow stream"):
            exchange.import_rows(exchange.rows_in(opened(data)), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_request_of_any_bytes_names_where_its_answer_goes(tmp_path: Path) -> None:
    asked = Row(0, 0, schema.SEND, b"switch", b"me", b"$queue/q", reply_to=b"$queue/%FF%00")
    assert exchange.import_rows(numbered([asked]), tmp_path) == (1, 1)


def test_names_that_are_literal_may_be_anything(tmp_path: Path) -> None:
    """Some protocols have no wildcards, and names of any bytes."""
    names = ["", "x/#", "a+b", "a\0b", "b\udcc3b", "100%41"]
    rows = [
        Row(0, 0, schema.PUBLISH, protocol, client, column_of(name))
        for name in names
        for protocol, client in ((b"smq", b"any%C3"), (b"", b"hub"))
    ]
    last = exchange.import_rows(numbered(rows), tmp_path)[1]
    assert last == len(rows)


def test_what_is_made_is_removed_and_no_more(tmp_path: Path) -> None:
    bad = numbered([message(b"1"), message(b"2")._replace(qos=7)], 5)
    with pytest.raises(JournalError):
        exchange.import_rows(bad, tmp_path / "above" / "data")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()

    def rows() -> Iterator[Row]:
        (tmp_path / "mine" / "note").write_text("put here meanwhile")
        yield from bad

    with pytest.raises(JournalError):
        exchange.import_rows(rows(), tmp_path / "mine")
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["note"]


def test_not_inside_another_journal(tmp_path: Path) -> None:
    data = written(tmp_path)
    before = tree(data)
    for inside in (data / "new", data / "log" / "deep" / "new"):
        with pytest.raises(DirectoryError, match="the directory of another hub"):
            exchange.import_rows(numbered([message(b"")]), inside)
    assert tree(data) == before and not (data / "new").exists()


def test_only_into_an_empty_directory(tmp_path: Path) -> None:
    data = written(tmp_path)
    with pytest.raises(DirectoryError, match="is not empty"):
        exchange.import_rows(iter([]), data)
