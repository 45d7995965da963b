"""Looking before the loop sleeps: what begins it, what ends it, and what it may cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hubbub.runtime.busypoll import AGAIN, GAINED_MOST, SAMPLE, WANTED, WORTH, BusyPoll

SECONDS = 100e-6
CLOSE = 20e-6
LATE = 1e-3
SAME_TURN = 2e-6


class Turns:
    """A loop whose turns the test takes, and a clock that goes on by hand."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.now = 1.0
        self.looks = 0
        self._due: list[Callable[[], None]] = []
        self.poll = BusyPoll(self._due.append, seconds, lambda: self.now)

    def read(self, after: float, caused: bool = True) -> bool:
        """A read so many seconds after the one before; between them the loop looks if it may."""
        until = self.now + after
        while self._due and self.now + CLOSE / 2 < until:
            self.now += CLOSE / 2
            self.looks += 1
            self._due.pop()()
        self.now = until
        return self.poll.heard(caused)

    def together(self, reads: int) -> list[bool]:
        """So many reads in one turn, which ends with a tick; which of them came alone?"""
        found = [self.read(SAME_TURN) for _ in range(reads)]
        self.poll.turned()
        return found

    @property
    def looking(self) -> bool:
        return bool(self._due)


@pytest.fixture
def loop() -> Turns:
    return Turns()


needs_two = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="on a single core nobody looks"
)


@needs_two
def test_many_reads_close_together_begin_it(loop: Turns) -> None:
    loop.read(LATE)
    for _ in range(WANTED - 1):
        loop.read(CLOSE)
    assert not loop.looking
    loop.read(CLOSE)
    assert loop.looking


@needs_two
def test_it_ends_when_nothing_follows(loop: Turns) -> None:
    for _ in range(WANTED + 2):
        loop.read(CLOSE)
    before = loop.looks
    loop.read(LATE)
    assert loop.looks - before <= SECONDS / (CLOSE / 2) + 1
    assert not loop.looking


@needs_two
def test_clients_that_write_now_and_then_cause_no_look(loop: Turns) -> None:
    for _ in range(1000):
        loop.read(LATE)
    assert loop.looks == 0


@needs_two
def test_bursts_that_do_not_pay_cause_no_look(loop: Turns) -> None:
    for _ in range(1000):
        for _ in range(WORTH - 1):
            loop.read(CLOSE)
        loop.read(LATE)
    assert loop.looks == 0


@needs_two
def test_few_looks_are_in_vain_when_the_traffic_changes(loop: Turns) -> None:
    for _ in range(1000):
        loop.read(CLOSE)
    before = loop.looks
    for _ in range(1000):
        loop.read(LATE)
    in_vain = (loop.looks - before) / (SECONDS / (CLOSE / 2))
    assert in_vain <= GAINED_MOST / WORTH


@needs_two
def test_devices_that_wait_for_no_answer_are_looked_for_now_and_then(loop: Turns) -> None:
    """Their reads come as close on one another, looked for or not."""
    looked = 0
    for _ in range(100 * SAMPLE):
        before = loop.looks
        loop.read(0.9 * SECONDS)
        looked += loop.looks > before
    assert 2 * SAMPLE < looked < 6 * SAMPLE


@needs_two
def test_who_speaks_sooner_when_it_is_heard_sooner_is_looked_for(loop: Turns) -> None:
    looked = 0
    for _ in range(100 * SAMPLE):
        before = loop.looks
        loop.read(CLOSE * 2 if loop.looking else CLOSE * 3)
        looked += loop.looks > before
    assert looked > 90 * SAMPLE
    for _ in range(AGAIN * SAMPLE + 3 * SAMPLE):  # no more
        loop.read(CLOSE * 2)
    assert not loop.looking


@needs_two
def test_other_traffic_is_tried_at_once(loop: Turns) -> None:
    """Behind callers come devices: what was gained from those is no reason to look for these."""
    for _ in range(3 * SAMPLE):
        loop.read(CLOSE * 2 if loop.looking else CLOSE * 3)
    assert loop.looking
    looked = 0
    for _ in range(20 * SAMPLE):
        before = loop.looks
        loop.read(0.9 * SECONDS)
        looked += loop.looks > before
    assert looked < 3 * SAMPLE


@needs_two
def test_while_somebody_waits_for_the_disk_it_rests(loop: Turns) -> None:
    for _ in range(GAINED_MOST):
        loop.read(CLOSE)
    loop.poll.rest()
    for _ in range(WANTED):
        loop.read(CLOSE)
    assert not loop.looking


def test_none_never_looks() -> None:
    loop = Turns(0.0)
    for _ in range(1000):
        loop.read(0.0)
    assert not loop.looking


@contextmanager
def one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def test_on_a_single_core_nobody_looks() -> None:
    with one_core():
        assert Turns().poll.seconds == 0.0


def test_reads_far_apart_come_alone(loop: Turns) -> None:
    assert all(loop.read(LATE) for _ in range(10))


def test_of_many_in_one_turn_none_is_alone(loop: Turns) -> None:
    loop.together(5)
    for _ in range(3):
        loop.read(LATE, caused=False)
        assert not any(loop.together(5))


def test_one_behind_many_is_alone_from_its_second_turn_on(loop: Turns) -> None:
    loop.together(5)
    assert not loop.read(LATE)
    assert loop.read(LATE)


def test_what_causes_nothing_keeps_nobody_from_being_alone(loop: Turns) -> None:
    for _ in range(10):
        assert loop.read(LATE)  # a message
        loop.read(CLOSE, caused=False)  # its acknowledgement


@needs_two
def test_while_it_looks_each_look_is_a_turn(loop: Turns) -> None:
    """Two who answer one another at once: each read is alone, however close."""
    for _ in range(WANTED + 3):
        loop.read(CLOSE)
    assert loop.looking
    assert all(loop.read(CLOSE) for _ in range(10))
