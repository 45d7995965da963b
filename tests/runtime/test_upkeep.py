"""How often a segment ends early for a fold, on a disk that is short of room."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import cast

from hubbub.core.clock import Clock
from hubbub.journal.writer import Journal
from hubbub.runtime.upkeep import (
    EARLY_DOUBLED,
    EARLY_PAUSE,
    EARLY_SHARE,
    EARLY_VAIN,
    RETRY_SECONDS,
    Upkeep,
)

SEGMENT = 1_000
NOTHING = [sys.executable, "-c", ""]  # for a fold


class StillClock(Clock):
    time = 1_000.0

    def now(self) -> float:
        return self.time


class ShortJournal:
    """One that always has something to fold, if a segment ends. `gain`: what each fold gives."""

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock
        self.shortage = "short"
        self.room = SimpleNamespace(free=10 * SEGMENT, segment_bytes=SEGMENT)
        self.disk = SimpleNamespace(full=False)
        self.gain = 0
        self.took = 0.0
        self.ended: list[float] = []
        self.folded: list[float] = []
        self.finished = False

    def roll_due(self) -> list[str] | None:
        return NOTHING if self.finished else None

    def early_end_due(self) -> bool:
        return self.shortage != ""

    def wants_room(self) -> bool:
        return self.shortage != ""

    def end_early(self) -> None:
        self.ended.append(self.clock.time)
        self.finished = True

    def rolled(self, complete: bool) -> None:
        self.finished = False
        self.room.free += self.gain
        self.clock.time += self.took
        self.folded.append(self.clock.time)

    def roll_ended(self, complaint: str) -> None:
        assert not complaint


async def pauses(journal: ShortJournal, upkeep: Upkeep, count: int) -> list[float]:
    """From the end of each fold to the next early end of a segment."""
    given = cast(Journal, journal)
    begun = len(journal.ended)
    while len(journal.ended) <= begun + count:
        upkeep.roll(given)
        while upkeep.folding:
            await asyncio.sleep(0.01)
        journal.clock.time += not journal.finished
    return [end - fold for fold, end in zip(journal.folded, journal.ended[1:], strict=True)][begun:]


async def test_folds_that_give_nothing_back_get_rare() -> None:
    clock = StillClock()
    journal, upkeep = ShortJournal(clock), Upkeep(clock)
    found = await pauses(journal, upkeep, EARLY_VAIN + EARLY_DOUBLED + 2)
    assert found[: EARLY_VAIN + 1] == [EARLY_PAUSE] * (EARLY_VAIN + 1)
    doubled = [EARLY_PAUSE * 2**times for times in range(1, EARLY_DOUBLED + 1)]
    assert found[EARLY_VAIN + 1 :] == [*doubled, doubled[-1]]


async def test_folds_that_give_room_back_go_on_at_their_pace() -> None:
    clock = StillClock()
    journal, upkeep = ShortJournal(clock), Upkeep(clock)
    journal.gain, journal.took = SEGMENT, 20.0
    assert await pauses(journal, upkeep, 8) == [EARLY_SHARE * journal.took] * 8


async def test_where_there_was_room_meanwhile_all_begins_again() -> None:
    clock = StillClock()
    journal, upkeep = ShortJournal(clock), Upkeep(clock)
    await pauses(journal, upkeep, EARLY_VAIN + EARLY_DOUBLED)
    journal.shortage, given = "", cast(Journal, journal)
    for _ in range(2):  # of these the first folds what has ended
        upkeep.roll(given)
        while upkeep.folding:
            await asyncio.sleep(0.01)
    journal.shortage = "short"
    assert (await pauses(journal, upkeep, 2))[-2:] == [EARLY_PAUSE] * 2


async def test_a_fold_that_found_no_room_is_tried_again_when_there_is_more() -> None:
    clock = StillClock()
    journal, upkeep = ShortJournal(clock), Upkeep(clock)
    complaints: list[str] = []
    fails = [sys.executable, "-c", "raise SystemExit(1)", "the fold"]
    journal.roll_due = lambda: fails  # type: ignore[method-assign]
    journal.roll_ended = complaints.append  # type: ignore[method-assign,assignment]

    async def rolls() -> int:
        upkeep.roll(cast(Journal, journal))
        while upkeep.folding:
            await asyncio.sleep(0.01)
        return len(complaints)

    assert await rolls() == 1
    clock.time += 1
    assert await rolls() == 1, "nothing has changed"
    journal.room.free += SEGMENT
    assert await rolls() == 2
    assert await rolls() == 2, "it has not more than that one found"
    clock.time += RETRY_SECONDS
    assert await rolls() == 3
    journal.shortage = ""
    journal.room.free += SEGMENT
    assert await rolls() == 4
    journal.room.free += SEGMENT
    assert await rolls() == 4, "it did not fail for want of room"
