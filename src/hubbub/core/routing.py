"""Finding the route of a name: what it means, who may publish there, who subscribed.

    name ──> among the cached routes, of this age? ──> as it is
                └── else built: rights, queue or address or subscribers
                      └── kept, if the name came before

The broker owns one and asks it for the names that no connection knows; it is the slow side of the
hot path, and the whole path of who says each message under a name of its own. Publishes nothing.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.caches import Caches
from hubbub.core.context import Context
from hubbub.core.limits import ROUTE_NAME_BYTES, SIGHTINGS
from hubbub.core.queue import PROTOCOL as QUEUE_PROTOCOL
from hubbub.core.queues import Queues
from hubbub.core.replies import Replies
from hubbub.core.rights import ENQUEUE, PUBLISH, verb_of
from hubbub.core.route import Route
from hubbub.core.session import NO_ROUTES, Session, Subscription
from hubbub.core.share import Group
from hubbub.core.topics import (
    CLIENT,
    DELAYED,
    QUEUE,
    client_number,
    delayed_topic,
    is_system,
    matches,
)
from hubbub.schema import name_to_wire

STALE_SECONDS: Final = 60.0  # a route that is out of date for so long goes
LOOKED: Final = 2_000  # routes at a time: up to 5 ms where there are 100,000


class Sightings:
    """Which names came before, about. Not all: a name may be forgotten, or taken for another one.

    A route is kept when its name comes the second time. Where each message has a name of its own
    (a serial number, a time) nobody asks for any of them again, and a hundred thousand routes in
    memory that is cold cost more than to build them.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = bytearray(SIGHTINGS)

    def again(self, name: bytes) -> bool:
        """Whether it came before; it has now."""
        number = hash(name)
        place, mark = number % SIGHTINGS, number // SIGHTINGS % 255 + 1  # 0: none came there
        if self._marks[place] == mark:
            return True
        self._marks[place] = mark
        return False


