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
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import astuple

from hubbub.cluster import frames, heritage, taking
from hubbub.cluster.buried import Buried, Named
from hubbub.cluster.directory import Directory
from hubbub.cluster.engine import Engine
from hubbub.cluster.keeping import PROTOCOL, lasts
from hubbub.cluster.node import Crossing, FarRights, Node, Phantom
from hubbub.cluster.outposts import Outposts
from hubbub.cluster.relays import Relays
from hubbub.cluster.report import report
from hubbub.cluster.retained import Stamps
from hubbub.cluster.taking import STAYS
from hubbub.core.broker import Broker
from hubbub.core.hooks import Hooks
from hubbub.core.limits import (
    CLUSTER_BEAT_SECONDS,
    CLUSTER_CLOCK_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_RECORD_BYTES,
    LINK_CHOKED,
)
from hubbub.core.message import Run
from hubbub.core.session import FOR_EVER, Session, SessionState, Silent, Subscription
from hubbub.core.topics import CLIENT, OWN, SHARE, has_wildcard
from hubbub.schema import name_from_wire, name_to_wire

LOST: Final = "frames lost between nodes"

log = logging.getLogger("hubbub.cluster")


class Membership(Hooks):
    """This node of a cluster. `excluded`: why it takes no part any more, "" as long as it does.

    `shut` is called when another node ends all connections of the cluster. `permits` says all that
    is managed of permissions here, `permitted` gets what was elsewhere. `counts_all`: who
    observes a topic is told how many it reaches on all nodes, not only here. `keep`: for how many
    seconds messages wait for a node that is `away`. `deposed`: another one has stopped this node's
    stream, and is not yet its heir: what is kept for this one is for that. `busy`: for so many
    seconds this one may be silent now.
    `stopped`: nodes that are away in order; `waiting`: those that are there and wait for their
    heir, which message stopped them, and when they said so; `adopted`: the sessions of dead ones
    that are here now, `inherited`: of which dead nodes the heir is known, by the message that
    stopped their stream; `confirmed` is called with that of this node. `place`: for clients.
    """

    def __init__(
        self, broker: Broker, engine: Engine, version: str, counts_all: bool = False,
        keep: int = FOR_EVER, place: str = "",
    ) -> None:  # fmt: skip
        self.broker = broker
        self.engine = engine
        self.name = engine.name
        self.version = version
        self.boot = broker.clock.stamp()
        self.nodes: dict[str, Node] = {}
        self.away: dict[str, Node] = {}
        self.keep = keep
        self.place = place
        self.shunned = Named[str]()
        self.excluded = ""
        self.deposed = False
        self.busy = 0
        self.stopped = Named[bool]()
        self.waiting = Named[tuple[int, float]]()
        self.adopted: dict[str, set[tuple[str, str]]] = {}
        self.inherited: dict[str, int] = {}
        self.buried = Buried(broker.clock)
        self.confirmed: Callable[[str, int], None] = lambda dead, at: None
        self.rights = FarRights()
        self.stamps = Stamps(broker, self.name)
        self.number = broker.address()
        self.crossing = Crossing(broker, self.number)
        self.questioned: Callable[[str, frames.Question], None] = lambda node, question: None
        self.answered: Callable[[str, frames.Answer], None] = lambda node, answer: None
        self.shut: Callable[[str | None], None] = lambda text: None
        self.permits: Callable[[], frames.Permits | None] = lambda: None
        self.permitted: Callable[[str, frames.Permits], None] = lambda node, permits: None
        self.counts_all = counts_all
        self.inner = Hooks()
        self.messages_in = self.messages_out = self.frames_lost = 0
        self.refused: dict[str, int] = {}
        self._wants: dict[tuple[str, bool], list[int]] = {}
        self._since: dict[int, int] = {}
        self._beat_at = 0.0
        self._life = 0
        self._said: dict[str, float] = {}
        self._groups: dict[str, Crossing] = {}
        self.directory = Directory(broker, self.name, keep, self._tell_all)
        self.outposts = Outposts(self)
        self.relays = broker.homes = Relays(self, self.directory)
        broker.filters.told = self._filtered
        broker.retained.told = self._retained

    def begin(self) -> None:
        """The state is recovered and nobody is connected: hear of clients from now on."""
        self.inner = self.broker.hooks or self.inner
        self.broker.hooks = self
        self.broker.elsewhere = lambda: [one.place for one in self.nodes.values() if one.place]
        self.inherited = heritage.known(self.broker.state)
        self.stamps.begin()
        for dead, key in heritage.owned(self.broker.state):
            self.adopted.setdefault(dead, set()).add(key)
        own = self.broker.state.sessions.get((PROTOCOL, self.name))
        if own is not None:  # this hub had another name
            log.warning("what was kept for node %r is dropped: that is this one now", self.name)
            self.broker.end(Silent(PROTOCOL, self.name, self.broker.open))
        if self.counts_all:
            self.broker.observers.elsewhere = self._elsewhere
            self.broker.observers.watched = self._watched

    def recall(self, state: SessionState) -> Node | None:
        """A node for which messages are kept since before this start; None for this one."""
        if state.client == self.name:
            return None
        node = self.away[state.client] = Node(self, state.client)
        for name, (qos, _) in state.subscriptions.items():
            key = name, not (name.startswith(SHARE) or has_wildcard(name))
            encodings = self._crossing_of(name).by_qos
            node.wants[key] = Subscription(node, name, qos, encodings, literal=key[1])
        node.subscriptions = {wish.filter: wish for wish in node.wants.values()}
        node.keep()
        return node

    # What changes here

    def connected(self, session: Session) -> None:
        self.inner.connected(session)
        if session.opening is not None:
            self._since[session.number] = self.broker.clock.stamp()
            self._tell_all(frames.Came(*self._came(session)))

    def disconnected(self, session: Session, number: int, reason: str) -> None:
        self.inner.disconnected(session, number, reason)
        if self._since.pop(number, None) is not None:
            self._tell_all(frames.Left(number))

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
        shared = name.startswith(SHARE) and not subscription.literal
        if session.far or session.once or (name.startswith((*OWN, *STAYS)) and not shared):
            return
        # A name without wildcards is the same wish, whoever has it.
        key = name, not shared and (subscription.literal or not has_wildcard(name))
        here = self._wants.setdefault(key, [0, 0])
        before = _wish(here)
        here[bool(subscription.qos) and lasts(session)] += change
        now = _wish(here)
        if now is None:
            del self._wants[key]
            self._tell_all(frames.Leaves(name_to_wire(name), key[1]))
        elif now != before:
            self._tell_all(frames.Wants(name_to_wire(name), key[1], now))

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
            if node.client in keep:
                continue  # it gets this with all else that is kept for it
            piece = piece or self.crossing.spelled(run, *stamp)
            if node.ready():
                node.link.hold(piece, upto=self.stamps.sure)
                self.messages_out += run.count
            else:  # it is told when there is room again
                node.behind = True

    def _tell_all(self, record: frames.Record) -> None:
        if self.nodes:
            piece = frames.piece(record)
            for node in self.nodes.values():
                node.link.write(piece)

    # Frames

    def send(self, node: Node, portions: Iterable[bytes]) -> None:
        """Frames of a node's link; those that are lost here are missed there."""
        made = []
        for pieces in portions:
            node.sent += 1
            made.append(frames.frame(self.name, self.boot, node.life, node.sent, pieces))
        self.engine.send(node.client, made)

    def beat(self) -> None:
        """Tell everybody that this node is there."""
        beat = frames.piece(self._here())
        self.engine.send("", [frames.frame(self.name, self.boot, 0, 0, beat)])
        for node in self.nodes.values():
            node.link.write(beat)
            if node.asking:
                node.ask()  # what was asked, or the answer, was lost

    def _here(self) -> frames.Beat:
        stamp, fenced = self.broker.clock.stamp(), heritage.fenced(self)
        return frames.Beat(self.version, stamp, self.place, fenced, self.busy)

    def hear(self, data: bytes) -> None:
        """A frame came. What is wrong with it is logged and counted, and it is let go."""
        if self.excluded:
            return
        try:
            frame = frames.opened(data)
            if frame.node == self.name:
                self._namesake(frame)
                return
            node, first = self._from(frame), self.broker.log.position + 1
            if node is not None:
                for record in frame.records:
                    self._safely_take(node, record)
                node.acknowledge(first)
        except frames.Foreign as error:
            self._refuse(str(error))

    def _safely_take(self, node: Node, record: frames.Record) -> None:
        """One bad record takes no other one with it."""
        try:
            self._take(node, record)
        except frames.Foreign as error:
            self._refuse(str(error))
        except Exception as error:  # of a shape that no node sends
            text = f"{type(error).__name__}: {error}"[:100]
            self._refuse(f"a {type(record).__name__} of node {node.client!r} that broke: {text}")

    def _from(self, frame: frames.Frame) -> Node | None:
        """The node of a frame, None if there is nothing more to do with it."""
        node = self.nodes.get(frame.node)
        if node is not None and frame.boot < node.boot:
            raise frames.Foreign(f"a frame that {frame.node!r} sent before it was started again")
        self._check_clock(frame)
        node = self.nodes.get(frame.node)  # unless it is shut out now
        if node is not None and frame.boot > node.boot:
            self.forget(node, "it was started again")
            node = None
        beats = [record for record in frame.records if isinstance(record, frames.Beat)]
        fenced = max((beat.fenced for beat in beats), default=0)
        if fenced > self.inherited.get(frame.node, 0):
            self.waiting[frame.node] = fenced, self.broker.clock.now()
            heritage.of_this_one(self, frame.node, frame.records)
            self._warn(f"{frame.node} fenced", f"node {frame.node!r} waits: its heir is not known")
            if node is not None:
                self.forget(node, "it has an heir, which is not known here yet")
            return None
        if self.buried.says(frame.node, frame.boot, fenced):
            return None
        if node is None:
            if not beats or any(isinstance(record, frames.Bye) for record in frame.records):
                return None
            node = self._meet(frame)
        node.heard = self.broker.clock.now()
        return node if not frame.life or self._in_order(node, frame) else None

    def _in_order(self, node: Node, frame: frames.Frame) -> bool:
        """Frames of one life come in order, each once; what is missing is asked for."""
        if frame.life < node.their_life:
            return False
        if frame.life > node.their_life:
            first = node.their_life == 0
            node.their_life, node.seen = frame.life, frame.seq
            node.parts.clear()
            if not first or frame.seq > 1:
                self.relays.torn(node, LOST)
                node.ask()
            return True
        missing = frame.seq - node.seen - 1
        if missing < 0:
            return False
        node.seen = frame.seq
        if missing:
            node.parts.clear()
            self.frames_lost += missing
            self.broker.metrics.drop(LOST, missing)
            self.relays.torn(node, LOST)
            self._warn("lost", f"{missing} frames of node {node.client!r} were lost on the way")
            node.ask()
        return True

    def _check_clock(self, frame: frames.Frame) -> None:
        for record in frame.records:
            if isinstance(record, frames.Beat):
                apart = (record.stamp - self.broker.clock.stamp()) / 1_000_000
                if abs(apart) <= CLUSTER_CLOCK_SECONDS:
                    self.shunned.pop(frame.node, None)
                    continue
                self.shunned[frame.node] = f"its clock is {apart:+.0f} s from this one"
                if frame.node in self.nodes:
                    self.forget(self.nodes[frame.node], self.shunned[frame.node])
        if frame.node in self.shunned:
            raise frames.Foreign(f"node {frame.node!r} is shut out: {self.shunned[frame.node]}")

    def _namesake(self, frame: frames.Frame) -> None:
        """Of two nodes with one name the younger takes no part."""
        if frame.boot == self.boot:
            return
        stamps = [record.stamp for record in frame.records if isinstance(record, frames.Beat)]
        now = self.broker.clock.stamp()
        if not stamps or abs(now - stamps[0]) > CLUSTER_DEAD_SECONDS * 1_000_000:
            return  # of this node's own life before, which was on its way for long
        text = f"another node of the cluster has the name {self.name!r}"
        if frame.boot > self.boot:
            self._refuse(f"{text}, and was started later")
            self._beat_at = 0.0  # it hears soon why
            return
        self.excluded = f"{text}: give each node its own (cluster.name, --cluster-name)"
        log.error("%s; this node goes on alone", self.excluded)
        for node in list(self.nodes.values()):
            self.forget(node, "this node takes no part any more")

    def _refuse(self, reason: str) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + 1 if len(self.refused) < 100 else 1
        self.broker.metrics.drop("frames refused between nodes")
        self._warn(reason, f"refused: {reason}")

    def _warn(self, kind: str, text: str) -> None:
        """Once a minute of a kind."""
        now = self.broker.clock.now()
        if now >= self._said.get(kind, 0.0):
            if len(self._said) >= 100:
                self._said.clear()
            self._said[kind] = now + 60
            log.warning("%s", text)

    # Who is there

    def _meet(self, frame: frames.Frame) -> Node:
        self._life = max(self._life + 1, self.broker.clock.stamp())
        node = self.away.pop(frame.node, None) or Node(self, frame.node)
        node.meet(frame.boot, self._life)
        self.buried.met(frame.node, frame.boot)
        self.nodes[frame.node] = node
        log.info("node %r is there", frame.node)
        node.tell(self._here())
        heritage.tell(self, node)
        self._tell_whole(node)
        node.ask()
        self.stopped.pop(frame.node, None)
        if node.keeping is not None:
            node.keeping.begin()
        return node

    def met(self, name: str) -> bool:
        """Whether a node is there and has said all that holds there."""
        node = self.nodes.get(name)
        return node is not None and node.number_there > 0

    def waits(self, name: str) -> int:
        """Which message stopped the stream of a node that is there and waits for its heir; or 0."""
        fenced, heard = self.waiting.get(name, (0, 0.0))
        there = self.broker.clock.now() - heard <= CLUSTER_DEAD_SECONDS
        return fenced if there and fenced > self.inherited.get(name, 0) else 0

    def known(self, name: str) -> Node:
        """A node, here or away; one that was never met is away."""
        node = self.nodes.get(name) or self.away.get(name)
        if node is None:
            node = self.away[name] = Node(self, name)
        return node

    def _tell_whole(self, node: Node, answers: int = 0) -> None:
        wants = [
            (name_to_wire(name), literal, here[1] > 0)
            for (name, literal), here in self._wants.items()
        ]
        clients = self.broker.clients
        here = [self._came(clients[number]) for number in self._since if number in clients]
        watches = list(map(name_to_wire, self.broker.observers.names)) if self.counts_all else []
        lasts = self.directory.all_here()
        node.tell(frames.Whole(answers, self.number, wants, here, watches, lasts))
        permits = self.permits()
        if permits is not None:
            node.tell(permits)

    def permit(self, permits: frames.Permits) -> None:
        """Permissions were changed here."""
        self._tell_all(permits)

    def tell(self, name: str, record: frames.Record) -> bool:
        """To one node, with the next tick; False if it is not there."""
        node = self.nodes.get(name)
        if node is not None:
            node.tell(record)
        return node is not None

    def forget(self, node: Node, why: str) -> None:
        """It is gone: its filters, and each of its clients once."""
        log.warning("node %r is gone, and its %d clients: %s", node.client, len(node.clients), why)
        del self.nodes[node.client]
        self.relays.torn(node, f"node {node.client!r} is gone", told=False)
        self.directory.away(node.client)
        for key in [key for key, wish in node.wants.items() if not wish.qos]:
            self._leaves(node, key)
        if node.keeping is not None:
            self.away[node.client] = node
            node.keeping.rest()
        for number in list(node.clients):
            self._gone(node, number)
        for name in [name for name, by in self.broker.observers.names.items() if node in by]:
            self.broker.observers.unobserve(node, name)
        for name in list(node.counts):
            self._counted(node, name, 0)
        self.broker.age += 1
        node.relieve()

    def wake(self, now: float) -> None:
        """A few times a second."""
        if self.excluded:
            return
        for node in list(self.nodes.values()):
            if now - node.heard > CLUSTER_DEAD_SECONDS + node.busy:
                self.forget(node, f"silent for {CLUSTER_DEAD_SECONDS:g} s")
        if now >= self._beat_at:
            self._beat_at = now + CLUSTER_BEAT_SECONDS
            self.beat()
            for name in [name for name, node in self.away.items() if node.late()]:
                log.warning("node %r was away for too long: nothing more is kept for it", name)
                self.broker.end(self.away.pop(name))
        self.relieve()
        self.directory.wake()
        self.relays.wake(now)
        self.outposts.wake()
        for node in self.nodes.values():
            taking.feed(self, node)
            if node.keeping is not None:
                node.keeping.pump()  # what was said while the engine was down
            if node.declined and not (self.broker.no_room or self.deposed):
                node.declined = False
                node.ask()

    def relieve(self) -> None:
        """The engine may have room again."""
        for node in self.nodes.values():
            if node.link.choked and self.engine.waiting(node.client) < LINK_CHOKED // 2:
                node.relieve()

    def goodbye(self) -> None:
        """The hub stops: others need not wait for its silence."""
        bye = frames.piece(frames.Bye())
        self.engine.send("", [frames.frame(self.name, self.boot, 0, 0, bye)])

    # What nodes say

    def _take(self, node: Node, record: frames.Record) -> None:
        _TAKES[type(record)](self, node, record)

    def _beats(self, node: Node, record: frames.Beat) -> None:
        node.version, node.place, node.busy = record.version, record.place, record.busy

    def _wanted(self, node: Node, record: frames.Wants) -> None:
        self.want(node, (name_from_wire(record.filter), record.literal), record.kept)
        self.broker.age += 1

    def want(self, node: Node, key: tuple[str, bool], kept: bool) -> None:
        """`kept`: whether messages are kept for it."""
        old = node.wants.get(key)
        if old is not None and bool(old.qos) == kept:
            return
        if old is not None:
            self._leaves(node, key)
        name, literal = key
        encodings = self._crossing_of(name).by_qos
        subscription = Subscription(node, name, 2 if kept else 0, encodings, literal=literal)
        node.wants[key] = subscription
        if kept:
            node.keep()
            self.broker.subscribe(subscription)
        elif name.startswith(SHARE) and not literal:
            self.broker.groups.join(subscription)
        else:
            self.broker.filters.add(subscription)

    def _crossing_of(self, name: str) -> Crossing:
        if not name.startswith(SHARE):
            return self.crossing
        return self._groups.setdefault(name, Crossing(self.broker, self.number, name))

    def _left_alone(self, node: Node, record: frames.Leaves) -> None:
        self._leaves(node, (name_from_wire(record.filter), record.literal))
        self.broker.age += 1

    def _leaves(self, node: Node, key: tuple[str, bool]) -> None:
        subscription = node.wants.pop(key, None)
        if subscription is None:
            return
        if subscription.qos:
            self.broker.unsubscribe(node, subscription.filter)
        elif subscription.filter.startswith(SHARE) and not subscription.literal:
            self.broker.groups.leave(subscription)
            self._groups.pop(subscription.filter, None)
        else:
            self.broker.filters.remove(subscription)

    def _came_there(self, node: Node, record: frames.Came) -> None:
        self._there(node, record.number, record.protocol, record.client, record.since)

    def _there(self, node: Node, number: int, protocol: str, wire: bytes, since: int) -> None:
        """A client is at that node; the same one here, if it came before, is taken over."""
        client = name_from_wire(wire)
        known = node.clients.get(number)
        if known is not None and (known.protocol, known.client) == (protocol, client):
            return
        if known is not None:
            self._gone(node, number)
        if self.broker.client(number) is not None:
            self._refuse(f"node {node.client!r} has a client under a number of another one")
            return
        if number in self.broker.state.topics.names:
            self._warn("number", f"the number {number} of {client!r} is a topic's here")
        phantom = Phantom(protocol, client, self.rights, number, node.client)
        phantom.direct = node.direct
        node.clients[number] = self.broker.phantoms[number] = phantom
        if since:
            self._take_over(node, protocol, client, since)

    def _take_over(self, node: Node, protocol: str, client: str, since: int) -> None:
        session = self.broker.sessions.get((protocol, client))
        if session is None or not session.number or not client or self.relays.many(protocol):
            return
        if (self._since.get(session.number, 0), self.name) < (since, node.client):
            log.info("%s is taken over by node %r", client, node.client)
            session.taken_over()

    def _went(self, node: Node, record: frames.Left) -> None:
        self._gone(node, record.number)

    def _gone(self, node: Node, number: int) -> None:
        phantom = node.clients.pop(number, None)
        if phantom is None or self.broker.phantoms.get(number) is not phantom:
            return
        del self.broker.phantoms[number]
        self.broker.age += 1  # routes lead to it
        self.broker.observers.left(number)
        self.inner.disconnected(phantom, number, "")

    def _all_of_it(self, node: Node, record: frames.Whole) -> None:
        if record.answers == node.asking:
            node.asking = 0
        wants = {(name_from_wire(name), literal): kept for name, literal, kept in record.wants}
        for key in set(node.wants) - set(wants):
            self._leaves(node, key)
        for key, kept in wants.items():
            self.want(node, key, kept)
        clients = {number: (protocol, name) for number, protocol, name, _ in record.clients}
        clients[record.number] = "", b"hub"
        for number, phantom in list(node.clients.items()):
            if clients.get(number) != (phantom.protocol, name_to_wire(phantom.client)):
                self._gone(node, number)
        node.number_there = record.number
        self._there(node, record.number, "", b"hub", 0)
        for client in record.clients:
            self._there(node, *client)
        for name in record.watches:
            self._watches(node, frames.Watch(name, True))
        self.directory.whole(node, record.lasts)
        self.broker.age += 1

    def _asked(self, node: Node, record: frames.Ask) -> None:
        heritage.tell(self, node)
        self._tell_whole(node, record.question)
        node.feed = deque([*self.broker.state.retained, *self.stamps.cleared])
        node.receipt = node.took > 0
        if node.keeping is not None:
            node.keeping.again()

    def _ends(self, node: Node, record: frames.Bye) -> None:
        self.stopped[node.client] = True
        self.forget(node, "it stopped")

    def _shuts(self, node: Node, record: frames.Shut) -> None:
        log.warning("node %r ends every connection of the cluster", node.client)
        self.shut(record.text)

    def _part(self, node: Node, record: frames.Part) -> None:
        node.parts += record.data
        if len(node.parts) > CLUSTER_RECORD_BYTES:
            node.parts.clear()
            raise frames.Foreign(f"a record of more than {CLUSTER_RECORD_BYTES} bytes")
        if record.last:
            data = bytes(node.parts)
            node.parts.clear()
            inner = frames.whole(data)
            if isinstance(inner, frames.Part):
                raise frames.Foreign("a part within a part")
            self._take(node, inner)

    # Counts of all nodes

    def _elsewhere(self, name: str) -> int:
        return sum(node.counts.get(name, 0) for node in self.nodes.values())

    def _watched(self, name: str, on: bool) -> None:
        if not name.startswith(CLIENT):
            self._tell_all(frames.Watch(name_to_wire(name), on))

    def _watches(self, node: Node, record: frames.Watch) -> None:
        name, observers = name_from_wire(record.name), self.broker.observers
        if record.on:
            node.changed(name, observers.observe(node, name))
        else:
            observers.unobserve(node, name)

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
        return self.excluded or self.engine.trouble

    def status(self) -> dict[str, Any]:
        return report(self)


