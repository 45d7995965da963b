"""How the hub's messages and addresses look to message-switch, which knows only queues.

    in the hub        to message-switch
    $queue/x          x
    $client/5, a/b    as they are: what an SMQ or MQTT client asked from
    ""                "": nobody waits for an answer

Used by whatever shows or answers a message. No I/O.
"""

from __future__ import annotations

from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.topics import CLIENT, QUEUE
from hubbub.protocols.switch.codec import Delivery


def shown(address: str) -> str:
    """A reply-to of the hub as a message-switch service sees it, and names it in its answer."""
    return address[len(QUEUE) :] if address.startswith(QUEUE) else address


def reply_address(name: str) -> str:
    """The reply-to of a message-switch request, as an address of the hub."""
    return name if not name or name.startswith(CLIENT) else QUEUE + name


def delivery_of(queue: Queue, number: int, message: Message) -> Delivery:
    """A message of a queue as message-switch sees it."""
    return Delivery(
        queue.name, number, message.payload, shown(message.reply_to), answered_by(message),
        queue.delivered.get(number, 0) if queue.settings.lease else 0,
    )  # fmt: skip


def answered_by(message: Message) -> tuple[str, int] | None:
    """Queue and id of the request that this message answers; None if it answers none."""
    answers = message.properties.get("answers") if message.properties else None
    if not isinstance(answers, list) or len(answers) != 2:
        return None
    queue, number = answers
    return (queue, number) if isinstance(queue, str) and isinstance(number, int) else None