class Routing:
    """Routes of one broker, by name. Clients with the same rights share theirs."""

    def __init__(
        self, broker: Context, caches: Caches, shortcuts: Caches, queues: Queues, replies: Replies
    ) -> None:
        self.broker = broker
        self._caches = caches
        self._shortcuts = shortcuts
        self._queues = queues
        self._replies = replies
        self._sightings = Sightings()
        self._stale = self._next_stale = 0  # ages: what is below the first one goes
        self._looks_at = 0.0
        self._looking: list[Caches] = []

    def wake(self) -> None:
        """Called four times a second: routes that were out of date a minute ago, and were not built
        again, go. They lead to sessions that may be gone, of which they would be all that is left.
        """
        now = self.broker.clock.now()
        if not self._looking and now >= self._looks_at:
            self._stale, self._next_stale = self._next_stale, self.broker.age
            self._looks_at = now + STALE_SECONDS
            self._looking = [self._caches, self._shortcuts]
        if self._looking and self._looking[-1].look(self._is_stale, LOOKED):
            self._looking.pop()

    def _is_stale(self, answer: object) -> bool:
        return isinstance(answer, Route) and answer.age < self._stale

    def find(self, sender: Session, name: str) -> Route:
        """The route of a name for a client with these rights; built again when out of date.

        A `sender` that takes no part of its own messages, or owns the place, has its own routes.
        """
        broker, key = self.broker, name_to_wire(name)
        rights = sender.rights
        routes = rights.routes
        if sender.no_local or (rights is not broker.open and broker.owns(sender, name)):
            routes = sender.routes
        old = route = routes.get(key)
        if route is None or route.age != broker.age:
            route = self._build(sender, name)
            if old is not None:
                route.succeed(old)
            if old is not None or self._sightings.again(key):
                self._keep(route, key, routes, sender)
        return route

    def _keep(self, route: Route, key: bytes, routes: dict[bytes, Route], sender: Session) -> None:
        """Give it a place. Reply ids come and go too fast to be worth one."""
        if len(key) > ROUTE_NAME_BYTES or route.full:
            return
        if self._replies.entrance in route.subscriptions:
            return
        if routes is NO_ROUTES:
            routes = sender.routes = {}
        if routes is sender.rights.routes and sender.rights is not self.broker.open:
            self._caches.goes_with(sender.rights, routes)
        self._caches.keep(routes, key, route, route.weight)
        self._queues.cached(route.name, routes)

    def _build(self, sender: Session, name: str) -> Route:
        broker = self.broker
        route = Route(name, broker.age)
        route.level = broker.level(name)
        if name.startswith("$"):  # else it means nothing here
            self._lead(route, sender)
            return route
        if not broker.may(sender, PUBLISH, name):
            broker.refuse(sender, PUBLISH, name)
            route.allowed = False
        self._fill(route, sender)
        return route

    def _lead(self, route: Route, sender: Session) -> None:
        """Where a name leads to that begins with `$`, as all do that mean something here."""
        broker, name = self.broker, route.name
        number = client_number(name)
        if number and number in self._replies:
            # Whoever was handed the request may answer; what is recorded is the answer, sent on.
            route.subscriptions = [self._replies.entrance]
            route.bounded = not broker.homes.alone
            return
        may = broker.may_publish(sender, name)
        if not (may or is_system(name)):
            broker.refuse(sender, verb_of(name), name)
        route.allowed = may
        if name.startswith(QUEUE):
            self._lead_to_queue(route, sender)
        elif name.startswith(CLIENT):
            self._lead_to_client(route, number)
        elif name.startswith(DELAYED):
            route.allowed = False
            route.delay = delayed_topic(name)[0] if may else 0
            route.bounded = True
        elif name in broker.controls:
            route.allowed = False
            route.control = broker.controls[name] if may else None
        else:
            self._fill(route, sender)

    def _lead_to_queue(self, route: Route, sender: Session) -> None:
        name, queues = route.name[len(QUEUE) :], self._queues
        if route.allowed and not name:
            self.broker.refuse(sender, ENQUEUE, route.name, "the rule that a queue has a name")
            route.allowed = False
        if route.allowed and not self.broker.homes.alone and queues.lead_away(route, sender):
            return
        if route.allowed:
            route.full = queues.lacks(name, sender)
            route.allowed = not route.full
        if route.allowed:
            queue = queues.named(name, asker=sender)
            route.subscriptions = [queues.entrance(queue, route.name)]
        route.bounded = route.allowed or route.full != ""

    def _lead_to_client(self, route: Route, number: int) -> None:
        broker = self.broker
        route.record = broker.record == "all"
        client = broker.itself if number == broker.itself.number else broker.client(number)
        route.age = route.age if client is not None else -1  # who has it may come at another node
        if client is not None and client.direct is not None:
            route.subscriptions = [client.direct]
            self._add_audience(route, client.direct)
            route.bounded = route.audience != [] and (broker.tight or route.elsewhere() != [])

    def _fill(self, route: Route, sender: Session) -> None:
        """Who subscribed gets it, and what lasts of these is named in the log."""
        broker = self.broker
        route.subscriptions = _best(sender, broker.matching(route.name))
        route.record = broker.record == "all" and not any(
            matches(excluded, route.name) for excluded in broker.exclude
        )
        for subscription in route.subscriptions:
            session = subscription.session
            if session.protocol == QUEUE_PROTOCOL:
                route.must = True
            elif isinstance(session, Group):
                route.shared = route.shared or session.lasts()
            else:
                self._add_audience(route, subscription)
        waits = route.must or route.shared or route.audience != []
        if len(route.audience) == 1 and not (route.record or route.must or route.shared):
            route.way = next((one.session for one in route.subscriptions if _lasts(one)), None)
        route.bounded = waits and (broker.tight or route.elsewhere() != [])

    def _add_audience(self, route: Route, subscription: Subscription) -> None:
        session = subscription.session
        if _lasts(subscription):
            state = self.broker.state.sessions[session.protocol, session.client]
            route.audience.append((state, subscription.qos))


def _lasts(subscription: Subscription) -> bool:
    return subscription.session.lasting and subscription.qos > 0


def _best(sender: Session, matching: list[Subscription]) -> list[Subscription]:
    """One subscription a session, which stands for all of its own that match."""
    if len(matching) == 1 and not (sender.no_local or sender.far):
        return matching
    found: dict[Session, list[Subscription]] = {}
    for subscription in matching:
        session = subscription.session
        if not (session is sender and subscription.no_local or sender.far and session.once):
            found.setdefault(session, []).append(subscription)
    return [many[0] if len(many) == 1 else one.merge(many) for one, many in found.items()]
