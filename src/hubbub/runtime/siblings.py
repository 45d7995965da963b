"""What one of several processes says for all: it asks the others, over the frames of the cluster.

    GET /metrics ──> process 1 ── Question ──> process 2          one question, one answer each,
                               <── Answer, Answer … ──            in pieces; who is silent is said
                                                                  to be

`server` makes one for each process of a hub; a node of another cluster is asked nothing. The web
application says what can be asked, and asks: all of them, or the one that has something.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from hubbub.cluster.frames import Answer, Question
from hubbub.cluster.membership import Membership
from hubbub.cluster.node import Node
from hubbub.core.limits import KIB, MIB

Says = Callable[[bytes], Awaitable[bytes]]  # takes what the question is about

ANSWER_SECONDS: Final = 2.0  # for an answer; a process that hangs is told as silent
DEED_SECONDS: Final = 60.0  # the same for what it is to do: to empty a queue of millions
LOOK_SECONDS: Final = 0.2  # from one look to the next, whether who is asked is there
ANSWER_BYTES: Final = 16 * MIB  # it goes between messages to the same process: a second
PIECE_BYTES: Final = 128 * KIB  # of one at a time: over a MiB on the way messages are dropped
PAUSE_SECONDS: Final = 0.001  # from one look to the next, whether there is room for a piece

log = logging.getLogger("hubbub.processes")


class _Awaited:
    """An answer of which some pieces may be here."""

    __slots__ = ("future", "pieces")

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future
        self.pieces: list[bytes] = []

    def take(self, answer: Answer) -> None:
        """One of which a piece was lost on the way is never whole: who waits is told nothing."""
        self.pieces.append(answer.data)
        if sum(map(len, self.pieces)) == answer.whole and not self.future.done():
            self.future.set_result(b"".join(self.pieces))


class Siblings:
    """`number`: of this process, from 1; `names`: what all of them are called as nodes; `says`:
    what each can be asked.
    """

    def __init__(
        self, membership: Membership, number: int, names: tuple[str, ...],
        says: Mapping[str, Says],
    ) -> None:  # fmt: skip
        self.number = number
        self.names = names
        self._membership = membership
        self._says = says
        self._asked = 0
        self._waiting: dict[tuple[str, int], _Awaited] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._turns = {name: asyncio.Lock() for name in names}
        membership.questioned, membership.answered = self._answer, self._heard

    @property
    def place(self) -> str:
        return f"{self.number} of {len(self.names)}"

    @property
    def numbers(self) -> range:
        return range(1, len(self.names) + 1)

    @property
    def others(self) -> list[int]:
        return [number for number in self.numbers if number != self.number]

    async def all_say(self, what: str, given: bytes = b"") -> dict[int, bytes]:
        """By number, of those that answer."""
        return await self.say(dict.fromkeys(self.numbers, given), what)

    async def say(
        self, asked: Mapping[int, bytes], what: str, seconds: float = ANSWER_SECONDS
    ) -> dict[int, bytes]:
        """The same of some of them, each about something else."""
        self._asked += 1
        number, futures, lives = self._asked, {}, {}
        loop = asyncio.get_running_loop()
        for one, given in asked.items():
            name = self.names[one - 1]
            # One that has just come hears nothing of us before it knows us.
            if one != self.number and self._membership.met(name):
                self._membership.tell(name, Question(number, what, given))
                futures[one] = loop.create_future()
                lives[one] = self._membership.nodes[name]
                self._waiting[name, number] = _Awaited(futures[one])
        said = {}
        try:
            if self.number in asked:
                said[self.number] = await self._says[what](asked[self.number])
            await self._wait(futures, lives, loop.time() + seconds)
        finally:  # who asked may have gone
            for one in futures:
                self._waiting.pop((self.names[one - 1], number), None)
        said |= {one: future.result() for one, future in futures.items() if future.done()}
        return dict(sorted(said.items()))

    async def _wait(
        self, futures: Mapping[int, asyncio.Future[bytes]], lives: Mapping[int, Node], until: float
    ) -> None:
        """For those that are there, and do not go meanwhile: who is back was not asked."""
        loop, there = asyncio.get_running_loop(), self._membership.nodes
        while (left := until - loop.time()) > 0:
            open_ = [
                future for one, future in futures.items()
                if not future.done() and there.get(self.names[one - 1]) is lives[one]
            ]  # fmt: skip
            if not open_:
                return
            await asyncio.wait(open_, timeout=min(left, LOOK_SECONDS))

    def _answer(self, name: str, question: Question) -> None:
        """Another process asks."""
        if name in self.names and question.what in self._says:
            task = asyncio.get_running_loop().create_task(self._say(name, question))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _say(self, name: str, question: Question) -> None:
        data = await self._says[question.what](question.given)
        if len(data) > ANSWER_BYTES:
            log.warning("an answer of %d bytes is too long for another process", len(data))
            return
        with contextlib.suppress(TimeoutError):  # who asked has given up
            async with asyncio.timeout(ANSWER_SECONDS), self._turns[name]:
                await self._tell(name, question.number, data)

    async def _tell(self, name: str, number: int, data: bytes) -> None:
        """As there is room beside the messages on the same way."""
        for at in range(0, len(data) or 1, PIECE_BYTES):
            while not self._has_room(name):
                await asyncio.sleep(PAUSE_SECONDS)
            piece = data[at : at + PIECE_BYTES]
            self._membership.tell(name, Answer(number, piece, len(data)))

    def _has_room(self, name: str) -> bool:
        """All that was told before is with the engine, and that has few of it left."""
        membership = self._membership
        node = membership.nodes.get(name)
        return node is None or not (node.link.out or membership.engine.waiting(name) > PIECE_BYTES)

    def _heard(self, name: str, answer: Answer) -> None:
        awaited = self._waiting.get((name, answer.number))
        if awaited is not None:
            awaited.take(answer)
