"""The trace: the last events at the queues, as message-switch clients make and see them.

    [12,{"time":1795237029.02,"input":"cli:7","queue":"foo","message":["Message",["foo",0],{..}]}]
    [13,{.. "output":"svc:9" .. }]  handed to that token
    [14,{.. "input":"svc:9" .. "message":["Ack",["foo",0]]}]

It is a window to look through, not a record: the journal is that. Bounded in events and in the
payload each shows, as the original learned to be. No I/O.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from hubbub.core.clock import Clock
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.codec import Delivery
from hubbub.protocols.switch.wait import Bell, Wait

ENTRIES: Final = 16
PAYLOAD_BYTES: Final = 256


class Event(NamedTuple):
    number: int
    body: bytes


class Trace:
    """The events, numbered from 0, and who waits for the next one."""

    def __init__(self, clock: Clock, bell: Bell) -> None:
        self.bell = bell
        self.watches: dict[Watch, None] = {}
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=ENTRIES)
        self._next = 0

    def sent(self, client: str, delivery: Delivery) -> None:
        self._add(b"input", client, b"", delivery.queue, _message(delivery))

    def delivered(self, client: str, delivery: Delivery, asked: int) -> None:
        """`asked` is when the request this answers was made (UTC microseconds), 0 if unknown."""
        took = b""
        if asked:
            took = b',"processing_time":%d' % ((self._clock.stamp() - asked) * 1000)
        self._add(b"output", client, took, delivery.queue, _message(delivery))

    def acknowledged(self, client: str, queue: str, number: int) -> None:
        self._add(b"input", client, b"", queue, b'"Ack",' + codec.message_id(queue, number))

    def _add(self, way: bytes, client: str, took: bytes, queue: str, message: bytes) -> None:
        head = b'{"time":%.6f' % (self._clock.stamp() / 1e6)
        who = b'"%b":%b' % (way, codec.quoted_name(client)) if client else b""
        name = b'"queue":%b' % codec.quoted_name(queue)
        middle = (name, who) if way == b"output" else (who, name)
        parts = (head, *filter(None, middle), b'"message":[%b]%b}' % (message, took))
        self._events.append(Event(self._next, b",".join(parts)))
        self._next += 1
        for watch in self.watches:
            watch.ring()

    def above(self, number: int) -> bytes | None:
        """The events above that number as an answer; None if there are none."""
        found = [b"[%d,%b]" % event for event in self._events if event.number > number]
        return b'{"events":[%b]}' % b",".join(found) if found else None


def _message(delivery: Delivery) -> bytes:
    identity = codec.message_id(delivery.queue, delivery.number)
    cut = delivery._replace(payload=delivery.payload[:PAYLOAD_BYTES])
    return b'"Message",%b,%b' % (identity, codec.message(cut))


class Watch(Wait):
    """One request for the trace."""

    def __init__(self, trace: Trace, number: int, deadline: float) -> None:
        super().__init__(trace.bell, deadline)
        self._trace = trace
        self._number = number

    def begin(self) -> None:
        self._trace.watches[self] = None

    def end(self) -> None:
        self._trace.watches.pop(self, None)

    def answer(self) -> bytes | None:
        return self._trace.above(self._number)

    def empty(self) -> bytes:
        return b'{"events":[]}'
