"""Records of TLS are counted however the stream is cut, and parts have few of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core.limits import TLS_EMPTY
from hubbub.runtime.records import PART, TOGETHER, Records


def parts(records: Records, data: bytes) -> list[tuple[int, int]]:
    """Of each part its bytes, and how many records ended in it."""
    found, at = [], 0
    while at < len(data):
        end = records.part(data, at)
        found.append((end - at, records.ended))
        at = end
    return found


@given(st.lists(st.integers(0, 900), max_size=150), st.lists(st.integers(0, 90_000), max_size=9))
def test_they_are_counted_however_they_are_cut(sizes: list[int], cuts: list[int]) -> None:
    whole = b"".join(b"\x17\x03\x03" + size.to_bytes(2, "big") + b"x" * size for size in sizes)
    places = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    records, count = Records(), 0
    for start, end in zip(places, places[1:], strict=False):
        found = parts(records, whole[start:end])
        assert sum(size for size, _ in found) == end - start
        assert all(ended <= TOGETHER for _, ended in found)
        count += sum(ended for _, ended in found)
    assert count == len(sizes)


@given(st.binary(max_size=3000))
def test_rubbish_has_an_end(rubbish: bytes) -> None:
    assert sum(size for size, _ in parts(Records(), rubbish)) == len(rubbish)


def test_a_part_has_few_bytes_and_few_records() -> None:
    large = b"\x17\x03\x03\x40\x00" + b"x" * (1 << 14)
    assert parts(Records(), large * 4) == [(PART, 1), (PART, 2), (4 * 16_389 - 2 * PART, 1)]
    small = b"\x17\x03\x03\x00\x01x"
    assert parts(Records(), small * 40) == [(6 * TOGETHER, TOGETHER), (48, 8)]


def test_empty_ones_are_forgiven_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("hubbub.runtime.records.time.monotonic", lambda: now)
    records = Records()
    assert not records.too_many_empty(TLS_EMPTY)
    now += 5
    assert not records.too_many_empty(5)
    assert records.too_many_empty(1)
    now += 1e6
    assert not records.too_many_empty(TLS_EMPTY)
