"""`GET /`: who waits for whom. Every queue with what it holds, as message-switch shows it.

Times are nanoseconds since the switch started. A queue shows its newest `ENTRIES` messages and
the beginning of each payload: the answer is for people, and is made in one go. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.queue import Queue
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import delivery_of
from hubbub.schema import name_to_wire

ENTRIES: Final = 100  # of one queue
PAYLOAD_BYTES: Final = 4096


class Diagnostics:
    """Knows when the switch started, on both clocks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._started = broker.clock.now()
        self._started_stamp = broker.clock.stamp()

    def answer(self) -> bytes:
        queues = self._broker.state.queues.values()
        return b'{"start_time":0,"current_time":%d,%b,%b}' % (
            self._since_start(self._broker.clock.now()),
            self._group(b"permanent_queues", [queue for queue in queues if not queue.owner]),
            self._group(b"transient_queues", [queue for queue in queues if queue.owner]),
        )

    def _since_start(self, now: float) -> int:
        return int((now - self._started) * 1e9)

    def _group(self, title: bytes, queues: list[Queue]) -> bytes:
        queues.sort(key=lambda queue: name_to_wire(queue.name))
        shown = [b"%b:{%b}" % (codec.quoted_name(one.name), self._queue(one)) for one in queues]
        return b'"%b":{%b}' % (title, b",".join(shown))

    def _queue(self, queue: Queue) -> bytes:
        expected = b""
        if queue.polled is not None:
            expected = b'"next_transfer_expected":%d,' % self._since_start(queue.polled)
        newest = queue.above(-1)[:ENTRIES]
        entries = [entry for number in newest if (entry := self._entry(queue, number))]
        return expected + b'"queue_contents":[%b]' % b",".join(entries)

    def _entry(self, queue: Queue, number: int) -> bytes:
        message = self._broker.log.read(queue.messages[number])
        if message is None:
            return b""
        client = message.client
        origin = b'"Name",%b' % codec.quoted_name(client) if client else b'"Anonymous",0'
        delivery = delivery_of(queue, number, message)
        return b'[%b,{"origin":[%b],"time":%d,"message":%b}]' % (
            codec.message_id(queue.name, number),
            origin,
            (message.time - self._started_stamp) * 1000 if message.time else 0,
            codec.message(delivery._replace(payload=message.payload[:PAYLOAD_BYTES])),
        )
