"""Memory that is free again: looked for once, when many have gone."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from hubbub.runtime.allocator import MANY, Departures, trim


def test_once_when_many_have_gone() -> None:
    trimmed: list[int] = []
    gone = 0
    departures = Departures(lambda: trimmed.append(gone))
    for more in (0, MANY - 1, 1, MANY, 3 * MANY, MANY - 1, 5, 0, MANY, 0, 0):
        gone += more
        departures.look(gone)
    assert trimmed == [6 * MANY - 1, 7 * MANY + 4]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="another allocator")
def test_what_lies_below_something_that_stays_goes_back() -> None:
    many = [bytes(100_000) for _ in range(500)]
    stays = bytes(100_000)
    most = resident()
    many.clear()
    trim()
    assert resident() < most - 30 and len(stays) == 100_000


def resident() -> int:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024
