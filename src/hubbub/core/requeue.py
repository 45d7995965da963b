"""Messages of a queue go to another one: dead letters to where they died, as a rule.

    waits here ── its place is allowed, there, and has room ──> enters that queue ──> gone here
               `─ else it stays, and is counted by why

Sender, asker, reply-to and correlation are those of the message as it was, so whoever answers it
there answers who asked. It enters there before it goes here: a crash on the way leaves it in both,
never in none. What somebody has is left to it. One piece a message, so that others are heard in
between. Called by the web application; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from itertools import islice

from hubbub.core.context import Context
from hubbub.core.message import FIRST, Message, copied_properties
from hubbub.core.queue import Queue
from hubbub.core.queues import Queues
from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.core.topics import QUEUE
from hubbub.errors import UnreadableError

DEAD = "dead"  # the property of a dead letter that says where it was, and why it is dead


def died_in(message: Message) -> str:
    """The queue in which a dead letter was, "" if it is none."""
    said = (message.properties or {}).get(DEAD)
    name = said.get("queue") if isinstance(said, dict) else None
    return name if isinstance(name, str) else ""


class Requeue:
    """A part of that work: `most` messages, or as many as `seconds` are enough for, from the id
    `start` on and below `before`.

    `to`: where all go, "" = where each died; `allowed`: the queues that may be (None: any).
    `moved`: how many by queue, `stayed` by why; `next`: the id at which it goes on, -1 = nowhere.
    `places`: where they died. `rooms`: how many messages, and bytes, other processes have room for
    in theirs, which let go of what is more. `only_look`: how it would be, of each by itself.
    """

    def __init__(
        self, broker: Context, queues: Queues, queue: Queue, asks: Session, to: str = "",
        allowed: Collection[str] | None = None, start: int = 0, before: int = -1,
        most: int = 1_000, only_look: bool = False, seconds: float = math.inf,
        rooms: Mapping[str, list[int]] | None = None,
    ) -> None:  # fmt: skip
        self.broker = broker
        self.queues = queues
        self.queue = queue
        self.asks = asks
        self.to = to
        self.allowed = allowed
        self.start = start
        self.before = before if before >= 0 else queue.next
        self.most = most
        self.only_look = only_look
        self.seconds = seconds
        self.places: set[str] = set()
        self.rooms = rooms or {}
        self._counted: set[str] = set()
        self.moved: dict[str, int] = {}
        self.stayed: dict[str, int] = {}
        self.next = -1

    def pieces(self) -> Iterator[None]:
        queue, clock = self.queue, self.broker.clock
        until = clock.now() + self.seconds
        found = list(islice(queue.above(self.start - 1), self.most + 1))
        for count, (seq, number, _) in enumerate(found):
            if number >= self.before or not self.queues.overdue.lives(queue):
                return
            if count == self.most or (count and clock.now() > until):
                self.next = number
                return
            if queue.messages.get(number) == seq:
                self._move(seq, number)
                yield

    def _move(self, seq: int, number: int) -> None:
        try:
            message = self.broker.log.read(seq)
        except UnreadableError:
            self._stays("cannot be read now")
            return
        if message is None:
            self._stays("is lost: what it was is kept nowhere any more")
            return
        to = self.to or died_in(message)
        self.places.add(to)
        if why := self._lacks(to, number, message):
            self._stays(why)
            return
        if not self.only_look:
            properties = copied_properties(message) or {}
            kept = {name: said for name, said in properties.items() if name != DEAD}
            if message.reply_to:
                kept.setdefault(FIRST, [self.queue.name, number])
            self.queues.overdue.send_on(self.queue, message, to, kept)
            self.queues.acknowledge(self.queue, number, self.asks)
            if to in self.rooms:
                self.rooms[to][0] -= 1
                self.rooms[to][1] -= len(message.payload)
        self.moved[to] = self.moved.get(to, 0) + 1

    def _lacks(self, to: str, number: int, message: Message) -> str:
        """Why it stays, "" if it may go there now."""
        if number in self.queue.leased:
            return "somebody has it"
        if not to:
            return "is no dead letter: say where it is to go"
        if to == self.queue.name:
            return "would come back here"
        if not self.queues.known(QUEUE + to):
            return f"there is no queue {to[:100]!r}"
        if self.allowed is not None and to not in self.allowed:
            return f"you may not send to {to[:100]!r}"
        broker = self.broker
        payer = broker.on_account_of(self.queue.payer)
        route = broker.route(broker.itself, QUEUE + to)
        size, qos = len(message.payload), max(message.qos, 1)
        full = broker.lacks_room(payer, route, 1, False, qos, size, again=True)  # is answered
        if full or self._is_full_there(to, route):
            return f"{to[:100]!r} has no room"
        return ""

    def _is_full_there(self, to: str, route: Route) -> bool:
        """What is on its way there takes room that it has not told of."""
        room, ways = self.rooms.get(to), route.elsewhere()
        if room is None or not ways:
            return False
        if to not in self._counted:
            self._counted.add(to)
            room[0] -= sum(one.unacknowledged() for one in ways)
        return min(room) < 1

    def _stays(self, why: str) -> None:
        self.stayed[why] = self.stayed.get(why, 0) + 1
