"""Connections whose session is at home at another node than the one their client reached.

    client ── socket ── connection ── Near ══ frames ══ Far ── link ── connection ── session
              `                 the client's node     the home                         '

The client's node has let the client in; from then on it moves bytes. The home makes a connection of
its own of them, with the client's address, and everything holds there as for any other: rights,
quotas, keep-alive, the will, take-over. So a session has one owner, one order and one set of packet
ids, wherever its client is.

Bytes are sent only as far as the other side has said that there is room, so that at most
CLUSTER_WAY_BYTES are between the nodes each way. The client's node says so when the client's socket
has taken them, and stops reading the socket while the home takes no more: a slow client, and a
busy home, are felt through TCP as on one node. When the nodes lose one another, or a frame between
them, the connection ends: the client comes again, and the session goes on where it was.

Called by the membership for records and time, by protocols as `core.homes`. No I/O.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames
from hubbub.cluster.directory import Directory
from hubbub.cluster.queues import Outlets
from hubbub.core.broker import Broker
from hubbub.core.connection import NEVER, Protocol
from hubbub.core.gate import (
    Admission,
    Carrier,
    Credentials,
    Exchange,
    Gate,
    Opening,
    Step,
    Whose,
    owner,
)
from hubbub.core.homes import Home, Homes, Way
from hubbub.core.limits import (
    CLOSE_SECONDS,
    CLUSTER_FRAME_BYTES,
    CLUSTER_WAY_BYTES,
    LINK_CHOKED,
    LINK_PAUSED,
    SEND_BUFFER,
    STALLED_SECONDS,
    WEIGHED_BYTES,
)
from hubbub.core.link import Link
from hubbub.core.queue import PROTOCOL as QUEUE
from hubbub.core.rights import DENIED, Absent, Rights
from hubbub.core.session import Session, Subscription
from hubbub.errors import ProtocolError
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership
    from hubbub.cluster.node import Node

PIECE: Final = CLUSTER_FRAME_BYTES // 4  # of bytes in one record: several connections share a frame
GRANTED: Final = CLUSTER_WAY_BYTES // 4  # room is told in such steps: a record for many
COUNTED: Final = 100  # and messages, for the rates of the client's node
ALL: Final = 0  # instead of a connection's number
ONCE: Final = "who is connected by way of another node shows new credentials by connecting again"

log = logging.getLogger("hubbub.cluster")

Number = tuple[str, int]
"""The node of the client, and its number there."""


class Sending:
    """Bytes to the other side of a connection, as far as there is room."""

    def __init__(self, node: Node, number: int, home: bool) -> None:
        self.node = node
        self.number = number
        self.home = home
        self.out = bytearray()
        self.room = CLUSTER_WAY_BYTES
        self.sent = 0

    def pump(self) -> None:
        out = self.out
        while out and self.room and self.node.ready():
            data = bytes(out[: min(self.room, PIECE)])
            del out[: len(data)]
            self.room -= len(data)
            self.sent += len(data)
            self.node.tell(frames.Carried(self.number, self.home, not out, data))

    def close(self, reason: str) -> None:
        self.node.tell(frames.Closed(self.number, self.home, reason))


class Taking:
    """What the other side may send: told by and by."""

    def __init__(self, node: Node, number: int, home: bool) -> None:
        self.node = node
        self.number = number
        self.home = home
        self.room = CLUSTER_WAY_BYTES  # that the other side knows of
        self.owed = self.messages = 0

    def came(self, count: int) -> None:
        """`Foreign` if there was no room for so much: it would be kept here."""
        self.room -= count
        if self.room < 0:
            raise frames.Foreign(f"{count} bytes of a connection, for which there is no room")

    def free(self, count: int, messages: int = 0) -> None:
        """So many bytes have gone on, and of them came so many messages."""
        self.owed += count
        self.messages += messages
        if self.owed >= GRANTED or self.messages >= COUNTED:
            self.room += self.owed
            self.node.tell(frames.Room(self.number, self.home, self.owed, self.messages))
            self.owed = self.messages = 0


class Near(Way):
    """At the node of the client, behind the connection that its socket feeds."""

    def __init__(
        self, relays: Relays, node: Node, number: int, link: Link, opening: Opening,
        stranded: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.relays = relays
        self.node = node
        self.number = number
        self.link = link
        self.opening = opening
        self.stranded = stranded
        self.sending = Sending(node, number, True)
        self.taking = Taking(node, number, True)
        self.kept = 0  # came, and the socket has not taken it
        self.listens = True

    def feed(self, data: bytes) -> None:
        self.sending.out += data
        self.pump()

    def pump(self) -> None:
        self.sending.pump()
        if self.listens == bool(self.sending.out):
            self.listens = not self.listens
            self.opening.carrier.listens(self.listens)

    def waiting(self) -> int:
        return len(self.sending.out)

    def carried(self, record: frames.Carried) -> None:
        """The home said something: written at once, so that it is known what the socket takes."""
        self.taking.came(len(record.data))
        self.answered, self.whole = True, record.whole
        self.kept += len(record.data)
        self.link.write(record.data)
        self.link.flush()
        self.drained()

    def drained(self) -> None:
        transport = self.link.transport
        if transport is None or transport.get_write_buffer_size() <= SEND_BUFFER:
            kept, self.kept = self.kept, 0
            self.taking.free(kept)

    def closed(self, reason: str) -> None:
        """The home has ended it, behind all that it said."""
        self.relays.near.pop(self.number, None)
        self.link.close(reason)

    def torn(self, reason: str) -> None:
        """The home cannot be reached any more."""
        self.relays.near.pop(self.number, None)
        self.opening.carrier.run(lambda: self.stranded(reason))

    def lost(self, reason: str) -> None:
        if self.relays.near.pop(self.number, None) is not None:
            self.sending.close(reason)


class Vouched(Gate):
    """Who was let in by another node, which says who it is: nodes trust one another. What it may is
    asked here, of the gates of that listener, or of all.
    """

    def __init__(self, broker: Broker, record: frames.Way) -> None:
        super().__init__(broker.open, record.place)
        self.broker = broker
        self.user = name_from_wire(record.user)
        self.client = name_from_wire(record.client)
        self.record = record
        if not all(one is broker.open for one in self._found()):
            self.rights = Absent(self._found, lambda: broker.rules)

    def _found(self) -> list[Rights]:
        """What each gate that lets it in would let it do; [] if none does."""
        gates = [gate for gate in self.broker.gates if gate.place == self.place]
        found = []
        for gate in gates or self.broker.gates:
            if self.record.lines is None:
                rights = gate.rights_of(self.user, self.client)
            else:
                rights = gate.rights_by(self.user, self.client, tuple(self.record.lines))
            if rights is not None:
                found.append(rights)
        return found

    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        credentials.user, credentials.proved = self.user, self.record.proved
        lets_in = bool(self._found()) or not self.broker.gates
        done(self.rights if lets_in else None, "" if lets_in else DENIED)

    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        proof, self.record.proof = self.record.proof, b""
        return Shown(self, credentials, proof)

    def still_in(self, credentials: Credentials) -> bool:
        return bool(self._found()) or not self.broker.gates


class Shown(Exchange):
    """The steps were made at the other node; the welcome says what came of them, once."""

    def __init__(self, gate: Vouched, credentials: Credentials, proof: bytes) -> None:
        self._gate = gate
        self._credentials = credentials
        self._proof = proof

    def step(self, data: bytes) -> Step:
        if self._credentials.opening is not None and self._credentials.opening.credentials:
            return Step(True, reason=ONCE)
        found: list[Step] = []
        self._gate.authenticate(
            self._credentials,
            lambda rights, reason: found.append(Step(True, self._proof, rights, reason)),
        )
        return found[0]


class Far(Carrier):
    """At the home: what a socket is to other connections, for one whose client is elsewhere.

    It is the transport of its link. `busy`: the connection works in turns and hears nothing;
    `held`: nothing more is heard of it, for the sake of somebody else.
    """

    def __init__(self, relays: Relays, node: Node, record: frames.Way, protocol: Protocol) -> None:
        self.relays = relays
        self.broker = broker = relays.broker
        self.node = node
        self.number = record.way
        self.sending = Sending(node, record.way, False)
        self.taking = Taking(node, record.way, False)
        self.heard: deque[bytes] = deque()
        self.busy = self.held = self.over = self.closing = False
        self.due = 0.0
        self.cut_off = NEVER
        self.stalled = (0, broker.clock.now())
        self.received = self.weighed = self.half = 0
        self.quiet = 0.0
        self.link = Link(broker.outgoing, self)
        self.link.relieved = self._drained
        self.link.grown = self._weigh
        self.link.level = record.level
        gate = Vouched(broker, record)
        self.opening = opening = Opening(
            gate, record.address, record.port, record.secure, False, None,
            name_from_wire(record.certificate), self,
        )  # fmt: skip
        opening.via = node.name
        opening.protocol = record.protocol
        opening.mount = name_from_wire(record.mount)
        self.connection = protocol.connect(self.link, opening)

    # From the client

    def begin(self, said: bytes) -> None:
        self.run(self.connection.start)
        self._hear(said)

    def carried(self, record: frames.Carried) -> None:
        self.taking.came(len(record.data))
        self.heard.append(record.data)
        self._go_on()

    def _go_on(self) -> None:
        while self.heard and not self._waits():
            data, metrics = self.heard.popleft(), self.broker.metrics
            published = metrics.messages_in
            self._hear(data)
            self.taking.free(len(data), metrics.messages_in - published)

    def _waits(self) -> bool:
        """Whether nothing is heard of it now: the disk is behind, or its client with answers."""
        waits = self.busy or self.held or self.over or self.link.size > LINK_PAUSED
        return waits or self.relays.crowded(True, self.link)

    def _hear(self, data: bytes) -> None:
        self.broker.metrics.bytes_received += len(data)
        self.received += len(data)
        self._safely(lambda: self.connection.feed(data))
        if self.received - self.weighed > WEIGHED_BYTES:
            self._weigh()
        if self.connection.restless or self.link.closing:
            self._schedule()

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except ProtocolError as error:
            if error.reply:
                self.link.hold(error.reply)
            self.link.close(error.reason)
        except Exception:
            log.exception("a client of node %s broke the hub's own code; closed", self.node.name)
            self.link.close("internal error")

    def run(self, action: Callable[[], None]) -> None:
        self._safely(action)
        self._schedule()

    def listens(self, listens: bool) -> None:
        self.busy = not listens
        if listens:
            self.broker.later(self._go_on)

    def hold(self) -> Callable[[], None] | None:
        if self.over:
            return None
        self.held = True
        return self._released

    def _released(self) -> None:
        self.held = False
        self.connection.listens(self.broker.clock.now())
        self.broker.later(self._go_on)

    # What it makes the hub keep: a holder, as sockets are (`runtime.waiting`)

    def _weigh(self) -> None:
        self.weighed = self.received
        self.relays.weigh(self)

    def whose(self) -> Whose:
        shown = self.opening.credentials
        return Whose.known(shown.owner if shown is not None else owner("", self.opening.address))

    def weight(self, shared: set[int] | None = None) -> int:
        unread, connection = self._unread(), self.connection
        lasting = connection.lasting if connection.lasting > WEIGHED_BYTES else 0
        return connection.waiting() + lasting + (unread if unread > LINK_CHOKED else 0)

    def _unread(self) -> int:
        return self.link.size + self.link.held_bytes

    def half_since(self, now: float) -> float | None:
        if self._waits() or self.connection.works() or not self.connection.waiting():
            self.half = 0
            return None
        if self.half != self.received:
            self.half, self.quiet = self.received, now
        return self.quiet

    def crowd_out(self, reason: str) -> None:
        unread = self._unread()
        self.run(lambda: self.connection.crowded_out(reason))
        if unread > LINK_CHOKED:
            self.abort()

    # To the client: the transport of its link

    def write(self, data: bytes) -> None:
        if not self.over:
            self.sending.out += data
            self.pump()
            self.relays.hurry()  # the tick writes the links that it found touched when it began

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return len(self.sending.out)

    def pump(self) -> None:
        self.sending.pump()
        if self.closing and not self.sending.out:
            self.end(self.link.reason)

    def close(self) -> None:
        """Once all is said."""
        self.closing = True
        self.pump()

    def abort(self) -> None:
        self.sending.out.clear()
        self.end(self.link.reason)

    def has_room(self) -> None:
        """The other side has taken something."""
        self.pump()
        if self.over:
            return
        self.link.size = min(self.link.size, len(self.sending.out))
        if self.link.choked and self.link.size <= SEND_BUFFER:
            self._drained()
        self._go_on()

    def _drained(self) -> None:
        self.link.choked = False
        self.broker.patience.drained(self.link)
        self.run(self.connection.drained)

    def refused(self, opening: Opening, user: str, client: str, reason: str) -> None:
        self.broker.audit.turned_away(opening, user, client, reason)

    def close_for(self, reason: str) -> None:
        self.link.close(reason)
        self._schedule()

    # Time, and the end

    def _schedule(self) -> None:
        self.due = 0.0
        self.relays.hurry()

    def wants(self, now: float) -> bool:
        """Whether there is anything to do for it; most are silent."""
        return now >= self.due or bool(self.sending.out or self.heard) or self.link.closing

    def wake(self, now: float) -> None:
        if self.over:
            return
        if self.link.closing:
            self.cut_off = min(self.cut_off, now + CLOSE_SECONDS)
            if now >= self.cut_off:
                self.abort()
            return
        self.has_room()
        if now >= self.due and not self.held:
            self.due = self.connection.wake(now)
        sent, since = self.stalled
        if sent != self.sending.sent or len(self.sending.out) <= LINK_CHOKED:
            self.stalled = self.sending.sent, now
        elif now - since >= STALLED_SECONDS:
            self.link.close(f"it has read nothing for {STALLED_SECONDS:g} s")

    def look_again(self) -> None:
        """The rules were changed."""
        if self.opening.credentials is None or self.opening.gate.still_in(self.opening.credentials):
            return
        reason = "its credentials or permissions were changed"
        self.run(lambda: self.connection.show_out(reason))
        self.close_for(reason)

    def torn(self, reason: str) -> None:
        """The client's node cannot be reached any more, or has been told."""
        self.end(reason, told=False)

    def end(self, reason: str, told: bool = True) -> None:
        """It is over: `told` to the node of the client, unless that said so."""
        if self.over:
            return
        self.over = True
        self.relays.far.pop((self.node.name, self.number), None)
        self.relays.forget(self)
        if told:
            self.sending.close(reason)
        self.opening.end()
        self.link.transport = None
        self.heard.clear()
        self.broker.later(lambda: self._safely(lambda: self.connection.lost(reason)))


