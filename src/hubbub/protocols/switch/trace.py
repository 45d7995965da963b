"""The trace: the last events at the queues, as message-switch clients make and see them.

    [12,{"time":1795237029.02,"input":"cli:7","queue":"foo","message":["Message",["foo",0],{..}]}]
    [13,{.. "output":"svc:9" .. }]  handed to that token
    [14,{.. "input":"svc:9" .. "message":["Ack",["foo",0]]}]

It is a window to look through, not a record: the journal is that. Bounded in events and in the
payload each shows, as the original learned to be. Written out only when somebody looks, and then
once for all who do. No I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from hubbub.core.clock import Clock
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import answered_by, shown
from hubbub.protocols.switch.codec import Delivery
from hubbub.protocols.switch.wait import Wait, Wakeups

ENTRIES: Final = 128
PAYLOAD_BYTES: Final = 256

INPUT: Final = b"input"
OUTPUT: Final = b"output"


class Event(NamedTuple):
    """`stamp` in UTC microseconds; `took` in nanoseconds, -1 if unknown; no `message`: an ack.

    `message` has no more than the beginning of a payload, and `seq` is its own.
    """

    number: int
    stamp: int
    way: bytes
    client: str
    queue: str
    id: int
    seq: int
    message: Message | None = None
    took: int = -1

    def delivery(self) -> Delivery | None:
        """The message as its readers saw it; None if this is an acknowledgement."""
        if self.message is None:
            return None
        return Delivery(
            self.queue, self.id, self.message.payload, shown(self.message.reply_to, self.id),
            answered_by(self.message),
        )  # fmt: skip


Say = Callable[[Event], bytes]

# An event while nobody looks at it: making one takes as long as all the rest.
_Happened = tuple[int, int, bytes, str, str, int, int, Message | None, int]


class Trace:
    """The events, numbered from 0, and who waits for the next one. Who was woken is in `watches`
    again when it has looked: ten thousand may watch.
    """

    def __init__(self, clock: Clock, wakeups: Wakeups) -> None:
        self.wakeups = wakeups
        self.watches: dict[Watch, None] = {}
        self._clock = clock
        self._events: deque[_Happened] = deque(maxlen=ENTRIES)
        self._next = 0
        # Of each event what was said last, with its number: in the place that it has.
        self._lines: dict[Say, list[tuple[int, bytes]]] = {}

    def sent(self, client: str, queue: Queue, number: int, message: Message) -> None:
        """Its time is that of the message."""
        self._add(message.time, INPUT, client, queue, number, message.seq, message)

    def delivered(
        self, client: str, queue: Queue, number: int, message: Message, asked: int
    ) -> None:
        """`asked` is when the request this answers was made (UTC microseconds), 0 if unknown."""
        now = self._clock.stamp()
        took = (now - asked) * 1000 if asked else -1
        self._add(now, OUTPUT, client, queue, number, message.seq, message, took)

    def acknowledged(self, client: str, queue: Queue, number: int, seq: int) -> None:
        self._add(self._clock.stamp(), INPUT, client, queue, number, seq, None)

    def _add(
        self, stamp: int, way: bytes, client: str, queue: Queue, number: int, seq: int,
        message: Message | None, took: int = -1,
    ) -> None:  # fmt: skip
        if message is not None and len(message.payload) > PAYLOAD_BYTES:
            message = _beginning(message)
        event = (self._next, stamp, way, client, queue.name, number, seq, message, took)
        self._events.append(event)
        self._next += 1
        if self.watches:
            woken, self.watches = self.watches, {}
            for watch in woken:
                watch.wake()

    def lines(self, number: int, say: Say) -> list[bytes]:
        """The events from that number on, in the dialect of `say`."""
        events = self._events
        if number >= self._next or not events:
            return []
        known = self._lines.get(say)
        if known is None:
            known = self._lines[say] = [(-1, b"")] * ENTRIES
        found = []
        for event in islice(events, max(0, number - events[0][0]), None):
            at, place = event[0], event[0] % ENTRIES
            if known[place][0] != at:
                known[place] = at, _entry(Event(*event), say)
            found.append(known[place][1])
        return found


def _beginning(message: Message) -> Message:
    """A copy that does not keep a large payload in memory."""
    cut = Message(
        message.topic, message.payload[:PAYLOAD_BYTES], protocol=message.protocol,
        reply_to=message.reply_to, correlation=message.correlation, properties=message.properties,
    )  # fmt: skip
    cut.seq = message.seq
    return cut


def said(event: Event) -> bytes:
    """What happened, in dialect C."""
    identity = codec.message_id(event.queue, event.id)
    delivery = event.delivery()
    if delivery is None:
        return b'"Ack",' + identity
    return b'"Message",%b,%b' % (identity, codec.message(delivery))


def answer_of(lines: Iterable[bytes]) -> bytes:
    """The answer to a request for the trace."""
    return b'{"events":[%b]}' % b",".join(lines)


def _entry(event: Event, say: Say) -> bytes:
    head = b'{"time":%.6f' % (event.stamp / 1e6)
    who = b'"%b":%b' % (event.way, codec.quoted_name(event.client)) if event.client else b""
    name = b'"queue":%b' % codec.quoted_name(event.queue)
    middle = (name, who) if event.way == OUTPUT else (who, name)
    took = b',"processing_time":%d' % event.took if event.took >= 0 else b""
    parts = (head, *filter(None, middle), b'"message":[%b]%b}' % (say(event), took))
    return b"[%d,%b]" % (event.number, b",".join(parts))


class Watch(Wait):
    """One request for the trace, from that event on, to be answered in the dialect of `say`.

    `may`: whether who asks may still see it.
    """

    def __init__(
        self, trace: Trace, number: int, deadline: float, say: Say, may: Callable[[], bool]
    ) -> None:
        super().__init__(trace.wakeups, deadline)
        self._trace = trace
        self._number = number
        self._say = say
        self._may = may
        self._waits = False

    def begin(self) -> None:
        self._waits = True
        self._trace.watches[self] = None

    def end(self) -> None:
        self._waits = False
        self._trace.watches.pop(self, None)

    def answer(self) -> bytes | None:
        lines = self._trace.lines(self._number, self._say) if self._may() else []
        if lines:
            return answer_of(lines)
        if self._waits:
            self._trace.watches[self] = None
        return None

    def empty(self) -> bytes:
        return answer_of(())
