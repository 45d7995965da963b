"""Work in turns: a budget for all of it together, each piece in its place in the row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.core.limits import TURN_SECONDS
from hubbub.core.rights import Rights
from hubbub.core.session import Session
from hubbub.core.turns import CROWDED, Stint, Turns


class WorkingClock:
    """Says how long was worked."""

    def __init__(self) -> None:
        self.turned = 0.0
        self.worked = 0.0

    def spent(self) -> float:
        return self.worked

    def now(self) -> float:
        return 100.0 + self.worked


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
        assert clock.worked - before <= TURN_SECONDS + 0.0021, "a piece too much in each half"
        ticks += 1
    assert done == [*range(1000)] * 3
    assert ticks >= 3000 * 0.001 / (TURN_SECONDS + 0.002)


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


class SharedClock(WorkingClock):
    """The machine also has others, who `idle` takes the time for; counts who asks the system."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = 0.0
        self.asked = 0

    def now(self) -> float:
        return 100.0 + self.worked + self.idle

    def spent(self) -> float:
        self.asked += 1
        return self.worked


@pytest.mark.pure
def test_a_stint_is_over_after_a_turn_of_work_and_asks_the_system_late() -> None:
    clock = SharedClock()
    stint, looks = Stint(clock), 0  # type: ignore[arg-type]
    while not stint.over():
        clock.worked += TURN_SECONDS / 100
        looks += 1
    assert 90 <= looks <= 103 and clock.asked <= 52


@pytest.mark.pure
def test_time_that_the_machine_gave_to_others_is_no_work() -> None:
    clock = SharedClock()
    stint = Stint(clock)  # type: ignore[arg-type]
    clock.idle = 10.0
    assert not stint.over()
    clock.worked += TURN_SECONDS / 4
    assert not stint.over()
    clock.worked += TURN_SECONDS
    assert stint.over()


@pytest.mark.pure
def test_in_a_long_turn_of_the_loop_what_each_has_is_over_soon() -> None:
    """500 clients that asked for much at once kept everybody waiting for three seconds."""
    clock = SharedClock()
    clock.turned = clock.now()
    stint = Stint(clock)  # type: ignore[arg-type]
    clock.worked += CROWDED - TURN_SECONDS
    assert not Stint(clock).over()  # type: ignore[arg-type]
    clock.worked += 2 * TURN_SECONDS
    assert stint.over() and Stint(clock).over()  # type: ignore[arg-type]
    clock.turned = clock.now()
    assert not Stint(clock).over()  # type: ignore[arg-type]


@pytest.mark.pure
def test_who_reads_much_from_files_is_behind_those_who_had_no_turn() -> None:
    """The first one read all that a turn may, each turn, until it had all: others had nothing."""
    clock, read, done = WorkingClock(), 0, ""
    unsettled: list[Session] = []

    def work(who: str, pieces: int) -> Callable[[], None]:
        def piece() -> None:
            nonlocal read, done
            if read < 10:
                read, done = read + 10, done + who
            if pieces > 1:
                turns.later(work(who, pieces - 1))

        return piece

    turns = Turns(clock, Rights(), unsettled.append, lambda: read >= 10)  # type: ignore[arg-type]
    for who in "abc":
        turns.later(work(who, 4))
    while unsettled:
        unsettled.clear()
        read = 0
        turns.settle()
    assert done == "abcabcabcabc"
