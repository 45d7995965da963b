"""Which nodes there are, what each wants and who is connected to it.

    a beat of an unknown node -> meet it: tell it all that holds here, ask what holds there
    a frame is missing        -> count it, ask again
    five seconds of silence   -> it is gone, with its filters and its clients: Change 0, once;
                                 what sessions there are to keep waits for it here

What changes here is told to each node over its own link, before the messages that follow, so that
one order holds for everything between two nodes. What a node sent is delivered to clients here and
never to a node: loops cannot be. Rights are asked where a client is: to publish at its node, to
receive at the reader's.

The broker calls it by its hooks, the hub's node calls `hear` and `wake`. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Final

from msgspec.structs import astuple

from hubbub.cluster import estates, frames, heritage, taking, whole, wills
from hubbub.cluster.departed import Departed
from hubbub.cluster.directory import Directory
from hubbub.cluster.engine import Engine
from hubbub.cluster.estates import Estate
from hubbub.cluster.hearing import Hearing
from hubbub.cluster.holdings import OWN, Holdings
from hubbub.cluster.keeping import PROTOCOL, estate_and_origin, lasts
from hubbub.cluster.lost import Lost
from hubbub.cluster.named import Named
from hubbub.cluster.node import Crossing, FarRights, Node, Phantom
from hubbub.cluster.outposts import Outposts
from hubbub.cluster.relays import Relays
from hubbub.cluster.report import report, trouble
from hubbub.cluster.retained import Stamps
from hubbub.cluster.roster import Roster
from hubbub.cluster.taking import STAYS
from hubbub.core.broker import Broker
from hubbub.core.hooks import Hooks
from hubbub.core.limits import (
    CLUSTER_BEAT_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_NAMES,
    CLUSTER_RECORD_BYTES,
    CLUSTER_STOOD_SECONDS,
    LINK_BYTES,
    LINK_CHOKED,
)
from hubbub.core.log import LEVELS
from hubbub.core.message import Run
from hubbub.core.observing import near
from hubbub.core.session import FOR_EVER, Session, SessionState, Subscription
from hubbub.core.topics import CLIENT, SHARE, has_wildcard, is_group
from hubbub.core.topics import OWN as ITS_OWN
from hubbub.schema import name_from_wire, name_to_wire

log = logging.getLogger("hubbub.cluster")


class Membership(Hooks):
    """This node of a cluster. `excluded`: why it takes no part any more, "" as long as it does;
    `alone`: asks whether no other node has its name, before it says or writes anything.

    `shut` is called when another node ends all connections of the cluster. `permits` says all that
    is managed of permissions here, `permitted` gets what was elsewhere. `counts_all`: who
    observes a topic is told how many it reaches on all nodes, not only here. `keep`: for how many
    seconds messages wait for an estate that nobody holds. `busy`: for so many seconds this one may
    be silent now. `deposed`: another one has stopped this node's stream, and nobody is known yet
    who has what was here. `unknown`: what it is to hear before anything is due here (`wills`);
    `left`: clients that are gone from any node, and when they had come there; `lost`: those of here
    of which it is not known whether they are at another one.
    `born`: since when its directory is that of this node (microseconds since 1970).
    `joined` and `up_since`: when (monotonic seconds) it began to hear it, and NATS was there last;
    `awake`: when it was last seen to be (`Clock.elapsed`), `stood` is called where it was not for
    long; `pause` calls something so many seconds later, None: nothing waits so.
    `holdings`: what lasts here, `estates`: what does so elsewhere. `inherited`: of which dead nodes
    another one is known to have what they had, by the message that stopped their stream, and
    `sure` the row that must be safe before that is told; `confirmed` is called with this node's,
    `doubted` with that of which this one may not know.
    `stopped`: nodes that are away in order; `waiting`: those that are there and wait for their
    heir, which message stopped them, and when they said so. `place`: for clients.
    """

    def __init__(
        self, broker: Broker, engine: Engine, version: str, counts_all: bool = False,
        keep: int = FOR_EVER, place: str = "",
    ) -> None:  # fmt: skip
        self.broker = broker
        self.engine = engine
        self.name = engine.name
        self.version = version
        self.boot = self.born = broker.clock.stamp()
        self.nodes: dict[str, Node] = {}
        self.estates: dict[str, Estate] = {}
        self.keep = keep
        self.holdings = Holdings(broker, self.name, keep, self.tell_all)
        self.place = place
        self.shunned = Named[str]()
        self.excluded = ""
        self.alone: Callable[[], Awaitable[bool]] = nobody_else
        self.deposed = False
        self.unknown: set[str] = set()
        self.joined = self.up_since = self.awake = 0.0
        self.stood: Callable[[], None] = lambda: None
        self.pause: Callable[[float, Callable[[], None]], object] | None = None
        self.busy = 0
        self.stopped = Named[bool]()
        self.waiting = Named[tuple[int, float]]()
        self.inherited: dict[str, int] = {}
        self.sure = 0
        self.confirmed: Callable[[str, int], None] = lambda dead, at: None
        self.doubted: Callable[[int], None] = lambda at: None
        self.rights = FarRights()
        self.stamps = Stamps(broker, self.name)
        self.number = broker.address()
        self.addressed = f"{CLIENT}{self.number}"
        self.crossing = Crossing(broker, self.number)
        self.questioned: Callable[[str, frames.Question], None] = lambda node, question: None
        self.answered: Callable[[str, frames.Answer], None] = lambda node, answer: None
        self.shut: Callable[[str | None], None] = lambda text: None
        self.permits: Callable[[], frames.Permits | None] = lambda: None
        self.permitted: Callable[[str, frames.Permits], None] = lambda node, permits: None
        self.counts_all = counts_all
        self.inner = Hooks()
        self.messages_in = self.messages_out = 0
        self._since: dict[int, int] = {}
        self.left = Departed()
        self.lost = Lost(self)
        self._beat_at = 0.0
        self._life = 0
        self.hearing = Hearing(self)
        self.hear = self.hearing.hear
        self.groups: dict[str, Crossing] = {}
        self.roster = Roster(self)
        self.directory = Directory(self, broker, keep)
        self.outposts = Outposts(self)
        self.relays = broker.homes = Relays(self, self.directory)
        broker.filters.told = self._filtered
        broker.retained.told = self._retained

    def begin(self) -> None:
        """The state is recovered and nobody is connected: hear of clients from now on."""
        self.inner = self.broker.hooks or self.inner
        self.broker.hooks = self
        self.broker.look_awake = self.look_awake
        self.broker.may_be_elsewhere = self.lost.waits
        self.broker.elsewhere = lambda: [one.place for one in self.nodes.values() if one.place]
        self.holdings.look()
        self.inherited = heritage.known(self.broker.state)
        self.stamps.begin()
        self.roster.begin()
        own = self.estates.get(self.holdings.own)
        if own is not None:  # this hub had another name
            log.warning("what was kept for node %r is dropped: that is this one now", self.name)
            self.let_go(own)
        if self.counts_all:
            self.broker.observers.elsewhere = self._elsewhere
            self.broker.observers.watched = self._watched

    def recall(self, state: SessionState) -> Estate | None:
        """An estate for which messages are kept since before this start."""
        name, origin = estate_and_origin(state.client)
        estate = self.estate_of(name)
        if origin:
            estate.go_on_for(origin)
            return None
        estate.recall((name, qos) for name, (qos, _) in state.subscriptions.items())
        estate.keep()
        return estate

    def estate_of(self, name: str) -> Estate:
        """Of another node, here or away; one that was never met is away."""
        estate = self.estates.get(name)
        if estate is None:
            if len(self.estates) >= CLUSTER_NAMES:
                raise frames.Foreign(f"more than {CLUSTER_NAMES} estates")
            estate = self.estates[name] = Estate(self, name)
        return estate

    # What changes here

    def connected(self, session: Session) -> None:
        self.inner.connected(session)
        if session.opening is not None:
            self._since[session.number] = session.came
            self.tell_all(frames.Came(*self._came(session)))

    def disconnected(self, session: Session, number: int, reason: str) -> None:
        self.inner.disconnected(session, number, reason)
        since = self._since.pop(number, None)
        if since is not None:
            whose = frames.digest(session.payer)
            wills.went(self, (session.protocol, session.client), since, whose)
            self.tell_all(frames.Left(number, since, whose))

    def entitled(self, session: Session) -> None:
        self.inner.entitled(session)

    def may_name(self, subtopic: str, session: Session) -> bool:
        return self.inner.may_name(subtopic, session)

    def _came(self, session: Session) -> tuple[int, str, bytes, int]:
        client = name_to_wire(session.client)
        return session.number, session.protocol, client, self._since[session.number]

    def _filtered(self, subscription: Subscription, change: int) -> None:
        """A subscription came or went; the first and the last of a filter are told.

        Messages are kept for those of who lasts, whatever the QoS of others is.
        """
        name, session = subscription.filter, subscription.session
        shared = is_group(name, subscription.literal)
        if session.far or session.once or (name.startswith((*ITS_OWN, *STAYS)) and not shared):
            return
        # A name without wildcards is the same wish, whoever has it.
        key = name, not shared and (subscription.literal or not has_wildcard(name))
        kept = bool(subscription.qos) and lasts(session)
        estate = self.holdings.members.get((session.protocol, session.client), OWN)
        if estate != OWN and kept:
            self.holdings.count(estate, key, True, change)
            if shared:
                return
            kept = False  # what goes live does so to whoever is here
        self.holdings.count(OWN, key, kept, change)

    @staticmethod
    def is_literal(name: str) -> bool:
        """Whether a filter without wildcards, as what is kept for an estate has it, is a name."""
        return not (name.startswith(SHARE) or has_wildcard(name))

    def _retained(self, run: Run, before: int) -> None:
        """A message was retained here: all nodes keep it, whoever subscribes there."""
        name = run.route.name
        if run.sender.far or name.startswith(STAYS):
            return
        stamp = self.stamps.next(name, before, run)
        self.stamps.keep(name, stamp, not run.messages()[-1].payload)
        piece = b""
        audience = run.route.audience if run.qos else []
        keep = {state.client for state, _ in audience if state.protocol == PROTOCOL}
        for node in self.nodes.values():
            if node.estate.client in keep:
                continue  # it gets this with all else that is kept for it
            piece = piece or self.crossing.spelled(run, *stamp)
            if node.ready():
                node.link.hold(piece, upto=self.stamps.sure)
                self.messages_out += run.count
            else:  # it is told when there is room again
                node.behind = True

    def tell_all(self, record: frames.Record) -> None:
        if self.nodes:
            piece = frames.piece(record)
            for node in self.nodes.values():
                node.link.write(piece)

    def tell_held(self, record: frames.Record, upto: int = 0) -> None:
        """When that row is safe, the last one as a rule, behind what waits; live ones pass it."""
        if self.nodes:
            piece = frames.piece(record)
            for node in self.nodes.values():
                node.link.hold(piece, upto=upto)

    # Frames

    def send(self, node: Node, portions: Iterable[bytes]) -> None:
        """Frames of a node's link; those that are lost here are missed there."""
        made = []
        for pieces in portions:
            node.sent += 1
            made.append(frames.frame(self.name, self.boot, node.life, node.sent, pieces))
        self.engine.send(node.name, made)

    def beat_soon(self) -> None:
        self._beat_at = 0.0

    def beat(self) -> None:
        """Tell everybody that this node is there."""
        beat = frames.piece(self.says())
        self.engine.send("", [frames.frame(self.name, self.boot, 0, 0, beat)])
        for node in self.nodes.values():
            node.link.write(beat)
            node.ask_again()

    def says(self) -> frames.Beat:
        stamp, stopped = self.broker.clock.stamp(), self.broker.state.taken.get(estates.STOPPED, 0)
        said = self.version, stamp, self.place, stopped, heritage.waits(self), self.busy, self.born
        return frames.Beat(*said, keeps=LEVELS[self.broker.log.most])

    # Who is there

    def meet(self, frame: frames.Frame, beat: frames.Beat) -> Node:
        self._life = max(self._life + 1, self.broker.clock.stamp())
        estate = self.estate_of(estates.named(frame.node, beat.stopped))
        node = Node(self, frame.node, estate, frame.boot, self._life, beat.stopped)
        self.nodes[frame.node] = node
        log.info("node %r is there", frame.node)
        node.tell(self.says())
        whole.tell(self, node)
        node.ask()
        self.roster.came(node, beat.born)
        self.stopped.pop(frame.node, None)
        if estate.holder is None:  # else that has it, and this node does not know yet
            estate.held_by(node, 0)
        return node

    def met(self, name: str) -> bool:
        """Whether a node is there and has said all that holds there."""
        node = self.nodes.get(name)
        return node is not None and node.number_there > 0

    def waits(self, name: str) -> int:
        """Which message stopped the stream of a node that is there and waits for its heir; or 0."""
        stopped, heard = self.waiting.get(name, (0, 0.0))
        there = self.broker.clock.now() - heard <= CLUSTER_DEAD_SECONDS
        return stopped if there and stopped > self.inherited.get(name, 0) else 0

    def whole(self, answers: int) -> frames.Whole:
        """All that holds here."""
        clients = self.broker.clients
        here = [self._came(clients[number]) for number in self._since if number in clients]
        observed = self.broker.observers.names.items() if self.counts_all else ()
        watches = [name_to_wire(name) for name, by in observed if is_watched(name, by)]
        holdings = self.holdings.all(self.directory)
        left = [(key[0], name_to_wire(key[1]), since) for key, since in self.left.items()]
        return frames.Whole(answers, self.number, here, watches, holdings, left)

    def remember(self, holding: frames.Holding) -> None:
        """An estate that was here, and is to be at another node: what is for it is kept for it."""
        estate = self.estate_of(holding.estate)
        for name, literal, kept in holding.wants:
            if kept:
                estate.want((name_from_wire(name), literal), True)
        if estate.lasting:
            estate.away()
        else:
            del self.estates[holding.estate]
        self.directory.remember(holding.estate, holding.lasts)

    def knows(self, name: str) -> bool:
        """Whether it is known what that estate wants, from a node that held it. What came before
        that had said all is a part of it, and this journal may be younger than a copy, or a backup.
        """
        estate = self.estates.get(name)
        return estate is not None and estate.told

    def permit(self, permits: frames.Permits) -> None:
        """Permissions were changed here."""
        self.tell_all(permits)

    def tell(self, name: str, record: frames.Record) -> bool:
        """To one node, with the next tick; False if it is not there."""
        node = self.nodes.get(name)
        if node is not None:
            node.tell(record)
        return node is not None

    def forget(self, node: Node, why: str) -> None:
        """It is gone: its filters, and each of its clients once."""
        log.warning("node %r is gone, and its %d clients: %s", node.name, len(node.clients), why)
        del self.nodes[node.name]
        self.roster.went(node)
        self.relays.torn(node, f"node {node.name!r} is gone", told=False)
        for estate in node.estates():
            self._away(estate)
        for number in list(node.clients):
            self.gone(node, number)
        for name in list(node.counts):
            self._counted(node, name, 0)
        self.broker.age += 1
        node.relieve()

    def _away(self, estate: Estate) -> None:
        """Nobody is known any more who holds it."""
        observers = self.broker.observers
        self.directory.away(estate.client)
        if estate.holder is not None:
            self.directory.last[estate.client] = estate.holder.name
        estate.away()
        for name in [name for name, by in observers.names.items() if estate in by]:
            observers.unobserve(estate, name)
        if not estate.lasting:
            del self.estates[estate.client]

    def look_awake(self) -> None:
        """Whether it stood still (SIGSTOP, a machine that slept) for so long that others may have
        taken it for dead. Asked before anything is said that is due, or by who was lost meanwhile.
        """
        now = self.broker.clock.elapsed()
        if 0 < self.awake < now - CLUSTER_STOOD_SECONDS:
            log.warning("this hub stood still for %.0f s", now - self.awake)
            self.awake = now
            wills.stood_still(self)
            self.stood()

    def note_awake(self) -> None:
        """A few times a second, before all else."""
        self.look_awake()
        self.awake = self.broker.clock.elapsed()

    def wake(self, now: float) -> None:
        """A few times a second."""
        if self.excluded:
            wills.look(self, now)
            return
        for node in list(self.nodes.values()):
            silent = now - node.heard > CLUSTER_DEAD_SECONDS + node.busy
            if silent and not self.hearing.is_behind(node.name):
                self.forget(node, f"silent for {CLUSTER_DEAD_SECONDS:g} s")
        if now >= self._beat_at:
            self._beat_at = now + CLUSTER_BEAT_SECONDS
            self.beat()
            for estate in [one for one in self.estates.values() if one.late()]:
                text = "nobody has estate %r for too long: nothing more is kept for it"
                log.warning(text, estate.client)
                self.let_go(estate)
            origins = {one.origin for estate in self.estates.values() for one in estate.before}
            for name in self.holdings.release(origins):
                self.tell_held(frames.Released(name))
        self.hearing.go_on()
        for estate in self.estates.values():
            estate.look(now)
        wills.look(self, now)
        self.lost.look()
        self.relieve()
        self.directory.wake()
        self.relays.wake(now)
        self.outposts.wake()
        for node in self.nodes.values():
            taking.feed(self, node)
            whole.answer(self, node)
            node.pump()  # what was said while the engine was down
            room = node.declined and not taking.lacks_room(self, node, again=True)
            if room and self.hearing.aside.has_much_room(node.name):
                node.declined = False
                node.ask()

    def let_go(self, estate: Estate, settled: bool = False) -> None:
        """Nothing is kept for it any more. What was for a member of a group goes to another one, if
        it is not `settled` whose it is.
        """
        shared = [] if settled else estate.to_give_again()
        if estate.holder is not None:
            self._away(estate)
        estate.is_over()
        if self.estates.pop(estate.client, None) is not None and estate.lasting:
            self.broker.end(estate)
        for seq, group in shared:
            self.broker.groups.give_again(seq, group)

    def relieve(self) -> None:
        """The engine may have room again; what waits for a quorum may be as much as may be."""
        for node in self.nodes.values():
            room = self.engine.waiting(node.name) < LINK_CHOKED // 2
            if node.link.choked and room and node.link.held_bytes <= LINK_BYTES:
                node.relieve()

    def goodbye(self) -> None:
        """The hub stops: others need not wait for its silence."""
        for estate in self.estates.values():
            estate.take_back()
        bye = frames.piece(frames.Bye())
        self.engine.send("", [frames.frame(self.name, self.boot, 0, 0, bye)])

    # What nodes say

    def take(
        self, node: Node, record: frames.Record, waited: bool = False
    ) -> Iterator[None] | None:
        """What takes long is done piece by piece; what is for the disk waits for that, once."""
        if not waited and self.hearing.waits(node, record):
            return None
        return _TAKES[type(record)](self, node, record)

    def _beats(self, node: Node, record: frames.Beat) -> None:
        node.version, node.place = record.version, record.place
        node.busy, node.keeps = record.busy, record.keeps

    def of_node(self, node: Node, name: str) -> Estate | None:
        """That estate, if the node has it; it may be one that does not know yet that it has not."""
        estate = self.estates.get(name)
        return estate if estate is not None and estate.holder is node else None

    def has(self, node: Node, name: str) -> bool:
        return self.of_node(node, name) is not None

    def holds(self, node: Node, name: str, generation: int) -> Estate | None:
        """The node says that it has it: of two that do, who has had it for less long. Nobody has
        that of a node which is there, as far as is known.
        """
        began = self.nodes.get(estates.began_by(name), node)
        if name in self.holdings.held or began is not node and began.estate.client == name:
            return None
        estate = self.estate_of(name)
        if estate.holder is not node:
            if estate.holder is not None:
                if generation <= estate.generation:
                    return None
                self._away(estate)
            self.directory.back(name)
            self.estates[name] = estate
            estate.held_by(node, generation)
        return estate

    def _takes_over(self, node: Node, record: frames.Holds) -> None:
        if self.of_node(node, record.estate) is None:
            if self.holds(node, record.estate, record.generation) is not None:
                node.ask()

    def _deposed(self, node: Node, record: frames.Deposed) -> None:
        """Another one has what this node had, which does not know so."""
        if record.at > self.broker.state.taken.get(estates.STOPPED, 0):
            self.doubted(record.at)

    def _releases(self, node: Node, record: frames.Released) -> None:
        estate = self.of_node(node, record.estate)
        if estate is not None:
            self.let_go(estate)
            self.directory.forget(record.estate)
            self.holdings.forget_origin(record.estate)

    def _wanted(self, node: Node, record: frames.Wants) -> None:
        estate = self.of_node(node, record.estate)
        if estate is not None:
            estate.want((name_from_wire(record.filter), record.literal), record.kept)
            self.broker.age += 1

    def crossing_of(self, name: str) -> Crossing:
        if not name.startswith(SHARE):
            return self.crossing
        return self.groups.setdefault(name, Crossing(self.broker, self.number, name))

    def _left_alone(self, node: Node, record: frames.Leaves) -> None:
        estate = self.of_node(node, record.estate)
        if estate is not None:
            estate.leaves((name_from_wire(record.filter), record.literal))
            self.broker.age += 1

    def _came_there(self, node: Node, record: frames.Came) -> None:
        self.there(node, record.number, record.protocol, record.client, record.since)

    def there(self, node: Node, number: int, protocol: str, wire: bytes, since: int) -> None:
        """A client is at that node; the same one here, if it came before, is taken over."""
        client = name_from_wire(wire)
        known = node.clients.get(number)
        if known is not None and known.is_same(protocol, client, since):
            return
        if known is not None:
            self.gone(node, number)
        if self.broker.client(number) is not None:
            self.hearing.refuse(f"node {node.name!r} has a client under a number of another one")
            return
        if number in self.broker.state.topics.names:
            self.hearing.warn("number", f"the number {number} of {client!r} is a topic's here")
        phantom = Phantom(protocol, client, self.rights, number, node.name, since)
        phantom.direct = node.estate.direct
        node.clients[number] = self.broker.phantoms[number] = phantom
        if since:
            self._take_over(node, protocol, client, since)

    def _take_over(self, node: Node, protocol: str, client: str, since: int) -> None:
        session = self.broker.sessions.get((protocol, client))
        if not client or self.relays.many(protocol):
            return
        if session is None or not session.number:
            self.lost.elsewhere((protocol, client), since)
            return
        if (self._since.get(session.number, 0), self.name) < (since, node.name):
            log.info("%s is taken over by node %r", client, node.name)
            wills.withdraw(self.broker, (protocol, client))
            session.taken_over()

    def _went(self, node: Node, record: frames.Left) -> None:
        phantom = node.clients.get(record.number)
        if phantom is not None and record.since:
            key = phantom.protocol, phantom.client
            wills.went(self, key, record.since, record.whose)
        self.gone(node, record.number)

    def gone(self, node: Node, number: int) -> None:
        phantom = node.clients.pop(number, None)
        if phantom is None or self.broker.phantoms.get(number) is not phantom:
            return
        del self.broker.phantoms[number]
        self.broker.age += 1  # routes lead to it
        self.broker.observers.left(number)
        self.inner.disconnected(phantom, number, "")

    def _ends(self, node: Node, record: frames.Bye) -> None:
        self.stopped[node.name] = True
        self.forget(node, "it stopped")

    def _shuts(self, node: Node, record: frames.Shut) -> None:
        log.warning("node %r ends every connection of the cluster", node.name)
        self.shut(record.text)

    def _part(self, node: Node, record: frames.Part) -> Iterator[None] | None:
        if node.torn:
            node.torn = not record.last
            return None
        node.parts += record.data
        if len(node.parts) > CLUSTER_RECORD_BYTES:
            node.parts.clear()
            node.torn = not record.last
            raise frames.Foreign(f"a record of more than {CLUSTER_RECORD_BYTES} bytes")
        if record.last:
            data = bytes(node.parts)
            node.parts.clear()
            inner = frames.read(data)
            if isinstance(inner, frames.Part):
                raise frames.Foreign("a part within a part")
            return self.take(node, inner)
        return None

    # Counts of all nodes

    def _elsewhere(self, name: str) -> int:
        return sum(node.counts.get(name, 0) for node in self.nodes.values())

    def _watched(self, name: str, on: bool) -> None:
        if not name.startswith(CLIENT):
            self.tell_all(frames.Watch(name_to_wire(name), on))

    def watches(self, node: Node, record: frames.Watch) -> None:
        name, observers = name_from_wire(record.name), self.broker.observers
        if record.on:
            node.changed(name, observers.observe(node.estate, name))
        else:
            observers.unobserve(node.estate, name)

    def _counts(self, node: Node, record: frames.Count) -> None:
        self._counted(node, name_from_wire(record.name), record.count)

    def _counted(self, node: Node, name: str, count: int) -> None:
        if count:
            node.counts[name] = count
        else:
            node.counts.pop(name, None)
        self.broker.observers.tell(name, literal=True)

    # What it says about itself

    def trouble(self) -> str:
        return trouble(self)

    def status(self) -> dict[str, Any]:
        return report(self)


