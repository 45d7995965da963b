"""Work in turns: a budget for all of it together, each piece in its place in the row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.core.limits import TURN_SECONDS
from hubbub.core.rights import Rights
from hubbub.core.session import Session
from hubbub.core.turns import Turns


class WorkingClock:
    """Says how long was worked."""

    def __init__(self) -> None:
        self.worked = 0.0

    def spent(self) -> float:
        return self.worked


@pytest.fixture
def clock() -> WorkingClock:
    return WorkingClock()


@pytest.mark.pure
def test_a_thousand_who_ask_for_much_get_their_parts_in_turn(clock: WorkingClock) -> None:
    done: list[int] = []
    unsettled: list[Session] = []
    turns = Turns(clock, Rights(), unsettled.append)  # type: ignore[arg-type]

    def work(who: int, pieces: int) -> Callable[[], None]:
        def piece() -> None:
            clock.worked += 0.001
            done.append(who)
            if pieces > 1:
                turns.later(work(who, pieces - 1))

        return piece

    for who in range(1000):
        turns.later(work(who, 3))
    ticks = 0
    while unsettled:
        assert unsettled == [turns], "listed once, however many there are"
        unsettled.clear()
        before = clock.worked
        turns.settle()
        assert clock.worked - before <= TURN_SECONDS + 0.0011
        ticks += 1
    assert done == [*range(1000)] * 3
    assert ticks >= 3000 * 0.001 / (TURN_SECONDS + 0.001)


@pytest.mark.pure
def test_work_that_breaks_ends_no_other(
    clock: WorkingClock, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    unsettled: list[Session] = []
    turns = Turns(clock, Rights(), unsettled.append)  # type: ignore[arg-type]
    turns.later(lambda: [][1])
    turns.later(lambda: done.append("next"))
    turns.settle()
    assert done == ["next"] and "work that goes on" in caplog.text
