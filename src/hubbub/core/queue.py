"""A named queue: messages stay until they are acknowledged. Read by cursor or by lease.

    ids       0 … oldest … newest, next      durable, per queue, never reused
    readers   see every message above their cursor and are told when one comes (`Reader`)
    consumers compete: a message is leased to one of them at a time

The first acknowledgement wins, whoever gives it. The messages lie in the log; the queue holds
their seqs. Everything here is called by the broker, live and in the fold; no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mypy_extensions import mypyc_attr

from hubbub.core.message import Run
from hubbub.core.rights import Rights
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import QUEUE

PROTOCOL = "queue"  # what the protocol column says where the client is a queue


@mypyc_attr(allow_interpreted_subclasses=True)
class Reader:
    """Someone who waits at one or several queues for anything above a cursor."""

    def arrived(self, queue: Queue) -> None:
        """A message came in. Called in the publish itself: be quick, do not publish."""


Entrance = Callable[["Queue", Run, Subscription], None]


class Queue(Session):
    """`messages`: id -> seq, ids ascending. `owner` "" = persistent, else it goes with its owner.

    `polled` is when (monotonic seconds) the last reader said it would wait until, None = nobody
    ever read. `leased`: id -> the consumer that has the message. `enter` writes the rows of what
    comes in; the broker sets it.
    """

    def __init__(self, name: str, first: int, owner: str) -> None:
        super().__init__(PROTOCOL, QUEUE + name, Rights())
        self.name = name
        self.next = first
        self.owner = owner
        self.messages: dict[int, int] = {}
        self.bindings: dict[str, int] = {}
        self.readers: dict[Reader, None] = {}
        self.polled: float | None = None
        self.consumers: deque[Subscription] = deque()
        self.waiting: deque[int] = deque()
        self.leased: dict[int, Session] = {}
        self.enter: Entrance | None = None

    def add(self, number: int, seq: int) -> None:
        """A message comes in; a second time (snapshot, then its own row) changes nothing."""
        if number in self.messages:
            return
        self.messages[number] = seq
        self.waiting.append(number)
        self.next = max(self.next, number + 1)

    def remove(self, number: int) -> int:
        """Forget a message; return its seq, 0 if it was not there."""
        seq = self.messages.pop(number, 0)
        self.next_waiting()  # lets go of what lies before it: nobody else may ever ask
        consumer = self.leased.pop(number, None)
        if consumer is not None:
            consumer.leases.pop(seq, None)
        return seq

    def above(self, cursor: int) -> list[int]:
        """Ids above the cursor, newest first."""
        found: list[int] = []
        for number in reversed(self.messages):
            if number <= cursor:
                break
            found.append(number)
        return found

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """What was published to the queue or to a topic it is bound to comes in."""
        assert self.enter is not None, "the broker adopts a queue before it routes to it"
        self.enter(self, run, subscription)

    def next_consumer(self, number: int) -> Subscription | None:
        """Who gets a message: the consumers in turn, but for those without room.

        A consumer that has the same message from another queue must be done with it first.
        """
        seq = self.messages[number]
        for _ in range(len(self.consumers)):
            self.consumers.rotate(-1)
            session = self.consumers[-1].session
            if session.ready() and seq not in session.leases:
                return self.consumers[-1]
        return None

    def next_waiting(self) -> int:
        """The oldest message nobody holds, or -1."""
        while self.waiting:
            number = self.waiting[0]
            if number in self.messages:
                return number
            self.waiting.popleft()
        return -1

    def give_back(self, session: Session) -> None:
        """A consumer left: what it held waits again, before everything else."""
        mine = [number for number, holder in self.leased.items() if holder is session]
        for number in mine:
            del self.leased[number]
            session.leases.pop(self.messages.get(number, 0), None)
        self.waiting.extendleft(sorted(mine, reverse=True))