async def nobody_else() -> bool:
    """Of an engine whose nodes all know one another."""
    return True


def is_watched(name: str, observers: dict[Session, int]) -> bool:
    """Whether others are to say how many it reaches: a client is at one node, which says so."""
    return not name.startswith(CLIENT) and near(observers)


_TAKES: Final[dict[type, Callable[[Membership, Node, Any], Iterator[None] | None]]] = {
    frames.Beat: Membership._beats,
    frames.Wants: Membership._wanted,
    frames.Leaves: Membership._left_alone,
    frames.Came: Membership._came_there,
    frames.Left: Membership._went,
    frames.Whole: whole.hear,
    frames.More: whole.more,
    frames.Ask: whole.asked,
    frames.Said: taking.live,
    frames.Part: Membership._part,
    frames.Shut: Membership._shuts,
    frames.Bye: Membership._ends,
    frames.Watch: Membership.watches,
    frames.Count: Membership._counts,
    frames.Kept: taking.keep,
    frames.Taken: taking.taken,
    frames.Lasts: lambda here, node, one: here.directory.lasts(node, *astuple(one)),
    frames.Over: lambda here, node, one: here.directory.over(node, *astuple(one)),
    frames.Anew: lambda here, node, one: here.directory.anew(node, one),
    frames.Way: lambda here, node, one: here.relays.opens(node, one),
    frames.Carried: lambda here, node, one: here.relays.carried(node, one),
    frames.Room: lambda here, node, one: here.relays.room(node, one),
    frames.Closed: lambda here, node, one: here.relays.closed(node, one),
    frames.Heir: heritage.inherits,
    frames.Holds: Membership._takes_over,
    frames.Deposed: Membership._deposed,
    frames.Released: Membership._releases,
    frames.Takes: lambda here, node, one: here.outposts.takes(node, one),
    frames.Lent: lambda here, node, one: here.outposts.lent(node, one),
    frames.Done: lambda here, node, one: here.outposts.done(node, one),
    frames.Question: lambda here, node, one: here.questioned(node.name, one),
    frames.Answer: lambda here, node, one: here.answered(node.name, one),
    frames.Permits: lambda here, node, one: here.permitted(node.name, one),
    frames.Removed: lambda here, node, one: here.roster.hears(node, one),
    frames.Remains: lambda here, node, one: here.roster.remains(node, one),
}
