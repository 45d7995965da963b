"""Topics for those who speak only HTTP: `/publish`, `/bind`, `/unbind`, which are ours. No I/O."""

from __future__ import annotations

from typing import Final

from hubbub.core import client
from hubbub.core.message import Message
from hubbub.core.rights import BIND, PUBLISH
from hubbub.core.topics import CLIENT, QUEUE, SHARE, is_filter, is_name
from hubbub.protocols.switch.codec import Call, Refused
from hubbub.protocols.switch.operations import (
    Answer,
    Operation,
    Shared,
    demand,
    demand_quorum,
    demand_room,
    enqueue,
    make,
)
from hubbub.protocols.switch.session import Visitor
from hubbub.schema import name_from_wire
from hubbub.wire.http import Request

_FORM: Final = "application/x-www-form-urlencoded"  # what curl says of anything
_QOS: Final = {"": 0, "0": 0, "1": 1, "2": 2}
_FLAGS: Final = {"": False, "0": False, "false": False, "1": True, "true": True}


def publish(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """`POST /publish/TOPIC?qos=1&retain=1`: the body becomes a message."""
    topic, qos = call.arguments[0], _QOS.get(call.query.get("qos", ""))
    retain = _FLAGS.get(call.query.get("retain", ""))
    if not is_name(topic) or qos is None or retain is None:
        return Answer(b"Expected POST /publish/TOPIC?qos=0..2&retain=0|1, without wildcards.", 400)
    if not shared.broker.may_publish(session, topic):
        raise Refused(403, shared.broker.refuse(session, PUBLISH, topic))
    if qos or retain or topic.startswith(QUEUE):
        demand_quorum(shared.broker)
    kind = request.headers.get("content-type", "")
    message = Message(topic, request.body, qos, retain, content_type="" if kind == _FORM else kind)
    if topic.startswith(QUEUE):
        return _publish_to_queue(shared, session, message)
    demand_room(shared.broker, session, session, message)
    shared.broker.post(message, session)
    return Answer(level=shared.broker.level(topic))


def _publish_to_queue(shared: Shared, session: Visitor, message: Message) -> Answer:
    sent = enqueue(shared, session, make(shared, session, message.topic[len(QUEUE) :]), message)
    return Answer(level=sent.level)


def bind(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    """`POST /bind/QUEUE`, a filter as body: what matches enters the queue from now on."""
    topic_filter = name_from_wire(request.body)
    if not is_filter(topic_filter) or topic_filter.startswith((QUEUE, CLIENT, SHARE)):
        return Answer(b"Expected a topic filter, as MQTT has them, in the body.", 400)
    demand(shared.broker, session, BIND, topic_filter)
    try:
        client.check_wildcards(shared.broker, topic_filter)
    except client.Refused as refusal:
        raise Refused(403, str(refusal)) from None
    queues, queue = shared.broker.queues, make(shared, session, call.arguments[0])
    lacks = queues.lacks_binding(queue, topic_filter, session, shared.broker.subscriptions)
    if lacks:
        raise Refused(507, f"No more is bound: {lacks}.")
    queues.bind(queue, topic_filter, session)
    return Answer()


def unbind(shared: Shared, session: Visitor, call: Call, request: Request) -> Answer:
    queue = shared.broker.state.queues.get(call.arguments[0])
    topic_filter = name_from_wire(request.body)
    demand(shared.broker, session, BIND, topic_filter)
    if queue is not None:
        shared.broker.queues.unbind(queue, topic_filter)
    return Answer()


OPERATIONS: Final[dict[str, Operation]] = {"publish": publish, "bind": bind, "unbind": unbind}
