"""What is kept for an estate of another node until it is in the journal of whoever holds that.

    publish -> journal here -> PUBACK                            it is kept: nothing is lost now
                   |
               backlog -> Kept(estate, origin, number, previous, message) -> journal of the holder
                   ^                                                                    |
                   +---------------- Taken(estate, origin, number) <--------------------+

QoS 1 and 2 for who lasts there. While nobody holds the estate it waits here, for `cluster.keep`
seconds at most. It is sent from the oldest on again after each break. The holder takes a message if
it took `previous` and not yet `number`, and writes how far it is into its own journal, in one frame
with the messages: each is taken once, whoever is killed, and whoever holds either end by then
(`cluster.estates`).

Numbers are those of one origin: what a dead node kept goes on at its heir under its own. They begin
at the time when the session began, so those of a node that lost its journal are higher than all it
used before, and are not taken for old ones. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from hubbub import schema
from hubbub.cluster import frames
from hubbub.cluster.retained import NEVER
from hubbub.cluster.tally import Tally
from hubbub.core.broker import Broker
from hubbub.core.limits import (
    CLUSTER_KEPT,
    CLUSTER_KEPT_BYTES,
    CLUSTER_PIECE,
    CLUSTER_WINDOW,
)
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.route import Route
from hubbub.core.session import Revival, Session, SessionState, Silent, row_about
from hubbub.core.state import lasting_properties
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of, name_to_wire, row_without_message

if TYPE_CHECKING:
    from hubbub.cluster.estates import Estate

PROTOCOL: Final = "node"
_BY: Final = "<"  # between an estate and the origin of what is kept for it, where that came here

# The first one after a break has none before it: whatever was there has been taken, or is gone.
NONE: Final = 0
NOTHING: Final[tuple[int, Message | None]] = (0, None)  # no message has that seq


def lasts(session: Session) -> bool:
    """Whether what is for it is kept: it outlives its connection, or is a queue of nobody's own."""
    return session.lasting or (isinstance(session, Queue) and not session.owner)


def kept_by(estate: str, origin: str) -> str:
    """The client of the session that keeps for an estate; `origin`: "" for this node's own."""
    return f"{estate}{_BY}{origin}" if origin else estate


def estate_and_origin(client: str) -> tuple[str, str]:
    """Of such a session."""
    estate, _, origin = client.partition(_BY)
    return estate, origin


def kept_row(client: str, seq: int, qos: int, group: str) -> Row:
    """One more message waits for that estate, for a member of the group."""
    kind, protocol = schema.QUEUED, PROTOCOL.encode()
    return row_without_message(
        kind, protocol, column_of(client), column_of(group), ref=seq, qos=qos
    )


def waits_in(session: SessionState) -> Iterator[tuple[int, int, int]]:
    """Number, seq and QoS of each that waits."""
    backlog = session.backlog
    for number, entry in enumerate(backlog.entries, backlog.first):
        if entry:
            yield number, entry >> 35, entry & 3


