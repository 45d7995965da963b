"""What processes of one hub answer one another, beside the messages on the same way."""

from __future__ import annotations

import asyncio

import pytest

from hubbub.core.limits import LINK_CHOKED, MIB
from hubbub.runtime import siblings
from hubbub.runtime.siblings import Siblings
from tests.cluster.world import World

NAMES = ("a", "b")
LONG = bytes(range(256)) * (3 * MIB // 256)


class Pair:
    """Two processes. `most`: bytes that were on the way at once; `loses`: which pieces of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, loses: tuple[int, ...] = ()) -> None:
        self.world, self.most, self.frames = World(names=NAMES), 0, 0
        self.world.meet()
        self._loses = loses
        self.a, self.b = (
            Siblings(self.world.members[name], number, NAMES, {"long": self.say})
            for number, name in enumerate(NAMES, 1)
        )
        monkeypatch.setattr(self.world.lines("b"), "waiting", self._waiting)

    async def say(self, given: bytes) -> bytes:
        return given * (3 * MIB // 256)

    def _waiting(self, node: str = "") -> int:
        return sum(map(len, self.world.lines("b").lines["a"]))

    async def ask(self, given: bytes) -> dict[int, bytes]:
        """As `say`, while the world carries what is on the way."""
        asks = asyncio.create_task(self.a.say({2: given}, "long"))
        while not asks.done():
            self.world.tick()
            self.most = max(self.most, self._waiting())
            line = self.world.lines("b").lines["a"]
            if line:
                self.frames += 1
                if self.frames in self._loses:
                    line.popleft()
            self.world.carry()
            await asyncio.sleep(0)
        return asks.result()


async def test_a_long_answer_leaves_room_for_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    assert await pair.ask(bytes(range(256))) == {2: LONG}
    assert 0 < pair.most < LINK_CHOKED // 2, "messages are dropped over a MiB"


async def test_an_answer_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await Pair(monkeypatch).ask(b"") == {2: b""}


async def test_an_answer_that_lost_a_piece_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(siblings, "ANSWER_SECONDS", 0.5)
    assert await Pair(monkeypatch, loses=(1,)).ask(bytes(range(256))) == {}
