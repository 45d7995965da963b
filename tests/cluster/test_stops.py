"""Whose a stop is."""

from __future__ import annotations

import pytest

from hubbub.cluster.copies import FENCE, LOG, Piece
from hubbub.cluster.stops import author_of


@pytest.mark.parametrize(
    ("kind", "data", "author"),
    [
        (FENCE, b"b", "b"),
        (FENCE, b"plant-7_x@1795735", "plant-7_x@1795735"),
        (FENCE, b"", ""),
        (FENCE, b"b@", ""),
        (FENCE, b"\xff\xfe\x00b", ""),
        (FENCE, b"b" * 1000, ""),
        (LOG, b"b", ""),
    ],
)
def test_a_stop_is_of_an_estate_or_of_nobody(kind: str, data: bytes, author: str) -> None:
    assert author_of(Piece(1, 1, kind, 0, False, data)) == author
