"""What was published before, for the subscriptions and requests that ask for it.

    question → its turn → all rows made so far are durable → the child looks → pieces

A question is open from when its right was asked until its answer is given, sent or nobody's: so the
bound on open ones holds for a packet that brings thousands, and for who does not read. While all
are taken, who reads nothing for HISTORY_STALLED makes room.

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
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.core.broker import Broker
from hubbub.core.limits import (
    HISTORY_ASKED,
    HISTORY_IDLE,
    HISTORY_MESSAGES,
    HISTORY_SECONDS,
    HISTORY_STALLED,
    SHARE,
    STALLED_SECONDS,
    TURN_SECONDS,
)
from hubbub.core.metrics import Histogram
from hubbub.core.past import Archive, Past, may_have, take
from hubbub.core.rights import RECEIVE
from hubbub.core.session import Session, Subscription
from hubbub.errors import HubbubError
from hubbub.journal import frame
from hubbub.journal.question import NAMES, NO, PIECE, ROWS, YES, Question
from hubbub.runtime.child import environment
from hubbub.schema import Row, name_of

log = logging.getLogger("hubbub.archive")

PATIENCE: Final = HISTORY_SECONDS + 10.0  # to start, look and answer, on a busy machine
WAIT_SECONDS: Final = 0.05  # from one look at a reader that takes no more to the next
DURABLE_SECONDS: Final = 0.01  # the same at the disk
GONE: Final = "who asked has gone"

MayHave = Callable[[str], bool]


class Answer(NamedTuple):
    """What was found, in frames of some hundred rows each, oldest first. `complete`, `reaches` and
    `damaged` as `journal.history.Found` has them.
    """

    frames: deque[bytes]
    complete: bool
    reaches: int
    damaged: int

    def rows(self) -> Iterator[list[Row]]:
        """Decoded one by one, and let go: each is what a turn of the loop can take."""
        while self.frames:
            yield frame.decode(memoryview(self.frames.popleft()), 0)


class _Child:
    """The process that reads, and the socket to it."""

    def __init__(self, directory: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                command = [sys.executable, "-P", "-m", "hubbub.journal.history"]
                self.process = subprocess.Popen(
                    [*command, str(directory), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), env=environment(),
                )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        self._socket = ours
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self._socket)

    async def ask(self, question: Question, may_have: MayHave) -> Answer:
        self.writer.write(json.dumps(question._asdict()).encode() + b"\n")
        frames: deque[bytes] = deque()
        while True:
            kind, size = PIECE.unpack(await self.reader.readexactly(PIECE.size))
            data = await self.reader.readexactly(size)
            if kind == ROWS:
                frames.append(data)
                continue
            if kind == NAMES:
                self.writer.write(await _said(data.split(b"\0"), may_have))
                continue
            end = json.loads(data)
            if "error" in end:
                raise HubbubError(end["error"])
            return Answer(frames, end["complete"], end["reaches"], end["damaged"])

    def end(self) -> None:
        """It ends with its socket; one that does not listen is ended."""
        with contextlib.suppress(AttributeError):
            self.writer.close()
        self._socket.close()
        self.process.kill()
        self.process.wait()


def _may_have_one(session: Session, name: str) -> bool:
    """As `core.past.may_have`, of one of very many names: no verdict of theirs is kept, which would
    push out those of others.
    """
    return session.rights.ask(RECEIVE, name)


async def _said(names: list[bytes], may_have: MayHave) -> bytes:
    """Of each whether. Others have their turns: who asks may have a thousand rules, and each name
    is held against all of them.
    """
    said, until = bytearray(), time.monotonic() + TURN_SECONDS
    for name in names:
        said += YES if may_have(name_of(name)) else NO
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + TURN_SECONDS
    return bytes(said + b"\n")


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


class Place:
    """One of the questions that may be open, until `leave`; that may be called again."""

    def __init__(self, asked: dict[str, int], whose: str) -> None:
        self._asked, self._whose, self._taken = asked, whose, True
        asked[whose] = asked.get(whose, 0) + 1

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            self._asked[self._whose] -= 1
            if not self._asked[self._whose]:
                del self._asked[self._whose]


class _Entered(NamedTuple):
    """A subscription that begins in the past, its question, and when its client came."""

    subscription: Subscription
    question: Question
    place: Place
    came: int

    def gone(self) -> bool:
        """Whether nobody waits for this: it was replaced or ended, or its connection was."""
        subscription = self.subscription
        session = subscription.session
        there = session.subscriptions.get(subscription.filter) is subscription
        return not there or session.number == 0 or session.came != self.came

    async def left(self) -> bool:
        return self.gone()


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
        self._entered: dict[Subscription, _Entered] = {}  # what has no answer to its request yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[int] = set()  # damaged segments, of which the log has a line
        self.seconds = Histogram()

    def lacks(self, session: Session) -> str:
        for entered in [one for one in self._entered.values() if one.gone()]:
            del self._entered[entered.subscription]
            entered.place.leave()
        own = self._asked.get(session.payer, 0)
        if self._full():
            return f"{HISTORY_ASKED} questions about history are open: ask again"
        if own >= HISTORY_ASKED // SHARE:
            return f"{own} questions of one user about history are open: ask again"
        return ""

    def enter(self, subscription: Subscription, past: Past) -> None:
        """What is published from now on comes to it by itself, and is no history."""
        session = subscription.session
        asked = self._question(session, subscription.filter, subscription.literal, past)
        place = self.open(session)
        self._entered[subscription] = _Entered(subscription, asked, place, session.came)

    def recall(self, subscription: Subscription) -> None:
        entered = self._entered.pop(subscription, None)
        if entered is None:
            return  # its client had gone already
        task = asyncio.get_running_loop().create_task(self._recall(entered))
        self._tasks.add(task)

        def over(task: asyncio.Task[None]) -> None:
            entered.place.leave()
            self._tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                name, client = subscription.filter[:80], subscription.session.client
                log.warning("%s: no history of %r: %s", client, name, error)

        task.add_done_callback(over)

    async def _recall(self, entered: _Entered) -> None:
        broker, subscription = self._broker, entered.subscription
        answer = await self._find(subscription.session, entered.question, entered.left)
        for rows in answer.rows():
            await self._hungry(entered)
            now = broker.clock.stamp()
            for row in rows:
                take(subscription, row, now, broker.open)
            self._schedule()
            await asyncio.sleep(0)

    async def _hungry(self, entered: _Entered) -> None:
        """Wait until its reader has room. HubbubError if it takes nothing, or has gone."""
        waited = 0.0
        while not entered.gone() and not entered.subscription.session.hungry():
            if waited > (HISTORY_STALLED if self._full() else STALLED_SECONDS):
                raise HubbubError("its reader takes no more")
            await asyncio.sleep(WAIT_SECONDS)
            waited += WAIT_SECONDS
        if entered.gone():
            raise HubbubError(GONE)

    def _full(self) -> bool:
        return sum(self._asked.values()) >= HISTORY_ASKED

    def open(self, session: Session) -> Place:
        """Count one more question of it, which `lacks` nothing, until its answer is out of here."""
        return Place(self._asked, session.payer)

    async def find(
        self, session: Session, name: str, past: Past, left: Callable[[], Awaitable[bool]]
    ) -> Answer:
        """What was published there that the session may have; a place was taken (`open`). `left`:
        whether nobody waits for it any more.

        HubbubError if it cannot be read now.
        """
        return await self._find(session, self._question(session, name, False, past), left)

    def may_have(self, session: Session, name: str) -> bool:
        return may_have(session, name, self._broker.open)

    def _question(self, session: Session, name: str, literal: bool, past: Past) -> Question:
        """Of what was published before now; what comes later is no history."""
        last, broker = past.last or HISTORY_MESSAGES, self._broker
        return Question(
            name, literal, last, past.since, broker.log.position, broker.clock.stamp(),
            session.rights is not broker.open,
        )  # fmt: skip

    async def _find(
        self, session: Session, asked: Question, left: Callable[[], Awaitable[bool]]
    ) -> Answer:
        clock = self._broker.clock
        began = clock.now()
        await self._turns.begin(session.payer)
        try:
            if await left():
                raise HubbubError(GONE)
            async with asyncio.timeout(PATIENCE):
                while self._broker.log.durable < asked.upto:
                    await asyncio.sleep(DURABLE_SECONDS)
                answer = await self._ask_again(asked, partial(_may_have_one, session))
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
        self._tell(answer.damaged)
        return answer

    def _tell(self, damaged: int) -> None:
        if damaged and damaged not in self._told:
            self._told.add(damaged)
            log.warning(
                "history lacks rows: the segment that begins with row %d is damaged, see "
                "`hubbub journal verify`", damaged,
            )  # fmt: skip

    async def _ask_again(self, question: Question, may_have: MayHave) -> Answer:
        """Once more, if the process ended: what ended it may have been anything."""
        try:
            return await self._ask(question, may_have)
        except TimeoutError:
            raise
        except (OSError, asyncio.IncompleteReadError):
            self._end_child()
            return await self._ask(question, may_have)

    async def _ask(self, question: Question, may_have: MayHave) -> Answer:
        if self._idle is not None:
            self._idle.cancel()
        if self._child is None:
            child = self._child = _Child(self._directory)
            await child.open()
        answer = await self._child.ask(question, may_have)
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
