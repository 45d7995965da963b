"""What becomes of a dead node's sessions, queues and messages: another one takes them for its own.

    the copy of its log → fold → rows() under this node's numbers → this node's log → live

All of it is one group of rows, so it is here whole or not at all, and so is that it is here: a
`taken` row of `$heir/NODE`. Each of the others is told, by `Heir`, and moves what it keeps for the
dead node to the heir; what the dead one kept for others goes on from here under its old numbers, so
each is still taken once. A node that was not dead lets go of what is another's now.

What is nobody's but a node's own does not go along: numbers of topics, what waits for a bridge.
Called by the membership and the runtime. No I/O.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub import schema
from hubbub.cluster import frames, taking
from hubbub.cluster.keeping import (
    CUT,
    FROM,
    HEIR,
    MOVED,
    OWN,
    PROTOCOL,
    TOOK,
    cuts_of,
    moved_row,
)
from hubbub.cluster.node import Node, Phantom
from hubbub.cluster.retained import STAMP, UNSAID, own_stamp
from hubbub.cluster.staging import Staging, after_of, waits_in
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_PIECE
from hubbub.core.message import Message, message_of, row_of, run_of
from hubbub.core.route import Route
from hubbub.core.session import Revival, SessionState, row_about
from hubbub.core.state import State, adopted
from hubbub.core.topics import DELAYED, SHARE, delayed_topic
from hubbub.schema import PUBLISH, Row, column_of, name_of, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

TOLD: Final = "$told/"  # before HEIR/NODE: what was kept for that node has moved to its heir
FENCED: Final = "$fenced"  # which message stopped this node's own stream
SINCE: Final = "$fenced/since"  # and when it heard so
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
        self.state = state
        self.protocols = {one.name: one for one in protocols}
        self.staging = Staging(membership.broker, dead, state, messages)
        self.ours: set[tuple[str, str]] = set()

    def pieces(self, own_too: bool = False) -> Iterator[None]:
        """All that takes long, in pieces: between two of them others may be served. `own_too`: what
        this node had itself goes live before; what the dead one kept for it is for that.
        """
        self._bury()
        if not (own_too or self._heir_of(self.membership.name)):
            yield from self._take_what_was_kept_for_us()
        mine = [name for name in self.protocols if name != PROTOCOL]
        yield from self.staging.pieces(self.membership.name, mine)

    def rest(self) -> int:
        """How many things `run` has to do, each some microseconds."""
        state, membership = self.state, self.membership
        here = membership.away.get(self.dead) or membership.nodes.get(self.dead)
        there = len(state.sessions) + len(state.queues) + len(state.delayed) + len(state.retained)
        return there + (here.unacknowledged() if here is not None else 0)

    def _bury(self) -> None:
        """It is not heard any more. A copy from before a stop whose heir is known is that one's:
        the node came back, and died before it could say that it had let go.
        """
        membership = self.membership
        bury(membership, self.dead, self.at)
        if self.state.taken.get(FENCED, 0) < membership.inherited.get(self.dead, 0):
            self.staging.let_go()
            self.state = State()
            self.staging = Staging(self.broker, self.dead, self.state, {})

    def run(self) -> Taken:
        """All of it has come, and is this node's. One group of rows."""
        self._bury()
        broker, first = self.broker, self.broker.log.position + 1
        self._hear_of_heirs()
        before = broker.state.queues.keys() & self.state.queues.keys()
        nodes = [one for one in self.state.sessions.values() if one.protocol == PROTOCOL]
        heirs = {state.client: self._heir_of(state.client) for state in nodes}
        if not heirs.get(self.membership.name):
            for _ in self._take_what_was_kept_for_us():
                """As a rule it has come already."""
        sessions = self._come(heirs)
        for seq in self.state.delayed:
            self._delay(seq)
        for name, number in self.state.taken.items():
            if name.startswith((HEIR, TOOK)):
                self._note(name, max(number, broker.state.taken.get(name, 0)))
            elif not name.startswith("$"):
                self._note(f"{TOOK}{self.dead}/{name}", number)
        self._note(HEIR + self.dead, self.at)
        known_before, self.membership.inherited = self.membership.inherited, known(broker.state)
        new = [
            dead for dead, at in self.membership.inherited.items()
            if at > known_before.get(dead, 0) and dead not in (self.dead, self.membership.name)
        ]  # fmt: skip
        for node in self.membership.nodes.values():
            tell(self.membership, node)  # before what it wants more from now on
        for state in sessions:
            key = state.protocol, state.client
            broker.take_up(broker.state.sessions[key], self.protocols.get(state.protocol))
        self._take_up_queues(before)
        self._own()
        for seq, group in sorted(self.state.on_loan):
            if copied := self.staging.copied(seq):
                broker.groups.give_again(copied, group)
        had = self.state.taken
        self._move(self.dead, had.get(self.membership.name, 0), self.dead, had)
        for dead in new:  # whose heir the dead one was, and nobody here had heard so
            took = broker.state.taken.get(f"{TOOK}{dead}/{self.membership.name}", 0)
            self._move(dead, took, "", broker.state.taken)
        for state in nodes:
            if heirs[state.client]:
                self._hand_on(state, heirs[state.client])
        self._wills()
        for topic, seq in self.state.retained.items():
            self._retain(topic, seq)
        broker.delays.recover()
        broker.log.together(first)
        broker.age += 1
        count = len(self.staging.seqs) - 1
        return Taken(len(sessions), len(self.state.queues), count, self.staging.missing)

    def _hear_of_heirs(self) -> None:
        """It was dead before, and knew who its heir was then. If this node did not, what it keeps
        for the dead one is for that.
        """
        membership, took = self.membership, self.state.taken.get(self.membership.name, 0)
        for name, at in list(self.state.taken.items()):
            heir, _, dead = name.removeprefix(TOLD).rpartition("/")
            known_here = heir == membership.name or at <= membership.inherited.get(dead, 0)
            if name.startswith(TOLD) and dead == self.dead != membership.name and not known_here:
                inherits(membership, membership.known(heir), frames.Heir(dead, at, took))

    def _come(self, heirs: Mapping[str, str]) -> list[SessionState]:
        """What has come is here, but for sessions that are elsewhere; those that are here now."""
        membership, staging, sessions = self.membership, self.staging, []
        for state in self.state.sessions.values():
            key = state.protocol, state.client
            if state.protocol == PROTOCOL:
                if heirs[state.client]:
                    staging.leave_out(*key)
                elif state.backlog.entries and state.client != membership.name:
                    membership.known(state.client).keep()
            elif self._wanted(state):
                sessions.append(state)
                self.ours.add(key)
            else:
                staging.leave_out(*key)
        staging.live(sessions)
        for node in [*membership.nodes.values(), *membership.away.values()]:
            if node.client in heirs:
                node.relieve()
        return sessions

    def _take_up_queues(self, before: Collection[str]) -> None:
        """`before`: those that were here before, and have the messages of the other one."""
        queues = self.broker.queues
        for name, queue in self.state.queues.items():
            own = self.broker.state.queues[name]
            if name not in before:
                queues.adopt(own)
                self.ours.add((own.protocol, own.client))
                continue
            for topic_filter in queue.bindings:
                if topic_filter not in own.bindings:
                    queues.bind(own, topic_filter)
            queues.offer(own)

    def _own(self) -> None:
        """What others kept for those that are here now, and for whom they were heirs, is for them
        alone; so it is after a start, too. The number of the row says through how many nodes it had
        come when it was there: what was there of another one, and what was its own.
        """
        ours = {(dead, key) for dead, key in owned(self.state) if key in self.ours}
        depth = {
            (dead, key): self.state.taken[f"{OWN}{dead}/{key[0]}/{key[1]}"] for dead, key in ours
        }
        for key in self.ours:
            below = [number for (_, one), number in depth.items() if one == key]
            depth[self.dead, key] = 1 + max(below, default=0)
        for (dead, key), number in sorted(depth.items()):
            self.membership.adopted.setdefault(dead, set()).add(key)
            self._note(f"{OWN}{dead}/{key[0]}/{key[1]}", number)

    def _note(self, name: str, number: int) -> None:
        self.broker.change(Row(0, 0, schema.TAKEN, client=column_of(name), number=number))

    # Sessions

    def _wanted(self, state: SessionState) -> bool:
        """Of two of one client the later one stays, wherever it is."""
        membership, key = self.membership, (state.protocol, state.client)
        if state.protocol not in self.protocols or state.protocol == PROTOCOL:
            return False
        there = [
            since
            for node, sessions in membership.directory.there.items()
            if node != self.dead and (since := sessions.get(key)) is not None
        ]
        if key in self.broker.state.sessions or max(there, default=-1) > state.began:
            self.broker.metrics.drop(GONE, len(state.backlog.entries))
            return False
        return True

    def _wills(self) -> None:
        """Of who was connected there and does not last: its connection is lost."""
        for will in self.state.wills.values():
            protocol = self.protocols.get(will.protocol.decode())
            if protocol is not None:
                protocol.publish_will(will)

    # Messages

    def _delay(self, seq: int) -> None:
        """As many seconds as are left."""
        row = self.staging.rows.get(seq)
        if row is None:
            self.staging.missing += 1
            return
        _, topic = delayed_topic(name_of(row.topic))
        left = (self.state.delayed[seq] - self.broker.clock.stamp()) // 1_000_000
        self.staging.copied(seq, column_of(f"{DELAYED}{max(1, left)}/{topic}"))

    def _retain(self, topic: str, seq: int) -> None:
        """The later one of a name stays; the others hear of it as of any that they missed."""
        membership, row = self.membership, self.staging.rows.get(seq)
        if row is None:
            return
        message = message_of(row)
        said = (message.properties or {}).get(STAMP)
        known = isinstance(said, list) and len(said) == 2
        own = own_stamp(self.state, topic, row.time), self.dead
        stamp = membership.stamps.stamp_of(message) if known else own
        if stamp <= membership.stamps.of(topic):
            return
        message.properties = {**(message.properties or {}), STAMP: list(stamp)}
        sender = Phantom(message.protocol, message.client, membership.rights, 0, self.dead)
        run = run_of(message, sender, Route(topic, 0))
        run.retain = message.retain = True
        run.first = self.broker.log.append_run(run, 0)
        membership.stamps.keep(topic, stamp, False)
        self.broker.retained.keep(run)
        for node in membership.nodes.values():
            node.behind = True

    def _take_what_was_kept_for_us(self) -> Iterator[None]:
        """What was published there and had not come: for who was here before. As if it had said it
        itself, so how far that is is noted by the way.
        """
        state = self.state.sessions.get((PROTOCOL, self.membership.name))
        if state is None:
            return
        membership, node = self.membership, self.membership.known(self.dead)
        took, cuts = self.broker.state.taken.get(self.dead, 0), cuts_of(self.state, membership.name)
        coming = (one for one in waits_in(state) if one[0] > took)
        while some := list(islice(coming, CLUSTER_PIECE)):
            for number, seq, qos in some:
                if (message := self.staging.read(seq)) is not None:
                    run = membership.crossing.read_back(message)
                    run.qos, run.retain = qos, False
                    said = membership.crossing.said(run)
                    said.group = name_to_wire(state.shared.get(seq, ""))
                    after = [dead for dead, cut in cuts.items() if number >= cut]
                    with contextlib.suppress(frames.Foreign):  # as when it comes from there
                        taking.take(membership, node, number, said, after)
            self._note(self.dead, node.took)
            yield

    def _move(self, dead: str, took: int, whose: str, had: Mapping[str, int]) -> None:
        """What this node kept for a dead one and that did not have: for its sessions alone."""
        membership = self.membership
        node = membership.away.get(dead) or membership.nodes.get(dead)
        if node is None or node.keeping is None:
            return
        shared, cuts, again = dict(node.keeping.state.shared), node.keeping.cuts, []
        for number, seq, qos in list(waits_in(node.keeping.state)):
            after = after_of(membership.name, cuts, number)
            group = moved(dead, shared.get(seq, ""), after)
            if number <= took or taking.was_had(group, whose, had):
                continue
            if share := share_of(shared.get(seq, "")):
                again.append((seq, share))
            elif (message := self.broker.log.look(seq)) is not None:
                run = membership.crossing.read_back(message)
                run.qos, run.retain = qos, False
                said = membership.crossing.said(run)
                said.group = name_to_wire(group)
                taking.say(membership, node, said)
        node.keeping.let_go()
        if dead in membership.away:
            self.broker.end(membership.away.pop(dead))
        for seq, share in again:
            self.broker.groups.give_again(seq, share)

    def _heir_of(self, name: str) -> str:
        """Who has what that node had, if the dead one did not know so: it kept for that one. Of one
        that was stopped several times, who took over behind the first stop that it did not know.
        """
        at, taken = known(self.state).get(name, 0), self.broker.state.taken
        end = f"/{name}"
        heirs = [one for one in taken if one.startswith(TOLD) and one.endswith(end)]
        heirs.append(HEIR + name)
        heirs.reverse()  # of two that say the same the later one is the heir of the other
        heirs = [one for one in heirs if taken.get(one, 0) > at]
        first = min(heirs, key=taken.__getitem__, default="")
        if first == HEIR + name:
            return self.membership.name
        return first.removeprefix(TOLD).removesuffix(end)

    def _hand_on(self, state: SessionState, heir: str) -> None:
        """What it kept for a node that died before it is for that one's heir."""
        membership, taken = self.membership, self.broker.state.taken
        cuts = cuts_of(self.state, state.client)
        had = taken.get(f"{TOOK}{state.client}/{self.dead}", 0)
        for number, seq, qos in waits_in(state):
            if number <= had:
                continue
            group = state.shared.get(seq, "")
            if not group or group.startswith(SHARE):
                after = after_of(self.dead, cuts, number)
                group = f"{FROM}{self.dead}/{number}{after}" + (f"/{group}" if group else "")
            group = moved(state.client, group)
            if heir != membership.name:
                copied = self.staging.once_more(seq)  # the same may wait for the heir itself, too
                if copied:
                    membership.known(heir).keep()
                    self.broker.change(moved_row(heir, copied, qos, group))
                continue
            if taking.was_had(group, "", taken):
                continue
            if share := share_of(group):
                self.broker.groups.give_again(self.staging.copied(seq), share)
            elif (message := self.staging.read(seq)) is not None:
                run = membership.crossing.read_back(message)
                run.qos, run.retain = qos, False
                said = membership.crossing.said(run)
                said.group = name_to_wire(group)
                taking.say(membership, membership.known(self.dead), said)
        if heir != membership.name:
            membership.known(heir).relieve()


