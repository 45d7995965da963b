"""`GET /`: who waits for whom. Every queue with what it holds, as message-switch shows it.

Times are nanoseconds since the switch started, negative before; a queue that was read before the
hub's restart, and not since, was last expected at the start. A queue shows its newest `ENTRIES`
messages and the beginning of each payload, and all together `MOST`: the answer is for people, and
is made in one go. Where a queue has more, `"messages"` says how many. Of more than `QUEUES` those
that hold something are shown first, and `"queues"` says how many there are. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.protocols.switch import codec, readme
from hubbub.protocols.switch.address import delivery_of
from hubbub.schema import name_to_wire

ENTRIES: Final = 100  # of one queue
MOST: Final = 2_000  # each is read back from the log
QUEUES: Final = 10_000  # they take 50 ms
PAYLOAD_BYTES: Final = 4096


class Diagnostics:
    """Knows when the switch started, on both clocks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._started = broker.clock.now()
        self._started_stamp = broker.clock.stamp()
        self._left = 0

    def answer(self) -> bytes:
        self._left = MOST
        queues, count = self._sorted(), len(self._broker.state.queues)
        return b'{"start_time":0,"current_time":%d,%b,%b%b}' % (
            self._since_start(self._broker.clock.now()),
            self._group(b"permanent_queues", [queue for queue in queues if not queue.owner]),
            self._group(b"transient_queues", [queue for queue in queues if queue.owner]),
            b',"queues":%d' % count if count > len(queues) else b"",
        )

    def readme(self) -> bytes:
        """The same in dialect A: the queues and what is in them."""
        self._left = MOST
        shown = [
            b"%b:[%b]" % (codec.quoted_name(queue.name), self._entries(queue, _readme_entry))
            for queue in self._sorted()
        ]
        return b"{%b}" % b",".join(shown)

    def _sorted(self) -> list[Queue]:
        """As many as are shown, by name."""
        return sorted(self._broker.queues.shown(QUEUES), key=_by_name)

    def _since_start(self, now: float) -> int:
        return int((now - self._started) * 1e9)

    def _group(self, title: bytes, queues: list[Queue]) -> bytes:
        shown = [b"%b:{%b}" % (codec.quoted_name(one.name), self._queue(one)) for one in queues]
        return b'"%b":{%b}' % (title, b",".join(shown))

    def _queue(self, queue: Queue) -> bytes:
        expected = more = b""
        if queue.polled is not None:
            expected = b'"next_transfer_expected":%d,' % self._since_start(queue.polled)
        if len(queue.messages) > min(ENTRIES, self._left):
            more = b',"messages":%d' % len(queue.messages)
        entries = self._entries(queue, self._entry)
        return expected + b'"queue_contents":[%b]%b' % (entries, more)

    def _entries(self, queue: Queue, said: Callable[[Queue, int, Message], bytes]) -> bytes:
        found = []
        for number in queue.newest(min(ENTRIES, self._left)):
            message = self._broker.log.look(queue.messages[number])
            if message is not None:
                found.append(said(queue, number, message))
        self._left -= len(found)
        return b",".join(found)

    def _entry(self, queue: Queue, number: int, message: Message) -> bytes:
        client = message.client
        origin = b'"Name",%b' % codec.quoted_name(client) if client else b'"Anonymous",0'
        delivery = delivery_of(queue, number, message)
        return b'[%b,{"origin":[%b],"time":%d,"message":%b}]' % (
            codec.message_id(queue.name, number),
            origin,
            (message.time - self._started_stamp) * 1000 if message.time else 0,
            codec.message(delivery._replace(payload=message.payload[:PAYLOAD_BYTES])),
        )


def _by_name(queue: Queue) -> bytes:
    return name_to_wire(queue.name)


def _readme_entry(queue: Queue, number: int, message: Message) -> bytes:
    return readme.entry(queue, number, message, PAYLOAD_BYTES)
