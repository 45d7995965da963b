"""The door: what a client asks for, whatever it speaks. No feature asks for rights beside it.

    admit        credentials -> the gate -> an Admission, which `Broker.connect` takes
    subscribe    rights, bound, grammar -> the broker;  then the answer;  then `catch_up`
    drop         what it does not get, counted, with the reason

A protocol whose clients take what they get at once, and are gone with their connection, has in
`Client` and `Conversation` all but its words; `examples/` shows two.

Called by the connections of protocols, and by whatever else lets clients in. No I/O.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr

from hubbub.core.broker import Broker
from hubbub.core.connection import Connection
from hubbub.core.gate import Admission, Decided
from hubbub.core.limits import EARLY_BYTES, PREFETCH
from hubbub.core.link import Link
from hubbub.core.message import Message, Run
from hubbub.core.past import NOTHING_KEPT, Past, has_past
from hubbub.core.quotas import SUBSCRIBED, size_of
from hubbub.core.rights import CONSUME, OBSERVE, RECEIVE, SUBSCRIBE, verb_of, words_of
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import (
    CLIENT,
    QUEUE,
    SELF,
    SHARE,
    has_wildcard,
    is_filter,
    is_group,
    is_name,
    shared_filter,
)
from hubbub.errors import ProtocolError

log = logging.getLogger("hubbub.client")

LOOKED: Final = 100  # of the queues a client was turned away from, at a look

# Why a subscription is refused; protocols have codes for these.
MALFORMED: Final = "malformed"
NO_WILDCARDS: Final = "no wildcards"
NO_SHARING: Final = "no sharing"
TOO_MANY: Final = "too many"
NOT_ALLOWED: Final = "not allowed"
NO_PAST: Final = "no past"


class Refused(Exception):
    """A client may not have that: `reason` is one of the above, the text says more."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def admit(
    connection: Connection, client: str, user: str, secret: bytes, decided: Decided,
    alone: bool = True,
) -> None:  # fmt: skip
    """Ask the gate who this is: `decided(admission, "")` or `decided(None, reason)`, perhaps later.

    While the gate thinks `connection.asking` is set: what comes goes to `keep`, and is fed after
    the answer; a connection that ends clears it, and hears no answer. `alone`: an older
    connection of the same client ends first. Nothing is read behind what came: or a client that
    said something and closed would be gone before it is heard. Who only logs in and closes is.
    """
    link = connection.link

    def judged(admission: Admission | None, reason: str) -> None:
        if not connection.asking or link.closing:
            return  # it went meanwhile
        connection.asking = False
        if admission is not None and alone and client:
            connection.broker.take_over(admission)
        decided(admission, reason)
        kept = connection.early or ()
        if kept:
            connection.early = None
        for data in kept:
            if not link.closing:
                connection.feed(data)
        if kept and not connection.working:
            connection.opening.carrier.listens(True)

    connection.asking = True
    connection.opening.ask(client, user, secret, judged)


def keep(connection: Connection, data: bytes) -> None:
    """Put by what came while the gate thinks; ProtocolError over the bound."""
    if connection.early is None:
        connection.early = []
        connection.opening.carrier.listens(False)
    early = connection.early
    early.append(data)
    if sum(map(len, early)) > EARLY_BYTES:
        raise ProtocolError(f"more than {EARLY_BYTES} bytes before the login is answered")


def subscribe(broker: Broker, subscription: Subscription, past: Past | None = None) -> bool:
    """Let a client's subscription begin; True if it is new. `Refused` says why not.

    What was there before it comes with `catch_up`, once the client was answered. `past`: it is to
    begin there, which is asked for with the same right.
    """
    session, name = subscription.session, subscription.filter
    most = broker.subscriptions
    full = len(session.subscriptions) >= most and session is not broker.itself
    if full and name not in session.subscriptions:
        raise Refused(TOO_MANY, f"{most} subscriptions are the most")
    if name not in session.subscriptions and session is not broker.itself:
        _check_quota(broker, session, name)
    if subscription.literal:
        _check_name(broker, session, name)
    else:
        _check_filter(broker, session, name)
    if past is not None:
        _check_past(broker, session, name)
    new = broker.subscribe(subscription)
    if past is not None:
        broker.archive.enter(subscription, past)
    return new