def bury(membership: Membership, dead: str, at: int) -> None:
    """What it wanted before that message is its heir's. It may be there by a frame that was held on
    its way, or not know yet that it is stopped.
    """
    membership.buried.bury(dead, at)
    if dead in membership.nodes:
        membership.forget(membership.nodes[dead], "it has an heir")


def moved(dead: str, group: str, after: str = "") -> str:
    """The group of a message that was kept for a dead node, for its heir: who lasted there, or at
    one whose heir that was; or the same with the number that it has of another dead one. `after`:
    see `after_of`.
    """
    if group.startswith(MOVED):
        return group
    return f"{MOVED}{dead}/{group}" if group.startswith(FROM) else f"{MOVED}{dead}{after}"


def share_of(group: str) -> str:
    """The shared group that a kept message is for, whoever kept it before; "" for none."""
    at = group.find(SHARE)
    return group[at:] if at >= 0 else ""


def owned(state: State) -> Iterator[tuple[str, tuple[str, str]]]:
    """Sessions and queues of this node that lasted at a dead one, by that one's name."""
    for name in state.taken:
        if name.startswith(OWN):
            dead, protocol, client = name.removeprefix(OWN).split("/", 2)
            yield dead, (protocol, client)


def known(state: State) -> dict[str, int]:
    """Of which dead nodes this one knows who the heir is, up to which message of their stream."""
    found: dict[str, int] = {}
    for name, at in state.taken.items():
        if name.startswith((HEIR, TOLD)):
            dead = name.rpartition("/")[2]
            found[dead] = max(at, found.get(dead, 0))
    return found


