"""`GET /`: who waits for whom. Every queue with what it holds, as message-switch shows it.

Times are nanoseconds since the switch started, negative before; a queue that was read before the
hub's restart, and not since, was last expected at the start. A queue shows its newest `ENTRIES`
messages and the beginning of each payload, and all together `MOST`: the answer is for people. It
is made a piece a turn, so that nobody else waits for it. Where a queue has more, `"messages"` says
how many. Of more than `QUEUES` those that hold something are shown first, and `"queues"` says how
many there are. Who asks for `?readers=1` hears of each queue how many clients that are here read
it: the original knows only when one said that it would come again. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.foremost import foremost
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.protocols.switch import codec, readme
from hubbub.protocols.switch.address import delivery_of
from hubbub.protocols.switch.session import Logins
from hubbub.protocols.switch.wait import Report, Wakeups
from hubbub.schema import name_to_wire

ENTRIES: Final = 100  # of one queue
MOST: Final = 2_000  # each is read back from the log
QUEUES: Final = 10_000
PAYLOAD_BYTES: Final = 1024
LOOKED: Final = 100  # clients, with what they read, in one turn


class Diagnostics:
    """Knows when the switch started, on both clocks."""

    def __init__(self, broker: Broker, wakeups: Wakeups, logins: Logins) -> None:
        self.broker = broker
        self.wakeups = wakeups
        self.logins = logins
        self._started = broker.clock.now()
        self._started_stamp = broker.clock.stamp()

    def whole(self, queues: list[Queue], said: list[bytes]) -> bytes:
        """The answer, of what is said of each queue."""
        permanent = [one for queue, one in zip(queues, said, strict=True) if not queue.owner]
        transient = [one for queue, one in zip(queues, said, strict=True) if queue.owner]
        count = len(self.broker.state.queues)
        return (
            b'{"start_time":0,"current_time":%d,"permanent_queues":{%b},"transient_queues":{%b}%b}'
        ) % (
            self._since_start(self.broker.clock.now()),
            b",".join(permanent),
            b",".join(transient),
            b',"queues":%d' % count if count > len(queues) else b"",
        )

    def _since_start(self, now: float) -> int:
        return int((now - self._started) * 1e9)

    def queue(self, queue: Queue, entries: list[bytes], more: bool, readers: int | None) -> bytes:
        """A consumer of another protocol waits all the time."""
        consumers = queue.consumers_here()
        polled = self.broker.clock.now() if consumers else queue.polled
        expected = b""
        if polled is not None:
            expected = b'"next_transfer_expected":%d,' % self._since_start(polled)
        return b'%b:{%b"queue_contents":[%b]%b%b}' % (
            codec.quoted_name(queue.name),
            expected,
            b",".join(entries),
            b',"messages":%d' % len(queue.messages) if more else b"",
            b',"readers":%d' % (readers + consumers) if readers is not None else b"",
        )

    def entry(self, queue: Queue, number: int, message: Message) -> bytes:
        client = message.client
        origin = b'"Name",%b' % codec.quoted_name(client) if client else b'"Anonymous",0'
        delivery = delivery_of(queue, number, message)
        delivery.payload = message.payload[:PAYLOAD_BYTES]
        return b'[%b,{"origin":[%b],"time":%d,"message":%b}]' % (
            codec.message_id(queue.name, number),
            origin,
            (message.time - self._started_stamp) * 1000 if message.time else 0,
            codec.message(delivery),
        )


def _by_name(queue: Queue) -> bytes:
    return name_to_wire(queue.name)


class Diagnosis(Report):
    """One answer on its way. In dialect A (`old`) it is the queues and what is in them.

    `readers`: who reads is asked for.
    """

    def __init__(self, desk: Diagnostics, old: bool, readers: bool) -> None:
        super().__init__(desk.wakeups, desk.broker)
        self._desk = desk
        self._old = old
        self._queues: list[Queue] = []
        self._said: list[bytes] = []
        self._left = MOST
        self._readers: dict[str, int] | None = {} if readers else None

    def empty(self) -> bytes:
        del self._queues[len(self._said) :]
        return self.whole()

    def whole(self) -> bytes:
        if self._old:
            return b"{%b}" % b",".join(self._said)
        return self._desk.whole(self._queues, self._said)

    def pieces(self) -> Iterator[None]:
        """One queue after the other by name, with a stop behind each message."""
        yield from foremost(self._desk.broker.queues, QUEUES, self._queues)
        self._queues.sort(key=_by_name)
        yield
        if self._readers is not None:
            yield from self._count(self._readers)
        for queue in self._queues:
            entries: list[bytes] = []
            most = min(ENTRIES, self._left)
            more = len(queue.messages) > most
            for number, seq in [(number, queue.messages[number]) for number in queue.newest(most)]:
                message = self._desk.broker.log.look(seq)
                if message is not None:
                    entries.append(self._entry(queue, number, message))
                yield
            self._left -= len(entries)
            if self._old:
                self._said.append(b"%b:[%b]" % (codec.quoted_name(queue.name), b",".join(entries)))
            else:
                readers = self._readers
                count = readers.get(queue.name, 0) if readers is not None else None
                self._said.append(self._desk.queue(queue, entries, more, count))
            yield

    def _count(self, readers: dict[str, int]) -> Iterator[None]:
        """Who is busy with a request does not wait at its queue, but is here."""
        for number, session in enumerate(self._desk.logins.here(), 1):
            for name in session.reads:
                readers[name] = readers.get(name, 0) + 1
            if not number % LOOKED:
                yield

    def _entry(self, queue: Queue, number: int, message: Message) -> bytes:
        if self._old:
            return readme.entry(number, message, PAYLOAD_BYTES)
        return self._desk.entry(queue, number, message)
