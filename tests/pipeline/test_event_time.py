"""What counts as a time in a payload."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.pipeline.decode import Leaf
from hubbub.pipeline.event_time import microseconds

NOON = 1_767_268_800_000_000


@pytest.mark.parametrize(
    ("leaf", "expected"),
    [
        (Leaf("t", 1_767_268_800, None), NOON),
        (Leaf("t", 1_767_268_800.25, None), NOON + 250_000),
        (Leaf("t", 1_767_268_800_000, None), NOON),
        (Leaf("t", 1_767_268_800_000_000, None), NOON),
        (Leaf("t", 1_767_268_800_000_000_000, "1767268800000000000"), NOON),
        (Leaf("t", None, "2026-01-01T12:00:00Z"), NOON),
        (Leaf("t", None, "2026-01-01T14:00:00+02:00"), NOON),
        (Leaf("t", None, "2026-01-01 12:00:00.000001"), NOON + 1),
        (Leaf("t", None, "noon"), None),
        (Leaf("t", None, ""), None),
        (Leaf("t", 1.0, "true"), None),
        (Leaf("t", -5.0, None), None),
        (Leaf("t", float("inf"), None), None),
        (Leaf("t", float("-inf"), None), None),
        (Leaf("t", float("nan"), None), None),
        (Leaf("t", 0.0, None), None),
        (Leaf("t", 1e300, None), None),
        (Leaf("t", None, "0001-01-01"), None),
    ],
)
def test_times(leaf: Leaf, expected: int | None) -> None:
    assert microseconds(leaf) == expected


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_anything_is_a_time_or_none(number: float, text: str) -> None:
    for leaf in (Leaf("", number, None), Leaf("", None, text)):
        found = microseconds(leaf)
        assert found is None or 0 < found < 2**62