def awaited(membership: Membership) -> int:
    """Which message stopped this node's stream, if it does not know yet that its heir has all."""
    at = fenced(membership)
    return at if known(membership.broker.state).get(membership.name, 0) < at else 0


def fenced(membership: Membership) -> int:
    """Which message stopped this node's stream, if others may not have heard of the heir yet."""
    taken, broker = membership.broker.state.taken, membership.broker
    at = taken.get(FENCED, 0)
    over = broker.clock.stamp() > taken.get(SINCE, 0) + membership.keep * 1_000_000
    return 0 if over or taken.get(HEIR + membership.name, 0) >= at else at


# The others


def tell(membership: Membership, node: Node) -> None:
    """Say of which nodes this one is the heir."""
    taken = membership.broker.state.taken
    for name, at in reversed(list(taken.items())):  # who was the heir of another one before that
        if name.startswith(HEIR):
            dead = name[len(HEIR) :]
            took = taken.get(f"{TOOK}{dead}/{node.client}", 0)
            node.link.hold(frames.piece(frames.Heir(dead, at, took)), barrier=True)


def inherits(membership: Membership, heir: Node, record: frames.Heir) -> None:
    """Another node has what was a dead one's: what is kept for that goes there."""
    broker, dead = membership.broker, record.dead
    if dead == membership.name:
        of_this_one(membership, heir.client, [record])
        return
    before = membership.inherited.get(dead, 0)
    membership.inherited[dead] = max(record.at, before)
    told = f"{TOLD}{heir.client}/{dead}"
    if record.at <= broker.state.taken.get(told, 0):
        return
    if record.at > before:
        if dead != heir.client:
            bury(membership, dead, record.at)
        membership.directory.there.pop(dead, None)
        membership.directory.until.pop(dead, None)
    first = broker.log.position + 1
    cut = heir.keeping.backlog.next if heir.keeping is not None else 0
    for name, number in ((told, record.at), (f"{CUT}{heir.client}/{dead}", cut)):
        broker.change(Row(0, 0, schema.TAKEN, client=column_of(name), number=number))
    if heir.keeping is not None:
        heir.keeping.cuts[dead] = cut
    node = membership.away.get(dead) or membership.nodes.get(dead)
    # The heir of an heir says it, too: what is kept since the first said it is for who is back.
    if record.at > before and node is not None and node.keeping is not None:
        shared = dict(node.keeping.state.shared)
        kept = [one for one in waits_in(node.keeping.state) if one[0] > record.took]
        # Its own heir may be that of others, too: what is on its way for those stays as it is.
        stays = {
            number for number, seq, _ in kept
            if node is heir and shared.get(seq, "").startswith(MOVED)
        }  # fmt: skip
        kept = [one for one in kept if one[0] not in stays]
        groups = {seq: share for _, seq, _ in kept if (share := share_of(shared.get(seq, "")))}
        cuts, own = node.keeping.cuts, membership.name
        waiting = [
            (message, qos, moved(dead, shared.get(seq, ""), after_of(own, cuts, number)))
            for number, seq, qos in kept
            if seq not in groups and (message := broker.log.look(seq)) is not None
        ]
        node.keeping.let_go(stays)  # before: a node may be its own heir
        if waiting:
            heir.keep()
        for message, qos, group in waiting:
            again = _once_more(membership, message)
            broker.change(moved_row(heir.client, again, qos, group))
        log.info("%d messages kept for node %r go to node %r", len(waiting), dead, heir.client)
        if node is not heir:
            _wanted_too(membership, heir, node)
        if dead in membership.away:
            broker.end(membership.away.pop(dead))
        for seq, group in groups.items():
            broker.groups.give_again(seq, group)
    broker.log.together(first)
    heir.relieve()


