"""What was published before, for the subscriptions and requests that ask for it.

    question → its turn → all rows made so far are durable → the child looks → pieces

One child process of the hub reads the journal (`journal.history`): it starts with the first
question and ends after HISTORY_IDLE seconds without one. Users take turns, so who asks much waits
for itself. What comes to a subscription is given as fast as its reader takes it, a piece in one
turn of the loop; messages that are published meanwhile come as they would without a past. Made by
the node; the web application asks it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.broker import Broker
from hubbub.core.limits import (
    HISTORY_ASKED,
    HISTORY_IDLE,
    HISTORY_MESSAGES,
    HISTORY_SECONDS,
    SHARE,
    STALLED_SECONDS,
)
from hubbub.core.metrics import Histogram
from hubbub.core.past import Archive, Past, may_have, take
from hubbub.core.session import Session, Subscription
from hubbub.errors import HubbubError
from hubbub.journal import frame
from hubbub.journal.question import PIECE, Question
from hubbub.schema import Row

log = logging.getLogger("hubbub.archive")

PATIENCE: Final = HISTORY_SECONDS + 10.0  # to start, look and answer, on a busy machine
WAIT_SECONDS: Final = 0.05  # from one look at a reader that takes no more to the next
DURABLE_SECONDS: Final = 0.01  # the same at the disk


class Answer(NamedTuple):
    """What was found, in frames of some hundred rows each, oldest first. `complete` and `reaches`
    as `journal.history.Found` has them.
    """

    frames: list[bytes]
    complete: bool
    reaches: int

    def rows(self) -> Iterator[list[Row]]:
        """Decoded one by one: each is what a turn of the loop can take."""
        return (frame.decode(memoryview(one), 0) for one in self.frames)


class _Child:
    """The process that reads, and the socket to it."""

    def __init__(self, directory: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                command = [sys.executable, "-P", "-m", "hubbub.journal.history"]
                self.process = subprocess.Popen(
                    [*command, str(directory), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),),
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self._socket)

    async def ask(self, question: Question) -> Answer:
        self.writer.write(json.dumps(question._asdict()).encode() + b"\n")
        frames: list[bytes] = []
        while True:
            end, size = PIECE.unpack(await self.reader.readexactly(PIECE.size))
            data = await self.reader.readexactly(size)
            if not end:
                frames.append(data)
                continue
            said = json.loads(data)
            if "error" in said:
                raise HubbubError(said["error"])
            return Answer(frames, said["complete"], said["reaches"])

    def end(self) -> None:
        """It ends with its socket; one that does not listen is ended."""
        with contextlib.suppress(AttributeError):
            self.writer.close()
        self._socket.close()
        self.process.kill()
        self.process.wait()


class _Turns:
    """One at a time; of several users each in turn. `waiting` counts who waits, by user."""

    def __init__(self) -> None:
        self._taken = False
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    async def begin(self, whose: str) -> None:
        if not self._taken:
            self._taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        self._queues.setdefault(whose, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end()
            raise

    def end(self) -> None:
        while self._queues:
            whose = next(iter(self._queues))
            queue = self._queues.pop(whose)
            turn = queue.popleft()
            if queue:
                self._queues[whose] = queue  # behind the others
            if not turn.done():
                turn.set_result(None)
                return
        self._taken = False


class JournalArchive(Archive):
    """The history that a journal keeps. `schedule()` has the tick write what was given.

    `seconds`: how long questions took, their turn included.
    """

    def keeps(self) -> bool:
        return True

    def __init__(self, broker: Broker, directory: Path, schedule: Callable[[], None]) -> None:
        self._broker = broker
        self._schedule = schedule
        self._directory = directory
        self._turns = _Turns()
        self._child: _Child | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._asked: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.seconds = Histogram()

    def lacks(self, session: Session) -> str:
        own = self._asked.get(session.payer, 0)
        if sum(self._asked.values()) >= HISTORY_ASKED:
            return f"{HISTORY_ASKED} questions about history are open: ask again"
        if own >= HISTORY_ASKED // SHARE:
            return f"{own} questions of one user about history are open: ask again"
        return ""

    def recall(self, subscription: Subscription, past: Past) -> None:
        session, name = subscription.session, subscription.filter
        asked = self._question(name, subscription.literal, past)
        opened = self._open(session.payer)  # counted now: one packet may bring many
        opened.__enter__()
        task = asyncio.get_running_loop().create_task(self._recall(subscription, asked))
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            opened.__exit__(None, None, None)
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("%s: no history of %r: %s", session.client, name[:80], error)

        task.add_done_callback(over)

    async def _recall(self, subscription: Subscription, asked: Question) -> None:
        broker = self._broker
        answer = await self._find(subscription.session.payer, asked)
        for rows in answer.rows():
            await self._hungry(subscription)
            now = broker.clock.stamp()
            for row in rows:
                take(subscription, row, now, broker.open)
            self._schedule()
            await asyncio.sleep(0)

    async def _hungry(self, subscription: Subscription) -> None:
        """Wait until its reader has room. HubbubError if it takes nothing, or has gone."""
        session, waited = subscription.session, 0.0
        while not session.hungry():
            gone = session.subscriptions.get(subscription.filter) is not subscription
            if gone or waited > STALLED_SECONDS:
                raise HubbubError("its reader takes no more")
            await asyncio.sleep(WAIT_SECONDS)
            waited += WAIT_SECONDS

    async def find(self, session: Session, name: str, literal: bool, past: Past) -> Answer:
        """What was published there. Rights were asked for the filter, not for each name.

        HubbubError if it cannot be read now.
        """
        with self._open(session.payer):
            return await self._find(session.payer, self._question(name, literal, past))

    def may_have(self, session: Session, name: str) -> bool:
        return may_have(session, name, self._broker.open)

    def _question(self, name: str, literal: bool, past: Past) -> Question:
        """Of what was published before now; what comes later is no history."""
        last = past.last or HISTORY_MESSAGES
        return Question(name, literal, last, past.since, self._broker.log.position)

    @contextlib.contextmanager
    def _open(self, whose: str) -> Iterator[None]:
        asked = self._asked
        asked[whose] = asked.get(whose, 0) + 1
        try:
            yield
        finally:
            asked[whose] -= 1
            if not asked[whose]:
                del asked[whose]

    async def _find(self, whose: str, asked: Question) -> Answer:
        clock = self._broker.clock
        began = clock.now()
        await self._turns.begin(whose)
        try:
            async with asyncio.timeout(PATIENCE):
                while self._broker.log.durable < asked.upto:
                    await asyncio.sleep(DURABLE_SECONDS)
                return await self._ask(asked)
        except TimeoutError:
            self._end_child()
            raise HubbubError(f"the journal did not answer in {PATIENCE:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            self._end_child()
            raise HubbubError(f"the process that reads the journal ended: {error}") from None
        except asyncio.CancelledError:
            self._end_child()  # its answer would be taken for the next one's
            raise
        finally:
            self.seconds.add(clock.now() - began)
            self._turns.end()

    async def _ask(self, question: Question) -> Answer:
        if self._idle is not None:
            self._idle.cancel()
        if self._child is None:
            child = self._child = _Child(self._directory)
            await child.open()
        answer = await self._child.ask(question)
        loop = asyncio.get_running_loop()
        self._idle = loop.call_later(HISTORY_IDLE, self._end_child)
        return answer

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()

    async def close(self) -> None:
        """The hub is stopping: who still asks gets no answer."""
        for task in list(self._tasks):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
        if self._idle is not None:
            self._idle.cancel()
        self._end_child()
