"""What becomes of a dead node's estates: another one holds them from then on.

    the copy of its log → fold → rows() under this node's numbers → this node's log → live

All of it is live by one group of rows, so it is here whole or not at all, and so is that it is
here: `taken` rows of `$heir/NODE` and of each estate. The others are told, by `Holds`, and send
what they keep for it here; by `Heir`, that the stop of the dead one's stream is answered. A node
that was not dead lets go of what is another's now, and begins an estate of its own.

What is nobody's but a node's own does not go along: numbers of topics, what waits for a bridge.
Called by the membership and the runtime. No I/O.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub import schema
from hubbub.cluster import estates, frames, taking, wills
from hubbub.cluster.estates import ALSO, HELD, OF, STOPPED, TOOK, Key, by_age, taken_row, took_of
from hubbub.cluster.keeping import PROTOCOL, estate_and_origin, kept_by, waits_in
from hubbub.cluster.node import Node, Phantom
from hubbub.cluster.retained import NEVER, STAMP, UNSAID, Stamp, own_stamp
from hubbub.cluster.staging import Staging
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_NAMES, CLUSTER_PIECE
from hubbub.core.message import Message, run_of
from hubbub.core.route import Route
from hubbub.core.session import Revival, SessionState
from hubbub.core.state import State, adopted
from hubbub.core.topics import DELAYED, SHARE, delayed_topic
from hubbub.schema import Row, column_of, name_from_wire, name_of, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

HEIR: Final = "$heir/"  # before a node's name: what it had up to that message was taken over here
TOLD: Final = "$told/"  # the same, by another one
SINCE: Final = "$stopped/since"  # when this node heard that its stream was stopped
GONE: Final = "session lives at another node"

log = logging.getLogger("hubbub.cluster")


class Taken(NamedTuple):
    """What was taken over, to be said."""

    sessions: int
    queues: int
    messages: int
    missing: int


class Adoption:
    """Take over what a node had, whose stream was read up to the message `at`. `messages`: those
    that its state refers to, by their seq there. `pieces` bring it here, `run` makes it live.
    """

    def __init__(
        self, membership: Membership, dead: str, at: int, state: State,
        messages: dict[int, Row], protocols: Iterable[Revival],
    ) -> None:  # fmt: skip
        self.membership = membership
        self.broker = membership.broker
        self.dead = dead
        self.at = at
        self.protocols = {one.name: one for one in protocols}
        self.ours: set[Key] = set()
        self._tells = False  # something that others may not know is retained here by then
        self._of(state, messages)

    def _of(self, state: State, messages: dict[int, Row]) -> None:
        self.state = state
        self.estate = estates.own(state, self.dead)
        self.estates = {self.estate: 0, **estates.held(state)}
        self.staging = Staging(self.broker, self.dead, self.estate, state, messages)

    def _look(self) -> bool:
        """Whether there is anything. A copy from before a stop that is answered is that one's: the
        node came back, and died before it could say that it had let go.
        """
        before = self.state.taken.get(STOPPED, 0)
        if before < self.membership.inherited.get(self.dead, 0):
            self.staging.let_go()
            self._of(State(), {})
            self.estates = {}
        return bool(self.estates)

    def pieces(self) -> Iterator[None]:
        """All that takes long, in pieces: between two of them others may be served."""
        if self._look():
            yield from self._take_what_was_kept()
            mine = [name for name in self.protocols if name != PROTOCOL]
            yield from self.staging.pieces(self.membership.holdings.held, mine)

    def rest(self) -> int:
        """How many things `run` has to do, each some microseconds."""
        state, known = self.state, self.membership.estates
        there = len(state.sessions) + len(state.queues) + len(state.delayed) + len(state.retained)
        return there + sum(known[one].unacknowledged() for one in self.estates if one in known)

    def run(self) -> Taken:
        """All of it has come, and is this node's. One group of rows."""
        membership, broker, first = self.membership, self.broker, self.broker.log.position + 1
        self._look()
        node = membership.nodes.get(self.dead)
        if node is not None and node.stopped < self.at:
            membership.forget(node, "this node has what it had")
        before = broker.state.queues.keys() & self.state.queues.keys()
        sessions = self._come()
        self._note_estates(before)
        for node in membership.nodes.values():
            for estate in self.estates:
                record = frames.Holds(estate, membership.holdings.held[estate])
                node.link.hold(frames.piece(record), barrier=True)
        self._make_live(sessions, before)
        settle(membership, self.estates)
        self._resume_what_was_kept()
        self._recall_who_is_away()
        wills.publish(membership, self.state.wills.values(), self.protocols)
        for topic, kept in self.state.retained.items():
            self._retain(topic, kept.seq)
        for node in membership.nodes.values():
            node.behind = node.behind or self._tells
        broker.delays.recover()
        broker.log.together(first)
        broker.age += 1
        for node in membership.nodes.values():
            tell_heir(node, self.dead, self.at)
        count = len(self.staging.seqs) - 1
        return Taken(len(sessions), len(self.state.queues), count, self.staging.missing)

    # Sessions and queues

    def _come(self) -> list[SessionState]:
        """What has come is here, but for sessions that are elsewhere; those that are here now."""
        sessions = []
        for state in self.state.sessions.values():
            if self._wanted(state):
                sessions.append(state)
                self.ours.add((state.protocol, state.client))
            elif state.protocol != PROTOCOL:
                self.staging.leave_out(state.protocol, state.client)
        lost = {(one.protocol, one.client) for one in sessions if one.will is not None}
        self.staging.live(sessions, lost - wills.connected(self.broker, lost))
        return sessions

    def _wanted(self, state: SessionState) -> bool:
        """Of two of one client the later one stays, wherever it is."""
        membership, key = self.membership, (state.protocol, state.client)
        if state.protocol not in self.protocols or state.protocol == PROTOCOL:
            return False
        own = self.broker.state.sessions.get(key)
        there = [
            since
            for estate, sessions in membership.directory.there.items()
            if estate not in self.estates and (since := sessions.get(key)) is not None
        ]
        here = own.began if own is not None else -1
        anew = membership.directory.ends_before(key)
        if max(here, anew, *there) > state.began or here == state.began:
            self.broker.metrics.drop(GONE, len(state.backlog.entries))
            return False
        if own is not None:
            self.broker.metrics.drop(GONE, len(own.backlog.entries))
            _end(self.broker, self.protocols[key[0]], own)
        return True

    def _note_estates(self, before: Collection[str]) -> None:
        """Whose estates are here, how far each has what is kept for it, and what is of them."""
        taken, had = self.broker.state.taken, self.state.taken
        for name, number in list(had.items()):
            if name.startswith((HEIR, TOLD)):
                self._note(name, max(number, taken.get(name, 0)))
            elif name.startswith(TOOK):
                self._note(name, number)
        self._note(HEIR + self.dead, self.at)
        for estate, generation in self.estates.items():
            self._note(HELD + estate, generation + 1)
        self.ours.update(
            (queue.protocol, queue.client)
            for name, queue in self.state.queues.items()
            if name not in before
        )
        of, shares = dict(estates.members(self.state)), [*estates.members(self.state, ALSO)]
        for key in sorted(self.ours):
            self._note_member(of.get(key, self.estate), key, 1)
        for key, estate in shares:
            if key in self.ours:
                self._note_member(estate, key, ALSO)
        for queue in (self.state.queues[name] for name in before):
            key = queue.protocol, queue.client
            self._note_member(of.get(key, self.estate), key, ALSO)
        self.membership.holdings.look()
        self.membership.inherited = known(self.broker.state)
        self.membership.sure = self.broker.log.position
        for estate in self.estates:
            self.membership.directory.forget(estate)

    def _note_member(self, estate: str, key: Key, how: int) -> None:
        self._note(f"{OF}{estate}/{key[0]}/{key[1]}", how)

    def _note(self, name: str, number: int) -> None:
        self.broker.change(taken_row(name, number))

    def _make_live(self, sessions: Iterable[SessionState], before: Collection[str]) -> None:
        broker = self.broker
        for state in sessions:
            key = state.protocol, state.client
            broker.take_up(broker.state.sessions[key], self.protocols.get(state.protocol))
        self._take_up_queues(before)
        for seq in self.state.delayed:
            self._delay(seq)
        for seq, group in sorted(self.state.on_loan):
            if copied := self.staging.copied(seq):
                broker.groups.give_again(copied, group)

    def _take_up_queues(self, before: Collection[str]) -> None:
        """`before`: those that were here before, and have the messages of the other one."""
        queues = self.broker.queues
        for name, queue in self.state.queues.items():
            own = self.broker.state.queues[name]
            if name not in before:
                queues.adopt(own)
                continue
            for topic_filter in queue.bindings:
                if topic_filter not in own.bindings:
                    queues.bind(own, topic_filter)
            queues.offer(own)

    # Messages

    def _delay(self, seq: int) -> None:
        """As many seconds as are left; not before them."""
        row = self.staging.rows.get(seq)
        if row is None:
            self.staging.missing += 1
            return
        _, topic = delayed_topic(name_of(row.topic))
        left = -((self.broker.clock.stamp() - self.state.delayed[seq]) // 1_000_000)
        self.staging.copied(seq, column_of(f"{DELAYED}{max(1, left)}/{topic}"))

    def _retain(self, topic: str, seq: int) -> None:
        """The later one of a name stays; the others hear of it as of any that they missed, and so
        do who is there here: whoever was to tell them is dead.
        """
        membership, message = self.membership, self.staging.read(seq)
        if message is None:
            return
        stamp = self._stamp(message)
        if stamp <= membership.stamps.of(topic):
            return
        message.properties = {**(message.properties or {}), STAMP: list(stamp)}
        sender = Phantom(message.protocol, message.client, membership.rights, 0, self.dead)
        run = run_of(message, sender, Route(topic, 0))
        run.retain = message.retain = True
        run.first = self.broker.log.append_run(run, 0)
        membership.stamps.keep(topic, stamp, False)
        self.broker.retained.keep(run)
        for one in taking.passing(self.broker.route(sender, topic)).subscriptions:
            one.session.deliver(run, one)
        self._tells = True

    def _stamp(self, message: Message) -> Stamp:
        """Of one that was retained there."""
        said = (message.properties or {}).get(STAMP)
        if isinstance(said, list) and len(said) == 2:
            return self.membership.stamps.stamp_of(message)
        return own_stamp(self.state, message.topic, message.time), self.dead

    def _take_what_was_kept(self) -> Iterator[None]:
        """What was published there and had not come to an estate that was here before. How far that
        is is noted by the way.
        """
        for session in kept_in(self.state):
            estate, origin = estate_and_origin(session.client)
            if estate not in self.membership.holdings.held:
                continue
            origin = origin or self.estate
            took = self.membership.holdings.took
            upto = took(estate, origin)
            coming = (one for one in waits_in(session) if one[0] > upto)
            while some := list(islice(coming, CLUSTER_PIECE)):
                for number, seq, qos in some:
                    message = self.staging.read(seq)
                    group = session.shared.get(number, "")
                    stamp = self._stamp_of_kept(message, seq)
                    take_here(
                        self.membership, estate, origin, number, message, qos, group, stamp
                    )  # fmt: skip
                self._note(took_of(estate, origin), took(estate, origin))
                yield
                upto = took(estate, origin)  # it may be back meanwhile, and say them itself

    def _stamp_of_kept(self, message: Message | None, seq: int) -> Stamp:
        """As its node would have said it: retained, if nothing took its place."""
        if message is None or self.state.retained_seq(message.topic) != seq:
            return NEVER
        self._tells = True
        return self._stamp(message)

    def _resume_what_was_kept(self) -> None:
        """What it kept for estates of others is this node's to keep."""
        membership = self.membership
        for session in kept_in(self.state):
            estate, origin = estate_and_origin(session.client)
            if estate not in membership.holdings.held:
                origin = origin or self.estate
                if (PROTOCOL, kept_by(estate, origin)) in self.broker.state.sessions:
                    membership.estate_of(estate).go_on_for(origin)

    def _recall_who_is_away(self) -> None:
        """What those want for whom it kept messages, and who have not said so to this node: it lost
        its journal, or was started since, and they are away, or were met just now. One that does
        not want that any more says so when it is there.
        """
        membership = self.membership
        for session in kept_in(self.state):
            estate, origin = estate_and_origin(session.client)
            names = [name for name, (qos, _) in session.subscriptions.items() if qos]
            there = estate in membership.holdings.held or membership.knows(estate)
            if origin or there or not names:
                continue
            away = membership.estate_of(estate)
            for name in names:
                away.want((name, membership.is_literal(name)), True)


def remember_away(membership: Membership, name: str, state: State) -> Iterator[None]:
    """What a node has that is away, as its copy says: what lasts there begins nowhere else, and
    what that wants is kept for it. In pieces: there may be very much.
    """
    of, own = dict(estates.members(state)), estates.own(state, name)
    directory = membership.directory
    holdings = {one: frames.Holding(one, 0, [], []) for one in (own, *estates.held(state))}
    for session in state.sessions.values():
        if session.protocol in directory.moves:
            names = [one for one, (qos, _) in session.subscriptions.items() if qos]
            key = session.protocol, session.client
            _has(membership, holdings[of.get(key, own)], key, session.began, names)
            yield
    for queue in state.queues.values():
        key = queue.protocol, queue.client
        _has(membership, holdings[of.get(key, own)], key, queue.began, queue.bindings)
    for holding in holdings.values():
        yield from _remember(membership, holding, name)


def _remember(
    membership: Membership, holding: frames.Holding, node: str
) -> Iterator[None]:  # fmt: skip
    """As long as nobody is there who has it, and knows better."""

    def is_away() -> bool:
        held, name = membership.holdings.held, holding.estate
        return name not in held and not membership.directory.is_held(name)

    if is_away():
        membership.directory.last[holding.estate] = node
        first, rest = holding.wants[:1], holding.wants[1:]
        membership.remember(frames.Holding(holding.estate, 0, first, holding.lasts))
        for name, literal, _ in rest:
            yield
            if not is_away():
                return
            membership.estate_of(holding.estate).want((name_from_wire(name), literal), True)


def _has(
    membership: Membership, holding: frames.Holding, key: Key, since: int, names: Iterable[str]
) -> None:
    holding.lasts.append((key[0], name_to_wire(key[1]), since))
    for name in names:
        if not name.startswith(taking.STAYS) or name.startswith(SHARE):
            holding.wants.append((name_to_wire(name), membership.is_literal(name), True))


def take_here(
    membership: Membership, estate: str, origin: str, number: int, message: Message | None,
    qos: int, group: str, stamp: Stamp = NEVER,
) -> None:  # fmt: skip
    """A message that was kept for an estate of this node, by a node that is this one now. `stamp`:
    of one that is retained there.
    """
    if message is None:
        return
    run = membership.crossing.read_back(message)
    run.qos, run.retain = qos, stamp != NEVER
    said = membership.crossing.said(run, *stamp)
    said.group = name_to_wire(group)
    sender = taking.sender_of(membership, said, estates.began_by(origin))
    with contextlib.suppress(frames.Foreign):  # as when it comes from there
        taking.take(membership, estate, origin, number, said, sender)


def kept_in(state: State) -> list[SessionState]:
    """What a node keeps for estates of others, in the order in which it goes there."""
    kept = (one for one in state.sessions.values() if one.protocol == PROTOCOL)
    return sorted(kept, key=lambda one: by_age(state, one.client))


def settle(membership: Membership, come: Collection[str]) -> None:
    """What was kept here for estates that are here now is for their sessions: nobody carries it."""
    broker = membership.broker
    for known in [membership.estates[one] for one in come if one in membership.estates]:
        known.take_back()
    for state in kept_in(broker.state):
        estate, origin = estate_and_origin(state.client)
        if estate not in membership.holdings.held:
            continue
        whose = origin or membership.holdings.own
        took = membership.holdings.took(estate, whose)
        for number, seq, qos in list(waits_in(state)):
            if number > took:
                message = broker.log.look(seq)
                group = state.shared.get(number, "")
                take_here(membership, estate, whose, number, message, qos, group)
        row = took_of(estate, whose)
        if membership.holdings.took(estate, whose) > broker.state.taken.get(row, 0):
            broker.change(taken_row(row, membership.holdings.took(estate, whose)))
    for estate in come:
        if estate in membership.estates:
            membership.let_go(membership.estates[estate], settled=True)
    for protocol, client in list(broker.state.sessions):
        if protocol == PROTOCOL and estate_and_origin(client)[0] in membership.holdings.held:
            broker.change(Row(0, 0, schema.END, PROTOCOL.encode(), column_of(client)))


# What is answered


def known(state: State) -> dict[str, int]:
    """What of which dead nodes is at others now, up to which message of their stream."""
    found: dict[str, int] = {}
    for name, at in state.taken.items():
        if name.startswith((HEIR, TOLD)):
            dead = name.rpartition("/")[2]
            found[dead] = max(at, found.get(dead, 0))
    return found


def awaited(membership: Membership) -> int:
    """Which message stopped this node's stream, if nobody is known yet who has what was here."""
    state = membership.broker.state
    at = state.taken.get(STOPPED, 0)
    return at if known(state).get(membership.name, 0) < at else 0


def waits(membership: Membership) -> bool:
    """Whether it waits for that; not for longer than messages wait for anybody."""
    taken, broker = membership.broker.state.taken, membership.broker
    at = taken.get(STOPPED, 0)
    over = broker.clock.stamp() > taken.get(SINCE, 0) + membership.keep * 1_000_000
    return membership.inherited.get(membership.name, 0) < at and not over


def tell(membership: Membership, node: Node) -> None:
    """Say whose stops are answered here."""
    for name, at in list(membership.broker.state.taken.items()):
        if name.startswith(HEIR):
            tell_heir(node, name.removeprefix(HEIR), at)


def tell_heir(node: Node, dead: str, at: int) -> None:
    node.link.hold(frames.piece(frames.Heir(dead, at)), barrier=True)


def inherits(membership: Membership, node: Node, record: frames.Heir) -> None:
    """What a dead node had is at another one: it is not heard any more as what it was before."""
    dead, at = record.dead, record.at
    if at <= membership.inherited.get(dead, 0):
        return
    if dead == membership.name and not node.number_there:
        return  # it says so again, behind what is there now
    if dead not in membership.inherited and len(membership.inherited) >= CLUSTER_NAMES:
        raise frames.Foreign(f"heirs of more than {CLUSTER_NAMES} nodes")
    note(membership, dead, at)
    if dead == membership.name:
        membership.confirmed(dead, at)
        return
    there = membership.nodes.get(dead)
    if there is not None and there.stopped < at:
        membership.forget(there, f"node {node.name!r} has what it had")
        node.ask()  # what it has was not believed as long as the other one was there


def note(membership: Membership, dead: str, at: int) -> None:
    """Nobody has to take over any more what a node had up to that message."""
    if at > membership.inherited.get(dead, 0):
        membership.inherited[dead] = at
        membership.sure = membership.broker.change(taken_row(TOLD + dead, at))


# Who was not dead


def let_go(
    broker: Broker, membership: Membership, protocols: Iterable[Revival], at: int, heir: str = ""
) -> None:
    """Another node stopped the stream here by the message `at`: nothing here is this node's own any
    more but its history. It begins another estate, and the others hear that before anything else.
    What it had is an estate of others for it from now on, as it is for all.
    Nor is it the heir of anybody: its own heir is, as far as a quorum had that. `heir`: who stopped
    it, "" = nobody knows.
    """
    first = broker.log.position + 1
    for dead in list(broker.state.adopting):
        broker.change(adopted(dead, live=False))
    holdings = membership.holdings
    holdings.look()  # it may not have begun yet
    former, members = holdings.all(membership.directory), dict(holdings.members)
    for name in [one for one in broker.state.taken if one.startswith((HEIR, HELD, TOOK))]:
        broker.change(taken_row(name, UNSAID))
    for name, number in ((STOPPED, at), (SINCE, broker.clock.stamp())):
        broker.change(taken_row(name, number))
    holdings.begin_anew(members)
    membership.inherited = known(broker.state)
    membership.beat()
    _end_all(broker, membership, {one.name: one for one in protocols})
    for name in [one for one in broker.state.taken if one.startswith(OF)]:
        broker.change(taken_row(name, UNSAID))
    holdings.look()
    for holding in former:
        membership.remember(holding)
        if heir:
            membership.directory.last[holding.estate] = heir
    broker.log.together(first)


def _end(broker: Broker, protocol: Revival, state: SessionState, will_too: bool = True) -> None:
    """For good, also if it is connected. `will_too`: else that is another node's to publish."""
    session = broker.sessions.get((state.protocol, state.client))
    if session is None:
        return
    if not will_too:
        wills.withdraw(broker, (state.protocol, state.client))
    if session.number:
        session.taken_over()
    protocol.end_away(state.client)


def _end_all(broker: Broker, membership: Membership, protocols: dict[str, Revival]) -> None:
    for state in list(broker.state.sessions.values()):
        protocol = protocols.get(state.protocol)
        if state.protocol != PROTOCOL and protocol is not None:
            _end(broker, protocol, state, will_too=False)
    for key in list(broker.state.wills):  # the heir publishes them: these clients are gone for it
        wills.withdraw(broker, key)
        session = broker.sessions.get(key)
        if session is not None and session.number:
            session.taken_over()
    for estate in list(membership.estates.values()):
        estate.begin_anew()
    for name in list(broker.state.queues):
        broker.queues.destroy(name)
    for seq in list(broker.state.delayed):
        broker.delays.cancel(seq)


def discard_promises(broker: Broker, membership: Membership) -> None:
    """What was held for rows that no quorum took is never said: who waits for it comes again."""
    nodes = [node.link for node in membership.nodes.values()]
    holding, broker.outgoing.holding = broker.outgoing.holding, []
    for link in holding:
        link.discard()
        if link not in nodes:
            link.close("what it waits for is another node's now")
            if link.transport is not None:
                link.transport.abort()
