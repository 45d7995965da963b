"""Which node is the home of which session that lasts, and of which queue.

    one begins or ends here        -> told to every node, and in all that it is told anew
    a node says so of its own      -> looked up when a client comes; kept while that node is away

A session has one home. Where two nodes have one of the same client (they began while they could
not hear one another) the later one stays; the other is ended by its own node, and what waited in
it is let go: its client has begun anew since. That a client began anew is remembered until its old
home, which may be away, has heard so. Who takes up the session of a node that is gone for good
gives it a later time. Of two queues of one name the older one stays, and the other's messages go
behind its own: nobody began anew. Called by the membership. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames
from hubbub.cluster.keeping import HEIR
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_ANEW
from hubbub.core.queue import PROTOCOL as QUEUE
from hubbub.core.session import Session
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.node import Node

Key = tuple[str, str]

SUPERSEDED: Final = "session began anew at another node"

log = logging.getLogger("hubbub.cluster")


class Directory:
    """`moves`: ends a session of that protocol here, by the protocols whose sessions are reached
    from every node. `there`: of each node, since when which sessions last there; `until`: when
    those of a node that is away are forgotten (microseconds since 1970). `yields`: moves what a
    queue here holds to the older one at that node.
    """

    def __init__(
        self, broker: Broker, name: str, keep: int, tell: Callable[[frames.Record], None]
    ) -> None:
        self.broker = broker
        self.name = name
        self.moves: dict[str, Callable[[str], bool]] = {}
        self.yields: Callable[[str, str], None] = lambda client, node: None
        self.here: dict[Key, int] = {}
        self.there: dict[str, dict[Key, int]] = {}
        self.until: dict[str, int] = {}
        self._keep = keep
        self._tell = tell
        self._anew: dict[Key, int] = {}

    # Here

    def began(self, session: Session, since: int) -> None:
        if (session.protocol in self.moves or session.protocol == QUEUE) and session.client:
            key = session.protocol, session.client
            self.here[key] = since
            self._tell(frames.Lasts(key[0], name_to_wire(key[1]), since))

    def ended(self, session: Session) -> None:
        key = session.protocol, session.client
        if self.here.pop(key, None) is not None:
            self._tell(frames.Over(key[0], name_to_wire(key[1])))

    def all_here(self) -> list[tuple[str, bytes, int]]:
        return [(protocol, name_to_wire(one), at) for (protocol, one), at in self.here.items()]

    def home(self, protocol: str, client: str) -> str:
        """The node where it lasts, the later of two; "" if that is this one, or none."""
        key = protocol, client
        if protocol == QUEUE:
            return self._home_of_queue(key)
        latest, found = self.here.get(key, -1), ""
        for node, sessions in self.there.items():
            since = sessions.get(key, -1)
            if since > latest or (since == latest >= 0 and found in self.until):
                latest, found = since, node
        return found

    def _home_of_queue(self, key: Key) -> str:
        """The older of two: what is published now must not come before what waits there."""
        found = [(one[key], node) for node, one in self.there.items() if key in one]
        if key in self.here:
            found.append((self.here[key], self.name))
        home = min(found)[1] if found else ""
        return home if home != self.name else ""

    def away_since(self, node: str) -> int:
        """Since when it cannot be reached (microseconds since 1970), 0 if it can."""
        until = self.until.get(node, 0)
        return until and until - self._keep * 1_000_000

    def begin_anew(self, protocol: str, client: str) -> int:
        """A client begins anew here: what is told to the others so. Its time, 0 = nobody minds."""
        key = protocol, client
        nodes = [node for node, sessions in self.there.items() if key in sessions]
        if not nodes:
            return 0
        now = self.broker.clock.stamp()
        for node in nodes:
            del self.there[node][key]
        self._anew.pop(key, None)
        while len(self._anew) >= CLUSTER_ANEW:
            del self._anew[next(iter(self._anew))]
        self._anew[key] = now
        return now

    # There

    def lasts(self, node: Node, protocol: str, wire: bytes, since: int) -> None:
        client = name_from_wire(wire)
        key = protocol, client
        anew = self._anew.get(key, -1)
        if since <= anew:
            node.tell(frames.Anew(protocol, wire, anew))
            return
        self.there.setdefault(node.client, {})[key] = since
        mine = self.here.get(key)
        if mine == since and HEIR + node.client in self.broker.state.taken:
            return  # the same one: its old home does not know yet that this node is its heir
        if protocol == QUEUE:
            if HEIR + node.client in self.broker.state.taken:
                return  # the same: what it had is here, and it will let go of what it still names
            if mine is not None and (mine, self.name) > (since, node.client):
                self.yields(client, node.client)
        elif mine is not None and (mine, self.name) < (since, node.client):
            self._end(key, f"one of the same client began later at node {node.client!r}")

    def over(self, node: Node, protocol: str, wire: bytes) -> None:
        key = protocol, name_from_wire(wire)
        self.there.get(node.client, {}).pop(key, None)
        self._anew.pop(key, None)

    def whole(self, node: Node, sessions: Iterable[tuple[str, bytes, int]]) -> None:
        """All that last there now."""
        self.until.pop(node.client, None)
        self.there[node.client] = {}
        for protocol, wire, since in sessions:
            self.lasts(node, protocol, wire, since)

    def anew(self, node: Node, record: frames.Anew) -> None:
        key = record.protocol, name_from_wire(record.client)
        mine = self.here.get(key)
        if mine is not None and mine < record.since:
            self._end(key, f"its client began anew at node {node.client!r}")

    def _end(self, key: Key, why: str) -> None:
        """End a session here for good, connected or not."""
        state = self.broker.state.sessions.get(key)
        waits = len(state.backlog.entries) if state is not None else 0
        log.warning("the session of %r is over, with %d messages: %s", key[1], waits, why)
        self.broker.metrics.drop(SUPERSEDED, waits)
        session = self.broker.sessions.get(key)
        if session is not None and session.number:
            session.taken_over()
        self.moves[key[0]](key[1])

    # Nodes that go

    def away(self, node: str) -> None:
        """Its sessions may come back with it, for as long as messages wait for it."""
        if self.there.get(node):
            self.until[node] = self.broker.clock.stamp() + self._keep * 1_000_000

    def wake(self) -> None:
        """Who was away for too long has no sessions any more: their clients may begin elsewhere."""
        if not self.until:
            return
        now = self.broker.clock.stamp()
        for node in [node for node, until in self.until.items() if until <= now]:
            text = "node %r was away for too long: its sessions and queues may begin elsewhere"
            log.warning(text, node)
            del self.until[node]
            self.there.pop(node, None)
