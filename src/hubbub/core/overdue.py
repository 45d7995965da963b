"""What ends by itself in queues: messages that expire, leases, and messages nobody can handle.

    waits --lease--> a reader has it --ack--> gone
      ^                   |
      +--- time is over --+--- for the last time --+--> the queue of dead letters, or gone
    waits ------------ expires --------------------+

A lease is counted where the queue says after how many a message is given up; that count is a
row, so a message that ends the hub with its reader is given up too. The broker asks before it
hands a message out; `wake` runs about once a second, so both are noticed with nobody there.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Final

from hubbub import schema
from hubbub.core.context import Context
from hubbub.core.message import FIRST, SPELLED, Message, Run, copied_properties
from hubbub.core.queue import PROTOCOL, Queue
from hubbub.core.rights import ENQUEUE
from hubbub.core.session import NO_LEASES, Session, row_about
from hubbub.core.topics import QUEUE
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of

log = logging.getLogger("hubbub.queues")

EXPIRED: Final = "expired"
GIVEN_UP: Final = "given up"
GIVEN_BACK: Final = 1_000  # leases of one who is gone, at once: half a millisecond
LOOKED: Final = 100  # queues in which no lease is over, at a look: a tenth of a millisecond
AT_ONCE: Final = 5_000  # leases of a queue that end at a look, or messages that expire: 3 ms


class Overdue:
    """`queues`: those in which something may end by itself; `_clearing`: those in which that is
    done now, and whether it takes more than the turn in which it began; `_broken`: the names of
    those, and of clients, at which the hub's own code broke when it looked at them last.
    """

    def __init__(self, broker: Context, offer: Callable[[Queue], None]) -> None:
        self.broker = broker
        self._offer = offer
        self.queues: dict[Queue, None] = {}
        self._clearing: dict[Queue, bool] = {}
        self._broken: set[str] = set()

    def watch(self, queue: Queue) -> None:
        if self._may_end(queue):
            self.queues[queue] = None

    def changed(self, queue: Queue) -> None:
        """Its settings are others. Leases end in the order in which they begin, so none that there
        is takes longer than one of now.
        """
        ends, latest = queue.ends, self.broker.clock.now() + queue.settings.lease
        if queue.settings.lease and ends and ends[next(reversed(ends))] > latest:
            queue.ends = {number: min(until, latest) for number, until in ends.items()}
        self.watch(queue)

    @staticmethod
    def _may_end(queue: Queue) -> bool:
        return bool(queue.expiring or queue.ends or queue.settings.max_deliveries)

    def first_waiting(self, queue: Queue) -> int:
        """The oldest message that somebody may have, or -1; what is overdue goes before."""
        if not self.clear(queue):
            return -1
        number = queue.next_waiting()
        return -1 if self._is_hopeless(queue, number) else number

    def clear(self, queue: Queue) -> bool:
        """End what is over its time, and what nobody can handle. False while there is so much of it
        that it goes on in other turns: nobody gets anything until then, and is told then.
        """
        if queue not in self._clearing and self._has_overdue(queue):
            self._clearing[queue] = False
            self.broker.in_turns(self._cleared(queue))
            if queue in self._clearing:
                self._clearing[queue] = True
        return queue not in self._clearing

    def _has_overdue(self, queue: Queue) -> bool:
        return self._expires(queue) or self._is_hopeless(queue, queue.next_waiting())

    def _expires(self, queue: Queue) -> bool:
        return bool(queue.expiring) and queue.expiring[0][0] <= self.broker.clock.stamp()

    @staticmethod
    def _is_hopeless(queue: Queue, number: int) -> bool:
        most = queue.settings.max_deliveries
        return 0 < most <= queue.delivered.get(number, 0)

    def _cleared(self, queue: Queue) -> Iterator[None]:
        try:
            yield from self._expired(queue)
            while self._is_hopeless(queue, number := queue.next_waiting()) and self.lives(queue):
                self.dead_letter(queue, number, GIVEN_UP)
                yield
        except UnreadableError:
            self.broker.again(queue, partial(self._offer, queue))
            return
        finally:
            late = self._clearing.pop(queue)
        if late and self.lives(queue):
            self._offer(queue)
            queue.tell()

    def lives(self, queue: Queue) -> bool:
        """Not one destroyed meanwhile, whose consumers may have their places in a new one of its
        name. What another node lent is in one that has no name here.
        """
        return queue.enter is None or self.broker.state.queues.get(queue.name) is queue

    def leased(self, queue: Queue, number: int, session: Session) -> None:
        """The session gets a message, for as long as the queue says."""
        broker, settings = self.broker, queue.settings
        expires = until = 0.0
        if settings.lease:
            until = broker.clock.now() + settings.lease
            expires = broker.clock.stamp() + settings.lease * 1e6
        count = queue.delivered.get(number, 0) + 1
        said = b'{"delivery":%d}' % count if settings.max_deliveries else b""
        row = row_about(
            session, schema.DELIVER, queue.client, queue.messages[number], number, int(expires),
            said,
        )  # fmt: skip
        if settings.max_deliveries:
            broker.change(row)
        else:
            broker.note(row)
        if settings.lease:
            queue.delivered[number] = count
        queue.lease(number, session, until)
        self.watch(queue)

    def wake(self) -> None:
        """Look at all of them: there may be a hundred thousand, in which leases end together."""
        self.broker.one_in_turns(self, self._looked)

    def _looked(self) -> Iterator[None]:
        now, count = self.broker.clock.now(), 0
        for queue in list(self.queues):
            if not self.lives(queue):
                self.queues.pop(queue, None)
                self._broken.discard(queue.client)
                continue
            try:
                count += LOOKED if self._end_leases(queue, now) else 1
                self.first_waiting(queue)
                self._broken.discard(queue.client)
            except Exception:
                count += LOOKED
                self._broke(queue)
                continue  # it is looked at again in a second
            if not (queue.held or self._may_end(queue)):
                self.queues.pop(queue, None)
            if count >= LOOKED:
                count = 0
                yield

    def _broke(self, one: Session) -> None:
        """Those behind it have their turn all the same. It is said once, not each second."""
        if one.client not in self._broken:
            self._broken.add(one.client)
            log.exception("%s: what ends by itself there broke the hub's own code", one.client)

    def _end_leases(self, queue: Queue, now: float) -> bool:
        """Whether some were over."""
        over: list[int] = []
        for number, until in queue.ends.items():
            if until > now or len(over) >= AT_ONCE:
                break
            over.append(number)
        if over:
            holders = [queue.leased[number] for number in over if number in queue.leased]
            queue.wait_again(over)
            try:
                self._offer(queue)
            finally:
                self.relieve(holders)
        return len(over) > 0

    def relieve(self, holders: Iterable[Session]) -> None:
        """They have lost what they had of a queue, and room for what waits for them in others."""
        waiting = [one for one in dict.fromkeys(holders) if one.turned_away and one.number]
        if waiting:
            self.broker.in_turns(self._relieved(waiting))

    def _relieved(self, holders: list[Session]) -> Iterator[None]:
        for one in holders:
            try:
                one.relieved()
                self._broken.discard(one.client)
            except Exception:
                self._broke(one)
            yield

    def let_go(self, queue: Queue) -> Iterator[None]:
        """It has ended: nobody has anything of it any more; of much of it in a moment."""
        holders = list(queue.leased.values())
        for count, number in enumerate(list(queue.leased), 1):
            queue.end_lease(number, queue.messages.get(number, 0))
            if not count % GIVEN_BACK:
                yield
        self.relieve(holders)

    def left(self, session: Session) -> None:
        """A client is gone: what it had of queues waits again there, before everything else. One
        may have had something of each of ten thousand, or very much.
        """
        leases, session.leases = session.leases, NO_LEASES
        self.broker.in_turns(self._given_back(session, leases))

    def _given_back(
        self, session: Session, leases: dict[int, tuple[Queue, int]]
    ) -> Iterator[None]:
        """First all that few may have: it may be back soon, and get some of it again."""
        part: dict[Queue, list[int]] = {}
        given: dict[Queue, None] = {}
        for count, (queue, number) in enumerate(reversed(leases.values()), 1):
            if queue.leased.get(number) is session:
                part.setdefault(queue, []).append(number)
            if count % GIVEN_BACK == 0 or count == len(leases):
                for one, numbers in part.items():
                    one.wait_again(numbers)
                    given[one] = None
                part = {}
                if count < len(leases):
                    yield
        for queue in given:
            try:
                self._offer(queue)
            except Exception:
                self._broke(queue)
            yield

    def _expired(self, queue: Queue) -> Iterator[None]:
        """A message that somebody has is not taken away. UnreadableError: some stay for now.

        Some at once, in the order in which they lie on the disk: what is large and read back here
        and there is read with all that lies around it each time. Until it is their turn they are
        held, for who asks when they expire.
        """
        unread, due = [], list[tuple[int, int]]()
        try:
            while self._expires(queue) and self.lives(queue):
                while self._expires(queue) and len(due) < AT_ONCE:
                    due.append(heapq.heappop(queue.expiring))
                    queue.held[due[-1][1]] = due[-1][0]
                due.sort(key=itemgetter(1), reverse=True)
                while due and self.lives(queue):
                    _, number = entry = due.pop()
                    if number not in queue.leased:
                        queue.held.pop(number, None)
                        if not self._expire(queue, number):
                            unread.append(entry)
                    yield
        finally:
            for entry in (*unread, *due):
                queue.held.pop(entry[1], None)
                heapq.heappush(queue.expiring, entry)
        if unread:
            raise UnreadableError(f"messages of {queue.client}")

    def _expire(self, queue: Queue, number: int) -> bool:
        """False if the machine cannot read it now."""
        if number in queue.messages:
            try:
                self.dead_letter(queue, number, EXPIRED)
            except UnreadableError:
                return False
        return True

    def dead_letter(self, queue: Queue, number: int, reason: str) -> None:
        """Take a message out of its queue, into that of the dead letters if it has one."""
        broker, seq = self.broker, queue.messages[number]
        message = broker.log.read(seq) if self._has_dead_letters(queue) else None
        if message is not None:
            dead = {"queue": queue.name, "id": number, "reason": reason}
            properties = {**(copied_properties(message) or {}), "dead": dead}
            if message.reply_to:
                properties.setdefault(FIRST, [queue.name, number])
            self.send_on(queue, message, queue.settings.dead_letter, properties)
        else:
            broker.metrics.drop(reason)
        # Afterwards: a crash in between leaves it in both, not in none.
        broker.change(
            Row(
                0, 0, schema.DROP, PROTOCOL.encode(), column_of(queue.client),
                column_of(queue.client), ref=seq, number=number,
                properties=b'{"reason":"%b"}' % reason.encode(),
            )
        )  # fmt: skip
        broker.log.unpin(seq)

    def _has_dead_letters(self, queue: Queue) -> bool:
        """Whether its dead letters go somewhere: who made it for itself may lose that right."""
        name, maker = queue.settings.dead_letter, queue.maker
        allowed = maker is None or self.broker.may(maker, ENQUEUE, QUEUE + name)
        if name and maker is not None and not allowed:
            self.broker.refuse(maker, ENQUEUE, QUEUE + name)
        return name != "" and allowed

    def send_on(
        self, queue: Queue, message: Message, to: str, properties: dict[str, object]
    ) -> None:
        """The same message of that queue into another one, under a number of its own."""
        copy = Message(
            QUEUE + to, message.payload, max(message.qos, 1), False,
            message.protocol, message.client, 0, message.subtopic, message.content_type,
            message.reply_to, message.correlation, properties or None,
        )  # fmt: skip
        # The queue's own bounds hold. Who set this had the permission; a maker has it still. Where
        # it waits for another node it is of whoever the queue is.
        route = self.broker.route(self.broker.itself, copy.topic)
        run = Run(self.broker.on_account_of(queue.payer), route, copy.qos, 1, SPELLED, b"")
        run.replace([copy])
        self.broker.publish(run)
