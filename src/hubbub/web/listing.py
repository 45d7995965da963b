"""`GET /api/v1/ls/KIND`: what there is in the hub, page by page, found by a part of its name.

Sessions and subscriptions of clients that are away are among it. A page is looked for in pieces,
LOOKED things a turn of the loop, for there may be a million; who comes or goes meanwhile may be
missed or be there twice. No payload is shown. Called by `web.app`, which has asked for rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

from hubbub.cluster.keeping import PROTOCOL as NODE
from hubbub.core.audit import Left
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.limits import PEEKED_BYTES
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.replies import Reply
from hubbub.core.sampled import MESSAGE_WEIGHT, Sender
from hubbub.core.session import Session
from hubbub.core.turns import Stint
from hubbub.web.query import sayable

NO_CLIENTS: Final = frozenset({"bridge", NODE})  # sessions of what is no client of anybody
LOOKED: Final = 2_000  # things of one turn: about a millisecond
CALLS_OF_QUEUE: Final = 100  # messages of a queue that are looked at: each is read back
CALLS_LOOKED: Final = 500  # and of all queues


class Thing(NamedTuple):
    """What is searched, and what is said of it if it is on the page. `node`: for whose clients it
    is here, if that is another node.
    """

    name: str
    row: Callable[[], dict[str, Any]]
    node: str = ""


class Page(NamedTuple):
    """The things of a page, and how many there are that match."""

    items: list[dict[str, Any]]
    total: int


async def page(
    things: Iterator[Thing], clock: Clock, search: str, limit: int, offset: int,
    beside: Collection[str] = (),
) -> Page:  # fmt: skip
    """Those in whose name `search` is, in any case of letters, without the first `offset`; of the
    nodes `beside` none, which say their own.

    Some have to be read back, so a turn is bounded in time too.
    """
    items: list[dict[str, Any]] = []
    count, wanted = 0, search.casefold()
    stint = Stint(clock)
    for number, thing in enumerate(things, 1):
        if wanted in thing.name.casefold() and thing.node not in beside:
            count += 1
            if offset < count <= offset + limit:
                items.append(thing.row())
        if not number % LOOKED or stint.over():
            await asyncio.sleep(0)
            stint = Stint(clock)
    return Page(items, count)


def _sessions(broker: Broker, connected: tuple[bool, ...] = (True, False)) -> Iterator[Thing]:
    for session in list(broker.sessions.values()):
        client = session.protocol and session.protocol not in NO_CLIENTS
        if client and (session.number != 0) in connected:
            yield Thing(session.client, partial(session_row, broker, session))


def session_row(broker: Broker, session: Session) -> dict[str, Any]:
    state = broker.state.sessions.get((session.protocol, session.client))
    waits = len(state.backlog.entries) if state is not None else session.unacknowledged()
    return sayable({
        "protocol": session.protocol, "client": session.client,
        "user": session.user, "address": session.address,
        "connected": session.number != 0, "lasting": session.lasting,
        "subscriptions": len(session.subscriptions), "waiting": waits,
        "waiting_bytes": state.backlog.bytes if state is not None else 0,
        "in_flight": state.backlog.in_flight() if state is not None else waits,
        "expires": state.expires if state is not None and not state.connected else 0,
        "left": state.left if state is not None else 0,
        "since": session.came, "dropped": sum(session.dropped.values()),
    })  # fmt: skip


def _gone(broker: Broker) -> Iterator[Thing]:
    """Who left of late, the last one first."""
    for left in reversed(list(broker.audit.gone)):
        yield Thing(left.who.client, partial(_left, left))


def _left(left: Left) -> dict[str, Any]:
    who = left.who
    row = {"time": left.time, "protocol": who.protocol, "client": who.client, "user": who.user}
    more = {"address": who.address, "since": left.came, "reason": left.reason}
    return sayable({**row, **more})


def _senders(broker: Broker) -> Iterator[Thing]:
    """Who publishes just now, who costs the hub most first."""
    for sender in broker.sampled.busiest():
        yield Thing(sender.client, partial(_sender, sender), sender.node)


def _sender(sender: Sender) -> dict[str, Any]:
    return sayable({
        "protocol": sender.protocol, "client": sender.client, "user": sender.user,
        "address": sender.address, "messages_per_second": round(sender.rate, 1),
        "bytes_per_second": round(sender.bytes), "topic": sender.topic, "time": sender.time,
    })  # fmt: skip


def lightness(row: dict[str, Any]) -> float:
    """Orders rows of senders of several processes as `busiest` does those of one."""
    weight = row["bytes_per_second"] + row["messages_per_second"] * MESSAGE_WEIGHT
    return -float(weight)


def _calls(broker: Broker) -> Iterator[Thing]:
    """Requests that wait for their answer: those with a number, then those in the queues."""
    for number, reply in list(broker.replies.open.items()):
        yield Thing(reply.asker.client, partial(_call, broker, number, reply))
    known = {reply.request for reply in broker.replies.open.values()}
    for queue, number, message in islice(_waiting(broker), CALLS_LOOKED):
        if message.reply_to and message.seq not in known:
            yield Thing(message.client, partial(_queued, queue, number, message))


def _waiting(broker: Broker) -> Iterator[tuple[Queue, int, Message]]:
    """The oldest messages of the queues that hold some, read back from the disk."""
    for queue in [one for one in broker.state.queues.values() if one.messages]:
        for seq, number, size in list(islice(queue.above(-1), CALLS_OF_QUEUE)):
            message = broker.log.look(seq) if size <= PEEKED_BYTES else None
            if message is not None:
                yield queue, number, message


def _call(broker: Broker, number: int, reply: Reply) -> dict[str, Any]:
    passed = broker.clock.now() - (reply.until - broker.replies.ttl)
    return sayable({
        "number": number, "protocol": reply.asker.protocol, "asker": reply.asker.client,
        "queue": reply.queue.name if reply.queue is not None else "", "answer_to": reply.address,
        "handed": ", ".join(sorted(client for _, client, _ in reply.handed)),
        "since": broker.clock.stamp() - int(passed * 1_000_000),
    })  # fmt: skip


def _queued(queue: Queue, number: int, message: Message) -> dict[str, Any]:
    taker = queue.leased.get(number)
    return sayable({
        "number": number, "protocol": message.protocol, "asker": message.client,
        "queue": queue.name, "answer_to": message.reply_to,
        "handed": taker.client if taker is not None else "", "since": message.time,
    })  # fmt: skip


def _subscriptions(broker: Broker) -> Iterator[Thing]:
    for session in list(broker.sessions.values()):
        for name, one in list(session.subscriptions.items()):
            row = {"protocol": session.protocol, "client": session.client}
            about = {"connected": session.number != 0, "filter": name, "qos": one.qos}
            node = session.client if session.protocol == NODE else ""
            yield Thing(name, partial(sayable, row | about), node)


def _topics(broker: Broker) -> Iterator[Thing]:
    for name, number in list(broker.state.topics.numbers.items()):
        yield Thing(name, partial(sayable, {"topic": name, "id": number}))


def _retained(broker: Broker) -> Iterator[Thing]:
    for name, kept in list(broker.state.retained.items()):
        row = {"topic": name, "bytes": kept.size, "expires": kept.expires, "of": kept.whose}
        yield Thing(name, partial(sayable, row))


def _queues(broker: Broker) -> Iterator[Thing]:
    for queue in list(broker.state.queues.values()):
        yield Thing(queue.name, partial(_queue, broker, queue))


def _queue(broker: Broker, queue: Queue) -> dict[str, Any]:
    return sayable({
        "queue": queue.name, "messages": len(queue.messages), "leased": len(queue.leased),
        "bytes": queue.bytes, "full": broker.queues.is_full(queue),
        "takers": queue.takers(), "owner": queue.owner,
        "waits": round(broker.queues.waits(queue), 3), "away": round(broker.queues.away(queue), 3),
    })  # fmt: skip


def _delayed(broker: Broker) -> Iterator[Thing]:
    """Searched by the number of their row, for their topics are on the disk."""
    for seq, due in sorted(broker.state.delayed.items(), key=itemgetter(1)):
        yield Thing(str(seq), partial(_late, broker, seq, due))


def _late(broker: Broker, seq: int, due: int) -> dict[str, Any]:
    large = broker.state.large.get(seq, 0)
    message = broker.log.look(seq) if not large else None
    topic, size = (message.topic, len(message.payload)) if message is not None else ("", large)
    client = message.client if message is not None else ""
    return sayable({"seq": seq, "due": due, "topic": topic, "bytes": size, "client": client})


def _bridges(broker: Broker) -> Iterator[Thing]:
    for session in list(broker.sessions.values()):
        if session.protocol == "bridge":
            yield Thing(session.client, partial(_bridge, broker, session))


def _bridge(broker: Broker, session: Session) -> dict[str, Any]:
    state = broker.state.sessions.get((session.protocol, session.client))
    waits = len(state.backlog.entries) if state is not None else 0
    up = session.way_out() is not None
    cut = bool(getattr(session, "cut", False))
    return sayable({"bridge": session.client, "up": up, "waiting": waits, "cut_off": cut})


KINDS: Final[dict[str, Callable[[Broker], Iterator[Thing]]]] = {
    "sessions": _sessions,
    "clients": partial(_sessions, connected=(True,)),
    "away": partial(_sessions, connected=(False,)),
    "senders": _senders,
    "subscriptions": _subscriptions,
    "topics": _topics,
    "retained": _retained,
    "queues": _queues,
    "delayed": _delayed,
    "bridges": _bridges,
    "gone": _gone,
    "calls": _calls,
}
