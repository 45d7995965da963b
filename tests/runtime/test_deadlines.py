"""The heap of deadlines: who is woken when, and that those who left do not stay in it."""

from __future__ import annotations

from hubbub.core.connection import NEVER
from hubbub.runtime.deadlines import STALE_DEADLINES, Deadlines


class One:
    deadline = queued = NEVER


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


def test_who_is_put_off_moves_no_entry_and_is_woken_then() -> None:
    deadlines: Deadlines[One] = Deadlines()
    one = One()
    deadlines.add(10.0, one)
    deadlines.add(20.0, one)
    assert one.deadline == 10.0, "the earlier one counts"
    deadlines.forget(one)
    deadlines.add(50.0, one)
    assert len(deadlines) == 1
    assert deadlines.due(20.0) == []
    assert deadlines.due(49.0) == []
    assert deadlines.due(50.0) == [one]
    assert len(deadlines) == 0


def test_who_is_to_be_woken_earlier_is_woken_once() -> None:
    deadlines: Deadlines[One] = Deadlines()
    one, gone = One(), One()
    deadlines.add(50.0, one)
    deadlines.add(10.0, one)
    deadlines.add(30.0, gone)
    deadlines.forget(gone)
    assert deadlines.due(40.0) == [one]
    deadlines.add(45.0, one)
    assert deadlines.due(60.0) == [one]
    assert len(deadlines) == 0


def test_what_was_thrown_out_can_be_added_again() -> None:
    deadlines: Deadlines[One] = Deadlines()
    ones = [One() for _ in range(3 * STALE_DEADLINES)]
    for one in ones:
        deadlines.add(100.0, one)
    for one in ones:
        deadlines.forget(one)
    assert len(deadlines) <= STALE_DEADLINES
    for one in ones:
        deadlines.add(200.0, one)
    assert len(deadlines.due(300.0)) == len(ones)