def _wish(counts: list[int]) -> bool | None:
    """Whether messages are kept for a filter; None = nobody wants any. `counts`: of who does not
    last, and of who does.
    """
    return counts[1] > 0 if any(counts) else None


_TAKES: Final[dict[type, Callable[[Membership, Node, Any], None]]] = {
    frames.Beat: Membership._beats,
    frames.Wants: Membership._wanted,
    frames.Leaves: Membership._left_alone,
    frames.Came: Membership._came_there,
    frames.Left: Membership._went,
    frames.Whole: Membership._all_of_it,
    frames.Ask: Membership._asked,
    frames.Said: taking.say,
    frames.Part: Membership._part,
    frames.Shut: Membership._shuts,
    frames.Bye: Membership._ends,
    frames.Watch: Membership._watches,
    frames.Count: Membership._counts,
    frames.Kept: taking.keep,
    frames.Taken: taking.taken,
    frames.Lasts: lambda here, node, one: here.directory.lasts(node, *astuple(one)),
    frames.Over: lambda here, node, one: here.directory.over(node, one.protocol, one.client),
    frames.Anew: lambda here, node, one: here.directory.anew(node, one),
    frames.Way: lambda here, node, one: here.relays.opens(node, one),
    frames.Carried: lambda here, node, one: here.relays.carried(node, one),
    frames.Room: lambda here, node, one: here.relays.room(node, one),
    frames.Closed: lambda here, node, one: here.relays.closed(node, one),
    frames.Heir: heritage.inherits,
    frames.Takes: lambda here, node, one: here.outposts.takes(node, one),
    frames.Lent: lambda here, node, one: here.outposts.lent(node, one),
    frames.Done: lambda here, node, one: here.outposts.done(node, one),
    frames.Question: lambda here, node, one: here.questioned(node.client, one),
    frames.Answer: lambda here, node, one: here.answered(node.client, one),
    frames.Permits: lambda here, node, one: here.permitted(node.client, one),
}
