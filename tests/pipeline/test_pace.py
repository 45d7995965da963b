"""When a batch of few rows may follow the one before."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hubbub.errors import JournalError
from hubbub.pipeline import pace
from hubbub.pipeline.pace import FEW, IDLE, Pace


class World:
    """A clock that goes on only while somebody waits, a journal, and what processors did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, warm: bool = True) -> None:
        self.now = 1000.0
        self.spent: float | None = 50.0
        self.committed: Any = lambda: 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(pace, "COLD", 0 if warm else 3)
        journal = cast(Any, SimpleNamespace(committed=lambda: self.committed()))
        self.pace = Pace(journal, lambda: self.spent)
        monkeypatch.setattr(self.pace, "over", SimpleNamespace(wait=self._wait))

    def _wait(self, seconds: float) -> bool:
        assert self.now < 10_000, "it never ends"
        self.now += seconds
        return False

    def after(self, took: float, cost: float, seq: int = 0) -> float:
        """How long a batch is rested from that took so long and cost so much."""
        self.now += took
        if self.spent is not None:
            self.spent += cost
        begun = self.now
        self.pace.rest(seq)
        return self.now - begun


def test_few_rows_take_their_share_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.committed = lambda: 1
    for took, cost in ((0.4, 0.5), (0.2, 0.1), (3.0, 1.0)):
        begun = world.now
        world.after(took, cost)
        assert cost / (world.now - begun) == pytest.approx(pace.SHARE, rel=0.4)
        assert cost / (world.now - begun) <= pace.SHARE
    assert world.after(4.0, 9.0) == IDLE


def test_many_rows_never_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.committed = lambda: FEW + 7
    assert world.after(1.0, 2.0, seq=7) == 0
    assert world.after(1.0, 2.0, seq=8) == IDLE
    world.committed = lambda: 100 * (world.now - 1000)
    assert world.after(1.0, 2.0, seq=int(world.committed())) == 4


def test_what_comes_after_a_silence_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.committed = lambda: 1 if world.now >= 5000 else 0
    assert world.now + world.after(0, 0.5) == pytest.approx(5000, abs=pace.LOOK)


def test_a_start_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, warm=False)
    world.committed = lambda: 1
    assert [world.after(2.0, 4.0) for _ in range(4)] == [0, 0, 0, IDLE]


def test_where_nobody_says_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.committed = lambda: 1
    world.spent = None
    assert world.after(1.0, 1.0) == IDLE


def test_an_error_of_the_journal_is_left_to_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> int:
        raise JournalError("gone")

    world = World(monkeypatch)
    world.committed = gone
    assert world.after(1.0, 1.0) == 0


def test_the_end_ends_a_rest() -> None:
    journal = cast(Any, SimpleNamespace(committed=lambda: 0))
    resting = Pace(journal, lambda: 1.0)
    thread = threading.Thread(target=resting.rest, args=(0,))
    thread.start()
    resting.over.set()
    thread.join(30)
    assert not thread.is_alive()
