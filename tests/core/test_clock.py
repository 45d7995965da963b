"""Time within a run, and at a start, when somebody sets the machine's clock."""

from __future__ import annotations

import time

import pytest

from hubbub.core.clock import ASTRAY, BEGUN, Clock, astray
from hubbub.core.limits import CLOCK_BEHIND

SECOND = 1_000_000
HOUR, YEAR = 3600 * SECOND, 365 * 86_400 * SECOND


class Machine:
    """A machine's clocks: `wall` is set by whoever likes to, `run` by nobody."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = 1_700_000_000 * SECOND
        self.ran = 5_000 * SECOND
        self.slept = 0
        monkeypatch.setattr(time, "time_ns", lambda: self.wall * 1000)
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.ran * 1000)
        monkeypatch.setattr(time, "monotonic", lambda: self.ran / SECOND)
        monkeypatch.setattr(
            time, "clock_gettime_ns", lambda which: (self.ran + self.slept) * 1000
        )

    def goes_on(self, microseconds: int) -> None:
        self.wall += microseconds
        self.ran += microseconds

    def sleeps(self, microseconds: int) -> None:
        self.wall += microseconds
        self.slept += microseconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_stamps_are_the_machines_time(machine: Machine) -> None:
    clock = Clock()
    assert clock.stamp() == machine.wall
    machine.goes_on(77)
    assert clock.stamp() == machine.wall and clock.now() == machine.ran / SECOND
    assert clock.steer() == 0


@pytest.mark.parametrize("by", [-2 * HOUR, -HOUR // 2, HOUR // 2, YEAR])
def test_a_process_that_is_started_again_goes_by_the_time_of_the_others(
    machine: Machine, by: int
) -> None:
    """Of one hub: for hours nobody heard it, and it nobody, where the clock had been set."""
    common = memoryview(bytearray(8)).cast("q")
    first = Clock()
    first.share(common)
    assert first.begin(machine.wall - SECOND) == "" and first.stamp() == machine.wall
    first.steer()
    machine.wall += by
    machine.goes_on(SECOND)
    first.steer()
    second = Clock()
    second.share(common)
    assert second.stamp() == first.stamp(), "which life it is, is said before it begins"
    assert second.begin(first.stamp() - SECOND) == ""
    for _ in range(600):
        machine.goes_on(SECOND)
        first.steer()
        second.steer()
        assert abs(second.stamp() - first.stamp()) <= 1, "and both follow the machine's"
    assert 49 * SECOND < abs(by) - abs(first.ahead()) < 51 * SECOND


def test_what_came_in_one_read_has_one_stamp(machine: Machine) -> None:
    clock = Clock()
    for _ in range(2):
        clock.reading = BEGUN
        stamps = [clock.taken_in()]
        for _ in range(3):
            machine.goes_on(5)
            stamps.append(clock.taken_in())
        assert stamps == [machine.wall - 15] * 4
    assert clock.stamp() == clock.taken_in() == machine.wall  # what came between goes on, too
    clock.reading = 0
    for _ in range(2):
        machine.goes_on(5)
        assert clock.taken_in() == machine.wall


@pytest.mark.parametrize("set_by", [-HOUR, -YEAR, HOUR, YEAR])
def test_a_clock_that_is_set_moves_no_stamp(machine: Machine, set_by: int) -> None:
    clock = Clock()
    begun = clock.stamp()
    machine.wall += set_by
    assert clock.stamp() == begun
    stamps = [begun]
    for _ in range(4 * 60):
        machine.goes_on(SECOND // 4)
        ahead = clock.steer()
        stamps.append(clock.stamp())
    assert stamps == sorted(stamps)
    steered = abs(stamps[-1] - begun - 60 * SECOND)
    assert 4 * SECOND < steered <= 5 * SECOND, "a twelfth of a minute"
    assert (ahead > 0) == (set_by < 0) and abs(ahead) > abs(set_by) - 6 * SECOND


def test_it_is_steered_until_they_agree_and_not_beyond(machine: Machine) -> None:
    clock = Clock()
    machine.wall -= 30 * SECOND
    for _ in range(4 * 60 * 10):
        machine.goes_on(SECOND // 4)
        clock.steer()
    assert clock.stamp() == machine.wall and clock.steer() == 0


def test_a_machine_that_slept_is_not_one_whose_clock_was_set(machine: Machine) -> None:
    """A laptop that was closed for a night, a virtual machine that was stopped: that time has
    passed, though the monotonic clock did not count it.
    """
    clock = Clock()
    clock.steer()
    machine.sleeps(8 * HOUR)
    machine.goes_on(SECOND)
    assert clock.steer() == 0
    assert clock.stamp() == machine.wall


def test_a_start_takes_the_machines_clock_if_it_is_ahead(machine: Machine) -> None:
    clock = Clock()
    assert clock.begin(machine.wall - YEAR) == ""
    assert clock.stamp() == machine.wall


def test_a_start_that_is_a_little_behind_goes_on_from_the_last_row(machine: Machine) -> None:
    clock, last = Clock(), machine.wall + CLOCK_BEHIND * SECOND
    assert clock.begin(last) == ""
    assert clock.stamp() == last
    machine.goes_on(9)
    assert clock.stamp() == last + 9, "time does not stand still until the other has come"
    machine.goes_on(12 * 60 * SECOND)
    clock.steer()
    assert clock.stamp() == last + 9 + 11 * 60 * SECOND


def test_a_start_that_is_far_behind_begins_anew_and_says_so(machine: Machine) -> None:
    clock = Clock()
    said = clock.begin(machine.wall + CLOCK_BEHIND * SECOND + SECOND)
    assert said.startswith(f"the last row is {CLOCK_BEHIND + 1} s ahead of the machine's clock")
    assert clock.stamp() == machine.wall


@pytest.mark.parametrize("ahead", [-YEAR, -120 * SECOND, 120 * SECOND, HOUR, HOUR + SECOND, YEAR])
def test_what_is_said_of_a_clock_that_was_set_is_what_a_start_does(
    machine: Machine, ahead: int
) -> None:
    clock = Clock()
    clock.begin(machine.wall + ahead)
    taken = clock.stamp() == machine.wall
    assert ("takes the clock as it is at the next start" in astray(ahead)) == taken
    assert ("also over a start" in astray(ahead)) != taken


def test_a_clock_that_is_a_little_apart_is_not_worth_a_word() -> None:
    assert astray(ASTRAY) == astray(-ASTRAY) == ""
    assert " 61 s behind " in astray(-61 * SECOND) and " 61 s ahead of " in astray(61 * SECOND)
