"""Who wants to know how many a name reaches, and hears when that changes.

The broker says which filters changed; a name that nobody observes costs nothing. A filter with
wildcards is held against all that are observed, which may be very many, one client may come or go
with ten thousand filters, and ten thousand may observe an address that goes: what is more than a
little is done once for all of a turn, and in pieces. A name that very many subscribe to or observe
is counted now and then: for ten thousand who come one by one it would be looked at fifty million
times. What a client observes counts as what it subscribes to does (`core.quotas`). No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from hubbub.core.context import Context
from hubbub.core.quotas import SUBSCRIBED, size_of
from hubbub.core.session import Session
from hubbub.core.share import Group
from hubbub.core.topics import (
    CLIENT,
    client_number,
    has_wildcard,
    is_group,
    matches,
    shared_filter,
)

AT_ONCE: Final = 1_000  # names held against filters, or observers told, before that goes in pieces
COUNTED: Final = 10  # subscriptions that are counted in the time of one of these
COMPARED: Final = 20  # filters with a name; of more it is faster to count what the name reaches
DEAR: Final = 1_000  # subscribe to a name or observe it: of more it is counted now and then
PAUSE: Final = 20  # times as long as that took until it is done again


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
        # What was done at once in this turn; filters that changed beside, names that are to be
        # counted, and addresses that are gone with who observed them: for the next turns.
        self._goes_on = False
        self._at_once = 0
        self._changed: dict[str, None] = {}
        self._stale: dict[str, None] = {}
        self._gone: list[tuple[str, dict[Session, int]]] = []
        # Names that are counted now and then, and whether that changed since all were told.
        self._dear: dict[str, bool] = {}
        self._counts = False
        self._told = ""  # the one of which some were told, and others will be
        self._again = 0.0  # when they may be counted (monotonic seconds)

    def count(self, name: str) -> int:
        """How many connected clients a publish to the name would reach, each once."""
        if name.startswith(CLIENT):
            return int(self.broker.reachable(client_number(name)))
        found: set[Session] = set()
        looked = 0
        for subscription in self.broker.matching(name):
            session = subscription.session
            if isinstance(session, Group):
                found.update(member.session for member in session.members)
                looked += len(session.members)
            else:
                found.add(session)
                looked += 1
        self._at_once += looked // COUNTED
        observers = self.names.get(name)
        if observers and looked + len(observers) > DEAR:
            self._dear.setdefault(name, False)
        elif not self._dear.get(name):  # else others are still to be told
            self._dear.pop(name, None)
        return sum(1 for session in found if session.number)

    def observe(self, session: Session, name: str) -> int:
        """Tell the session when `count(name)` changes; returns it as it is now."""
        observers = self.names.setdefault(name, {})
        if self.watched is not None and not session.far and not near(observers):
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
        return count if session.far else count + self._at_others(name)

    def _at_others(self, name: str) -> int:
        """A client that is reachable is so once, whatever other nodes say of it."""
        if self.elsewhere is None or name.startswith(CLIENT):
            return 0
        return self.elsewhere(name)

    def unobserve(self, session: Session, name: str) -> None:
        observers = self.names.get(name)
        if observers is None or observers.pop(session, None) is None:
            return
        self.broker.quotas.give(SUBSCRIBED, session.payer, size_of(name))
        if not observers:
            del self.names[name]
            self._dear.pop(name, None)
        if self.watched is not None and not session.far and not near(observers):
            self.watched(name, False)

    def forget(self, session: Session, names: Iterable[str]) -> None:
        """It is gone, and observed these, as many as there were: in turns."""
        self.broker.in_turns(self._forgotten(session, list(names)))

    def _forgotten(self, session: Session, names: list[str]) -> Iterator[None]:
        for name in names:
            self.unobserve(session, name)
            yield

    def left(self, number: int) -> None:
        """An address is nobody's any more: who observes it is told for the last time."""
        name = f"{CLIENT}{number}"
        observers = self.names.pop(name, None)
        if observers is None:
            return
        if self._is_too_much(len(observers)):
            self._gone.append((name, observers))
            return
        for session in observers:
            self._say_gone(session, name)

    def _say_gone(self, session: Session, name: str) -> None:
        self.broker.quotas.give(SUBSCRIBED, session.payer, size_of(name))
        session.changed(name, 0)

    def tell(self, topic_filter: str, literal: bool = False) -> None:
        """The subscriptions of this filter changed: tell who observes a name it matches."""
        if not self.names:
            return
        if is_group(topic_filter, literal):
            topic_filter = shared_filter(topic_filter)
        if literal or not has_wildcard(topic_filter):
            if topic_filter in self.names:
                self._tell_or_later(topic_filter)
        elif self._is_too_much(len(self.names)):
            self._changed[topic_filter] = None
        else:
            for name in [name for name in self.names if matches(topic_filter, name)]:
                self._tell_of(name)

    def _tell_or_later(self, name: str) -> None:
        if self._is_too_much(1):
            self._stale[name] = None
        else:
            self._tell_of(name)

    def _is_too_much(self, more: int) -> bool:
        """Whether so much more is too much for this turn, and is for the next ones."""
        if not self._goes_on:
            self._goes_on, self._at_once = True, 0
            self.broker.later(self._go_on)
        self._at_once += more
        return self._at_once > AT_ONCE

    def _go_on(self) -> None:
        """A turn is over."""
        self._at_once = 0
        self.broker.in_turns(self._rest())

    def _rest(self) -> Iterator[None]:
        """What was too much for the turns in which it came, and for those in which this goes on."""
        try:
            while self._gone or self._stale or self._changed:
                gone, self._gone = self._gone, []
                for session, name in ((one, name) for name, some in gone for one in some):
                    self._say_gone(session, name)
                    yield
                stale, self._stale = self._stale, {}
                for name in stale:
                    self._tell_of(name)
                    yield
                yield from self._compare()
        finally:
            self._goes_on, self._at_once = False, 0

    def _compare(self) -> Iterator[None]:
        """Hold filters that changed against what is observed."""
        filters, self._changed = self._changed, {}
        all_of_them = len(filters) > COMPARED
        for name in list(self.names) if filters else ():
            if all_of_them or any(matches(one, name) for one in filters):
                self._tell_of(name)
            yield

    def _tell_of(self, name: str) -> None:
        if name in self._dear or name == self._told:
            self._dear[name] = True
        else:
            self._tell_now(name)

    def _tell_now(self, name: str) -> None:
        for _ in self._telling(name):
            pass

    def _telling(self, name: str) -> Iterator[None]:
        observers = self.names.get(name)
        if observers is None:
            self._dear.pop(name, None)
            return
        if name in self._dear:
            self._dear[name] = False
        here = self.count(name)
        whole = here + self._at_others(name)
        yield
        for session in list(observers):
            count = here if session.far else whole
            if observers.get(session, count) != count:
                observers[session] = count
                session.changed(name, count)
            yield

    def wake(self) -> None:
        """Count what is dear, where that has changed: a few times a second."""
        if self._dear and not self._counts and self.broker.clock.now() >= self._again:
            self._counts = True
            self.broker.in_turns(self._count_dear())

    def _count_dear(self) -> Iterator[None]:
        clock, spent = self.broker.clock, 0.0
        try:
            for name in [name for name, changed in self._dear.items() if changed]:
                telling, began, self._told = self._telling(name), clock.spent(), name
                next(telling, None)
                spent += clock.spent() - began
                yield from telling
        finally:
            self._counts, self._told, self._again = False, "", clock.now() + PAUSE * spent

    def tell_all(self, session: Session) -> None:
        """A session came or went, with all its subscriptions."""
        for subscription in session.subscriptions.values():
            self.tell(subscription.filter, subscription.literal)


def near(observers: dict[Session, int]) -> bool:
    """Whether one of them is a client of this node."""
    return any(not session.far for session in observers)
