"""Frames: round trips, equality with pyarrow, and what cuts, flips and garbage look like."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import schema
from hubbub.errors import JournalError
from hubbub.journal import arrow, frame
from hubbub.journal.table import SCHEMA
from hubbub.schema import COLUMNS, Row
from tests.journal.rows import any_rows, message, numbered

FRAME = frame.encode(numbered([message(b"one"), message(b"two"), message(b"\0" * 9)]))


def arrow_batch(data: bytearray) -> pyarrow.RecordBatch:
    """What pyarrow finds in a frame, checked in full."""
    buffer = pyarrow.py_buffer(bytes(data)).slice(frame.HEADER.size)
    batch = pyarrow.ipc.read_record_batch(buffer, SCHEMA)
    batch.validate(full=True)
    return batch


def as_arrow(rows: list[Row]) -> pyarrow.RecordBatch:
    """The same rows made by pyarrow."""
    columns = []
    for index, (column, field) in enumerate(zip(COLUMNS, SCHEMA, strict=True)):
        values: list[Any] = [row[index] for row in rows]
        if column.type == "string":
            values = [value.decode() for value in values]
        columns.append(pyarrow.array(values, field.type))
    return pyarrow.RecordBatch.from_arrays(columns, schema=SCHEMA)


@settings(deadline=None)
@given(any_rows)
def test_rows_come_back(rows: list[Row]) -> None:
    data = frame.encode(rows)
    found = frame.scan(memoryview(data), 0)
    assert found == (frame.WHOLE, 0, len(data), 1, len(rows), len(rows), found.flags)
    assert frame.decode(memoryview(data), 0) == rows


@settings(deadline=None)
@given(any_rows)
def test_pyarrow_reads_the_same(rows: list[Row]) -> None:
    assert arrow_batch(frame.encode(rows)).equals(as_arrow(rows))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 37, 1000, 1025, 5000])
def test_any_number_of_rows(count: int) -> None:
    rows = numbered([message(b"%d" % n, retain=n % 3 == 0) for n in range(count)])
    data = frame.encode(rows)
    assert arrow_batch(data).equals(as_arrow(rows))
    assert frame.decode(memoryview(data), 0) == rows


@pytest.mark.parametrize(
    "payloads",
    [[b"ab"] * 9, [b"ab", b"cd", b"ab"], [b"a", b"aa", b""], [b"", b"a", b""], [b"aa", b"", b"a"]],
)
def test_values_that_are_alike(payloads: list[bytes]) -> None:
    rows = numbered([message(payload) for payload in payloads])
    data = frame.encode(rows)
    assert arrow_batch(data).equals(as_arrow(rows))
    assert frame.decode(memoryview(data), 0) == rows


def test_the_schema_message_and_a_frame_are_an_arrow_stream() -> None:
    rows = numbered([message(b"x")])
    stream = arrow.SCHEMA + bytes(frame.encode(rows)[frame.HEADER.size :])
    assert pyarrow.ipc.open_stream(stream).read_all().to_batches()[0].equals(as_arrow(rows))


@pytest.mark.parametrize("bit", range(17))
def test_a_flag_of_any_row(bit: int) -> None:
    rows = numbered([message(b"", retain=n == bit) for n in range(17)])
    data = frame.encode(rows)
    assert arrow_batch(data).column("retain").to_pylist() == [n == bit for n in range(17)]
    assert frame.decode(memoryview(data), 0) == rows


def test_a_frame_may_lie_anywhere() -> None:
    data = memoryview(bytes(8) + FRAME + bytes(3))
    assert frame.scan(data, 8).size == len(FRAME)
    assert [row.payload for row in frame.decode(data, 8)] == [b"one", b"two", b"\0" * 9]


def test_the_flag_says_whether_state_changes() -> None:
    deliver = Row(0, 0, schema.DELIVER)
    acked = Row(0, 0, schema.ACK)
    for rows, expected in [
        ([message(b"x"), deliver], 0),
        ([message(b"x"), acked], frame.STATE),
        ([message(b"x"), message(b"x", retain=True)], frame.STATE),
    ]:
        assert frame.scan(memoryview(frame.encode(numbered(rows))), 0).flags == expected


def test_a_frame_cut_anywhere_is_torn() -> None:
    for cut in range(len(FRAME)):
        found = frame.scan(memoryview(FRAME)[:cut], 0)
        assert (found.verdict, found.size) == (frame.TORN, cut)


def test_no_flipped_bit_goes_unseen() -> None:
    for bit in range(8 * len(FRAME)):
        data = bytearray(FRAME)
        data[bit >> 3] ^= 1 << (bit & 7)
        assert frame.scan(memoryview(data), 0).verdict != frame.WHOLE, bit


@given(st.binary(max_size=300))
def test_garbage_is_no_frame(data: bytes) -> None:
    assert frame.scan(memoryview(data), 0).verdict != frame.WHOLE
    assert frame.scan(memoryview(data), 0, check=False).verdict != frame.WHOLE


def test_a_compressed_frame_is_refused() -> None:
    packed = frame.seal([bytes(80)], 1, 1, 1, frame.COMPRESSED)
    with pytest.raises(JournalError, match="compressed"):
        frame.decode(memoryview(packed), 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"qos": -1}, {"qos": 1.5}, {"qos": 256}, {"retain": 7}, {"retain": "x"}, {"number": 1.5},
        {"number": None}, {"ref": 1 << 63}, {"expires": "1"}, {"expires": 1.5},
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_found_before(wrong: dict[str, Any]) -> None:
    row = Row(1, 2, b"publish", topic=b"t")
    frame.check(row)
    wrong_row = row._replace(**wrong)
    with pytest.raises((ValueError, TypeError)):
        frame.check(wrong_row)
