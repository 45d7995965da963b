"""What each request does: one function an operation, and the table that names them.

A function gets the switch, who asks, and the request; it makes its calls on the broker and says
the answer. Logging in and whatever may wait are the connection's own. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hubbub.core.broker import Broker
from hubbub.core.limits import QUEUES
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.session import Session
from hubbub.core.topics import CLIENT, QUEUE, SYSTEM, is_filter, is_name
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.address import delivery_of, reply_address, shown
from hubbub.protocols.switch.codec import Call
from hubbub.protocols.switch.diagnostics import Diagnostics
from hubbub.protocols.switch.session import Logins
from hubbub.protocols.switch.trace import Trace
from hubbub.protocols.switch.transfer import Polls
from hubbub.protocols.switch.wait import Bell
from hubbub.schema import name_from_wire, name_to_wire
from hubbub.wire.http import Request


class Desk:
    """What the connections of one hub share."""

    def __init__(self, broker: Broker, bell: Bell) -> None:
        self.broker = broker
        self.logins = Logins(broker)
        self.trace = Trace(broker.clock, bell)
        self.polls = Polls(broker, self.trace)
        self.diagnostics = Diagnostics(broker)


class Answer(NamedTuple):
    body: bytes = b""
    status: int = 200


NOT_ALLOWED: Final = Answer(b"You may not do this here.", 403)
NO_ROOM: Final = Answer(b"There are too many queues.", 507)

Operation = Callable[[Desk, Session, Call, Request], Answer]


def allowed(session: Session, call: Call) -> bool:
    """Whether the client may do this with the queue that the call names first.

    A caller makes the queue it will send to, so either right will do for that (`use`). Who
    watches sees the messages of all queues.
    """
    rights, right = session.rights, call.route.right
    if not right:
        return True
    if right == "watch":
        return rights.may_bind(QUEUE + "#")
    name = QUEUE + call.arguments[0]
    return (right != "subscribe" and rights.may_publish(name)) or (
        right != "publish" and rights.may_subscribe(name)
    )


def diagnostics(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    return Answer(desk.diagnostics.answer())


def persistent(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    return _create(desk, call.arguments[0], "")


def transient(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    return _create(desk, call.arguments[0], session.client)


def _create(desk: Desk, name: str, owner: str) -> Answer:
    """An existing queue stays what it is, and its owner too."""
    queues = desk.broker.state.queues
    if name not in queues:
        if len(queues) >= QUEUES:
            return NO_ROOM
        desk.broker.queue(name, owner)
        if owner:
            desk.logins.own(owner, name)
        desk.polls.look_again()
    return Answer(name_to_wire(name))


def destroy(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    name = call.arguments[0]
    queue = desk.broker.state.queues.get(name)
    if queue is not None:
        desk.logins.disown(queue.owner, name)
        desk.broker.destroy(name)
    return Answer()


def send_request(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    name, reply_to = call.arguments
    queue = desk.broker.state.queues.get(name)
    if queue is None:
        return Answer(codec.NOT_SENT)
    message = Message(queue.client, request.body, qos=1, reply_to=reply_address(reply_to))
    return _send(desk, session, queue, message)


def send_response(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    """An answer goes where its request said, which need not be a queue."""
    name, origin = call.arguments[:2]
    number = codec.integer(call.arguments[2])
    asked = _request(desk.broker, origin, number)
    message = Message("", request.body, qos=1, properties={"answers": [origin, number]})
    if asked is not None:
        message.correlation = asked.correlation
    if asked is not None and not asked.reply_to.startswith(QUEUE) and shown(asked.reply_to) == name:
        return _answer_elsewhere(desk.broker, session, asked.reply_to, message)
    queue = desk.broker.state.queues.get(name)
    if queue is None:
        return Answer(codec.NOT_SENT)
    message.topic = queue.client
    return _send(desk, session, queue, message)


def _request(broker: Broker, origin: str, number: int) -> Message | None:
    """The request of that id, if it is still in its queue."""
    queue = broker.state.queues.get(origin)
    seq = queue.messages.get(number) if queue is not None else None
    return broker.log.read(seq) if seq is not None else None


def _answer_elsewhere(broker: Broker, session: Session, address: str, message: Message) -> Answer:
    """To a client or a topic; a client that is gone is like a reply queue that is gone."""
    if not address:
        return Answer(codec.NOT_SENT)
    route = broker.route(session.rights, address)
    if not route.allowed:
        return NOT_ALLOWED
    if address.startswith(CLIENT) and not route.subscriptions:
        return Answer(codec.NOT_SENT)
    message.topic = address
    broker.post(message, session)
    return Answer(codec.sent(address, 0))


def _send(desk: Desk, session: Session, queue: Queue, message: Message) -> Answer:
    number = queue.next
    message.time = desk.broker.clock.stamp()
    desk.broker.post(message, session)
    if queue.next == number:
        return _full(desk.broker, queue)
    desk.trace.sent(session.client, delivery_of(queue, number, message))
    return Answer(codec.sent(queue.name, number))


def _full(broker: Broker, queue: Queue) -> Answer:
    text = f"The queue {queue.name} holds {len(queue.messages)} messages, no more are allowed."
    return Answer(name_to_wire(text), 507)


def acknowledge(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    name, number = call.arguments[0], codec.integer(call.arguments[1])
    queue = desk.broker.state.queues.get(name)
    if queue is not None and desk.broker.acknowledge(queue, number, session):
        desk.trace.acknowledged(session.client, name, number)
    return Answer()


def list_all(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    prefix = call.arguments[0]
    return Answer(codec.names(name for name in desk.broker.state.queues if name.startswith(prefix)))


def list_alive(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    """Only the queues somebody ever read, which is what the original calls alive."""
    prefix = call.arguments[0]
    queues = desk.broker.state.queues.values()
    return Answer(
        codec.names(
            queue.name
            for queue in queues
            if queue.polled is not None and queue.name.startswith(prefix)
        )
    )


# Ours: topics for those who speak only HTTP

_FORM: Final = "application/x-www-form-urlencoded"  # what curl says of anything
_QOS: Final = {"": 0, "0": 0, "1": 1, "2": 2}
_FLAGS: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


def publish(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    """`POST /publish/TOPIC?qos=1&retain=1`: the body becomes a message."""
    topic, qos = call.arguments[0], _QOS.get(call.query.get("qos", ""))
    retain = _FLAGS.get(call.query.get("retain", ""))
    if not is_name(topic) or qos is None or retain is None:
        return Answer(b"Expected POST /publish/TOPIC?qos=0..2&retain=0|1, without wildcards.", 400)
    if not session.rights.may_publish(topic) or topic.startswith(SYSTEM):
        return NOT_ALLOWED
    kind = request.headers.get("content-type", "")
    message = Message(topic, request.body, qos, retain, content_type="" if kind == _FORM else kind)
    if topic.startswith(QUEUE):
        return _publish_to_queue(desk, session, message)
    desk.broker.post(message, session)
    return Answer()


def _publish_to_queue(desk: Desk, session: Session, message: Message) -> Answer:
    name = message.topic[len(QUEUE) :]
    made = _create(desk, name, "")
    if made.status != 200:
        return made
    sent = _send(desk, session, desk.broker.state.queues[name], message)
    return Answer() if sent.status == 200 else sent


def bind(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    """`POST /bind/QUEUE`, a filter as body: what matches enters the queue from now on."""
    topic_filter = name_from_wire(request.body)
    if not is_filter(topic_filter) or topic_filter.startswith((QUEUE, CLIENT)):
        return Answer(b"Expected a topic filter, as MQTT has them, in the body.", 400)
    if not session.rights.may_bind(topic_filter):
        return NOT_ALLOWED
    made = _create(desk, call.arguments[0], "")
    if made.status != 200:
        return made
    desk.broker.bind(desk.broker.state.queues[call.arguments[0]], topic_filter)
    return Answer()


def unbind(desk: Desk, session: Session, call: Call, request: Request) -> Answer:
    queue = desk.broker.state.queues.get(call.arguments[0])
    if queue is not None:
        desk.broker.unbind(queue, name_from_wire(request.body))
    return Answer()


OPERATIONS: Final[dict[str, Operation]] = {
    "diagnostics": diagnostics,
    "persistent": persistent,
    "transient": transient,
    "destroy": destroy,
    "request": send_request,
    "response": send_response,
    "ack": acknowledge,
    "list": list_all,
    "list_alive": list_alive,
    "publish": publish,
    "bind": bind,
    "unbind": unbind,
}
