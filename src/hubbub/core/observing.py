"""Who wants to know how many a name reaches, and hears when that changes.

The broker says which filters changed; a name that nobody observes costs nothing. No I/O.
"""

from __future__ import annotations

from hubbub.core.context import Context
from hubbub.core.session import Session
from hubbub.core.share import Group
from hubbub.core.topics import CLIENT, SHARE, client_number, has_wildcard, matches, shared_filter


class Observers:
    """`names`: what is observed -> by whom, and the count that each knows."""

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self.names: dict[str, dict[Session, int]] = {}

    def count(self, name: str) -> int:
        """How many connected clients a publish to the name would reach, each once."""
        if name.startswith(CLIENT):
            return self.broker.reachable(client_number(name))
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
        count = self.count(name)
        self.names.setdefault(name, {})[session] = count
        return count

    def unobserve(self, session: Session, name: str) -> None:
        observers = self.names.get(name)
        if observers is not None and observers.pop(session, None) is not None and not observers:
            del self.names[name]

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
        count = self.count(name)
        for session, before in list(observers.items()):
            if before != count:
                observers[session] = count
                session.changed(name, count)

    def tell_all(self, session: Session) -> None:
        """A session came or went, with all its subscriptions."""
        for subscription in session.subscriptions.values():
            self.tell(subscription.filter, subscription.literal)
