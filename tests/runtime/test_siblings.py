"""What processes of one hub answer one another, beside the messages on the same way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from starlette.exceptions import HTTPException

from hubbub.cluster.node import Node
from hubbub.core.broker import Broker
from hubbub.core.limits import LINK_CHOKED, MIB
from hubbub.core.session import Session
from hubbub.runtime.siblings import ANSWER_SECONDS, Siblings
from hubbub.web.guarded import MISTAKE
from hubbub.web.together import Done, Together
from tests.clients import PATIENCE
from tests.cluster.world import World

T = TypeVar("T")

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

    async def ask(self, given: bytes, seconds: float = PATIENCE) -> dict[int, bytes]:
        return await self.carried(self.a.say({2: given}, "long", seconds))

    async def carried(self, asked: Coroutine[Any, Any, T]) -> T:
        """Its result, while the world carries what is on the way."""
        asks = asyncio.create_task(asked)
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
    assert await Pair(monkeypatch, loses=(1,)).ask(bytes(range(256)), 0.5) == {}


class Process:
    """What a deed needs of one."""

    def __init__(self, siblings: Siblings) -> None:
        self.siblings = siblings


async def nothing(given: dict[str, str], asks: Session) -> None:
    """It is not here."""


async def never() -> None:
    """Nothing was done here that were to be durable."""


async def slow(given: dict[str, str], asks: Session) -> dict[str, str]:
    await asyncio.sleep(ANSWER_SECONDS + 0.2)
    return given


def together(siblings: Siblings, deed: Any, broker: Broker) -> Together:
    process: Any = Process(siblings)
    process.broker = broker
    made = Together(process, never)
    made.deeds["empty"] = deed
    siblings._says = made.said()
    return made


async def test_what_is_to_be_done_may_take_longer_than_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair(monkeypatch)
    asks, does = pair.world.client("a", "ann"), pair.world.members["b"].broker
    together(pair.b, slow, does)
    first = together(pair.a, nothing, does)
    done = await pair.carried(first.do("empty", {"name": "jobs"}, asks))
    assert done == Done({"name": "jobs"})


async def broken(given: dict[str, str], asks: Session) -> dict[str, str]:
    raise ZeroDivisionError


async def short_of_copies(given: dict[str, str], asks: Session) -> dict[str, str]:
    raise HTTPException(503, "no quorum")


@pytest.mark.parametrize(
    ("deed", "status", "said"), [(broken, 500, MISTAKE), (short_of_copies, 503, "no quorum")]
)
async def test_what_fails_there_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, deed: Any, status: int,
    said: str,
) -> None:  # fmt: skip
    """Who asked waited for a minute, and was told that the process does not answer."""
    pair = Pair(monkeypatch)
    asks, does = pair.world.client("a", "ann"), pair.world.members["b"].broker
    together(pair.b, deed, does)
    first = together(pair.a, nothing, does)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(HTTPException) as failed:
            await pair.carried(first.do("empty", {"name": "jobs"}, asks))
    assert (failed.value.status_code, failed.value.detail) == (status, said)
    assert ("ZeroDivisionError" in caplog.text) == (deed is broken)


@pytest.mark.parametrize("back", [False, True])
async def test_who_goes_meanwhile_is_waited_for_no_more(
    monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    """Nor is who is back by then: the question died with its process, and a minute was waited."""
    pair = Pair(monkeypatch, loses=tuple(range(1, 50)))

    async def go() -> None:
        await asyncio.sleep(0.1)
        nodes = pair.world.members["a"].nodes
        was = nodes.pop("b")
        if back:
            nodes["b"] = Node(was.membership, "b", was.estate, was.boot + 1, 0, 0)

    going = asyncio.create_task(go())
    async with asyncio.timeout(PATIENCE):
        assert await pair.ask(b"x", 10 * PATIENCE) == {}
    await going