class Keeping:
    """What this node keeps for an estate, of one origin: "" is its own. `keep`: for how many
    seconds while nobody holds it. `_next`: a message that was read before its turn, and its seq.
    """

    def __init__(self, estate: Estate, broker: Broker, keep: int, origin: str = "") -> None:
        self.estate = estate
        self.broker = broker
        self.keep = keep
        self.origin = origin
        self.session: Session = estate
        if origin:
            client = kept_by(estate.client, origin)
            self.session = Silent(PROTOCOL, client, broker.open)
        self.previous = NONE
        self.tally = Tally()
        self._until = 0
        self._goes_on = False
        self._next = NOTHING
        key = PROTOCOL, self.session.client
        begins = key not in broker.state.sessions
        if begins:
            broker.sessions[key] = self.session
            self._connected(broker.clock.stamp())
        self._look()
        if begins and estate.holder is None:
            self.rest()

    def _look(self) -> None:
        self.state = self.broker.state.sessions[PROTOCOL, self.session.client]
        self.state.most = CLUSTER_KEPT
        self.backlog = self.state.backlog
        self.session.shared = self.state.shared

    def settled(self) -> bool:
        """Whether the holder has all that waited for it when it came."""
        return self.backlog.first >= self._until

    def late(self) -> bool:
        """Whether nobody holds the estate for so long that nothing more is kept for it."""
        return 0 < self.state.expires <= self.broker.clock.stamp()

    def begin(self) -> None:
        """Somebody holds it."""
        if not self.state.connected:
            self._connected(self.backlog.next)
        self._until = self.backlog.next
        self.again()

    def _connected(self, first: int, renumbered: bool = False) -> None:
        said = lasting_properties(self.keep, renumbered=renumbered)
        row = row_about(self.session, schema.CONNECT, number=first, properties=said)
        self.broker.change(row)

    def renumber(self, first: int) -> None:
        """Nothing waits, and the next one that does has that number."""
        self._connected(first, renumbered=True)

    def route(self, name: str) -> Route:
        """Of what is kept for it alone."""
        found = Route(name, 0)
        found.audience = [(self.state, 2)]
        return found

    def again(self) -> None:
        """Something was lost on the way: all that was not taken is sent once more."""
        self.backlog.rewind()
        self.previous = NONE

    def rest(self) -> None:
        """Nobody holds it; what is for it waits."""
        self.backlog.rewind()
        expires = self.broker.clock.stamp() + self.keep * 1_000_000
        tried = self.backlog.tried
        row = row_about(self.session, schema.DISCONNECT, number=tried, expires=expires)
        self.broker.change(row)

    def pump(self) -> None:
        """Send what waits, oldest first, as far as the window and the link allow.

        In pieces: each is read from the journal, and very many may have expired meanwhile.
        """
        backlog, done = self.backlog, 0
        while done < CLUSTER_PIECE:
            if not self._can_send():
                return
            number = backlog.sent
            count = self._send(number) if backlog.holds(number) else 1
            if not count:
                self.broker.again(self, self.estate.pump)
                return
            backlog.sent = max(number + count, backlog.first)
            done += count
        if not self._goes_on:
            self._goes_on = True
            self.broker.later(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self.estate.pump()

    def _can_send(self) -> bool:
        backlog = self.backlog
        waits = backlog.sent < backlog.next and backlog.in_flight() < CLUSTER_WINDOW
        return waits and self.estate.ready()

    def _send(self, number: int) -> int:
        """How many from there on are on their way, or never will be; 0: it cannot be read now."""
        broker, backlog, holder = self.broker, self.backlog, self.estate.holder
        try:
            message = self._read(backlog.seq(number))
        except UnreadableError:
            return 0
        if message is None or holder is None or 0 < message.expires <= broker.clock.stamp():
            broker.metrics.drop("gone" if message is None else "expired", 1)
            self._over(number, 1)
            return 1
        membership = self.estate.membership
        alike = [message]
        if holder.keeps and not (message.retain or self.state.shared):
            alike += self._alike(message, number)
            said = membership.crossing.together(alike, backlog.qos(number))
        else:
            said = self._spelled(message, number)
        origin, last = self.origin or membership.holdings.own, number + len(alike) - 1
        record = frames.Kept(self.estate.client, origin, last, self.previous, said)
        # Said when that it has this number is safe: one that a crash took would be used again, for
        # a message that the holder, which knows the number, would not take.
        holder.link.hold(frames.piece(record))
        membership.messages_out += len(alike)
        self.previous = last
        return len(alike)

    def _read(self, seq: int) -> Message | None:
        """Of those that differ each was read before, to see whether it goes with another one."""
        known, message = self._next
        self._next = NOTHING
        return message if known == seq else self.broker.log.read(seq)

    def _alike(self, message: Message, number: int) -> Iterator[Message]:
        """Those behind it that one record says with it: of the same author, to the same name."""
        backlog, read, size = self.backlog, self.broker.log.read, len(message.payload)
        author, qos, now = message.author(), backlog.qos(number), self.broker.clock.stamp()
        most = min(backlog.next, backlog.first + CLUSTER_WINDOW, number + CLUSTER_PIECE)
        for other in range(number + 1, most):
            if not backlog.holds(other) or backlog.qos(other) != qos:
                return
            try:
                found = read(backlog.seq(other))
            except UnreadableError:
                return  # it is looked at when its turn comes
            if found is None:
                return
            size += len(found.payload)
            if found.author() != author or size > CLUSTER_KEPT_BYTES:
                if len(found.payload) <= CLUSTER_KEPT_BYTES:
                    self._next = backlog.seq(other), found
                return
            if found.retain or 0 < found.expires <= now:
                return
            yield found

    def _spelled(self, message: Message, number: int) -> frames.Said:
        """A retained one that was replaced meanwhile is one like others."""
        membership, name = self.estate.membership, message.topic
        kept = self.broker.state.retained_seq(name)
        run = membership.crossing.read_back(message)
        run.qos = self.backlog.qos(number)
        run.retain = message.retain and kept == (self.backlog.seq(number) if message.payload else 0)
        stamp = membership.stamps.of(name) if run.retain else NEVER
        if run.retain and stamp == NEVER:  # a name that was cleared before this start
            stamp = message.time, membership.name
        said = membership.crossing.said(run, *stamp)
        said.group = name_to_wire(self.state.shared.get(number, ""))
        return said

    def taken(self, upto: int) -> None:
        """The holder's journal has all up to this number."""
        backlog = self.backlog
        number, end = backlog.first, min(upto + 1, backlog.sent)
        while number < end:
            count = 0
            while number + count < end and backlog.holds(number + count):
                count += 1
            if count:
                self._over(number, count)
            number += count or 1

    def _over(self, number: int, count: int) -> None:
        """Nobody waits for so many deliveries any more."""
        seq, name = self.backlog.seq(number), self.backlog.name_of(number)
        row = row_about(self.session, schema.ACK, ref=seq, number=count, properties=name)
        self.broker.change(row)
        self.tally.settle(self.backlog.first)

    def end(self) -> None:
        """Nothing is kept any more, and what was is not this node's to keep."""
        self.broker.sessions.pop((PROTOCOL, self.session.client), None)
        self.broker.change(row_about(self.session, schema.END))


class Recall(Revival):
    """Makes the estates for which something is kept, before anything is published."""

    def __init__(self, make: Callable[[SessionState], Session | None]) -> None:
        self.name = PROTOCOL  # the compiled broker sees no attribute of a class that is not
        self._make = make

    def revive(self, state: SessionState) -> Session | None:
        return self._make(state)
