"""Rows that gather: the same rows, whether they came one by one or as runs."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hubbub.journal import frame
from hubbub.journal.gathered import Gathered
from hubbub.schema import ACK, PUBLISH, Row

RUNS = st.lists(
    st.tuples(
        st.sampled_from([PUBLISH, ACK]),
        st.sampled_from([b"a", b"b/c"]),
        st.lists(st.binary(max_size=3), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(RUNS, st.integers(1, 1 << 50))
def test_runs_are_rows(runs: list[tuple[bytes, bytes, list[bytes]]], first: int) -> None:
    gathered, rows = Gathered(), list[Row]()
    assert gathered.first == len(gathered) == 0
    for number, (kind, topic, payloads) in enumerate(runs):
        begin = first + len(rows)
        run = [
            Row(begin + at, number, kind, topic=topic, payload=payload, ref=number)
            for at, payload in enumerate(payloads)
        ]
        gathered.add(run[0], payloads)
        rows += run
        assert len(gathered) == len(rows) and list(gathered) == rows
    assert gathered.first == first and gathered.times() == (0, len(runs) - 1)
    assert [gathered.row(row.seq) for row in rows] == rows
    assert gathered.row(first - 1) is None and gathered.row(first + len(rows)) is None
    assert frame.encode_columns(gathered.columns()) == frame.encode(rows)
