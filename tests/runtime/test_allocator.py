"""Memory that is free again: looked for once, when many have gone or there is much of it."""

from __future__ import annotations

import ctypes

import pytest

from hubbub.runtime.allocator import MANY, MUCH, Leavings, resident, trim


def test_once_when_many_have_gone() -> None:
    trimmed: list[int] = []
    gone = 0
    leavings = Leavings(lambda: trimmed.append(gone))
    for more in (0, MANY - 1, 1, MANY, 3 * MANY, MANY - 1, 5, 0, MANY, 0, 0):
        gone += more
        leavings.look(gone)
    assert trimmed == [6 * MANY - 1, 7 * MANY + 4]


def test_once_when_there_is_much_more_than_before() -> None:
    trimmed: list[int] = []
    there = 5 * MUCH

    def over() -> None:
        nonlocal there
        trimmed.append(there // MUCH)
        there -= MUCH

    leavings = Leavings(over, lambda: there)
    for some in (5, 6, 5, 7, 7, 6, 7, 8, 7, 2, 3, 3):
        there = some * MUCH
        leavings.look(0)
    assert trimmed == [7, 8, 3], "not what is used again at once, and each only once"


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator")
def test_what_lies_below_something_that_stays_goes_back() -> None:
    many = [bytes(100_000) for _ in range(500)]
    stays = bytes(100_000)
    most = resident() >> 20
    many.clear()
    trim()
    assert resident() >> 20 < most - 30 and len(stays) == 100_000
