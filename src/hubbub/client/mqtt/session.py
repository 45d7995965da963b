"""What outlives a connection: messages under way in both directions, and packet ids.

    publish ──> waiting ──room in the window──> in flight ──PUBACK / PUBCOMP──> done
                   ^──────── connection lost ────────┘        (again, with DUP, in order)

    PUBLISH arrives ──> inbox of the program ──taken──> PUBACK / PUBREC, in order of arrival

A message of QoS 1 or 2 has a number, and the packet id 1 + number mod 65,535: with a `Buffer` the
number is on the disk before the message leaves, so a program that was killed repeats it under
the id the broker knows, and QoS 2 stays exactly once. A SUBSCRIBE or UNSUBSCRIBE takes an id half
way round the circle. If the broker lost the session nothing is known to have arrived: all is sent
again, as new. Called by the client and by its connection; knows no sockets.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hubbub.client.mqtt.buffer import Buffer
from hubbub.client.mqtt.message import Message
from hubbub.client.mqtt.packets import Answer, Refusal
from hubbub.errors import HubbubError, Refused
from hubbub.protocols.mqtt import codec

if TYPE_CHECKING:
    from hubbub.client.mqtt.connection import Connection

log = logging.getLogger("hubbub.client.mqtt")

PACKET_IDS: Final = 65_535


class Outgoing:
    """A message of QoS 1 or 2 that the broker has not taken yet.

    `expires` is a Unix time, 0 = never. `sent`: maybe the broker knows it. `released`: it does
    (PUBREC came), and must not see it again. `done` is None for a message from the buffer.
    """

    __slots__ = ("number", "message", "expires", "sent", "released", "done")

    def __init__(
        self, number: int, message: Message, expires: float, done: asyncio.Future[None] | None
    ) -> None:
        self.number = number
        self.message = message
        self.expires = expires
        self.sent = False
        self.released = False
        self.done = done

    @property
    def packet_id(self) -> int:
        return 1 + self.number % PACKET_IDS

    def finish(self, error: Exception | None = None) -> None:
        if self.done is None:
            if error is not None:
                log.warning("%s: dropped from the buffer: %s", self.message.topic, error)
        elif not self.done.done():
            if error is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(error)


class Arrival:
    """A message that arrived. `taken`: it may be acknowledged. `packet_id` 0: it need not be."""

    __slots__ = ("message", "packet_id", "taken")

    def __init__(self, message: Message, packet_id: int) -> None:
        self.message = message
        self.packet_id = packet_id
        self.taken = False


class Session:
    """One MQTT session as the client sees it. `arrived` is called with each new message."""

    def __init__(self, window: int, arrived: Callable[[Arrival], None]) -> None:
        self._arrived = arrived
        self._buffer: Buffer | None = None
        self._connection: Connection | None = None
        # Toward the broker. In flight: by packet id, in order.
        self._window = window
        self._room = 0
        self._next = 0
        self._waiting: deque[Outgoing] = deque()
        self._inflight: dict[int, Outgoing] = {}
        self._requests: dict[int, Callable[[Answer], None]] = {}
        # From the broker: not acknowledged yet, in order; of QoS 2, by packet id until PUBREL.
        self._unacknowledged: deque[Arrival] = deque()
        self._open: dict[int, Arrival] = {}
        # Who waits until nothing is under way.
        self._idle: list[asyncio.Future[None]] = []

    def keep_in(self, buffer: Buffer) -> None:
        """Keep what is published in a file, and go on with what is there."""
        self._buffer = buffer
        self._next = buffer.next_number
        for kept in buffer.kept():
            outgoing = Outgoing(kept.number, kept.message, kept.expires, None)
            outgoing.sent, outgoing.released = True, kept.released
            self._waiting.append(outgoing)

    @property
    def unfinished(self) -> int:
        """Messages that the broker has not acknowledged."""
        return len(self._waiting) + len(self._inflight)

    # The connection comes and goes

    def attach(self, connection: Connection, present: bool) -> None:
        """Go on over a new connection. `present`: the broker still has the session."""
        self._connection = connection
        self._room = min(self._window, connection.limits.receive_maximum)
        if not present:
            self._forget()
        waiting = sorted((*self._inflight.values(), *self._waiting), key=lambda one: one.number)
        self._inflight = {one.packet_id: one for one in waiting if one.released}
        self._waiting = deque(one for one in waiting if not one.released)
        for packet_id in self._inflight:
            connection.acknowledge(codec.PUBREL, packet_id)
        self._send()

    def _forget(self) -> None:
        self._unacknowledged.clear()
        self._open.clear()
        for outgoing in (*self._inflight.values(), *self._waiting):
            outgoing.sent = outgoing.released = False

    def detach(self) -> None:
        self._connection = None
        self._requests.clear()
        self._unacknowledged.clear()  # the broker repeats them

    def end(self, error: Exception) -> None:
        """Nothing more will be sent: tell whoever waits."""
        self._connection = None
        for outgoing in (*self._inflight.values(), *self._waiting):
            if outgoing.done is not None:
                outgoing.finish(error)
        for future in self._idle:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
        self._inflight.clear()
        self._idle.clear()

    # Toward the broker

    async def publish(self, message: Message) -> None:
        """Return when the message is safe: acknowledged by the broker, or in the buffer."""
        number, self._next = self._next, self._next + 1
        expires = time.time() + message.expiry if message.expiry is not None else 0.0
        if self._buffer is not None:
            await self._buffer.put(number, message, expires)
            self._take_on(Outgoing(number, message, expires, None))
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._take_on(Outgoing(number, message, expires, done))
        await done

    def _take_on(self, outgoing: Outgoing) -> None:
        self._waiting.append(outgoing)
        self._send()

    def _send(self) -> None:
        """Send what waits while the window has room."""
        connection = self._connection
        while self._waiting and connection is not None and len(self._inflight) < self._room:
            outgoing = self._waiting[0]
            packet_id = outgoing.packet_id
            if packet_id in self._inflight or packet_id in self._requests:
                return  # the circle of ids is closed; an answer opens it
            self._waiting.popleft()
            left = self._seconds_left(outgoing)
            error = connection.objection(outgoing.message) or (
                Refused("the message expired before it could be sent") if left == 0 else None
            )
            if error is not None:
                self._finish(outgoing, error)
                continue
            self._inflight[packet_id] = outgoing
            message = outgoing.message._replace(expiry=left)
            connection.publish(message, packet_id, dup=outgoing.sent)
            outgoing.sent = True

    def _seconds_left(self, outgoing: Outgoing) -> int | None:
        return max(0, round(outgoing.expires - time.time())) if outgoing.expires else None

    def _finish(self, outgoing: Outgoing, error: HubbubError | None = None) -> None:
        outgoing.finish(error)
        if self._buffer is not None:
            self._buffer.done(outgoing.number)
        if not self.unfinished:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()

    async def flushed(self) -> None:
        """Return when the broker has acknowledged everything."""
        if self.unfinished:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(future)
            await future

    def request(self, then: Callable[[Answer], None]) -> int:
        """A packet id for a SUBSCRIBE or UNSUBSCRIBE, whose answer goes to `then`."""
        start = self._next + PACKET_IDS // 2
        for number in range(start, start + PACKET_IDS):
            packet_id = 1 + number % PACKET_IDS
            if packet_id not in self._requests and packet_id not in self._inflight:
                self._requests[packet_id] = then
                return packet_id
        raise ConnectionError("65,535 packets wait for an answer; there are no more ids")

    def answered(self, answer: Answer) -> None:
        """An acknowledgement came."""
        if answer.kind in (codec.SUBACK, codec.UNSUBACK):
            then = self._requests.pop(answer.packet_id, None)
            if then is not None:
                then(answer)
        elif answer.kind == codec.PUBREC and not answer.failed:
            self._received(answer.packet_id)
        else:
            outgoing = self._inflight.pop(answer.packet_id, None)
            if outgoing is not None:
                error = None
                if answer.failed and answer.kind != codec.PUBCOMP:
                    error = Refusal(f"{outgoing.message.topic} was refused", answer.code,
                                    answer.reason)  # fmt: skip
                self._finish(outgoing, error)
        self._send()

    def _received(self, packet_id: int) -> None:
        """The broker has a QoS 2 message: release its packet id, once that is known for good."""
        outgoing = self._inflight.get(packet_id)
        if outgoing is None or self._buffer is None:
            self._release(packet_id)
        elif not outgoing.released:
            written = self._buffer.released(outgoing.number)
            written.add_done_callback(lambda future: self._released(packet_id, future))

    def _released(self, packet_id: int, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            self._release(packet_id)

    def _release(self, packet_id: int) -> None:
        outgoing = self._inflight.get(packet_id)
        if outgoing is not None:
            outgoing.released = True
        if self._connection is not None:
            self._connection.acknowledge(codec.PUBREL, packet_id)

    # From the broker

    def arrive(self, message: Message, packet_id: int) -> None:
        """A PUBLISH came. One of QoS 2 that is already here is only acknowledged again."""
        if message.qos == 0:
            self._arrived(Arrival(message, 0))
            return
        arrival = self._open.get(packet_id) if message.qos == 2 else None
        known = arrival is not None
        if arrival is None:
            arrival = Arrival(message, packet_id)
            if message.qos == 2:
                self._open[packet_id] = arrival
        self._unacknowledged.append(arrival)
        if not known:
            self._arrived(arrival)
        elif arrival.taken:
            self._acknowledge()

    def release(self, packet_id: int) -> None:
        """A PUBREL came: the id is free, whether we know it or not."""
        self._open.pop(packet_id, None)
        if self._connection is not None:
            self._connection.acknowledge(codec.PUBCOMP, packet_id)

    def taken(self, arrival: Arrival) -> None:
        """The program has the message: acknowledge it as soon as those before it are."""
        if arrival.packet_id:
            arrival.taken = True
            self._acknowledge()

    def _acknowledge(self) -> None:
        # 4.6: acknowledgements leave in the order in which the messages arrived.
        while self._unacknowledged and self._unacknowledged[0].taken:
            arrival = self._unacknowledged.popleft()
            if self._connection is not None:
                kind = codec.PUBACK if arrival.message.qos == 1 else codec.PUBREC
                self._connection.acknowledge(kind, arrival.packet_id)
