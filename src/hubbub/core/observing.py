"""Who wants to know how many a name reaches, and hears when that changes.

The broker says which filters changed; a name that nobody observes costs nothing. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from hubbub.core.context import Context
from hubbub.core.session import Session
from hubbub.core.share import Group
from hubbub.core.topics import CLIENT, SHARE, client_number, has_wildcard, matches, shared_filter


class Observers:
    """`names`: what is observed -> by whom, and the count that each knows.

    In a cluster that counts for all nodes, `elsewhere` says how many a publish would reach at the
    others, and `watched` is called when the first observer here came (True) or the last is gone.
    Another node that observes is told what is here.
    """

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self.elsewhere: Callable[[str], int] | None = None
        self.watched: Callable[[str, bool], None] | None = None
        self.names: dict[str, dict[Session, int]] = {}

    def count(self, name: str) -> int:
        """How many connected clients a publish to the name would reach, each once."""
        if name.startswith(CLIENT):
            return int(self.broker.reachable(client_number(name)))
        found: set[Session] = set()
        for subscription in self.broker.matching(name):
            session = subscription.session
            if isinstance(session, Group):
                found.update(member.session for member in session.members)
            else:
                found.add(session)
        return sum(1 for session in found if session.number)

    def observe(self, session: Session, name: str) -> int:
        """Tell the session when `count(name)` changes; returns it as it is now."""
        observers = self.names.setdefault(name, {})
        if self.watched is not None and not session.far and not _near(observers):
            self.watched(name, True)
        count = observers[session] = self._count_for(session, name)
        return count

    def _count_for(self, session: Session, name: str) -> int:
        count = self.count(name)
        return count if self.elsewhere is None or session.far else count + self.elsewhere(name)

    def unobserve(self, session: Session, name: str) -> None:
        observers = self.names.get(name)
        if observers is None or observers.pop(session, None) is None:
            return
        if not observers:
            del self.names[name]
        if self.watched is not None and not session.far and not _near(observers):
            self.watched(name, False)

    def left(self, number: int) -> None:
        """An address is nobody's any more: it is told for the last time."""
        self.tell(f"{CLIENT}{number}")
        self.names.pop(f"{CLIENT}{number}", None)

    def tell(self, topic_filter: str, literal: bool = False) -> None:
        """The subscriptions of this filter changed: tell who observes a name it matches."""
        if not self.names:
            return
        if topic_filter.startswith(SHARE) and not literal:
            topic_filter = shared_filter(topic_filter)
        names = [topic_filter]
        if not literal and has_wildcard(topic_filter):
            names = [name for name in self.names if matches(topic_filter, name)]
        for name in names:
            self._tell_of(name)

    def _tell_of(self, name: str) -> None:
        observers = self.names.get(name)
        if observers is None:
            return
        here = self.count(name)
        whole = here + self.elsewhere(name) if self.elsewhere is not None else here
        for session, before in list(observers.items()):
            count = here if session.far else whole
            if before != count:
                observers[session] = count
                session.changed(name, count)

    def tell_all(self, session: Session) -> None:
        """A session came or went, with all its subscriptions."""
        for subscription in session.subscriptions.values():
            self.tell(subscription.filter, subscription.literal)


def _near(observers: dict[Session, int]) -> bool:
    """Whether one of them is a client of this node."""
    return any(not session.far for session in observers)
