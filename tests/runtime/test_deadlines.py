"""The heap of deadlines: who is woken when, and that those who left do not stay in it."""

from __future__ import annotations

from hubbub.core.connection import NEVER
from hubbub.runtime.deadlines import STALE_DEADLINES, Deadlines


class One:
    deadline = NEVER


def test_deadlines_of_those_who_left_are_thrown_out() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One() for _ in range(3 * STALE_DEADLINES)]
    for number, one in enumerate(ones):
        deadlines.add(100_000.0 + number, one)
    for one in ones[2:]:
        deadlines.forget(one)
        deadlines.forget(one)
    assert len(deadlines) <= STALE_DEADLINES + 2
    deadlines.add(50.0, ones[1])
    assert deadlines.due(60.0) == [ones[1]]
    assert deadlines.due(99_999.0) == []
    assert deadlines.due(300_000.0) == [ones[0]]
    assert len(deadlines) == 0
