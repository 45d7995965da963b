"""What is kept for another node until its journal has it: QoS 1 and 2 for who lasts there.

    publish -> journal here -> PUBACK                            it is kept: nothing is lost now
                   |
               backlog of the node's session -> Kept(number, previous, message) -> journal there
                   ^                                                                    |
                   +---------------- Taken(number) <-----------------------------------+

The session of a node lasts like that of a client: while the node is away what is for it waits
here, for `cluster.keep` seconds at most. It is sent from the oldest on again after each break.
The other node takes a message if it took `previous` and not yet `number`, and writes how far it is
into its own journal, in one frame with the messages: each is taken once, whoever is killed.

Numbers begin at the time when the session began. So those of a node that lost its journal are
higher than all it used before, and are not taken for old ones. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.cluster import frames
from hubbub.cluster.retained import NEVER
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_KEPT, CLUSTER_PIECE, CLUSTER_WINDOW
from hubbub.core.message import Message
from hubbub.core.queue import PROTOCOL as QUEUE
from hubbub.core.queue import Queue
from hubbub.core.route import Route
from hubbub.core.session import Revival, Session, SessionState, row_about
from hubbub.core.state import State, lasting_properties
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of, name_to_wire, row_without_message

if TYPE_CHECKING:
    from hubbub.cluster.node import Node

PROTOCOL: Final = "node"

HEIR: Final = "$heir/"  # before a node's name: its stream was taken in up to that message
# Before the name of a dead node, as the group that a message is for: who lasted there and does at
# its heir now; and before NODE/NUMBER: what that node kept, under its number.
MOVED: Final = "$moved/"
FROM: Final = "$from/"
# Behind NODE/NUMBER: NODES whose heir the receiver is, as NODE knew when it was published.
AFTER: Final = "$after/"
TOOK: Final = "$took/"  # before NODE/OTHER: how far NODE had taken what OTHER kept for it
# Before NODE/PROTOCOL/CLIENT: it lasted at that dead node, and does here now.
OWN: Final = "$own/"
CUT: Final = "$cut/"  # before HEIR/NODE: the first number that was kept for an heir as such

# The first one after a break has none before it: whatever was there has been taken, or is gone.
NONE: Final = 0


def lasts(session: Session) -> bool:
    """Whether what is for it is kept: it outlives its connection, or is a queue of nobody's own."""
    return session.lasting or (isinstance(session, Queue) and not session.owner)


def moved_row(client: str, seq: int, qos: int, name: str) -> Row:
    """One more message waits for that node, because of a dead one."""
    kind, protocol = schema.QUEUED, PROTOCOL.encode()
    return row_without_message(
        kind, protocol, column_of(client), column_of(name), ref=seq, qos=qos
    )


def passing(route: Route) -> Route:
    """The same without who lasts: for them messages are kept where they are published."""
    found = Route(route.name, route.age)
    found.record = route.record
    found.subscriptions = [one for one in route.subscriptions if not lasts(one.session)]
    return found


def only(route: Route, keys: set[tuple[str, str]]) -> Route:
    """The same with those sessions and queues alone."""
    found = Route(route.name, route.age)
    found.record, found.must = route.record, route.must
    found.audience = [one for one in route.audience if (one[0].protocol, one[0].client) in keys]
    found.subscriptions = [
        one for one in route.subscriptions if (one.session.protocol, one.session.client) in keys
    ]
    return found


def without(route: Route, keys: set[tuple[str, str]]) -> Route:
    """The same without those sessions, as far as messages are kept for them."""
    kept = {(state.protocol, state.client) for state, _ in route.audience} & keys
    kept |= {one for one in keys if one[0] == QUEUE}
    found = Route(route.name, route.age)
    found.record, found.must, found.shared = route.record, route.must, route.shared
    found.audience = [
        one for one in route.audience if (one[0].protocol, one[0].client) not in kept
    ]
    found.subscriptions = [
        one
        for one in route.subscriptions
        if (one.session.protocol, one.session.client) not in kept
    ]
    return found


def cuts_of(state: State, heir: str) -> dict[str, int]:
    """By dead node: from which number on it was known, where that is kept, who its heir is."""
    begin = f"{CUT}{heir}/"
    return {
        name[len(begin) :]: number
        for name, number in state.taken.items()
        if name.startswith(begin)
    }


