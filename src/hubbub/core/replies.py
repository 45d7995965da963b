"""Reply ids: numbers that stand for "the one who asked this", for protocols that answer numbers.

    asker ---- request, reply-to A, correlation C ---->  consumer     sees sender N, or $client/N
    asker <--- to A, with C, `answers` the request ----  consumer     publishes to N

N is of the space of client numbers. It is made when a consumer must see one; an asker that is
reached by its own number, and says no more, needs none. One user has a fifth of all at most. It
lives until its first reply or until its time is over; then it stands only as long as its request is
still in a queue, so that a late reply can take it from there. Called by the broker and by sessions;
no I/O.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from hubbub.core.context import Context
from hubbub.core.limits import OPEN_REPLIES, REPLY_SECONDS
from hubbub.core.message import SPELLED, Message, Run, answering, asked_in, first_in
from hubbub.core.observing import Observers
from hubbub.core.queue import Queue
from hubbub.core.queues import Queues
from hubbub.core.quotas import REQUESTS
from hubbub.core.rights import PUBLISH
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import CLIENT, QUEUE, client_number

LATE: Final = "late reply"
NOT_ASKED: Final = "an answer of somebody who was not asked"
UNCLAIMED: Final = "the asker is gone"
LOOKED: Final = 5_000  # ids at a look: open ones that are over, and late ones
ERROR: Final = "error"  # the sub-topic of an answer that says why there is none


# A client, over its connections: protocol, id and user.
Who = tuple[str, str, str]


def _who(session: Session) -> Who:
    return session.protocol, session.client, session.user


class Asker(NamedTuple):
    """Who sent a request: its name, the seq of the request (0 = none), its number then."""

    protocol: str
    client: str
    seq: int
    number: int


def asker_of(message: Message) -> Asker:
    return Asker(message.protocol, message.client, asked_in(message), message.sender)


class Reply:
    """Where one answer goes. `request` is the seq of the request, 0 if it was not recorded.

    `began` and `until` (monotonic seconds) are when it was made and when it is late; `queue` has
    the request as `number`. `asker` asked, and `handed` are who got to see it: they alone may
    answer. `qos` is the request's: an answer gets it too, for there are protocols that cannot say
    any.
    """

    __slots__ = (
        "address", "correlation", "request", "began", "until", "queue", "number", "asker", "handed",
        "qos", "payer", "first",
    )  # fmt: skip

    def __init__(self, message: Message, began: float, ttl: float) -> None:
        self.address = message.reply_to
        self.correlation = message.correlation
        self.request = message.seq
        self.began = began
        self.until = began + ttl
        self.queue: Queue | None = None
        self.number = 0
        self.asker = asker_of(message)
        self.handed: set[Who] = set()
        self.qos = message.qos
        self.payer = ""
        self.first = first_in(message)

    def waits(self) -> bool:
        """Whether its request is still in a queue."""
        return self.queue is not None and self.number in self.queue.messages


class Replies(Session):
    """All reply ids of a hub, and the receiver of what is published to them.

    `open`: id -> reply, oldest first; `late`: those whose time is over and whose request waits.
    """

    def __init__(self, broker: Context, queues: Queues, observers: Observers) -> None:
        super().__init__("", "replies", broker.open)
        self.broker = broker
        self._queues = queues
        self._observers = observers
        self.open: dict[int, Reply] = {}
        self.late: dict[int, Reply] = {}
        self.entrance = Subscription(self, CLIENT, 2, (SPELLED, SPELLED, SPELLED), literal=True)
        self.ttl = REPLY_SECONDS
        self.most = OPEN_REPLIES
        self._by_request: dict[int, int] = {}
        self._round: list[int] = []  # late ones that were not looked at in this round
        queues.fail = self.fail

    def __contains__(self, number: object) -> bool:
        return number in self.open or number in self.late

    def place_of(self, name: str) -> str:
        """Where an answer goes that is published under that name; "" if that is no reply id, or of
        one whose queue is gone, which nobody begins again by asking.
        """
        number = client_number(name)
        reply = self.open.get(number) or self.late.get(number)
        address = reply.address if reply is not None else ""
        return "" if address.startswith(QUEUE) and not self._queues.known(address) else address

    def full(self) -> bool:
        """Whether no request can be shown to anybody who would need a new id."""
        return len(self.open) + len(self.late) >= self.most

    def id_of(self, message: Message, reader: Session) -> int:
        """The number to answer a message with a reply-to at; 0 if there are too many.

        `reader` is who gets to see it: if it has the message from a queue, its reply
        acknowledges it there. The same request has the same id for everybody. An asker's own
        number says which request was meant only where that is known from a lease.
        """
        queued = message.seq in reader.leases  # a reader takes few of these at a time
        if message.reply_to.startswith(CLIENT) and (queued or not message.correlation):
            return client_number(message.reply_to)
        number = message.reply_id or self._by_request.get(message.seq, 0)
        if number not in self:
            asker = self.broker.sessions.get((message.protocol, message.client))
            if self.full() or (asker is not None and not queued and self.lacks(asker)):
                return 0
            number = self._make(message, asker)
        message.reply_id = number
        self.hand(message, reader)
        return number

    def lacks(self, asker: Session) -> str:
        """Why this client may ask nothing more now, "" if it may: others could not ask.

        With no room for anybody what it asks of a queue waits there.
        """
        return self.broker.quotas.lacks(REQUESTS, asker, 0)

    def hand(self, message: Message, reader: Session) -> None:
        """This client gets to see the request under its id, and may answer it."""
        reply = self.open.get(message.reply_id) or self.late.get(message.reply_id)
        if reply is None:
            return
        reply.handed.add(_who(reader))
        lease = reader.leases.get(message.seq)
        if lease is not None:
            reply.queue, reply.number = lease

    def possible(self, asker: Session, address: str, route: Route) -> bool:
        """Whether anybody may answer a message of the asker's there, as far as is known.

        Else the address says nothing to its readers, but where the asker may not write.
        """
        broker = self.broker
        if asker.rights is broker.open or address == f"{CLIENT}{asker.number}" or route.bounded:
            return True
        readers = (one.session for one in route.subscriptions)
        return any(broker.may_publish(one, address) for one in (asker, *readers))

    def may_answer(self, responder: Session, address: str, asker: Asker) -> bool:
        """Whether an answer goes there: where the responder may publish, or the asker.

        The asker may be gone; then what it might do does not count.
        """
        broker = self.broker
        if broker.may_publish(responder, address):
            return True
        session = self._present(asker, address)
        return session is not None and broker.may_publish(session, address)

    def _present(self, asker: Asker, address: str) -> Session | None:
        """The session that asked, if it is still here: its name may be somebody else's now.

        What goes to a queue of its own is for it, also on its next connection.
        """
        session = self.broker.sessions.get((asker.protocol, asker.client))
        if session is None or session.opening is None:
            return None
        same = asker.seq > session.since if asker.seq else asker.number == session.number
        return session if same or self.broker.owns(session, address) else None

    def _make(self, message: Message, asker: Session | None) -> int:
        broker = self.broker
        number = broker.address()
        if message.seq:
            self._by_request[message.seq] = number
        reply = self.open[number] = Reply(message, broker.clock.now(), self.ttl)
        reply.payer = broker.quotas.take(REQUESTS, asker)
        return number

    def deliver(self, run: Run, subscription: Subscription) -> None:
        """The first message is the reply; its id is then nobody's, so all others are late."""
        number, responder = client_number(run.route.name), run.sender
        for message in run.messages():
            reply = self.open.get(number) or self.late.get(number)
            if reply is None:
                self.broker.metrics.drop(LATE)
            elif responder is not self.broker.itself and _who(responder) not in reply.handed:
                self.broker.metrics.drop(NOT_ASKED)
            else:
                self._close(number)
                self._queues.calls.answered(reply.request, reply.began)
                self._answer(reply, message, responder)

    def _close(self, number: int) -> Reply | None:
        reply = self.open.pop(number, None) or self.late.pop(number, None)
        if reply is not None and reply.request:
            self._by_request.pop(reply.request, None)
        if reply is not None:
            self.broker.quotas.give(REQUESTS, reply.payer)
            self._observers.left(number)
        return reply

    def _answer(self, reply: Reply, message: Message, responder: Session) -> None:
        """Send it on in the asker's own terms, and take the request out of its queue."""
        broker = self.broker
        if not self._reaches(reply):
            pass
        elif self.may_answer(responder, reply.address, reply.asker):
            self._forward(reply, message, responder)
        else:
            broker.refuse(responder, PUBLISH, reply.address)
            broker.metrics.drop("not allowed")
        if reply.queue is not None and reply.waits():
            self._queues.finish(reply.queue, reply.number, responder)

    def _reaches(self, reply: Reply) -> bool:
        """Whether anybody takes it: a queue of the asker's that exists, or it, or who may be there.

        In time nobody knows who waits at the address; later only an asker that is still a client.
        """
        address, broker = reply.address, self.broker
        if address.startswith(QUEUE):
            if self._queues.known(address):
                return True
            broker.metrics.drop(UNCLAIMED)
        elif broker.clock.now() < reply.until or self._present(reply.asker, address):
            return True
        else:
            broker.metrics.drop(LATE)
        return False

    def _forward(self, reply: Reply, message: Message, responder: Session) -> None:
        properties = dict(message.properties or {})
        if reply.queue is not None:
            request = [reply.queue.name, reply.queue.known_as(reply.number)]
            properties = answering(message, request, reply.first)
        answer = Message(
            reply.address, message.payload, max(message.qos, reply.qos), False, responder.protocol,
            responder.client, responder.number, message.subtopic, message.content_type,
            message.reply_to, reply.correlation or message.correlation, properties or None,
            message.expires,
        )  # fmt: skip
        self.broker.answer(answer, responder)

    def fail(self, queue: Queue, number: int, message: Message, reader: Session) -> None:
        """Nobody can take a request: tell who asked. `reader` could not, and might have answered.

        Where neither may write nothing is said, as if it had answered.
        """
        reply = Reply(message, self.broker.clock.now(), self.ttl)
        reply.queue, reply.number = queue, number
        if self._reaches(reply) and self.may_answer(reader, reply.address, reply.asker):
            text = f"{len(message.payload)} bytes are too large for all who serve {queue.name}"
            said = Message("", text.encode(), subtopic=ERROR)
            self._forward(reply, said, self.broker.itself)

    def wake(self) -> None:
        """End what is over its time, so many at a look."""
        self.broker.one_in_turns(self, self._ended)

    def _ended(self) -> Iterator[None]:
        """The oldest are first. To look for the first one again behind each passes all that were
        there before it: 100,000 took 8 s. Those that are late may be so for weeks: they are gone
        round.
        """
        now = self.broker.clock.now()
        for number, reply in list(islice(self.open.items(), LOOKED)):
            if reply.until > now:
                break
            if number in self.open and reply.waits():
                self.late[number] = self.open.pop(number)
            elif number in self.open:
                self._close(number)
            yield
        if not self._round:
            self._round = list(self.late)
        some = self._round[-LOOKED:]
        del self._round[-LOOKED:]
        for number in some:
            if number in self.late and not self.late[number].waits():
                self._close(number)
            yield
