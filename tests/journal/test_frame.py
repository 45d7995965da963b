"""Frames: round trips, equality with pyarrow, and what cuts, flips and garbage look like."""

from __future__ import annotations

import contextlib
import resource
import struct
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub import schema
from hubbub.errors import JournalError
from hubbub.journal import arrow, frame
from hubbub.journal.arrow import BATCH, BUFFERS, BUFFERS_AT, NODES_AT, ROWS_AT
from hubbub.journal.table import SCHEMA, batch_of, frames_in, plain_column
from hubbub.schema import COLUMNS, Row
from tests.journal.rows import any_rows, forged, message, numbered

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
def test_each_row_comes_back_alone(rows: list[Row]) -> None:
    columns = frame.Columns(memoryview(frame.encode(rows)), 0)
    assert [columns.row(number) for number in range(len(rows))] == rows
    for begin in range(0, len(rows), 8):
        for end in (*range(begin + 8, len(rows), 8), len(rows)):
            assert columns.rows(begin, end) == rows[begin:end]
    seqs = [0, *(row.seq for row in rows), rows[-1].seq + 1]
    assert [columns.place(seq) for seq in seqs] == [-1, *range(len(rows)), -1]


@settings(deadline=None)
@given(any_rows)
def test_pyarrow_reads_the_same(rows: list[Row]) -> None:
    assert arrow_batch(frame.encode(rows)).equals(as_arrow(rows))


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 37, 64, 65, 1000, 1025, 5000])
def test_any_number_of_rows(count: int) -> None:
    rows = numbered([message(b"%d" % n, retain=n % 3 == 0) for n in range(count)])
    data = frame.encode(rows)
    assert arrow_batch(data).equals(as_arrow(rows))
    assert frame.decode(memoryview(data), 0) == rows


@pytest.mark.parametrize(
    "payloads",
    [
        [b"ab"] * 9, [b"ab", b"cd", b"ab"], [b"a", b"aa", b""], [b"", b"a", b""],
        [b"aa", b"", b"a"], [b"ab", b"cd"] * 6, [b"x" * n for n in range(20)], [b"", b"ab"] * 20,
        [b""] * 8 + [b"a"],
    ],
)  # fmt: skip
def test_values_that_are_alike(payloads: list[bytes]) -> None:
    rows = numbered([message(payload) for payload in payloads])
    data = frame.encode(rows)
    assert arrow_batch(data).equals(as_arrow(rows))
    assert frame.decode(memoryview(data), 0) == rows


@settings(deadline=None)
@given(any_rows)
def test_few_rows_are_written_as_many_are(rows: list[Row]) -> None:
    """Two ways to the same bytes: that of few rows is for who waits, that of many for a crowd."""
    columns = list(zip(*rows, strict=True))
    few, many = frame._few(columns, len(rows)), frame._many(columns, len(rows))
    assert b"".join(few) == b"".join(many)


@settings(deadline=None)
@given(any_rows)
def test_a_row_that_is_alone_is_written_as_many_are(rows: list[Row]) -> None:
    for row in rows:
        columns = [(value,) for value in row]
        assert b"".join(frame._alone(row)) == b"".join(frame._many(columns, 1))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 511, 512, 513, 70_000])
def test_a_row_that_is_alone_has_values_of_any_length(size: int) -> None:
    row = message(bytes(size))._replace(client=b"c" * size, properties=b"p" * size)
    data = frame.encode(numbered([row]))
    assert arrow_batch(data).equals(as_arrow(numbered([row])))
    assert frame.decode(memoryview(data), 0) == numbered([row])


@pytest.mark.parametrize("first", [1, 2**63 - 1001])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 63, 64, 65, 1000])
def test_rows_that_are_numbered_one_after_the_other(count: int, first: int) -> None:
    columns = list(zip(*[message(b"%d" % n) for n in range(count)], strict=True))
    seqs = range(first, first + count)
    frames = [frame.encode_columns([numbers, *columns[1:]]) for numbers in (seqs, tuple(seqs))]
    assert frames[0] == frames[1]
    assert frame.Columns(memoryview(frames[0]), 0).values(0) == list(seqs)


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


COUNTS = (
    [(16, "<I"), (ROWS_AT + frame.HEADER.size, "<q")]
    + [(frame.HEADER.size + NODES_AT + 8 * n, "<q") for n in range(2 * len(COLUMNS))]
    + [(frame.HEADER.size + BUFFERS_AT + 8 * n, "<q") for n in range(2 * BUFFERS)]
)


@pytest.mark.parametrize("number", [1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, -1, -(1 << 63)])
def test_a_forged_count_is_an_error_and_takes_no_memory(number: int) -> None:
    """Each number of a frame by which something is counted or found, its checksum made right."""
    rows = numbered([message(b"%d" % n, b"room/%d" % n, retain=n % 2 == 0) for n in range(20)])
    data, errors = bytes(frame.encode(rows)), 0
    for place, form in COUNTS:
        value = number % (1 << 32) if form == "<I" else number
        made = forged(data, 0, place, value, form)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            assert frame.decode(memoryview(made), 0) == rows
        except JournalError:
            errors += 1
        with contextlib.suppress(JournalError):
            columns = frame.Columns(memoryview(made), 0)
            for row in rows:
                columns.row(columns.place(row.seq))
        with contextlib.suppress(JournalError):
            frame.Columns(memoryview(made), 0).rows(8, 16)
        with contextlib.suppress(JournalError):
            for found in frames_in(made):
                for column in batch_of(made, found):
                    plain_column(column)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert errors >= len(COLUMNS)


def test_values_that_lie_in_one_another_take_no_memory() -> None:
    """A megabyte that each of some thousand rows claims as its own."""
    rows = numbered([message(b"x" * 1000 + b"%d" % n) for n in range(1000)])
    data = bytes(frame.encode(rows))
    body = frame.HEADER.size + len(BATCH)
    ends = data.index(struct.pack("<4i", 0, 1001, 2002, 3003), body)
    largest = struct.unpack_from("<i", data, ends + 4000)[0]
    for row in range(1, 1000):
        data = forged(data, 0, ends + 4 * row, largest if row % 2 else 0, "<i")
    with pytest.raises(JournalError, match="in one another"):
        frame.decode(memoryview(data), 0)
    with pytest.raises(JournalError, match="in one another"):
        frame.Columns(memoryview(data), 0).rows(8, 16)
    (found,) = frames_in(data)
    with pytest.raises(JournalError, match="right by their checksum, and no rows"):
        batch_of(data, found)


def test_a_frame_of_no_bytes_is_none() -> None:
    """Its checksum is that of nothing, and who goes from frame to frame would not come on."""
    head = bytearray(FRAME[: frame.HEADER.size + 8])
    struct.pack_into("<II", head, 0, 0, 0)
    assert frame.scan(memoryview(head), 0).verdict == frame.DAMAGED
