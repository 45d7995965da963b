"""Rows that were written, read again from their frames: the same however they are asked for."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from hubbub.journal import frame
from hubbub.journal.readback import APART, BLOCK, LARGE, Held
from tests.journal.rows import Desk, message, numbered

ROWS = numbered([message(b"%d" % number, b"room/%d" % number) for number in range(800)])


def held() -> Held:
    data = bytes(frame.encode(ROWS))
    return Held(frame.Columns(memoryview(data), 0), len(data))


def test_who_asks_for_a_few_has_no_others_made() -> None:
    found = held()
    for row in ROWS[:: APART + 1]:
        assert found.row(row.seq) == row
        assert found.block == []


def test_who_goes_on_from_row_to_row_has_those_around_made() -> None:
    found = held()
    assert [found.row(row.seq) for row in ROWS[400 : 400 + BLOCK]] == ROWS[400 : 400 + BLOCK]
    assert found.block == ROWS[512 : 512 + BLOCK]
    assert found.row(ROWS[450].seq) == ROWS[450] and found.block == ROWS[512 : 512 + BLOCK]


def test_the_rows_of_a_small_frame_are_made_at_once() -> None:
    rows = ROWS[:2]
    data = bytes(frame.encode(rows))
    found = Held(frame.Columns(memoryview(data), 0), len(data))
    assert found.row(rows[1].seq) == rows[1] and found.block == rows


def test_whoever_asks_for_a_large_row_has_the_same_bytes() -> None:
    """Each of a hundred readers of a retained message of 60 MiB had its own."""
    rows = numbered([message(b"%d" % number * LARGE) for number in range(10)])
    data = bytes(frame.encode(rows))
    found = Held(frame.Columns(memoryview(data), 0), len(data))
    for row in (rows[7], rows[1], rows[7]):
        assert found.row(row.seq) == row
    first, again = found.row(rows[7].seq), found.row(rows[7].seq)
    assert first is not None and again is not None and first.payload is again.payload
    assert found.row(0) is None and found.row(rows[-1].seq + 1) is None


@pytest.mark.parametrize("made", [False, True])
def test_a_row_that_is_not_there(made: bool) -> None:
    found = held()
    for row in ROWS[:10] if made else []:
        found.row(row.seq)
    assert bool(found.block) == made
    assert found.row(0) is None and found.row(ROWS[-1].seq + 1) is None


def test_rows_of_many_frames_in_any_order(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    for begin in range(0, 40_000, 2_000):
        desk.write(*[message(b"%d" % number) for number in range(begin, begin + 2_000)])
    asked = [random.randrange(40_000) for _ in range(2_000)]
    found = [desk.journal.read(number + 1) for number in asked]
    assert [read and read.payload for read in found] == [b"%d" % number for number in asked]
    assert desk.journal.fetched() > 0
    before = desk.journal.fetched()
    desk.journal.read(asked[-1] + 1)
    assert desk.journal.fetched() == before, "once is enough"
    desk.close()
