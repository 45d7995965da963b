"""Transfers: queues read by a cursor. Nothing is taken out; an /ack does that.

The cursor of one queue is an id. Ids of several queues cannot be compared, so a transfer from
several answers with the journal seq up to which it looked, which grows in all of them: no
message is ever skipped.

    from "3",  queues [a]     a: 0 1 2 3 | 4 5        next "5"
    from "-1", queues [a, b]  a: 4 5, b: 0            next "s107", the seq of the last one

An answer holds the oldest messages above the cursor that fit into it, newest first. No I/O.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final, NamedTuple

from hubbub import schema
from hubbub.core.broker import Broker, row_about
from hubbub.core.limits import MIB
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.session import Session
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import answered_by, delivery_of
from hubbub.protocols.switch.codec import Delivery, Wanted
from hubbub.protocols.switch.trace import Trace
from hubbub.protocols.switch.wait import Wait

ANSWER_BYTES: Final = 16 * MIB  # of payloads in one answer; the next one goes on
ANSWER_MESSAGES: Final = 1_000  # reading them back takes the hub's time


class Found(NamedTuple):
    """A message above the cursor."""

    seq: int
    number: int
    queue: Queue


class Polls:
    """What the transfers of a hub share: the trace, and the queues that do not exist yet."""

    def __init__(self, broker: Broker, trace: Trace) -> None:
        self.broker = broker
        self.trace = trace
        self.missing: dict[str, dict[Poll, None]] = {}
        self.answer_bytes = ANSWER_BYTES
        self.answer_messages = ANSWER_MESSAGES

    def look_again(self) -> None:
        """Queues that did not exist when a transfer began may do so by now."""
        queues = self.broker.state.queues
        for name in [name for name in self.missing if name in queues]:
            for poll in self.missing.pop(name):
                queues[name].readers[poll] = None
                poll.ring()


class Poll(Wait):
    """One transfer, from its request to its answer."""

    def __init__(self, polls: Polls, session: Session, wanted: Wanted, now: float) -> None:
        super().__init__(polls.trace.bell, now + wanted.timeout)
        self._polls = polls
        self._broker = polls.broker
        self._session = session
        self._wanted = wanted
        for queue in self._queues():
            queue.polled = self.deadline

    def _queues(self) -> list[Queue]:
        queues = self._broker.state.queues
        return [queues[name] for name in self._wanted.queues if name in queues]

    def begin(self) -> None:
        for name in self._wanted.queues:
            self._wait_at(name)

    def _wait_at(self, name: str) -> None:
        queue = self._broker.state.queues.get(name)
        if queue is not None:
            queue.readers[self] = None
        else:
            self._polls.missing.setdefault(name, {})[self] = None

    def arrived(self, queue: Queue) -> None:
        if self._broker.state.queues.get(queue.name) is queue:
            self.ring()
        else:
            self._wait_at(queue.name)  # it was destroyed; there may be another one day

    def end(self) -> None:
        for queue in self._queues():
            queue.readers.pop(self, None)
        for name in self._wanted.queues:
            waiting = self._polls.missing.get(name)
            if waiting is not None:
                waiting.pop(self, None)
                if not waiting:
                    del self._polls.missing[name]

    def empty(self) -> bytes:
        return codec.transferred((), self._wanted.cursor)

    def answer(self) -> bytes | None:
        found = self._found()
        if not found:
            return None
        chosen, last = self._read(found)
        if len(self._wanted.queues) == 1:
            return codec.transferred(reversed(chosen), str(last.number))
        by_queue: dict[str, list[Delivery]] = {name: [] for name in self._wanted.queues}
        for delivery in reversed(chosen):
            by_queue[delivery.queue].append(delivery)
        ordered = [delivery for some in by_queue.values() for delivery in some]
        return codec.transferred(ordered, f"s{last.seq}")

    def _found(self) -> list[Found]:
        """All messages above the cursor, in the order in which they were accepted."""
        seq = codec.seq_of(self._wanted.cursor)
        found: list[Found] = []
        for queue in self._queues():
            if seq is None:
                numbers = queue.above(int(self._wanted.cursor))
            else:
                numbers = _accepted_after(queue, seq)
            found.extend([Found(queue.messages[number], number, queue) for number in numbers])
        found.sort(key=itemgetter(0))
        return found

    def _read(self, found: list[Found]) -> tuple[list[Delivery], Found]:
        """As many as fit, and the last one looked at. One message in two queues is not split."""
        chosen: list[Delivery] = []
        size, polls = 0, self._polls
        last = found[0]
        for one in found:
            full = size > polls.answer_bytes or len(chosen) >= polls.answer_messages
            if full and one.seq != last.seq:
                break
            last = one
            message = self._broker.log.read(one.seq)
            if message is None:
                self._broker.metrics.drop("memory full")
                self._broker.acknowledge(one.queue, one.number, self._session)
                continue
            chosen.append(self._hand_out(one, message))
            size += len(message.payload)
        return chosen, last

    def _hand_out(self, one: Found, message: Message) -> Delivery:
        row = row_about(self._session, schema.DELIVER, one.queue.client)
        self._broker.note(row._replace(ref=one.seq))
        delivery = delivery_of(one.queue, one.number, message)
        self._polls.trace.delivered(self._session.client, delivery, self._asked(message))
        return delivery

    def _asked(self, message: Message) -> int:
        """When the request that this answers was made, if it is still there."""
        answers = answered_by(message)
        queue = self._broker.state.queues.get(answers[0]) if answers else None
        seq = queue.messages.get(answers[1]) if queue is not None and answers else None
        request = self._broker.log.read(seq) if seq else None
        return request.time if request is not None else 0


def _accepted_after(queue: Queue, seq: int) -> list[int]:
    found = []
    for number in reversed(queue.messages):
        if queue.messages[number] <= seq:
            break
        found.append(number)
    return found
