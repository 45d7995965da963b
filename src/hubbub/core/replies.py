"""Reply ids: numbers that stand for "the one who asked this", for protocols that answer numbers.

    asker ---- request, reply-to A, correlation C ---->  consumer     sees sender N, or $client/N
    asker <--- to A, with C, `answers` the request ----  consumer     publishes to N

N is of the space of client numbers. It is made when a consumer must see one; an asker that can
be reached by its own number needs none. It lives until its first reply or until its time is
over; then it stands only as long as its request is still in a queue, so that a late reply can
take it from there. Called by the broker and by sessions; no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hubbub.core.limits import OPEN_REPLIES, REPLY_SECONDS
from hubbub.core.message import SPELLED, Message, Run, run_of
from hubbub.core.names import free_number
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import CLIENT, QUEUE, client_number

if TYPE_CHECKING:
    from hubbub.core.broker import Broker
    from hubbub.core.queue import Queue

LATE: Final = "late reply"
UNCLAIMED: Final = "the asker is gone"


class Reply:
    """Where one answer goes. `request` is the seq of the request, 0 if it was not recorded.

    `until` (monotonic seconds) is when it is late; `queue` has the request as `number`.
    """

    __slots__ = ("address", "correlation", "request", "until", "queue", "number")

    def __init__(self, message: Message, until: float) -> None:
        self.address = message.reply_to
        self.correlation = message.correlation
        self.request = message.seq
        self.until = until
        self.queue: Queue | None = None
        self.number = 0

    def waits(self) -> bool:
        """Whether its request is still in a queue."""
        return self.queue is not None and self.number in self.queue.messages


class Replies(Session):
    """All reply ids of a hub, and the receiver of what is published to them.

    `open`: id -> reply, oldest first; `late`: those whose time is over and whose request waits.
    """

    def __init__(self, broker: Broker) -> None:
        super().__init__("", "replies", broker.open)
        self.broker = broker
        self.open: dict[int, Reply] = {}
        self.late: dict[int, Reply] = {}
        self.entrance = Subscription(self, CLIENT, 2, (SPELLED, SPELLED, SPELLED), literal=True)
        self.ttl = REPLY_SECONDS
        self.most = OPEN_REPLIES
        self._by_request: dict[int, int] = {}

    def __contains__(self, number: object) -> bool:
        return number in self.open or number in self.late

    def full(self) -> bool:
        """Whether no request can be shown to anybody who would need a new id."""
        return len(self.open) + len(self.late) >= self.most

    def id_of(self, message: Message, reader: Session) -> int:
        """The number to answer a message with a reply-to at; 0 if there are too many.

        `reader` is who gets to see it: if it has the message from a queue, its reply
        acknowledges it there. The same request has the same id for everybody.
        """
        if message.reply_to.startswith(CLIENT):
            return client_number(message.reply_to)
        number = message.reply_id or self._by_request.get(message.seq, 0)
        if number not in self:
            if self.full():
                return 0
            number = self._make(message)
        message.reply_id = number
        lease = reader.leases.get(message.seq)
        if lease is not None:
            reply = self.open.get(number) or self.late[number]
            reply.queue, reply.number = lease
        return number

    def _make(self, message: Message) -> int:
        broker = self.broker
        number = free_number(broker.clients, broker.state.topics.names, self.open, self.late)
        if message.seq:
            self._by_request[message.seq] = number
        self.open[number] = Reply(message, broker.clock.now() + self.ttl)
        return number

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """The first message is the reply; its id is then nobody's, so all others are late."""
        number = client_number(run.route.name)
        for message in run.messages():
            reply = self._close(number)
            if reply is None:
                self.broker.metrics.drop(LATE)
            else:
                self._answer(reply, message, run.sender)

    def _close(self, number: int) -> Reply | None:
        reply = self.open.pop(number, None) or self.late.pop(number, None)
        if reply is not None and reply.request:
            self._by_request.pop(reply.request, None)
        if reply is not None:
            self.broker.left(number)
        return reply

    def _answer(self, reply: Reply, message: Message, responder: Session) -> None:
        """Send it on in the asker's own terms, and take the request out of its queue."""
        broker = self.broker
        if self._reaches(reply):
            self._forward(reply, message, responder)
        if reply.queue is not None and reply.waits():
            broker.queues.acknowledge(reply.queue, reply.number, responder)
            broker.queues.dispatch(reply.queue)

    def _reaches(self, reply: Reply) -> bool:
        """Whether anybody takes it: a queue of the asker's that exists, or a reply in time."""
        address, broker = reply.address, self.broker
        if address.startswith(QUEUE):
            if address[len(QUEUE) :] in broker.state.queues:
                return True
            broker.metrics.drop(UNCLAIMED)
        elif broker.clock.now() < reply.until:
            return True
        else:
            broker.metrics.drop(LATE)
        return False

    def _forward(self, reply: Reply, message: Message, responder: Session) -> None:
        properties = dict(message.properties or {})
        if reply.queue is not None:
            properties["answers"] = [reply.queue.name, reply.number]
        answer = Message(
            reply.address, message.payload, message.qos, False, responder.protocol,
            responder.client, responder.number, message.subtopic, message.content_type,
            message.reply_to, reply.correlation or message.correlation, properties or None,
            message.expires,
        )  # fmt: skip
        # Who was asked may answer, whatever else it may publish.
        route = self.broker.route(self.broker.open, reply.address)
        self.broker.publish(run_of(answer, responder, route))

    def wake(self) -> None:
        """End what is over its time: about once a second."""
        now = self.broker.clock.now()
        while self.open:
            number, reply = next(iter(self.open.items()))
            if reply.until > now:
                break
            if reply.waits():
                self.late[number] = self.open.pop(number)
            else:
                self._close(number)
        for number in [number for number, reply in self.late.items() if not reply.waits()]:
            self._close(number)
