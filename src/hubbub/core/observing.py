"""Who wants to know how many a name reaches, and hears when that changes.

The broker says which filters changed; a name that nobody observes costs nothing. A filter with
wildcards is held against all that are observed, which may be very many, and one client may come
or go with ten thousand such filters: what is more than a little is done once for all of a turn, and
in pieces. What a client observes counts as what it subscribes to does (`core.quotas`). No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hubbub.core.context import Context
from hubbub.core.quotas import SUBSCRIBED, size_of
from hubbub.core.session import Session
from hubbub.core.share import Group
from hubbub.core.topics import CLIENT, SHARE, client_number, has_wildcard, matches, shared_filter
from hubbub.core.turns import Stint

AT_ONCE: Final = 1_000  # names that are held against filters in one turn before that goes in pieces
COMPARED: Final = 20  # filters with a name; of more it is faster to count what the name reaches
NOTHING: Final[Iterator[str]] = iter(())


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
        # Names that were held against filters at once in this turn; the filters that changed
        # beside; those that are held against names now, and which names are left for them.
        self._goes_on = False
        self._at_once = 0
        self._changed: dict[str, None] = {}
        self._compared: dict[str, None] = {}
        self._left = NOTHING

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
        if session not in observers:
            self.broker.quotas.take(SUBSCRIBED, session, size_of(name))
        count = observers[session] = self._count_for(session, name)
        return count

    def lacks(self, session: Session, name: str) -> str:
        """Why it may not observe one name more; "" if it may, or does."""
        if session in self.names.get(name, {}):
            return ""
        return self.broker.quotas.lacks(SUBSCRIBED, session, more=size_of(name))

    def _count_for(self, session: Session, name: str) -> int:
        count = self.count(name)
        return count if self.elsewhere is None or session.far else count + self.elsewhere(name)

    def unobserve(self, session: Session, name: str) -> None:
        observers = self.names.get(name)
        if observers is None or observers.pop(session, None) is None:
            return
        self.broker.quotas.give(SUBSCRIBED, session.payer, size_of(name))
        if not observers:
            del self.names[name]
        if self.watched is not None and not session.far and not _near(observers):
            self.watched(name, False)

    def forget(self, session: Session, names: Iterable[str]) -> None:
        """It is gone, and observed these, as many as there were: in turns."""
        self.broker.in_turns(self._forgotten(session, list(names)))

    def _forgotten(self, session: Session, names: list[str]) -> Iterator[None]:
        for name in names:
            self.unobserve(session, name)
            yield

    def left(self, number: int) -> None:
        """An address is nobody's any more: it is told for the last time."""
        name = f"{CLIENT}{number}"
        self.tell(name)
        for session in self.names.pop(name, ()):
            self.broker.quotas.give(SUBSCRIBED, session.payer, size_of(name))

    def tell(self, topic_filter: str, literal: bool = False) -> None:
        """The subscriptions of this filter changed: tell who observes a name it matches."""
        if not self.names:
            return
        if topic_filter.startswith(SHARE) and not literal:
            topic_filter = shared_filter(topic_filter)
        if literal or not has_wildcard(topic_filter):
            self._tell_of(topic_filter)
            return
        if not self._goes_on:
            self._goes_on = True
            self.broker.later(self._go_on)
        self._at_once += len(self.names)
        if self._at_once > AT_ONCE or self._changed or self._compared:
            self._changed[topic_filter] = None
            return
        for name in [name for name in self.names if matches(topic_filter, name)]:
            self._tell_of(name)

    def _go_on(self) -> None:
        """Hold filters that changed against what is observed, for as long as a turn may take."""
        stint, self._at_once = Stint(self.broker.clock), 0
        if not self._compared:
            self._compared, self._changed = self._changed, {}
            self._left = iter(list(self.names) if self._compared else ())
        all_of_them = len(self._compared) > COMPARED
        for name in self._left:
            if all_of_them or any(matches(one, name) for one in self._compared):
                self._tell_of(name)
            if stint.over():
                self.broker.later(self._go_on)
                return
        self._compared = {}
        self._goes_on = bool(self._changed)
        if self._goes_on:
            self.broker.later(self._go_on)

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
