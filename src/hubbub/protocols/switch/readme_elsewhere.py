"""Dialect A at a node that is not the home of what its client reads.

    subscribe, transfer, ack, create ── where is all that the token subscribed to? ── at one other
                                                        |                             node: there
                                                        └── here, or nowhere yet: here

One counter numbers the messages of all queues, and the client's cursor is a number of it. So all
that a token reads has to be at one node, whose numbers it then sees, by whichever node it comes;
its reply queues are made there, too. What is at several is refused (503). `elsewhere` asks, and
sends on. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.homes import Home
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.codec import Call, Refused
from hubbub.protocols.switch.session import SwitchSession, subscribe

READING: Final = frozenset(("subscribe", "transfer_subscribed", "ack_subscribed", "create_private"))
ELSEWHERE: Final = ""  # of a request that was read at another node: its queue, which that one knows
NOTHING: Final = b'{"messages":[]}'
FROM_THE_FIRST: Final = "-1"
APART: Final = (
    "Clients of the first message-switch read the queues of one node: {} is at node {}, {} is at "
    "node {}. Read them by tokens of their own."
)


def decides(call: Call, session: SwitchSession) -> bool:
    """Whether what the token reads says where the request goes, and no name in it does."""
    return call.route.operation in READING or _asked(call, session) is not None


def home_of(broker: Broker, call: Call, session: SwitchSession) -> Home | None:
    """The other node that has to do it; None: it is done here."""
    operation = call.route.operation
    if operation == "subscribe":
        return _subscribe(broker, session, call.arguments[0])
    if operation == "transfer_subscribed":
        return _transfer(broker, session, call)
    if operation == "create_private":
        return _reads_at(broker, session)
    if operation == "send":
        return _answer(broker, call, session)
    return _read_at(broker, session)  # its numbers are of there, whatever became of the queue


def remember(session: SwitchSession, body: bytes) -> None:
    """Which requests it got from another node: their answers go there."""
    for _, message in codec.loaded(body)["messages"]:
        if "reply_to" in message:
            session.remember(message["reply_to"], message["correlation_id"], ELSEWHERE, 0)


def _subscribe(broker: Broker, session: SwitchSession, name: str) -> Home | None:
    """Other connections of the token are to read it, too, so it is noted here as well."""
    home = _reads_at(broker, session, name)
    if home is not None and not home.lacks:
        subscribe(broker, session, name)
        session.readme = True
    return home


def _transfer(broker: Broker, session: SwitchSession, call: Call) -> Home | None:
    """A cursor is a number of the node that was read: at another one all is read that is there,
    once more perhaps, and nothing is skipped.
    """
    home = _reads_at(broker, session)
    if home is not None and home.lacks:
        return home
    node = home.node if home is not None else ""
    if session.read_at not in ("", node):
        call.arguments[0] = FROM_THE_FIRST
    session.read_at = node
    return home


def _read_at(broker: Broker, session: SwitchSession) -> Home | None:
    return broker.homes.at(session.read_at, "what it read is") if session.read_at else None


def _reads_at(broker: Broker, session: SwitchSession, more: str = "") -> Home | None:
    """The other node where all is that it subscribed to, and `more`. Refused (503) if there are
    several. A queue that is nowhere yet may begin anywhere.
    """
    found: dict[str, tuple[str, Home | None]] = {}
    for name in (*session.subscribed, more) if more else session.subscribed:
        home = broker.queues.home_of(name)
        if home is not None:
            found.setdefault(home.node, (name, home))
        elif name in broker.state.queues:
            found.setdefault(broker.homes.name, (name, None))
    if len(found) > 1:
        (one, (first, _)), (other, (second, _)) = list(found.items())[:2]
        raise Refused(503, APART.format(first, one, second, other))
    return next((home for _, home in found.values()), None)


def _asked(call: Call, session: SwitchSession) -> tuple[str, int] | None:
    """Where the request is that a message of dialect A answers."""
    if call.route.operation != "send" or len(call.arguments) != 2:
        return None
    return session.asked.get((call.arguments[0], codec.integer(call.arguments[1])))


def _answer(broker: Broker, call: Call, session: SwitchSession) -> Home | None:
    asked = _asked(call, session)
    if asked is None or asked[0] != ELSEWHERE:
        return None  # it is here, and known by the operation itself
    session.answers(call.arguments[0], codec.integer(call.arguments[1]))
    return _read_at(broker, session)