def of_this_one(membership: Membership, heir: str, records: Iterable[frames.Record]) -> None:
    """Who is the heir of this node says so. That is heard of one that waits for its own heir, too:
    it may be that this node is to be that, when it need not wait any more.
    """
    taken, own = membership.broker.state.taken, membership.name
    for record in records:
        if isinstance(record, frames.Heir) and record.dead == own:
            membership.confirmed(own, record.at)
            membership.inherited[own] = max(record.at, membership.inherited.get(own, 0))
            told = f"{TOLD}{heir}/{own}"
            if record.at > taken.get(told, 0):
                row = Row(0, 0, schema.TAKEN, client=column_of(told), number=record.at)
                membership.broker.change(row)


def _wanted_too(membership: Membership, heir: Node, dead: Node) -> None:
    """What was kept for a dead node is kept for its heir, also while that has not said what it
    wants: what is acknowledged meanwhile would be for nobody.
    """
    for key in [key for key, wish in dead.wants.items() if wish.qos]:
        membership.want(heir, key, True)
    membership.broker.age += 1
    heir.ask()


def _once_more(membership: Membership, message: Message) -> int:
    """A row of its own: the same message may wait for the heir itself, too."""
    message = message.copied()
    message.retain = False
    return membership.broker.change(row_of(message, PUBLISH, 0, 0))


