"""What the requests of dialect A do, where it has paths of its own; see `readme`. No I/O."""

from __future__ import annotations

from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.rights import CONSUME
from hubbub.core.topics import QUEUE
from hubbub.protocols.switch import codec, readme
from hubbub.protocols.switch.address import reply_address
from hubbub.protocols.switch.codec import Call
from hubbub.protocols.switch.operations import (
    Answer,
    Operation,
    Shared,
    end_queue,
    enqueue,
    make,
    persistent,
    respond,
    take_out,
)
from hubbub.protocols.switch.session import README, SwitchSession, Visitor, unsubscribe
from hubbub.protocols.switch.session import subscribe as begin_to_read
from hubbub.schema import name_to_wire
from hubbub.wire.http import Request


def create_private(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """A queue for the answers to one client, under a name that is nobody else's.

    The client makes one for each call and never ends it, so the oldest ones go.
    """
    number = shared.broker.log.position + 1
    while (name := f"client-{number}") in shared.broker.state.queues:
        number += 1
    if not shared.broker.homes.alone:  # another node counts in the same way
        name = f"client-{shared.broker.address()}"
    if isinstance(session, SwitchSession):
        session.expects_answer(name)
        for old in session.worn_out():
            unsubscribe(shared.broker, session, old)
            end_queue(shared, old)
    make(shared, session, name, session)
    return _readme(shared, session, name_to_wire(name))


def create_named(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    return _readme(shared, session, persistent(shared, session, call, request).body)


def subscribe(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    if isinstance(session, SwitchSession):
        begin_to_read(shared.broker, session, call.arguments[0])
    return _readme(shared, session)


def _readme(shared: Shared, session: Visitor, body: bytes = b"") -> Answer:
    if isinstance(session, SwitchSession):
        session.readme = True
        shared.logins.dialects.add(README)
    return Answer(body)


def send(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """A request, or the answer to one; which, says only the correlation."""
    name, correlation = call.arguments[0], codec.integer(call.arguments[1])
    reply_to = call.arguments[2] if len(call.arguments) > 2 else ""
    queue = shared.broker.state.queues.get(name)
    asked = None
    if isinstance(session, SwitchSession) and not reply_to:
        asked = session.answers(name, correlation)
    elif isinstance(session, SwitchSession) and reply_to in session.fetched:
        session.expects_answer(reply_to)
    if asked is not None:
        respond(shared, session, name, *asked, request.body)
    elif queue is not None:
        to = reply_address(reply_to)
        said = str(correlation).encode()
        message = Message(queue.client, request.body, qos=1, reply_to=to, correlation=said)
        enqueue(shared, session, queue, message)
    return _readme(shared, session)


def acknowledge_any(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """By the number of the message alone; one that is in none of the queues is an error."""
    identity = codec.integer(call.arguments[0])
    seq = readme.seq_of(identity, shared.broker.log.records)
    found = False
    for queue in _holders(shared.broker, session, seq):
        take_out(shared, session, queue, queue.number_of(seq))
        found = True
    if not found:
        raise ValueError(f"there is no message {identity}")
    return _readme(shared, session)


def _holders(broker: Broker, session: Visitor, seq: int) -> list[Queue]:
    """The queues with that message: those it subscribed to, else any that it may read."""
    queues = broker.state.queues
    subscribed = session.subscribed if isinstance(session, SwitchSession) else {}
    known = [
        queues[name]
        for name in subscribed
        if name in queues and broker.may(session, CONSUME, queues[name].client)
    ]
    found = [queue for queue in known if queue.number_of(seq) >= 0]
    if found:
        return found
    return [
        queue
        for queue in _destinations(broker, seq)
        if queue.number_of(seq) >= 0 and broker.may(session, CONSUME, queue.client)
    ]


def _destinations(broker: Broker, seq: int) -> list[Queue]:
    """The queues that a message went to, as it says itself: there may be very many others."""
    message = broker.log.read(seq)
    if message is None:
        return []
    if message.topic.startswith(QUEUE):
        queue = broker.state.queue_at(message.topic)
        return [queue] if queue is not None else []
    bound = (subscription.session for subscription in broker.filters.match(message.topic))
    return [session for session in bound if isinstance(session, Queue)]


OPERATIONS: Final[dict[str, Operation]] = {
    "create_private": create_private,
    "create_named": create_named,
    "subscribe": subscribe,
    "send": send,
    "ack_subscribed": acknowledge_any,
}