Crowded = Callable[[bool, Link | None], bool]
"""Whether who is heard now must wait: if it publishes, and what it is promised is held there."""


class Relays(Homes):
    """Those of this node. `protocols`: those whose sessions are reached from every node, by name.
    `hurry` has the tick run; `crowded`: the disk is behind; `weigh`: one may make the hub keep more
    than before, `forget`: it is gone.
    """

    def __init__(self, membership: Membership, directory: Directory) -> None:
        self.alone = False  # the compiled protocols see no attribute of a class that is not
        self.name = membership.name
        self.membership = membership
        self.directory = directory
        self.broker = membership.broker
        self.outlets = Outlets(membership)
        directory.yields = self.outlets.give_up
        self.protocols: dict[str, Protocol] = {}
        self.near: dict[int, Near] = {}
        self.far: dict[Number, Far] = {}
        # What is still on its way to the life before this one must not be another client's.
        self._last = membership.boot % 0xFFFF_FFFF
        self._rules = self.broker.rules
        self.hurry: Callable[[], None] = lambda: None
        self.crowded: Crowded = lambda publishes, link: False
        self.weigh: Callable[[Far], None] = lambda far: None
        self.forget: Callable[[Far], None] = lambda far: None

    def serve(self, protocols: list[Protocol]) -> None:
        """These are spoken here."""
        self.protocols = {one.name: one for one in protocols if one.moves or one.relayed}
        self.directory.moves = {one.name: one.end_away for one in protocols if one.moves}

    def many(self, protocol: str) -> bool:
        """Whether one client may have connections at several nodes, as tokens have."""
        spoken = self.protocols.get(protocol)
        return spoken is not None and spoken.relayed

    # Asked by protocols

    def of(self, protocol: str, client: str) -> Home | None:
        estate = self.directory.home(protocol, client)
        if not estate:
            return None
        name = self.directory.holder(estate)
        if self.directory.is_held(estate):
            return Home(name, "", estate)
        what = f"{client} is" if protocol == QUEUE else "its session is"
        return self._away(name, estate, what)

    def at(self, name: str, what: str) -> Home:
        node = self.membership.nodes.get(name)
        if node is not None and node.there():
            return Home(name, "", node.estate.client)
        return self._away(name, name, what)

    def _away(self, name: str, estate: str, what: str) -> Home:
        since = datetime.fromtimestamp(self.directory.away_since(estate) // 1_000_000, UTC)
        when = f"since {since:%Y-%m-%d %H:%M:%S} UTC" if since.timestamp() else "now"
        return Home(name, f"{what} at node {name!r}, which cannot be reached {when}", estate)

    def relay(
        self, home: Home, link: Link, admission: Admission, said: bytes, proof: bytes,
        stranded: Callable[[str], None],
    ) -> Way:  # fmt: skip
        node, opening = self.membership.nodes[home.node], admission.opening
        shown = admission.credentials
        assert opening is not None
        self._last = self._last % 0xFFFF_FFFF + 1
        near = self.near[self._last] = Near(self, node, self._last, link, opening, stranded)
        lines = opening.gate.lines_of(shown) if shown is not None else None
        node.tell(
            frames.Way(
                near.number, admission.protocol, name_to_wire(admission.client),
                name_to_wire(admission.user), shown is not None and shown.proved, opening.address,
                opening.port, opening.secure, name_to_wire(opening.certificate), opening.gate.place,
                link.level, name_to_wire(opening.mount),
                None if lines is None else list(lines), said, proof,
            )
        )  # fmt: skip
        admission.stays()
        if admission.protocol in self.directory.moves:  # else its session is here, as its token is
            text = "client %r goes on at node %r, where its session is"
            log.info(text, admission.client, home.node)
        return near

    def outlet(self, home: Home) -> Subscription:
        return self.outlets.to(home.estate).entrance

    def consume(self, name: str, subscription: Subscription) -> None:
        self.membership.outposts.consume(name, subscription)

    def consume_no_more(self, name: str, subscription: Subscription) -> bool:
        return self.membership.outposts.consume_no_more(name, subscription)

    def resume(self, name: str) -> None:
        self.membership.outposts.begin(name)

    def end(self, protocol: str, client: str) -> None:
        since = self.directory.begin_anew(protocol, client)
        if since:
            record = frames.Anew(protocol, name_to_wire(client), since)
            for node in self.membership.nodes.values():
                node.tell(record)

    def since(self, session: Session) -> int:
        return self.directory.since((session.protocol, session.client), session.came)

    def began(self, session: Session, since: int) -> None:
        self.directory.began(session, since)

    def ended(self, session: Session) -> None:
        self.directory.ended(session)
        if session.protocol == QUEUE:
            self.membership.outposts.ended(session.client)

    # Said by nodes

    def opens(self, node: Node, record: frames.Way) -> None:
        protocol = self.protocols.get(record.protocol)
        if protocol is None:
            node.tell(frames.Closed(record.way, False, f"node {self.membership.name!r} does not "
                                    f"speak {record.protocol!r}"))  # fmt: skip
            return
        key = record.protocol, name_from_wire(record.client)
        if record.protocol in self.directory.moves and key not in self.directory.here:
            # It was here, as the client's node knows it; this one may not know where it is now.
            text = f"its session is not at node {self.membership.name!r} any more"
            node.tell(frames.Closed(record.way, False, text))
            return
        number = node.name, record.way
        old = self.far.get(number)
        if old is not None:
            old.end("its number is another connection's", told=False)
        far = self.far[number] = Far(self, node, record, protocol)
        far.begin(record.said)

    def carried(self, node: Node, record: frames.Carried) -> None:
        end = self._end(node, record.way, record.home)
        if end is None:
            return
        try:
            end.carried(record)
        except frames.Foreign as error:  # and what follows would be heard without it
            end.sending.close(str(error))
            end.torn(str(error))
            raise

    def room(self, node: Node, record: frames.Room) -> None:
        end = self._end(node, record.way, record.home)
        if end is None:
            return
        end.sending.room += record.count
        if isinstance(end, Far):
            end.has_room()
        else:
            end.pump()
            if record.messages:
                end.opening.carrier.charge(record.messages)

    def closed(self, node: Node, record: frames.Closed) -> None:
        if record.way == ALL:
            for near in [one for one in self.near.values() if one.node is node]:
                near.sending.close(record.reason)  # it may have begun while this was on its way
            self.torn(node, record.reason, told=False)
            return
        end = self._end(node, record.way, record.home)
        if isinstance(end, Far):
            end.end(record.reason, told=False)
        elif end is not None:
            end.closed(record.reason)

    def _end(self, node: Node, way: int, home: bool) -> Near | Far | None:
        if home:
            return self.far.get((node.name, way))
        near = self.near.get(way)
        return near if near is not None and near.node is node else None

    # What holds for all of them

    def torn(self, node: Node, reason: str, told: bool = True) -> None:
        """Something on the way to or from that node is lost, and nobody knows whose: all end, there
        too (`told`).
        """
        if told:
            node.tell(frames.Closed(ALL, True, reason))
        self.membership.outposts.torn(node)
        for near in [one for one in self.near.values() if one.node is node]:
            near.torn(reason)
        for far in [one for one in self.far.values() if one.node is node]:
            far.torn(reason)

    def relieve(self, node: Node) -> None:
        """That node takes more."""
        for near in [one for one in self.near.values() if one.node is node]:
            near.pump()
        for far in [one for one in self.far.values() if one.node is node]:
            far.has_room()

    def stop(self, reason: str) -> None:
        """The hub stops: their clients are told as all others are."""
        for far in list(self.far.values()):
            far.run(far.connection.goodbye)
            far.close_for(reason)

    def wake(self, now: float) -> None:
        for near in [one for one in self.near.values() if one.kept or one.sending.out]:
            near.pump()
            near.drained()
        again = self._rules != self.broker.rules
        self._rules = self.broker.rules
        for far in [one for one in self.far.values() if again or one.wants(now)]:
            if again:
                far.look_again()
            far.wake(now)
