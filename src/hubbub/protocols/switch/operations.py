"""What each request does: one function an operation, and the table that names them.

A function gets the switch, who asks, and the request; it makes its calls on the broker and says
the answer, or raises `codec.Refused`. Logging in and whatever may wait are the connection's own.
No I/O.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Callable
from typing import Final

from hubbub.config.settings import UNIX
from hubbub.core.broker import Broker
from hubbub.core.limits import QUEUES_PER_TOKEN
from hubbub.core.log import MEMORY
from hubbub.core.message import ASIDE, Message, answering, first_in
from hubbub.core.queue import PLAIN, Queue
from hubbub.core.replies import ERROR, asker_of
from hubbub.core.rights import (
    CALL,
    CONFIGURE,
    CONSUME,
    DESTROY,
    ENQUEUE,
    LIST,
    MANAGE,
    TRACE,
    verb_of,
)
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, QUEUE, SYSTEM, client_number
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import ALIAS, reply_address, shown
from hubbub.protocols.switch.codec import Call, Refused
from hubbub.protocols.switch.diagnostics import Diagnostics
from hubbub.protocols.switch.session import README, Logins, SwitchSession, Visitor
from hubbub.protocols.switch.settings import settings_of, settings_said
from hubbub.protocols.switch.trace import Trace
from hubbub.protocols.switch.transfer import Polls
from hubbub.protocols.switch.wait import Wakeups
from hubbub.schema import name_to_wire
from hubbub.wire.http import Request


class Shared:
    """What the connections of one hub share."""

    def __init__(self, broker: Broker, wakeups: Wakeups) -> None:
        self.broker = broker
        self._key = secrets.token_bytes(32)
        self.logins = Logins(broker)
        self.trace = Trace(broker.clock, wakeups)
        self.polls = Polls(broker, self.trace)
        self.diagnostics = Diagnostics(broker, wakeups, self.logins)

    def mark(self, secret: bytes) -> bytes:
        """What is kept of a secret, to know it again while its connection is there."""
        return hmac.digest(self._key, secret, "sha256")


class Answer:
    """`level`: what it promises (`core.log`), 0 = as much as its listener's do.

    `upto`: the last row that it tells of, 0 = any made so far.
    """

    __slots__ = ("body", "status", "headers", "level", "upto")

    def __init__(
        self, body: bytes = b"", status: int = 200, headers: tuple[tuple[str, str], ...] = (),
        level: int = 0, upto: int = 0,
    ) -> None:  # fmt: skip
        self.body = body
        self.status = status
        self.headers = headers
        self.level = level
        self.upto = upto


def refused(refusal: Refused) -> Answer:
    return Answer(name_to_wire(str(refusal)), refusal.status, level=MEMORY)  # it promises nothing


def demand_quorum(broker: Broker) -> None:
    """What is to last is not taken while nobody can say that it will."""
    if broker.no_quorum:
        raise Refused(503, broker.no_quorum)


def demand_room(broker: Broker, session: Session, sender: Session, message: Message) -> None:
    """What a bound would lose is not taken (507). `sender`: whose route is taken."""
    route, size = broker.route(sender, message.topic), len(message.payload)
    retain = message.retain and size > 0
    lacks = broker.lacks_room(session, route, 1, retain, message.qos, size)
    if lacks:
        topic = message.topic[:80]
        raise Refused(507, f"No more is taken for {topic}: {lacks}; send the same again later.")


Operation = Callable[[Shared, Visitor, Call, Request], Answer]


# What each operation needs to be allowed, of the queue it names first, or of all queues.
VERBS_OF: Final = {
    "diagnostics": TRACE, "trace": TRACE, "shutdown": MANAGE,
    "persistent": LIST, "create_named": LIST,
    "request": CALL, "send": CALL, "withdraw": CALL, "ack": CONSUME, "subscribe": CONSUME,
    "configure": CONFIGURE, "destroy": DESTROY, "bind": ENQUEUE, "unbind": ENQUEUE,
}  # fmt: skip
# These ask by themselves: for several names, for one that is no queue's, or for who may answer.
ASKING: Final = frozenset(
    ("transient", "create_private", "response", "publish", "list", "list_alive", "transfer",
     "transfer_subscribed", "ack_subscribed")
)  # fmt: skip
ALL_OF: Final = {TRACE: QUEUE + "#", MANAGE: SYSTEM + "/#"}


def demand(broker: Broker, session: Session, verb: str, name: str) -> None:
    """Refused (403) if the client may not do that with the name, with the reason."""
    if not broker.may(session, verb, name):
        raise Refused(403, broker.refuse(session, verb, name))


def demand_for(broker: Broker, session: Session, call: Call) -> None:
    """What the operation needs before it begins."""
    verb = VERBS_OF.get(call.route.operation)
    if verb is not None:
        name = ALL_OF.get(verb) or QUEUE + call.arguments[0]
        demand(broker, session, verb, name)


def is_refused(broker: Broker, session: Session, call: Call) -> bool:
    """Whether the client may not do that, as far as is known without the body of the request."""
    operation = call.route.operation
    if operation == "publish":
        return not broker.may_publish(session, call.arguments[0])
    verb = VERBS_OF.get(operation)
    return verb is not None and not broker.may(
        session, verb, ALL_OF.get(verb) or QUEUE + call.arguments[0]
    )


def speaks_readme(shared: Shared, session: Visitor) -> bool:
    """Whether the client is one of dialect A.

    Who has not logged in looks, with the tools of the others: so it is if they are.
    """
    if isinstance(session, SwitchSession):
        return session.readme
    return shared.logins.dialects == {README}


def persistent(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    return _made(shared, make(shared, session, call.arguments[0]))


def transient(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """A queue of one's own needs no permission, but a rule may refuse its name."""
    name, broker = call.arguments[0], shared.broker
    if name in broker.state.queues or session.rights.decided_by(LIST, QUEUE + name):
        demand(broker, session, LIST, QUEUE + name)
    return _made(shared, make(shared, session, name, session))


