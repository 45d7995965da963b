"""Buffers of large frames: the same bytes, and never those of a frame that somebody has."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hubbub.journal.buffers import KEPT, LARGE, MOST, PIECE, Buffers

SIZES = st.sampled_from([1, LARGE - 1, LARGE, LARGE + 8, 2 * LARGE, 3 * LARGE, MOST, MOST + 1])


def pieces(size: int, fill: int) -> list[bytes]:
    """Of 4 KiB, and what is left."""
    count = size // 4096
    return [bytes([fill])] * 1 + [bytes([(fill + n) % 256]) * 4096 for n in range(count)]


@given(st.lists(st.tuples(SIZES, st.booleans()), max_size=12))
def test_whoever_has_one_keeps_its_bytes(wanted: list[tuple[int, bool]]) -> None:
    buffers, held = Buffers(), []
    for number, (size, keep) in enumerate(wanted):
        parts = pieces(size, number)
        expected = b"".join(parts)
        made = buffers.joined(parts, len(expected))
        assert made == expected
        if keep:
            held.append((made, expected))
    assert all(made == expected for made, expected in held)
    assert len({id(made) for made, _ in held}) == len(held)
    assert len(buffers._all) <= KEPT


def test_one_is_used_again_when_nobody_has_it() -> None:
    buffers = Buffers()
    first = buffers.joined(pieces(2 * LARGE, 1), 2 * LARGE + 1)
    place = id(first)
    second = buffers.joined(pieces(2 * LARGE, 2), 2 * LARGE + 1)
    assert id(second) != place, "somebody has it"
    view = memoryview(first)
    del first
    assert id(buffers.joined(pieces(2 * LARGE, 3), 2 * LARGE + 1)) != place, "a view is somebody"
    view.release()
    del view
    again = buffers.joined(pieces(LARGE + 4096, 4), LARGE + 4097)
    assert id(again) == place and len(again) == LARGE + 4097


def test_small_pieces_are_joined_at_once() -> None:
    buffers = Buffers()
    small = [bytes(PIECE - 1)] * (LARGE // PIECE + 1)
    assert buffers.joined(small, sum(map(len, small))) == b"".join(small)
    assert buffers._all == []