# Who was not dead


def let_go(
    broker: Broker, membership: Membership, protocols: Iterable[Revival], at: int
) -> None:
    """Another node is the heir, which stopped the stream here by the message `at`: nothing here is
    this node's own any more but its history. The others hear that before anything else: until they
    have heard of the heir they go on keeping for this one what is for that. Nor is it the heir of
    anybody: its own heir is, as far as a quorum had that.
    """
    first = broker.log.position + 1
    for dead in list(broker.state.adopting):
        broker.change(adopted(dead, live=False))
    for name in [name for name in broker.state.taken if name.startswith(HEIR)]:
        broker.change(Row(0, 0, schema.TAKEN, client=column_of(name), number=UNSAID))
    membership.inherited = known(broker.state)
    for name, number in ((FENCED, at), (SINCE, broker.clock.stamp())):
        broker.change(Row(0, 0, schema.TAKEN, client=column_of(name), number=number))
    membership.beat()
    by_name = {one.name: one for one in protocols}
    for state in list(broker.state.sessions.values()):
        key = state.protocol, state.client
        session, protocol = broker.sessions.get(key), by_name.get(state.protocol)
        if state.protocol == PROTOCOL:
            node = membership.known(state.client)
            if node.keeping is not None:
                node.keeping.begin_anew()
        elif session is not None and protocol is not None:
            if session.number:
                session.taken_over()
            if state.will is not None:
                broker.change(row_about(session, schema.WILL))  # the heir has it
            protocol.end_away(state.client)
    for name in list(broker.state.queues):
        broker.queues.destroy(name)
    for seq in list(broker.state.delayed):
        broker.delays.cancel(seq)
    broker.log.together(first)


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
