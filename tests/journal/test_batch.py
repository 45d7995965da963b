"""A frame folded at once is what it is row by row."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.session import FOR_EVER
from hubbub.core.state import State, lasting_properties
from hubbub.errors import HubbubError, JournalError
from hubbub.journal import frame
from hubbub.journal.arrow import BUFFERS_AT
from hubbub.journal.batch import Batch
from hubbub.journal.righting import ENDLESS, Righting
from hubbub.schema import CONNECT, DISCONNECT, END, PUBLISH, SUBSCRIBE, Row, column_of
from tests.core.recording import shape
from tests.journal.rows import any_rows, forged, numbered

AS_WRITTEN = Righting(ENDLESS)
COUNT_AT = 16  # in the header: how many rows a frame has
LONG_NAME = "n" * 1_200

names = st.one_of(
    st.sampled_from(["a", "a/b", "a/ü", "%41", "$delayed/5/a", "$other/x", LONG_NAME, "\udcff/x"]),
    st.text(min_size=1, max_size=5),
).map(column_of)
signed = st.sampled_from((b"", b'{"hub-publisher":["ann","x"]}', b'{"hub-publisher":["bob",""]}'))


def kept(time: int, topic: bytes, payload: bytes, properties: bytes, expires: int) -> Row:
    return Row(
        0, time, PUBLISH, b"mqtt", b"ann", topic, retain=True, payload=payload, expires=expires,
        properties=properties,
    )  # fmt: skip


retained = st.builds(
    kept, st.integers(0, 5), names, st.binary(min_size=1, max_size=3), signed,
    st.sampled_from((0, 0, 7)),
)  # fmt: skip
others = st.one_of(
    retained.map(lambda row: row._replace(retain=False)),
    retained.map(lambda row: row._replace(payload=b"")),
    retained.map(lambda row: row._replace(number=3)),
    names.map(lambda name: Row(0, 0, CONNECT, client=name)),
)
said = st.sampled_from((
    b"", b'{"user":"ann"}', lasting_properties(60),
    lasting_properties(FOR_EVER, "", "ann", began=5),
    lasting_properties(9, mount="m/", renumbered=True), b'{"lasting":false}',
))  # fmt: skip
visitors = st.sampled_from([column_of(name) for name in ("", "ann", "bob", "$queue/q", "a%b", "ü")])


def visit(
    time: int, kind: bytes, client: bytes, topic: bytes, qos: int, number: int, expires: int,
    properties: bytes, protocol: bytes,
) -> Row:  # fmt: skip
    return Row(
        0, time, kind, protocol, client, topic, qos=qos, number=number, expires=expires,
        properties=properties,
    )  # fmt: skip


def visits_of(*protocols: bytes) -> st.SearchStrategy[Row]:
    return st.builds(
        visit, st.integers(0, 5), st.sampled_from((CONNECT, SUBSCRIBE, SUBSCRIBE, DISCONNECT)),
        visitors, names, st.integers(0, 2), st.integers(0, 9), st.integers(0, 9), said,
        st.sampled_from(protocols),
    )  # fmt: skip


others = st.one_of(others, visits_of(b"mqtt", b"smq", b"queue", b"share"), names.map(
    lambda name: Row(0, 0, END, b"mqtt", name)
))  # fmt: skip
mostly = st.one_of(
    st.lists(retained, min_size=1, max_size=12),
    st.lists(visits_of(b"mqtt"), min_size=1, max_size=12),
    st.lists(visits_of(b"mqtt", b"queue"), min_size=1, max_size=12),
    st.lists(st.one_of(retained, others), min_size=1, max_size=12),
).map(numbered)


def batch_of(rows: list[Row], righting: Righting = AS_WRITTEN, after: int = -1) -> Batch:
    return Batch(frame.Columns(memoryview(frame.encode(rows)), 0), righting, after)


def kept_of(state: State) -> dict[str, tuple[int, int, int, str]]:
    return {
        name: (kept.seq, kept.size, kept.expires, kept.whose)
        for name, kept in state.retained.items()
    }


def known(state: State) -> tuple[Any, ...]:
    return kept_of(state), state.kept_bytes(), state.delayed, list(state.rows()), shape(state)


def folded(*batches: Batch) -> tuple[Any, ...]:
    state = State()
    for batch in batches:
        state.fold(batch)
    return known(state)


def one_by_one(*batches: Batch) -> tuple[Any, ...]:
    state = State()
    for batch in batches:
        for row in batch.rows():
            state.apply(row)
    return known(state)


@given(mostly, mostly)
def test_a_fold_at_once_is_one_row_by_row(first: list[Row], second: list[Row]) -> None:
    batches = batch_of(first), batch_of(numbered(second, 100))
    assert folded(*batches) == one_by_one(*batches)


@given(mostly, st.integers(-1, 13))
def test_what_was_folded_before_is_left_out(rows: list[Row], after: int) -> None:
    batch = batch_of(rows, after=after)
    assert batch.rows() == [row for row in rows if row.seq > after]
    assert folded(batch) == one_by_one(batch)


@given(mostly, st.integers(0, 5))
def test_rows_of_a_clock_that_was_ahead_are_set_right(rows: list[Row], start: int) -> None:
    righting = Righting(start)
    righting._latest = start
    batch = batch_of(rows, righting)
    assert batch.rows() == righting.rows(rows)
    assert folded(batch) == one_by_one(batch)


@given(any_rows)
def test_any_rows_come_out_as_they_went_in(rows: list[Row]) -> None:
    assert batch_of(rows).rows() == rows


def test_visits_come_by_column() -> None:
    rows = [
        row
        for number in range(50)
        for row in (
            Row(0, 0, CONNECT, b"mqtt", b"c%d" % number, properties=lasting_properties(60)),
            Row(0, 0, SUBSCRIBE, b"mqtt", b"c%d" % number, b"a/%d" % number, qos=1),
            Row(0, 0, DISCONNECT, b"mqtt", b"c%d" % number, expires=7),
        )
    ]
    batch = batch_of(rows)
    assert batch.retained() is None and batch.visits() is not None
    state = State()
    state.fold(batch)
    session = state.sessions["mqtt", "c49"]
    assert (session.subscriptions, session.expires) == ({"a/49": (1, b"")}, 7)
    assert len(state.sessions) == 50 and not session.connected


def test_what_is_bound_to_a_queue_is_no_visit() -> None:
    rows = [Row(0, 0, SUBSCRIBE, b"queue", b"$queue/q", b"a", qos=2)]
    assert batch_of(rows).visits() is None
    assert batch_of([rows[0]._replace(protocol=b"mqtt"), *rows]).visits() is None


def test_what_is_retained_comes_by_column() -> None:
    rows = [
        Row(number, 0, PUBLISH, topic=b"a/%d" % number, retain=True, payload=b"x" * number)
        for number in range(1, 200)
    ]
    found = batch_of(rows).retained()
    assert found is not None
    assert (found.names[4], found.seqs[4], found.sizes[4]) == ("a/5", 5, 5)
    state = State()
    state.fold(batch_of(rows))
    assert kept_of(state)["a/5"] == (5, 5, 0, "")
    assert state.kept_bytes() == sum(range(1, 200))


@pytest.mark.parametrize("place", range(2, 2 * 10))
def test_a_forged_frame_is_refused_or_read(place: int) -> None:
    """Numbers that say where columns lie may say anything: an error of ours, or rows."""
    rows = [Row(n, 0, PUBLISH, topic=b"a/%d" % n, retain=True, payload=b"x") for n in (1, 2, 3)]
    data = bytes(frame.encode(rows))
    at = frame.HEADER.size + BUFFERS_AT + 8 * place
    for number in (-1, 1, 7, 1 << 40):
        made = forged(data, 0, at, number)
        try:
            batch = Batch(frame.Columns(memoryview(made), 0), AS_WRITTEN, -1)
            folded(batch)
        except HubbubError:
            continue


def test_a_forged_count_takes_no_memory() -> None:
    rows = [Row(n, 0, PUBLISH, topic=b"a/%d" % n, retain=True, payload=b"x") for n in (1, 2, 3)]
    made = forged(bytes(frame.encode(rows)), 0, COUNT_AT, 1 << 22, "<I")
    batch = Batch(frame.Columns(memoryview(made), 0), AS_WRITTEN, -1)
    tracemalloc.start()
    try:
        with pytest.raises(JournalError, match="right by its checksum"):
            batch.retained()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
