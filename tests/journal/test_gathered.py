"""Rows that gather: the same rows, whether they came one by one or as runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.core.limits import COMMIT_ROWS, FRAME_BYTES
from hubbub.core.message import SPELLED, Run
from hubbub.core.rights import Rights
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.journal import frame
from hubbub.journal.gathered import ROW_BYTES, Gathered
from hubbub.schema import PUBLISH, Row
from tests.journal.rows import any_rows

RUNS = st.tuples(
    st.sampled_from(["a", "b/c", "%41\udcff"]),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 4).flatmap(
        lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=5)
    ),
)


def run_of(name: str, qos: int, retain: bool, payloads: list[bytes], node: str = "") -> Run:
    sender = Session("mqtt", name, Rights())
    sender.node = node
    run = Run(sender, Route(name, 0), qos, len(payloads), SPELLED, b"".join(payloads), retain)
    run.number = qos
    return run


def rows_said(run: Run, ref: int, payloads: list[bytes]) -> list[Row]:
    name = run.sender.client.replace("%41", "%2541").replace("\udcff", "%FF").encode()
    said = b'{"node":"far"}' if run.sender.node else b""
    return [
        Row(run.first + at, run.time, PUBLISH, b"mqtt", name, name, b"", run.qos, run.retain,
            payload, ref=ref, number=run.qos, properties=said)
        for at, payload in enumerate(payloads)
    ]  # fmt: skip


@settings(deadline=None)
@given(st.lists(st.one_of(RUNS, any_rows), min_size=1, max_size=6), st.integers(1, 1 << 50),
       st.sampled_from(["", "far"]))  # fmt: skip
def test_runs_are_rows(parts: list[Any], first: int, node: str) -> None:
    gathered, rows = Gathered(), list[Row]()
    assert gathered.first == len(gathered) == 0
    for time, part in enumerate(parts):
        seq = first + len(rows)
        if isinstance(part, tuple):
            name, qos, retain, payloads = part
            run = run_of(name, qos, retain, payloads, node)
            run.recorded(seq, time)
            gathered.add(run, 7, payloads)
            rows += rows_said(run, 7, payloads)
        else:
            for at, row in enumerate(part, seq):
                gathered.append(row, at, time)
                rows.append(row._replace(seq=at, time=time))
        assert len(gathered) == len(rows) and list(gathered) == rows
    assert gathered.first == first and gathered.times() == (0, len(parts) - 1)
    assert [gathered.row(row.seq) for row in rows] == rows
    assert gathered.row(first - 1) is None and gathered.row(first + len(rows)) is None
    assert frame.encode_columns(gathered.columns()) == frame.encode(rows)
    middle = len(rows) // 2
    assert list(zip(*gathered.columns(middle, len(rows)), strict=True)) == rows[middle:]


@settings(deadline=None)
@given(any_rows, any_rows, any_rows)
def test_what_is_taken_out_is_what_came_first(
    before: list[Row], between: list[Row], after: list[Row]
) -> None:
    gathered = Gathered()
    for part in (before, between, after):
        for row in part:
            gathered.append(row, len(gathered) + (gathered.first or 5), 9)
        gathered.end_frame()
    whole, weight = list(gathered), gathered.weight
    places = [at for at, _ in gathered.cuts]
    taken = gathered.split(places[0])
    assert [*taken, *gathered] == whole and len(taken) == len(before)
    assert taken.first == 5 and gathered.first == 5 + len(before)
    assert taken.weight + gathered.weight == weight and taken.weight > 0
    assert taken.cuts == [] and [at + len(before) for at, _ in gathered.cuts] == places[1:]
    gathered.append(after[0], gathered.first + len(gathered), 9)
    assert [*taken, *gathered] == [*whole, after[0]._replace(seq=5 + len(whole), time=9)]


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 1, 2, 3]), min_size=2, max_size=12), st.data())
def test_what_one_says_after_the_other_is_taken_apart_anywhere(said: list[int], data: Any) -> None:
    """One sender's rows have a stretch, which a cut may be within."""
    senders = [run_of("a", 0, False, [b"x"]), run_of("b", 0, False, [b"y"])]
    gathered, rows = Gathered(), list[Row]()
    for time, what in enumerate(said):
        run, ref = senders[what & 1], what >> 1
        run.recorded(5 + len(rows), time)
        gathered.add(run, ref, [run.image])
        rows += rows_said(run, ref, [run.image])
        gathered.end_frame()
    begin = data.draw(st.integers(0, len(rows) - 1))
    end = data.draw(st.integers(begin + 1, len(rows)))
    assert list(zip(*gathered.columns(begin, end), strict=True)) == rows[begin:end]
    at = data.draw(st.integers(1, len(rows) - 1))
    taken = gathered.split(at)
    assert [*taken, *gathered] == rows and len(taken) == at
    assert [taken.row(row.seq) or gathered.row(row.seq) for row in rows] == rows
    senders[0].recorded(5 + len(rows), 99)
    gathered.add(senders[0], 0, [b"x"])
    assert list(gathered) == [*rows[at:], *rows_said(senders[0], 0, [b"x"])]


@pytest.mark.parametrize("size", [1, 700])
def test_a_frame_ends_before_it_has_too_many_rows(size: int) -> None:
    gathered = Gathered()
    for _ in range(0, 2 * COMMIT_ROWS + 5, size):
        run = run_of("a", 0, False, [b"x"] * size)
        run.recorded(1 + len(gathered), 0)
        gathered.add(run, 0, [b"x"] * size)
    each = 3 + ROW_BYTES
    assert gathered.cuts == [(at, at * each) for at in (COMMIT_ROWS, 2 * COMMIT_ROWS)]


def test_a_frame_ends_before_it_has_too_many_bytes() -> None:
    gathered = Gathered()
    for seq in range(1, 8):
        gathered.append(Row(0, 0, PUBLISH, payload=bytes(FRAME_BYTES // 3)), seq, 0)
    gathered.append(Row(0, 0, PUBLISH, payload=bytes(FRAME_BYTES)), 8, 0)
    gathered.append(Row(0, 0, PUBLISH), 9, 0)
    assert [at for at, _ in gathered.cuts] == [2, 4, 6, 7, 8]


def test_a_row_that_no_frame_holds_is_not_taken() -> None:
    gathered = Gathered()
    with pytest.raises(ValueError, match="cannot be written"):
        gathered.append(Row(0, 0, PUBLISH, number=1 << 63, properties=b"{}"), 1, 0)
    gathered.append(Row(0, 0, PUBLISH), 1, 0)
    assert list(gathered) == [Row(1, 0, PUBLISH)]