def _made(shared: Shared, queue: Queue) -> Answer:
    """Callers ask for their queue before each call: one that is safe has no need to wait."""
    log = shared.broker.log
    return Answer(name_to_wire(queue.name), level=0 if queue.row > log.durable else MEMORY)


def make(shared: Shared, session: Visitor, name: str, maker: Visitor | None = None) -> Queue:
    """An existing queue stays what it is, and whose it is. Refused if there are too many.

    Of any name, also one that other protocols cannot say, but not of none.
    """
    queues = shared.broker.state.queues
    if not name:
        raise Refused(400, "Expected the name of a queue, got none.")
    if name in queues:
        return queues[name]
    made = shared.logins.made.get(session.client, 0)
    if made >= QUEUES_PER_TOKEN:
        raise Refused(429, f"You have made {made} queues, no more are allowed.")
    lacks = shared.broker.queues.lacks(name, session)
    if lacks:
        raise Refused(507, f"No more queues: {lacks}.")
    queue = shared.broker.queues.named(name, maker, session)
    shared.logins.begun(queue, session)
    return queue


def configure(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """`POST /create/QUEUE`: what is asked of a queue; it begins if it does not exist."""
    name = call.arguments[0]
    queue = shared.broker.state.queues.get(name)
    now = queue.settings if queue is not None else PLAIN
    asked = settings_of(request.body, now)
    if asked.dead_letter:
        if asked.dead_letter == name:
            raise Refused(400, "dead_letter cannot be the queue itself; expected another one")
        demand(shared.broker, session, ENQUEUE, QUEUE + asked.dead_letter)
    queue = make(shared, session, name)
    if asked != now:
        shared.broker.queues.configure(queue, asked)
    return Answer(settings_said(asked))


def destroy(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    name, broker = call.arguments[0], shared.broker
    others = name in broker.state.queues and not broker.owns(session, QUEUE + name)
    ended = end_queue(shared, name)
    if others:
        broker.audit.managed(session, "destroy", QUEUE + name)
    return _done(call, ended)


def end_queue(shared: Shared, name: str) -> bool:
    """False if there was none."""
    queue = shared.broker.state.queues.get(name)
    if queue is not None:
        shared.broker.queues.destroy(name)
        shared.logins.ended(queue)
    return queue is not None


def _done(call: Call, was_there: bool) -> Answer:
    """The original says nothing; who asks with `?tell=1` hears whether there was something."""
    if call.query.get("tell") != "1":
        return Answer()
    return Answer(b"1" if was_there else b"0")


def send_request(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    name, reply_to = call.arguments
    queue = shared.broker.state.queues.get(name)
    if queue is None:
        return Answer(codec.NOT_SENT)
    lacks = shared.broker.replies.lacks(session)
    if lacks:
        raise Refused(507, f"No more may be asked until some is answered: {lacks}.")
    message = Message(queue.client, request.body, qos=1, reply_to=reply_address(reply_to))
    return enqueue(shared, session, queue, message)


def send_response(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    name, origin = call.arguments[:2]
    number = codec.integer(call.arguments[2])
    subtopic = ERROR if call.query.get("error") == "1" else ""
    return respond(shared, session, name, origin, number, request.body, subtopic)


def respond(
    shared: Shared, session: Visitor, name: str, origin: str, number: int, payload: bytes,
    subtopic: str = "",
) -> Answer:  # fmt: skip
    """An answer goes where its request said, which need not be a queue."""
    broker, address = shared.broker, QUEUE + name
    request = _request(broker, origin, number)
    asked = request if request is not None and shown(request.reply_to, number) == name else None
    if asked is None and name.startswith(ALIAS):
        return Answer(codec.NOT_SENT)  # its request was answered or is gone
    message = Message("", payload, 1, subtopic=subtopic, properties={"answers": [origin, number]})
    serves = may_answer = False
    if asked is not None:
        address, message.correlation = asked.reply_to, asked.correlation
        serves = broker.may(session, CONSUME, QUEUE + origin)
        may_answer = serves and broker.replies.may_answer(session, address, asker_of(asked))
    if request is not None and first_in(request) is not None:
        message.properties = answering(message, [origin, number], first_in(request))
    if request is not None and not serves:
        message.properties = {"answers": [origin, number], ASIDE: True}
    if not may_answer:
        demand(broker, session, verb_of(address), address)
    if not address.startswith(QUEUE):
        return _answer_elsewhere(broker, session, name, address, message)
    queue = broker.state.queue_at(address)
    if queue is None and broker.queues.known(address):
        return _answer_elsewhere(broker, session, name, address, message)
    if queue is None:
        return Answer(codec.NOT_SENT)
    message.topic = queue.client
    return enqueue(shared, session, queue, message, answers=True)


def _request(broker: Broker, origin: str, number: int) -> Message | None:
    """The request of that id, if it is still in its queue."""
    queue = broker.state.queues.get(origin)
    seq = queue.messages.get(number) if queue is not None else None
    return broker.log.read(seq) if seq is not None else None


def _answer_elsewhere(
    broker: Broker, session: Visitor, name: str, address: str, message: Message
) -> Answer:
    """To a client or a topic; a client that is gone is like a reply queue that is gone."""
    if not address:
        return Answer(codec.NOT_SENT)
    if address.startswith(CLIENT) and not broker.reachable(client_number(address)):
        return Answer(codec.NOT_SENT)
    message.topic = address
    demand_room(broker, session, broker.itself, message)
    route = broker.answer(message, session)
    return Answer(codec.sent(name, 0), level=route.level)


def enqueue(
    shared: Shared, session: Visitor, queue: Queue, message: Message, answers: bool = False
) -> Answer:
    size = len(message.payload)
    if not shared.broker.queues.room(queue, session, size=size):
        raise _full(shared.broker, queue, session, size)
    number = queue.next
    message.time = shared.broker.clock.stamp()
    (shared.broker.answer if answers else shared.broker.post)(message, session)
    message.seq = queue.messages.get(number, 0)  # 0: a consumer has taken it already
    shared.trace.sent(session.client, queue, number, message)
    return Answer(codec.sent(queue.name, number), level=shared.broker.level(queue.client))


def _full(broker: Broker, queue: Queue, sender: Session, size: int) -> Refused:
    """Over a bound of its own a queue will take more one day; the hub's bounds are for good."""
    asked = queue.settings
    own = len(queue.messages) >= asked.max_messages > 0 or queue.bytes >= asked.max_bytes > 0
    text = f"The queue {queue.name} holds {queue.said()}, no more are allowed."
    lacks = "" if own else broker.lacks_disk(sender, again=True, size=size)
    if lacks:
        text = f"No message is taken that would stay here: {lacks}."
    return Refused(429 if own else 507, text)


def acknowledge(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    name, number = call.arguments[0], codec.integer(call.arguments[1])
    broker = shared.broker
    queue = broker.state.queues.get(name)
    if queue is None:
        return _done(call, False)
    over = broker.queues.is_over(queue, number)
    answer = _done(call, take_out(shared, session, queue, number))
    answer.level = MEMORY if over else 0
    return answer


def take_out(shared: Shared, session: Visitor, queue: Queue, number: int) -> bool:
    """Acknowledge a message; False if it was not there."""
    seq = queue.messages.get(number, 0)
    if not shared.broker.queues.acknowledge(queue, number, session):
        return False
    shared.trace.acknowledged(session.client, queue, number, seq)
    return True


def withdraw(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """Who sent a request takes it back; a queue that it made for that goes too, if nobody came."""
    broker, name, number = shared.broker, call.arguments[0], codec.integer(call.arguments[1])
    queue, message = broker.state.queues.get(name), _request(broker, name, number)
    if queue is None or message is None:
        return Answer(b"0")
    same = (message.protocol, message.client) == (session.protocol, session.client)
    # What was sent before, where users have rights, may be of another user with that token.
    if not same or not (session.rights is broker.open or message.seq > session.since):
        raise Refused(403, f"The message {number} in the queue {name} is another client's.")
    taken = take_out(shared, session, queue, number)
    if shared.logins.is_unused(queue, session):
        end_queue(shared, name)
    return Answer(b"1" if taken else b"0")


def shutdown(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """End the hub as SIGTERM does, where it is a process of its own and the client is near."""
    if shared.broker.stop is None:
        raise Refused(403, "This hub is part of a program, which has to end it.")
    if not is_near(session.address):
        raise Refused(403, "A hub is shut down from its own machine only.")
    shared.broker.audit.managed(session, "shutdown", "")
    shared.broker.stop()
    return Answer()


def is_near(address: str) -> bool:
    """Whether the far end is on this machine: a Unix socket, or a loopback address."""
    if address.startswith(UNIX):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def admin(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """The pages of the original; here there is the dashboard."""
    return Answer(b"", 302, (("location", "/"),))


OPERATIONS: Final[dict[str, Operation]] = {
    "persistent": persistent,
    "transient": transient,
    "destroy": destroy,
    "request": send_request,
    "response": send_response,
    "ack": acknowledge,
    "withdraw": withdraw,
    "configure": configure,
    "shutdown": shutdown,
    "admin": admin,
}
