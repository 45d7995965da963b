"""Waiting a moment before a commit: what begins it, what ends it, and when it is left alone."""

from __future__ import annotations

import os

import pytest

from hubbub.runtime.commitdelay import MOST, RESTS, SHARE, VAIN, CommitDelay

FLIGHT = 200e-6  # seconds a group takes

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on a single core nobody waits"
)


class Disk:
    """A delay, with a clock that goes on by hand."""

    def __init__(self) -> None:
        self.now = 1.0
        self.delay = CommitDelay(lambda: self.now)

    def waves(self, times: int, back: int) -> int:
        """So many groups of 10 land, after each of which `back` rows come; how many waited."""
        found = 0
        for _ in range(times):
            self.delay.landed(10, 0, FLIGHT)
            found += self.delay.waits(1)
            self.now += FLIGHT
            assert not self.delay.waits(back)
        return found


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_nothing_landed_nothing_to_wait_for(disk: Disk) -> None:
    assert not disk.delay.waits(1)


def test_rows_wait_until_the_whole_wave_is_back(disk: Disk) -> None:
    disk.delay.landed(10, 7, FLIGHT)
    assert disk.delay.waits(7) and disk.delay.waits(16)
    assert not disk.delay.waits(17)
    assert not disk.delay.waits(1)  # until the next one has landed


def test_a_publisher_that_is_alone_never_waits(disk: Disk) -> None:
    for _ in range(10):
        disk.delay.landed(1, 0, FLIGHT)
        assert not disk.delay.waits(1)


@pytest.mark.parametrize("flight, longest", [(FLIGHT, FLIGHT * SHARE), (1.0, MOST)])
def test_nobody_waits_long(disk: Disk, flight: float, longest: float) -> None:
    disk.delay.landed(10, 0, flight)
    disk.now += longest * 0.9
    assert disk.delay.waits(1)
    disk.now += longest * 0.2
    assert not disk.delay.waits(1)


def test_who_comes_late_does_not_wait_and_is_no_reproach(disk: Disk) -> None:
    for _ in range(2 * VAIN):
        disk.delay.landed(10, 0, FLIGHT)
        disk.now += FLIGHT
        assert not disk.delay.waits(1)
    assert disk.waves(1, 10) == 1


def test_waits_in_vain_end_it_for_a_while(disk: Disk) -> None:
    assert disk.waves(VAIN + RESTS, 2) == VAIN
    assert disk.waves(3, 10) == 3


def test_one_that_was_worth_it_pays_for_some_in_vain(disk: Disk) -> None:
    for _ in range(5):
        assert disk.waves(VAIN - 1, 2) == VAIN - 1
        assert disk.waves(1, 8) == 1
