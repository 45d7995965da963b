"""A named queue: messages stay until they are acknowledged. Read by cursor or by lease.

    ids       0 … oldest … newest, next      durable, per queue, never reused
    readers   see every message above their cursor and are told when one comes (`Reader`)
    consumers compete: a message is leased to one of them at a time

The first acknowledgement wins, whoever gives it. The messages lie in the log; the queue holds
their seqs. Everything here is called by the broker, live and in the fold; no I/O.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from hubbub.core.message import Message, Run
from hubbub.core.rights import CONSUME, Rights
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import QUEUE

PROTOCOL = "queue"  # what the protocol column says where the client is a queue
SPARSE = 1_024  # entries of messages that are gone, before it is worth the time to drop them


class QueueSettings(NamedTuple):
    """What was asked of one queue; 0 and "" ask for nothing.

    `max_messages` and `max_bytes` (of payloads) bound what waits to be acknowledged. A message
    ends after `expires` seconds. A reader has a message for `lease` seconds, and nobody else has
    it meanwhile; after `max_deliveries` leases without an acknowledgement it is given up.
    What expires or is given up goes into the queue `dead_letter`.
    """

    max_messages: int = 0
    max_bytes: int = 0
    expires: float = 0.0
    lease: float = 0.0
    max_deliveries: int = 0
    dead_letter: str = ""


PLAIN = QueueSettings()


@mypyc_attr(allow_interpreted_subclasses=True)
class Reader:
    """Someone who waits at one or several queues for anything above a cursor."""

    def arrived(self, queue: Queue) -> None:
        """A message came in. Called in the publish itself: be quick, do not publish."""


Entrance = Callable[["Queue", Run, Subscription], None]


# A message in a queue: its seq in the log, its id, the bytes of its payload.
Entry = tuple[int, int, int]


@mypyc_attr(allow_interpreted_subclasses=True)
class Queue(Session):
    """`messages`: id -> seq, ids ascending. `owner` "" = persistent, else it goes with its owner.

    `maker` is the session that a queue with an owner was made for, while that is connected, and
    `user` whose it was: they may do with it what they like. `polled` is when (monotonic seconds)
    the last reader said it would wait until, None = nobody ever read; `read` says so over a
    restart. `leased`: id -> the consumer that has the message, `ends`: id -> when that is over
    (monotonic seconds), soonest first, if it ever is; `aside`: ids of messages that none of its
    present consumers can take, out of the way of the others; `delivered`: id -> how often it was
    leased, if that is counted; `answers`: id -> the row of the answer that a queue has, which ends
    it at the start after a crash. `expiring`: a heap of (UTC microseconds, id); `held`: id -> when
    it has expired, of what somebody has still. `bytes` are those of the payloads. `enter` writes
    the rows of what comes in; the broker sets it. `row` is the seq
    of the row that made it, 0 if that was before a start; `began` is when (microseconds since
    1970), 0 where a hub that was alone made it.

    The arrays hold the same messages in order, so that a cursor finds its place; ids ascend, and
    so do seqs. Of the first `_head` all are gone, of the others some.
    """

    def __init__(self, name: str, first: int, owner: str) -> None:
        super().__init__(PROTOCOL, QUEUE + name, Rights())
        self.name = name
        self.next = first
        self.owner = owner
        self.maker: Session | None = None
        self.user = ""
        self.settings = PLAIN
        self.messages: dict[int, int] = {}
        self.bytes = 0
        self.bindings: dict[str, int] = {}
        self.readers: dict[Reader, None] = {}
        self.polled: float | None = None
        self.read = False
        self.consumers: deque[Subscription] = deque()
        self.waiting: deque[int] = deque()
        self.aside: list[int] = []
        self.leased: dict[int, Session] = {}
        self.ends: dict[int, float] = {}
        self.delivered: dict[int, int] = {}
        self.answers: dict[int, int] = {}
        self.expiring: list[tuple[int, int]] = []
        self.held: dict[int, int] = {}
        self.enter: Entrance | None = None
        self.row = 0
        self.began = 0
        self.payer = ""  # for whom it counts
        self.binders: dict[str, str] = {}  # and for whom each filter that somebody bound
        self._ids = array("q")
        self._seqs = array("q")
        self._sizes = array("q")
        self._head = 0

    def made_for(self, maker: Session | None) -> None:
        """It is the session's, with its rights: what a binding brings is for nobody else."""
        self.maker = maker
        if maker is not None:
            self.rights = maker.rights

    def takers(self) -> int:
        """How many take from it now."""
        return len(self.readers) + len(self.consumers)

    def consumers_here(self) -> int:
        """How many of its consumers are connected."""
        return sum(one.session.number != 0 for one in self.consumers)

    def room(self, most: int, largest: int) -> int:
        """How many more it takes, by bounds of the hub and its own. With room for bytes left, any
        size fits.
        """
        messages, room = self.rooms(most, largest)
        return messages if messages > 0 and room > 0 else 0

    def rooms(self, most: int, largest: int) -> tuple[int, int]:
        """How many messages, and bytes, are between what it holds and those bounds."""
        own = self.settings
        if own is not PLAIN:
            largest = min(own.max_bytes or largest, largest)
            most = min(own.max_messages or most, most)
        return most - len(self.messages), largest - self.bytes

    def said(self) -> str:
        """How much it holds, for who is refused."""
        return f"{len(self.messages)} messages with {self.bytes} bytes"

    def holds(self) -> str:
        """The same as a sentence."""
        return f"{self.client[:100]} holds {self.said()}"

    def known_as(self, number: int) -> int:
        """The id by which others know the message."""
        return number

    # What it holds

    def add(self, number: int, seq: int, size: int = 0, expires: int = 0) -> None:
        """A message comes in; a second time (snapshot, then its own row) changes nothing."""
        if number in self.messages:
            return
        self.messages[number] = seq
        self._ids.append(number)
        self._seqs.append(seq)
        self._sizes.append(size)
        self.bytes += size
        self.waiting.append(number)
        self.next = max(self.next, number + 1)
        if expires:
            heapq.heappush(self.expiring, (expires, number))

    def remove(self, number: int) -> int:
        """Forget a message; return its seq, 0 if it was not there."""
        seq = self.messages.pop(number, 0)
        if not seq:
            return 0
        ids, head = self._ids, self._head
        first = head < len(ids) and ids[head] == number  # mostly: the oldest is done with first
        self.bytes -= self._sizes[head if first else bisect_left(ids, number)]
        while head < len(ids) and ids[head] not in self.messages:
            head += 1
        self._head = head
        if len(ids) > 2 * len(self.messages) + SPARSE:
            self._pack()
        self.next_waiting()  # lets go of what lies before it: nobody else may ever ask
        if self.leased:
            self.end_lease(number, seq)
        if self.delivered:
            self.delivered.pop(number, None)
        if self.answers:
            self.answers.pop(number, None)
        return seq

    def _pack(self) -> None:
        """Drop the entries of messages that are gone: mostly the oldest ones, which takes no look
        at any (of a million 190 ms). That pays where they are half of all; what is cut off in small
        pieces is moved each time.
        """
        mostly = 2 * self._head >= len(self._ids)
        for column in (self._ids, self._seqs, self._sizes):
            del column[: self._head]
        self._head = 0
        self.messages = dict(self.messages)  # else it stays as large as it ever was
        if not mostly or len(self._ids) > 2 * len(self.messages) + SPARSE:
            self._pack_all()
        elif self.expiring:
            self._pack_expiring()

    def _pack_all(self) -> None:
        kept = [index for index, number in enumerate(self._ids) if number in self.messages]
        self._ids = array("q", [self._ids[index] for index in kept])
        self._seqs = array("q", [self._seqs[index] for index in kept])
        self._sizes = array("q", [self._sizes[index] for index in kept])
        self._pack_expiring()

    def _pack_expiring(self) -> None:
        self.expiring = [entry for entry in self.expiring if entry[1] in self.messages]
        heapq.heapify(self.expiring)

    def above(self, number: int) -> Iterator[Entry]:
        """The messages above an id, oldest first. Nothing may change meanwhile."""
        return self._from(_after(self._ids, self._head, number))

    def accepted_after(self, seq: int) -> Iterator[Entry]:
        """The messages whose seq is greater, oldest first. Nothing may change meanwhile."""
        return self._from(_after(self._seqs, self._head, seq))

    def _from(self, start: int) -> Iterator[Entry]:
        for index in range(start, len(self._ids)):
            number = self._ids[index]
            if number in self.messages:
                yield self._seqs[index], number, self._sizes[index]

    def newest(self, count: int) -> list[int]:
        """The newest ids, newest first."""
        found: list[int] = []
        for number in reversed(self.messages):
            if len(found) >= count:
                break
            found.append(number)
        return found

    def number_of(self, seq: int) -> int:
        """The id of the message with that seq, or -1."""
        index = bisect_left(self._seqs, seq)
        if index < len(self._seqs) and self._seqs[index] == seq:
            number = self._ids[index]
            return number if number in self.messages else -1
        return -1

    # What comes in

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """What was published to the queue or to a topic it is bound to comes in."""
        assert self.enter is not None, "the broker adopts a queue before it routes to it"
        self.enter(self, run, subscription)

    def tell(self) -> None:
        """Readers hear that there is something; where they compete, as many as may get it."""
        readers = list(self.readers)
        for reader in readers[: len(self.waiting)] if self.settings.lease else readers:
            reader.arrived(self)

    # Who has what

    def next_consumer(self, number: int) -> Subscription | None:
        """Who gets a message: the consumers in turn, but for those without room.

        A consumer that has the same message from another queue must be done with it first.
        """
        seq = self.messages[number]
        for _ in range(len(self.consumers)):
            self.consumers.rotate(-1)
            session = self.consumers[-1].session
            if session.ready() and seq not in session.leases and self._admits(session):
                return self.consumers[-1]
        return None

    def turn_all_away(self) -> None:
        """None of its consumers has room for what waits: who has some again comes back for it."""
        for one in self.consumers:
            one.session.turn_away(self.name)

    def other_consumer(self, message: Message) -> Subscription | None:
        """Of those with room, who can take a message which is too large for whose turn it was."""
        for subscription in self.consumers:
            session = subscription.session
            if session.fits(message, subscription) and session.ready() and self._admits(session):
                self.consumers.remove(subscription)
                self.consumers.append(subscription)
                return subscription
        return None

    def somebody_fits(self, message: Message, away: bool) -> bool:
        """Whether a consumer that is here, or one that is `away`, may take it one day."""
        return any(
            (away if one.session.number == 0 else one.session.fits(message, one))
            for one in self.consumers
        )

    def set_aside(self) -> None:
        """Nobody here can take the message that waits first: it makes room for the others."""
        self.aside.append(self.waiting.popleft())

    def recall(self) -> None:
        """What was set aside waits again: somebody came."""
        numbers, self.aside = self.aside, []
        self.wait_again([number for number in numbers if number in self.messages])

    def _admits(self, session: Session) -> bool:
        """Whether it may consume here, now: rules change while it waits."""
        return session.rights.may(CONSUME, self.client) or self.maker is session

    def next_waiting(self) -> int:
        """The oldest message nobody holds, or -1."""
        while self.waiting:
            number = self.waiting[0]
            if number in self.messages:
                return number
            self.waiting.popleft()
        return -1

    def lease(self, number: int, session: Session, until: float) -> None:
        """The message, taken out of `waiting`, is the session's; `until` 0 = as long as it is."""
        self.leased[number] = session
        session.hold(self.messages[number], self, number)
        if until:
            self.ends[number] = until

    def end_lease(self, number: int, seq: int) -> None:
        """Nobody has the message any more."""
        self.ends.pop(number, None)
        if self.held and number in self.held:
            heapq.heappush(self.expiring, (self.held.pop(number), number))
        consumer = self.leased.pop(number, None)
        if consumer is not None:
            consumer.leases.pop(seq, None)
            consumer.requests.pop(seq, None)

    def give_back(self, session: Session) -> None:
        """A consumer left: what it held waits again, before everything else."""
        if session.leases:
            self.wait_again([number for queue, number in session.leases.values() if queue is self])

    def forget_deliveries(self, numbers: list[int]) -> None:
        """Nobody had the messages whose leases are over: those do not count, until a restart."""
        for number in numbers:
            if number in self.delivered:
                self.delivered[number] -= 1

    def wait_again(self, numbers: list[int]) -> None:
        """Leases are over: the messages wait again, before everything else."""
        for number in numbers:
            self.end_lease(number, self.messages.get(number, 0))
        self.waiting.extendleft(sorted(numbers, reverse=True))


def _after(values: array[int], head: int, value: int) -> int:
    """Where those that are greater begin, from `head` on. As a rule all there are."""
    if head < len(values) and values[head] > value:
        return head
    return max(bisect_right(values, value), head)
