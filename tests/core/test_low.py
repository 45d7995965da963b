"""There is little at once, and no more only when there was much for a while."""

from __future__ import annotations

from hubbub.core.low import LASTS, Low, megabytes


def test_it_does_not_flicker() -> None:
    low = Low()
    said = [(100, 0.0), (99, 1.0), (100, 2.0), (125, 3.0), (125, 2.9 + LASTS), (124, 4.0 + LASTS)]
    said += [(130, 10.0), (130, 9.9 + LASTS), (130, 10.0 + LASTS), (100, 20.0), (99, 21.0)]
    found = [low.look(there, 100, now) for there, now in said]
    assert found == [False, True, True, True, True, True, True, True, False, False, True]
    assert low.on


def test_how_much_it_is() -> None:
    assert [megabytes(size) for size in (0, 1_250_000, 12_500_000)] == ["0.0 MB", "1.2 MB", "12 MB"]
