"""Which node is the home of which session that lasts, and of which queue.

    one begins or ends here        -> told to every node, and in all that it is told anew
    a node says so of its own      -> looked up when a client comes; kept while that node is away

A session has one home, the node that holds its estate (`cluster.estates`). Where two estates have
one of the same client (they began while their nodes could not hear one another) the later one
stays; the other is ended by its own node, and what waited in it is let go: its client has begun
anew since. That a client began anew is remembered until its old home, which may be away, has heard
so. It says that a session is over when that is safe: a crash would bring it back, and nobody would
remember. Of two queues of one name the older one stays, and the other's messages go behind its own:
nobody began anew. Called by the membership. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from hubbub.cluster import departed, frames, wills
from hubbub.cluster.estates import Key, began_by, begun_behind
from hubbub.cluster.named import Named
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_ANEW
from hubbub.core.queue import PROTOCOL as QUEUE
from hubbub.core.session import Session
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership
    from hubbub.cluster.node import Node

BEHIND: Final = 1  # a row that is safe: it waits for nothing but what is held already
SUPERSEDED: Final = "session began anew at another node"

log = logging.getLogger("hubbub.cluster")


class Anew(NamedTuple):
    """A client began anew here at that time. `ends`: sessions that are over by that and whose homes
    have not said so, by their estates: when they began.
    """

    at: int
    ends: dict[str, int]


NEVER: Final = Anew(-1, {})


class Directory:
    """`moves`: ends a session of that protocol here, by the protocols whose sessions are reached
    from every node. `here`: since when which sessions last here; `there`: the same of each estate
    elsewhere; `until`: when those of one that nobody holds are forgotten (microseconds since
    1970). `last`: which node had an estate last that nobody holds now. `yields`: moves what a queue
    here holds to the older one of that estate.
    """

    def __init__(self, membership: Membership, broker: Broker, keep: int) -> None:
        self.membership = membership
        self.broker = broker
        self.name = membership.name
        self.moves: dict[str, Callable[[str], bool]] = {}
        self.yields: Callable[[str, str], None] = lambda client, estate: None
        self.here: dict[Key, int] = {}
        self.there: dict[str, dict[Key, int]] = {}
        self.until: dict[str, int] = {}
        self.last = Named[str]()
        self._keep = keep
        self._anew: dict[Key, Anew] = {}

    # Here

    def _estate(self, key: Key) -> str:
        return self.membership.holdings.members.get(key) or self.membership.holdings.own

    def began(self, session: Session, since: int) -> None:
        if (session.protocol in self.moves or session.protocol == QUEUE) and session.client:
            key = session.protocol, session.client
            self.here[key] = since
            said = frames.Lasts(self._estate(key), key[0], name_to_wire(key[1]), since)
            self.membership.tell_held(said, upto=BEHIND)

    def ended(self, session: Session) -> None:
        key = session.protocol, session.client
        since = self.here.pop(key, None)
        if since is not None:
            over = frames.Over(self._estate(key), key[0], name_to_wire(key[1]), since)
            self.membership.tell_held(over)
        self.membership.holdings.left(key)

    def all_here(self, estate: str) -> list[tuple[str, bytes, int]]:
        """Of one that was taken over, or "" for this node's own."""
        members = self.membership.holdings.members
        return [
            (key[0], name_to_wire(key[1]), at)
            for key, at in self.here.items()
            if members.get(key, "") == estate
        ]

    def home(self, protocol: str, client: str) -> str:
        """The estate where it lasts, the later of two; "" if that is here, or none."""
        key = protocol, client
        if protocol == QUEUE:
            return self._home_of_queue(key)
        latest, found = self.here.get(key, -1), ""
        for estate, sessions in self.there.items():
            since = sessions.get(key, -1)
            if since > latest or (since == latest >= 0 and found in self.until):
                latest, found = since, estate
        return found

    def holder(self, estate: str) -> str:
        """The node that has it; while nobody does, the one that had it last, as far as is known."""
        known = self.membership.estates.get(estate)
        holder = known.holder if known is not None else None
        return holder.name if holder is not None else self.last.get(estate) or began_by(estate)

    def is_held(self, estate: str) -> bool:
        known = self.membership.estates.get(estate)
        return known is not None and known.holder is not None and known.holder.there()

    def _home_of_queue(self, key: Key) -> str:
        """The older of two: what is published now must not come before what waits there."""
        found = [(one[key], estate) for estate, one in self.there.items() if key in one]
        if key in self.here:
            found.append((self.here[key], self._estate(key)))
        home = min(found)[1] if found else ""
        return home if home not in self.membership.holdings.held else ""

    def began_there(self, estate: str, protocol: str, client: str) -> int:
        """When the one that lasts there began, 0 if none is known."""
        return self.there.get(estate, {}).get((protocol, client), 0)

    def away_since(self, estate: str) -> int:
        """Since when nobody is known who holds it (microseconds since 1970), 0 if somebody is."""
        until = self.until.get(estate, 0)
        return until and until - self._keep * 1_000_000

    def begin_anew(self, protocol: str, client: str) -> int:
        """A client begins anew here: what is told to the others so. Its time, 0 = nobody minds;
        later than those of what it replaces, also of a node whose clock is ahead.
        """
        key = protocol, client
        ends = {at: one.pop(key) for at, one in self.there.items() if key in one}
        if not ends:
            return 0
        stamps = self.membership.stamps
        now = max(stamps.by_all_clocks(self.broker.clock.stamp()), max(ends.values()) + 1)
        short = departed.short(key)
        ends = {**self._anew.pop(short, NEVER).ends, **ends}
        while len(self._anew) >= CLUSTER_ANEW:
            del self._anew[next(iter(self._anew))]
        self._anew[short] = Anew(now, ends)
        return now

    def _began_anew(self, key: Key) -> Anew:
        return self._anew.get(departed.short(key), NEVER)

    def since(self, key: Key, now: int) -> int:
        """As of when one that begins now is later than what it replaces, and than what any other
        node ends just now.
        """
        return max(self.membership.stamps.by_all_clocks(now), self._began_anew(key).at + 1)

    def ends_before(self, key: Key) -> int:
        """Of a client that began anew here: one that began earlier is over. -1 of others."""
        at = self._began_anew(key).at
        return at + 1 if at >= 0 else -1

    # There

    def lasts(self, node: Node, estate: str, protocol: str, wire: bytes, since: int) -> None:
        if not self.membership.has(node, estate):
            return
        client = name_from_wire(wire)
        key = protocol, client
        anew = self._began_anew(key).at
        if since <= anew:
            node.tell(frames.Anew(protocol, wire, anew))
            return
        self.there.setdefault(estate, {})[key] = since
        mine, own = self.here.get(key), self._estate(key)
        if protocol == QUEUE:
            if mine is not None and (mine, own) > (since, estate):
                self.yields(client, estate)
        elif mine is not None and (mine, _rank(own)) < (since, _rank(estate)):
            self._end(key, f"one of the same client began later at node {node.name!r}")

    def over(self, node: Node, estate: str, protocol: str, wire: bytes, since: int = 0) -> None:
        """The one that began then, not a later one of the same client: what waits to be said may
        come behind what was said at once. `since` 0: of a node of before, which did not say.
        """
        if not self.membership.has(node, estate):
            return
        key = protocol, name_from_wire(wire)
        sessions, anew = self.there.get(estate, {}), self._began_anew(key)
        if not since or sessions.get(key, 0) <= since:
            sessions.pop(key, None)
        if not since or anew.ends.get(estate, since + 1) <= since:
            anew.ends.pop(estate, None)
            if not anew.ends:
                self._anew.pop(departed.short(key), None)

    def whole(
        self, node: Node, estate: str, sessions: Iterable[tuple[str, bytes, int]]
    ) -> Iterator[None]:
        """All of it that last there now. Those of before stay until that is known: others, who may
        be served meanwhile, could begin a session that is there.
        """
        self.until.pop(estate, None)
        before = set(self.there.get(estate, ()))
        for protocol, wire, since in sessions:
            before.discard((protocol, name_from_wire(wire)))
            self.lasts(node, estate, protocol, wire, since)
            yield
        there = self.there.setdefault(estate, {})
        for key in before:
            there.pop(key, None)

    def anew(self, node: Node, record: frames.Anew) -> None:
        key = record.protocol, name_from_wire(record.client)
        mine = self.here.get(key)
        if mine is not None and mine < record.since:
            self._end(key, f"its client began anew at node {node.name!r}")

    def _end(self, key: Key, why: str) -> None:
        """End a session here for good, connected or not."""
        state = self.broker.state.sessions.get(key)
        waits = len(state.backlog.entries) if state is not None else 0
        log.warning("the session of %r is over, with %d messages: %s", key[1], waits, why)
        self.broker.metrics.drop(SUPERSEDED, waits)
        wills.withdraw(self.broker, key)  # its client is there
        session = self.broker.sessions.get(key)
        if session is not None and session.number:
            session.taken_over()
        self.moves[key[0]](key[1])

    # Estates that nobody holds

    def away(self, estate: str) -> None:
        """Its sessions may come back with it, for as long as messages wait for it."""
        if self.there.get(estate):
            self.until[estate] = self.broker.clock.stamp() + self._keep * 1_000_000

    def remember(self, estate: str, sessions: Iterable[tuple[str, bytes, int]]) -> None:
        """What lasted in an estate that was here, and is away."""
        self.there[estate] = {(one, name_from_wire(wire)): at for one, wire, at in sessions}
        self.away(estate)

    def back(self, estate: str) -> None:
        """Somebody has it."""
        self.until.pop(estate, None)

    def forget(self, estate: str) -> None:
        """It is no more, or is here."""
        self.last.pop(estate, None)
        self.until.pop(estate, None)
        self.there.pop(estate, None)

    def wake(self) -> None:
        """What nobody holds for too long has no sessions any more: clients may begin elsewhere."""
        if not self.until:
            return
        now = self.broker.clock.stamp()
        for estate in [estate for estate, until in self.until.items() if until <= now]:
            text = "nobody has estate %r for too long: its sessions and queues may begin elsewhere"
            log.warning(text, estate)
            self.forget(estate)


def _rank(estate: str) -> tuple[int, str]:
    """Of two that have one and the same session: it went on in the one that began first, and is of
    a backup in the other one.
    """
    return -begun_behind(estate), estate
