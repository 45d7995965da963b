"""How the hub's messages and addresses look to message-switch, which knows only queues.

    in the hub                  to message-switch
    $queue/x                    x
    $client/5, a/b, $queue/a/b  reply~7, in the request with the id 7
    ""                          "": nobody waits for an answer

The original services paste a reply-to into the path of their answer as it is, so what is not safe
there has an alias. It needs no table: an answer names its request, which knows where it goes. So
it means nothing beside that request, and nothing once that is gone.

Used by whatever shows or answers a message. No I/O.
"""

from __future__ import annotations

import re
from typing import Final

from hubbub.core.message import ANSWERS_FIRST, Message
from hubbub.core.queue import Queue
from hubbub.core.replies import ERROR
from hubbub.core.topics import CLIENT, QUEUE
from hubbub.protocols.switch.codec import Delivery

ALIAS: Final = "reply~"

_UNSAFE: Final = re.compile("[^!-~]|[/%?#]")  # in a path, unless it is encoded


def shown(address: str, number: int) -> str:
    """A reply-to of the hub as a message-switch service sees it, and names it in its answer.

    `number` is the id of the request in its queue.
    """
    if address.startswith(QUEUE) and not _UNSAFE.search(address, len(QUEUE)):
        return address[len(QUEUE) :]
    return f"{ALIAS}{number}" if address else ""


def reply_address(name: str) -> str:
    """The reply-to of a message-switch request, as an address of the hub."""
    return name if not name or name.startswith(CLIENT) else QUEUE + name


def delivery_of(queue: Queue, number: int, message: Message) -> Delivery:
    """A message of a queue as message-switch sees it."""
    answers = answered_by(message)
    return Delivery(
        queue.name, number, message.payload, shown(message.reply_to, number), answers,
        queue.delivered.get(number, 0) if queue.settings.lease else 0,
        answers is not None and message.subtopic == ERROR,
    )  # fmt: skip


def answered_by(message: Message) -> tuple[str, int] | None:
    """Queue and id of the request that this message answers, as its asker knows it; None if it
    answers none.
    """
    said = message.properties or {}
    answers = said.get(ANSWERS_FIRST) or said.get("answers")
    if not isinstance(answers, list) or len(answers) != 2:
        return None
    queue, number = answers
    return (queue, number) if isinstance(queue, str) and isinstance(number, int) else None