def observe(broker: Broker, session: Session, name: str) -> int:
    """How many a publish to a name would reach, and let it hear when that changes. `Refused` says
    why not. Of one client it may be very many: there are hubs where it watches all others.

    Of a client's address anybody who knows it may hear that it is gone.
    """
    if not name.startswith(CLIENT):
        _demand(broker, session, OBSERVE, name)
    lacks = broker.observers.lacks(session, name)
    if lacks:
        raise Refused(TOO_MANY, lacks)
    return broker.observers.observe(session, name)


def may_recall(broker: Broker, session: Session, name: str) -> None:
    """`Refused` unless it may subscribe to that filter, and so ask what was published there."""
    _check_filter(broker, session, name)
    _check_past(broker, session, name)


def _check_past(broker: Broker, session: Session, name: str) -> None:
    if not has_past(name):
        raise Refused(NO_PAST, f"{name[:80]!r} has no history: only topics have one")
    if not broker.archive.keeps():
        raise Refused(NO_PAST, NOTHING_KEPT)
    lacks = broker.archive.lacks(session)
    if lacks:
        raise Refused(TOO_MANY, lacks)


def _check_quota(broker: Broker, session: Session, name: str) -> None:
    lacks = broker.no_room if session.lasting else ""
    lacks = lacks or broker.quotas.lacks(SUBSCRIBED, session, more=size_of(name))
    if lacks:
        raise Refused(TOO_MANY, lacks)


def _check_name(broker: Broker, session: Session, name: str) -> None:
    """In a literal subscription nothing is special but a queue, and an address is nobody's."""
    if name.startswith(QUEUE):
        _check_queue(broker, session, name)
    elif name.startswith(CLIENT):
        raise Refused(MALFORMED, "clients are reached by their numbers")
    else:
        _demand(broker, session, SUBSCRIBE, name)
        _demand(broker, session, RECEIVE, name)  # `#` is a name here, and not everything


def _check_filter(broker: Broker, session: Session, name: str) -> None:
    inner = name
    if name.startswith(SHARE):
        if not broker.sharing:
            raise Refused(NO_SHARING, "a shared subscription, which is not offered here")
        inner = shared_filter(name)
        if inner.startswith((QUEUE, CLIENT, SHARE)):
            raise Refused(MALFORMED, f"{name[:80]!r} cannot be shared")
    if not is_filter(inner):
        raise Refused(MALFORMED, f"{name[:80]!r} is not a topic filter")
    if inner.startswith(QUEUE):
        _check_queue(broker, session, inner)
        return
    if inner.startswith(CLIENT) and inner != SELF:
        raise Refused(NOT_ALLOWED, "what is sent to other clients is theirs")
    check_wildcards(broker, inner)
    _demand(broker, session, SUBSCRIBE, inner)


def check_wildcards(broker: Broker, topic_filter: str) -> None:
    """`Refused` if it has wildcards, and this hub offers none."""
    if has_wildcard(topic_filter) and not broker.wildcards:
        raise Refused(NO_WILDCARDS, "a subscription with wildcards, which is not offered here")


def _check_queue(broker: Broker, session: Session, name: str) -> None:
    if not is_name(name):
        raise Refused(MALFORMED, f"{name[:80]!r} is not the name of a queue")
    _demand(broker, session, CONSUME, name)
    lacks = broker.queues.lacks(name[len(QUEUE) :], session)
    if lacks:
        raise Refused(TOO_MANY, lacks)


def _demand(broker: Broker, session: Session, verb: str, name: str) -> None:
    if not broker.may(session, verb, name):
        raise Refused(NOT_ALLOWED, broker.refuse(session, verb, name))


