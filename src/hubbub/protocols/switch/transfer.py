"""Transfers: queues read by a cursor. Nothing is taken out; an /ack does that.

The cursor of one queue is an id. Ids of several queues cannot be compared, so a transfer from
several answers with the journal seq up to which it looked, which grows in all of them: no
message is ever skipped.

    from "3",  queues [a]     a: 0 1 2 3 | 4 5        next "5"
    from "-1", queues [a, b]  a: 4 5, b: 0            next "s107", the seq of the last one

An answer holds the oldest messages above the cursor that fit into it, newest first: in bytes, in
number and in the time that reading them back takes. Finding them costs no more than the answer is
long. From a queue with leases a transfer takes what nobody has, oldest first, and its cursor says
nothing there. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import Final

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.limits import MIB
from hubbub.core.log import MEMORY
from hubbub.core.message import Message
from hubbub.core.queue import PLAIN, Entry, Queue
from hubbub.core.quotas import size_of
from hubbub.core.rights import CONSUME
from hubbub.core.topics import QUEUE
from hubbub.core.turns import Stint
from hubbub.errors import UnreadableError
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import answered_by, delivery_of
from hubbub.protocols.switch.codec import Delivery, Wanted
from hubbub.protocols.switch.session import PROTOCOL, SwitchSession
from hubbub.protocols.switch.trace import Trace
from hubbub.protocols.switch.wait import Wait
from hubbub.schema import column_of, row_without_message

ANSWER_BYTES: Final = 1 * MIB  # of payloads in one answer; the next one goes on. It takes 5 ms
ANSWER_MESSAGES: Final = 1_000  # reading them back takes the hub's time
AT_ONCE: Final = 4  # so many are read back whatever time it takes; one whatever all have read


# A message above the cursor: its seq, in which of the queues asked for, its id, its bytes.
Found = tuple[int, int, int, int]
# A message that was read back, to be answered with.
Read = tuple[Queue, int, Message]


class Polls:
    """What the transfers of a hub share."""

    def __init__(self, broker: Broker, trace: Trace) -> None:
        self.broker = broker
        self.trace = trace
        self.answer_bytes = ANSWER_BYTES
        self.answer_messages = ANSWER_MESSAGES


class Reading(Wait):
    """One request that reads queues, from its beginning to its answer, in any dialect."""

    def __init__(self, polls: Polls, session: SwitchSession, deadline: float, most: int) -> None:
        super().__init__(polls.trace.wakeups, deadline)
        self.broker = polls.broker
        self.session = session
        self._polls = polls
        self._most = min(most or polls.answer_messages, polls.answer_messages)
        self._leases = most or 1

    def names(self) -> Iterable[str]:
        """The queues it reads."""
        raise NotImplementedError

    def expect(self) -> None:
        """Somebody reads these queues, until the deadline at least: diagnostics show it."""
        for queue in self._queues():
            self.broker.queues.polled(queue, self.deadline)
            self.session.has_read(queue.name)

    def _queues(self) -> list[Queue]:
        """Those that there are, and that it may read now."""
        broker, found = self.broker, []
        for name in self.names():
            queue = broker.state.queues.get(name)
            if queue is not None:
                found.append(queue)
        if self.session.rights is broker.open:
            return found
        return [queue for queue in found if broker.may(self.session, CONSUME, queue.client)]

    def begin(self) -> None:
        for name in self.names():
            self.weight += size_of(name)
            self.broker.queues.wait_at(name, self)

    def end(self) -> None:
        for name in self.names():
            self.broker.queues.wait_no_more(name, self)

    def read(self, cursor: int, by_seq: bool) -> tuple[list[Read], Found | None]:
        """What is above the cursor, oldest first, and the last message that was looked at."""
        broker = self.broker
        plain, leased = [], []
        for queue in self._queues():
            if queue.expiring and not broker.queues.overdue.clear(queue):
                continue
            if queue.settings is not PLAIN and queue.settings.lease:
                leased.append(queue)
            elif by_seq or queue.next > cursor + 1:
                plain.append(queue)
        if not (plain or leased):  # as a rule: who asks comes before what it waits for
            return [], None
        chosen: list[Read] = []
        found = self._chosen(plain, cursor, by_seq) if plain else []
        stint = None
        for at, (seq, place, number, _) in enumerate(found):
            if at and seq != found[at - 1][0]:
                stint = stint or Stint(broker.clock)
                if self._has_read_enough(at, stint):
                    del found[at:]
                    break
            try:
                message = broker.log.read(seq)
            except UnreadableError:
                del found[at:]
                break
            if message is not None:
                chosen.append(self._hand_out(plain[place], number, message))
            else:
                broker.metrics.drop("memory full")
                broker.queues.acknowledge(plain[place], number, self.session)
        if len(leased) > 1:
            leased.sort(key=_waits_since)  # not always the same ones are left for next time
        for queue in leased:
            stint = stint or Stint(broker.clock)
            if chosen and (broker.has_fetched_enough() or stint.over()):
                break
            chosen.extend(self._leased(queue, stint))
        # What shows ids waits for their messages, and not for the rows that say who got them, nor
        # for what others do. A lease counts.
        self.upto = max(0, found[-1][0]) if found and not leased else 0
        if self.upto > broker.log.durable and self._precedes(chosen):
            self.level = MEMORY
        return chosen, found[-1] if found else None

    def _precedes(self, chosen: list[Read]) -> bool:
        """Whether these messages may be shown before their rows are durable."""
        return False

    def _chosen(self, queues: list[Queue], cursor: int, by_seq: bool) -> list[Found]:
        """As many as fit into an answer. One message in two queues is not split."""
        chosen: list[Found] = []
        size, largest, most = 0, self._polls.answer_bytes, self._most
        if len(queues) == 1:  # as a rule; what merges takes longer than all else here
            for seq, number, weight in _entries(queues[0], cursor, by_seq):
                if size > largest or len(chosen) >= most:
                    break
                chosen.append((seq, 0, number, weight))
                size += weight
            return chosen
        for one in merge(*(_placed(queue, at, cursor, by_seq) for at, queue in enumerate(queues))):
            if (size > largest or len(chosen) >= most) and one[0] != chosen[-1][0]:
                break
            chosen.append(one)
            size += one[3]
        return chosen

    def _has_read_enough(self, count: int, stint: Stint) -> bool:
        """Whether others are heard before it gets more than these."""
        return self.broker.has_fetched_enough() or (count >= AT_ONCE and stint.over())

    def _leased(self, queue: Queue, stint: Stint) -> Iterator[Read]:
        """What it gets of one queue, at least one message."""
        for count in range(self._leases):
            if count and self._has_read_enough(count, stint):
                break
            taken = self.broker.queues.take(queue, self.session)
            if taken is None:
                break
            yield self._shown(queue, *taken)

    def _hand_out(self, queue: Queue, number: int, message: Message) -> Read:
        if self.broker.record == "all":
            protocol, client = self.session.protocol.encode(), column_of(self.session.client)
            topic, seq = column_of(queue.client), message.seq
            row = row_without_message(schema.DELIVER, protocol, client, topic, seq, number)
            self.broker.note(row)
        return self._shown(queue, number, message)

    def _shown(self, queue: Queue, number: int, message: Message) -> Read:
        asked = self._asked(message)
        self.session.traffic.delivered += 1
        self._polls.trace.delivered(self.session.client, queue, number, message, asked)
        return queue, number, message

    def _asked(self, message: Message) -> int:
        """When the request that this answers was made, if it is still there."""
        answers = answered_by(message)
        queue = self.broker.state.queues.get(answers[0]) if answers else None
        seq = queue.messages.get(answers[1]) if queue is not None and answers else None
        request = self.broker.log.look(seq) if seq else None
        return request.time if request is not None else 0


def _waits_since(queue: Queue) -> int:
    """The seq of the oldest message that nobody has."""
    return queue.messages.get(queue.next_waiting(), 0)


def _entries(queue: Queue, cursor: int, by_seq: bool) -> Iterator[Entry]:
    return queue.accepted_after(cursor) if by_seq else queue.above(cursor)


def _placed(queue: Queue, place: int, cursor: int, by_seq: bool) -> Iterator[Found]:
    for seq, number, size in _entries(queue, cursor, by_seq):
        yield seq, place, number, size


class Poll(Reading):
    """A transfer of dialect C."""

    def __init__(self, polls: Polls, session: SwitchSession, wanted: Wanted, now: float) -> None:
        super().__init__(polls, session, now + wanted.timeout, wanted.most)
        self._wanted = wanted
        self._after, self._by_seq = codec.place_of(wanted.cursor)
        self._only = wanted.queues[0] if len(wanted.queues) == 1 and not self._by_seq else ""
        self.expect()

    def names(self) -> Iterable[str]:
        return self._wanted.queues

    def empty(self) -> bytes:
        return codec.transferred((), self._wanted.cursor)

    def _has_come(self) -> bool:
        """False if the queue holds nothing new: as a rule, who asks comes before what it is for."""
        queue = self.broker.state.queues.get(self._only) if self._only else None
        if queue is None or queue.expiring or queue.settings is not PLAIN:
            return True
        return queue.next > self._after + 1

    def _precedes(self, chosen: list[Read]) -> bool:
        """A service has its requests at once: the one who waits for the answer gets that from a
        queue too, when it is durable, and so is then the request, which was written before it.

        Only those of message-switch: who asks by another protocol and reads a queue has its answer
        without any wait. Not one of QoS 2, which nobody may see under two ids, as when its sender
        repeats it.
        """
        if not (self._only and chosen):
            return False
        for _, _, message in chosen:
            asks = message.reply_to.startswith(QUEUE) and answered_by(message) is None
            if message.protocol != PROTOCOL or message.qos > 1 or not asks:
                return False
        return self.broker.queues.runs_ahead(chosen[0][0])

    def answer(self) -> bytes | None:
        if not self._has_come():
            return None
        chosen, last = self.read(self._after, self._by_seq)
        if last is None and not chosen:
            return None
        cursor = self._wanted.cursor
        deliveries = [delivery_of(*one) for one in reversed(chosen)]
        if self._by_seq or len(self._wanted.queues) > 1:
            return codec.transferred(self._by_queue(deliveries), f"s{last[0]}" if last else cursor)
        if last is None:
            cursor = str(max(self._after, *(one.number for one in deliveries)))
        return codec.transferred(deliveries, str(last[2]) if last else cursor)

    def _by_queue(self, deliveries: list[Delivery]) -> list[Delivery]:
        by_queue: dict[str, list[Delivery]] = {name: [] for name in self._wanted.queues}
        for delivery in deliveries:
            by_queue[delivery.queue].append(delivery)
        return [delivery for some in by_queue.values() for delivery in some]