class Keeping:
    """What this node keeps for another one. `keep`: for how many seconds while that is away."""

    def __init__(self, node: Node, broker: Broker, keep: int) -> None:
        self.node = node
        self.broker = broker
        self.keep = keep
        self._previous = NONE
        self._until = 0
        self._goes_on = False
        key = PROTOCOL, node.client
        if key not in broker.state.sessions:
            broker.sessions[key] = node
            self._connected(broker.clock.stamp())
        self._look()
        self.cuts = cuts_of(broker.state, node.client)

    def _look(self) -> None:
        self.state = self.broker.state.sessions[PROTOCOL, self.node.client]
        self.state.most = CLUSTER_KEPT
        self.backlog = self.state.backlog
        self.node.shared = self.state.shared

    def settled(self) -> bool:
        """Whether the other node has all that waited for it when it came."""
        return self.backlog.first >= self._until

    def late(self) -> bool:
        """Whether the node is away for so long that nothing more is kept for it."""
        return 0 < self.state.expires <= self.broker.clock.stamp()

    def begin(self) -> None:
        """The node is there."""
        if not self.state.connected:
            self._connected(self.backlog.next)
        self._until = self.backlog.next
        self.again()

    def _connected(self, first: int) -> None:
        said = lasting_properties(self.keep)
        self.broker.change(row_about(self.node, schema.CONNECT, number=first, properties=said))

    def again(self) -> None:
        """Something was lost on the way: send all that was not taken once more."""
        self.backlog.rewind()
        self._previous = NONE
        self.pump()

    def rest(self) -> None:
        """The node is gone; what is for it waits."""
        self.backlog.rewind()
        expires = self.broker.clock.stamp() + self.keep * 1_000_000
        tried = self.backlog.tried
        row = row_about(self.node, schema.DISCONNECT, number=tried, expires=expires)
        self.broker.change(row)

    def pump(self) -> None:
        """Send what waits, oldest first, as far as the window and the link allow.

        In pieces: each is read from the journal, and very many may have expired meanwhile.
        """
        backlog = self.backlog
        for _ in range(CLUSTER_PIECE):
            if not self._can_send():
                return
            number = backlog.sent
            if backlog.holds(number) and not self._sent(number):
                self.broker.again(self, self.pump)
                return
            backlog.sent = max(number + 1, backlog.first)
        if not self._goes_on:
            self._goes_on = True
            self.broker.later(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.pump()

    def _can_send(self) -> bool:
        backlog = self.backlog
        waits = backlog.sent < backlog.next and backlog.in_flight() < CLUSTER_WINDOW
        return waits and self.node.ready()

    def _sent(self, number: int) -> bool:
        """Whether it is on its way, or never will be; False if it cannot be read now."""
        broker, backlog = self.broker, self.backlog
        try:
            message = broker.log.read(backlog.seq(number))
        except UnreadableError:
            return False
        if message is None or 0 < message.expires <= broker.clock.stamp():
            broker.metrics.drop("gone" if message is None else "expired", 1)
            self._over(number, 1)
            return True
        said = self._spelled(message, number)
        after = [dead for dead, cut in self.cuts.items() if number >= cut]
        # Said when that it has this number is safe: one that a crash took would be used again, for
        # a message that the other node, which knows the number, would not take.
        self.node.link.hold(frames.piece(frames.Kept(number, self._previous, said, after)))
        self.node.membership.messages_out += 1
        self._previous = number
        return True

    def _spelled(self, message: Message, number: int) -> frames.Said:
        """A retained one that was replaced meanwhile is one like others."""
        membership, name = self.node.membership, message.topic
        kept = self.broker.state.retained.get(name, 0)
        run = membership.crossing.read_back(message)
        run.qos = self.backlog.qos(number)
        run.retain = message.retain and kept == (self.backlog.seq(number) if message.payload else 0)
        stamp = membership.stamps.of(name) if run.retain else NEVER
        if run.retain and stamp == NEVER:  # a name that was cleared before this start
            stamp = message.time, membership.name
        said = membership.crossing.said(run, *stamp)
        said.group = name_to_wire(self.state.shared.get(self.backlog.seq(number), ""))
        return said

    def taken(self, upto: int) -> None:
        """The other node's journal has all up to this number."""
        backlog = self.backlog
        number, end = backlog.first, min(upto + 1, backlog.sent)
        while number < end:
            count = 0
            while number + count < end and backlog.holds(number + count):
                count += 1
            if count:
                self._over(number, count)
            number += count or 1
        self.pump()

    def begin_anew(self) -> None:
        """All is let go, and an heir may know of more than this disk does: numbers of messages that
        a crash took here, and which it has had, are not used again.
        """
        node, broker = self.node, self.broker
        self.let_go()
        first = max(broker.clock.stamp(), self.backlog.next + CLUSTER_KEPT)
        broker.change(row_about(node, schema.END))
        self._connected(first)
        self._look()
        for wish in node.subscriptions.values():
            broker.change(row_about(node, schema.SUBSCRIBE, wish.filter, qos=wish.qos))
        broker.age += 1
        if node.membership.nodes.get(node.client) is not node:
            self.rest()

    def let_go(self, but: Collection[int] = ()) -> None:
        """It is another's to keep now, also what is held and may never be said; `but` some."""
        backlog, self._previous = self.backlog, NONE
        if not but:
            backlog.sent = backlog.next
            self.taken(backlog.next)
            return
        for number in range(backlog.first, backlog.next):
            if backlog.holds(number) and number not in but:
                self._over(number, 1)
        self.again()

    def _over(self, number: int, count: int) -> None:
        """Nobody waits for so many deliveries any more."""
        seq, name = self.backlog.seq(number), self.backlog.name_of(number)
        row = row_about(self.node, schema.ACK, ref=seq, number=count, properties=name)
        self.broker.change(row)


class Recall(Revival):
    """Makes the nodes for which something is kept, before anything is published."""

    def __init__(self, make: Callable[[SessionState], Session | None]) -> None:
        self.name = PROTOCOL  # the compiled broker sees no attribute of a class that is not
        self._make = make

    def revive(self, state: SessionState) -> Session | None:
        return self._make(state)