def catch_up(broker: Broker, subscription: Subscription, past: Past | None = None) -> None:
    """What a new subscription gets at once: what waits in the queue, or is retained. In the place
    of what is retained one that begins in the past gets that.
    """
    name = subscription.filter
    if past is not None:
        broker.archive.recall(subscription)
        return
    if name.startswith(QUEUE):
        broker.queues.begin(name[len(QUEUE) :])
    elif not is_group(name, subscription.literal):
        broker.offer_retained(subscription)


def publish(broker: Broker, message: Message, session: Session) -> None:
    """Publish what a client sends, `Refused` if it may not: for protocols that can say so."""
    if not broker.may_publish(session, message.topic):
        raise Refused(NOT_ALLOWED, broker.refuse(session, verb_of(message.topic), message.topic))
    broker.post(message, session)


def acknowledge(broker: Broker, session: Session, seq: int) -> None:
    """A client is done with a message that it took from a queue; others are no error."""
    queue, number = session.leases.get(seq, (None, 0))
    if queue is not None:
        broker.queues.finish(queue, number, session)


def take_more(broker: Broker, session: Session) -> None:
    """A client has room again: it gets what waits in the queues that had none for it, the first one
    first. It may have ten thousand, of which most hold nothing any more: others are heard between.
    """
    names = session.turned_away
    for _ in range(min(len(names), LOOKED)):
        if not (names and session.ready()):
            return
        broker.queues.begin(names.popitem(last=False)[0])
    if names and session.ready():
        broker.catch_up_later((session, take_more), partial(take_more, broker, session))


def drop(broker: Broker, session: Session, reason: str, count: int = 1) -> None:
    """A client does not get so many messages: counted for it and for the hub, said once."""
    if reason not in session.dropped:
        log.warning("%s: messages are dropped: %s", session.client, reason)
    session.misses(reason, count)
    broker.metrics.drop(reason, count)


@mypyc_attr(allow_interpreted_subclasses=True)
class Client(Session):
    """A client that takes what it gets at once, and ends with its connection."""

    def __init__(self, broker: Broker, admission: Admission, link: Link) -> None:
        super().__init__(admission.protocol, admission.client, admission.rights)
        self.broker = broker
        self.link = link

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if self.link.choked and not self.broker.patience.has(self, self.link, run):
            drop(self.broker, self, "slow consumer", run.count)
        else:
            self.link.write(run.seen_as(subscription.encodings[run.qos]))
            self.traffic.delivered += run.count

    def way_out(self) -> Link | None:
        return self.link

    def ready(self) -> bool:
        return self.number != 0 and not self.link.choked and len(self.leases) < PREFETCH

    def relieved(self) -> None:
        if self.turned_away:
            take_more(self.broker, self)

    def taken_over(self) -> None:
        self.link.close("the same client connected again")


@mypyc_attr(allow_interpreted_subclasses=True)
class Conversation(Connection):
    """The connection of such a client: `hear` takes its bytes, once the gate has decided.

    `session` is None until it has logged in.
    """

    session: Client | None = None

    def feed(self, data: bytes) -> None:
        if self.asking:
            keep(self, data)
        else:
            self.hear(data)

    def hear(self, data: bytes) -> None:
        """Bytes as they arrived; stop where `asking` is set, and go on in the next call."""
        raise NotImplementedError

    def log_in(self, client: str, user: str, secret: bytes) -> None:
        """Ask the gate, then `welcome` or `refuse`."""
        admit(self, client, user, secret, self._decided)

    def _decided(self, admission: Admission | None, reason: str) -> None:
        if admission is None:
            self.refuse(words_of(reason))
            self.link.close(reason)
            return
        self.session = Client(self.broker, admission, self.link)
        self.broker.connect(self.session, admission)
        self.welcome(self.session)
        self.hear(b"")

    def welcome(self, session: Client) -> None:
        """Tell the client that it is in."""

    def refuse(self, reason: str) -> None:
        """Tell the client why it is not, before the connection is closed."""

    def drained(self) -> None:
        if self.session is not None:
            self.session.relieved()

    def lost(self, reason: str) -> None:
        self.asking = False
        if self.session is not None:
            self.broker.disconnect(self.session, reason)
