"""What the hub says about itself under `$SYS/`: a table of names, and what each reads now.

The names are those of mosquitto where the meaning is the same, so that existing dashboards work
(docs/reference/sys-topics.md). Every interval each name that somebody subscribes to is published;
a new subscriber gets the present value at once, as if it were retained. Nothing of it is ever
recorded. The hub calls `wake`; only the broker publishes here, clients cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.message import run_of
from hubbub.core.route import Route
from hubbub.core.session import Subscription
from hubbub.core.topics import SYSTEM

PREFIX: Final = SYSTEM + "/broker/"
MINUTES: Final = (1, 5, 15)
TOLD: Final = 250  # who are told all of it in a turn: some milliseconds


def announce(broker: Broker, name: str) -> None:
    """Tell who subscribes to a reading what it says now; no row is written."""
    tell(broker, broker.route(broker.itself, name))


def tell(broker: Broker, route: Route, at: int = 0, most: int = 0, late: bool = False) -> None:
    """Of very many so many at most, from that one on. `late`: the route may be out of date."""
    told = route.subscriptions[at : at + most] if most else route.subscriptions
    if told:
        run = run_of(broker.reading(route.name), broker.itself, route)
        for subscription in told:
            if not late or _lives(subscription):
                subscription.session.deliver(run, subscription)


def _lives(subscription: Subscription) -> bool:
    """Whether a client has not let go of it. A group is none, nor is the program."""
    session = subscription.session
    return session.opening is None or subscription.filter in session.subscriptions


class Load:
    """A counter's growth per minute: exponential averages over 1, 5 and 15 minutes."""

    def __init__(self, counter: Callable[[], int], now: float) -> None:
        self._counter = counter
        self._count = counter()
        self._time = now
        self.averages = [0.0 for _ in MINUTES]

    def sample(self, now: float) -> None:
        seconds = now - self._time
        if seconds <= 0:
            return
        count = self._counter()
        rate = (count - self._count) * 60 / seconds
        self._count, self._time = count, now
        for index, minutes in enumerate(MINUTES):
            kept = math.exp(-seconds / (60 * minutes))
            self.averages[index] = rate + kept * (self.averages[index] - rate)

    def reading(self, index: int) -> Callable[[], str]:
        return lambda: f"{self.averages[index]:.2f}"


class System:
    """Keeps `broker.readings` and publishes them every `interval` seconds; 0 = neither."""

    def __init__(self, broker: Broker, version: str) -> None:
        self.broker = broker
        self.interval = 0.0
        self._version = version
        self._due = 0.0
        self._loads: list[Load] = []
        self._most_clients = 0
        self._rest: Iterator[None] | None = None

    def apply(self, interval: float) -> None:
        """Publish at this interval from now on; the first time within one interval."""
        self.interval = interval
        self._due = self.broker.clock.now() + interval
        readings = self.broker.readings
        for name in [name for name in readings if name.startswith(PREFIX)]:
            if not interval:
                del readings[name]
        if interval and PREFIX + "version" not in readings:
            self._fill(readings)

    def wake(self, now: float) -> None:
        if not self.interval or now < self._due:
            return
        self._due = now + self.interval
        for load in self._loads:
            load.sample(now)
        self._most_clients = max(self._most_clients, self._clients())
        self._add_losses()
        if self._rest is None:  # else they are so many that the last time is not over
            self._go_on(self._told())

    def _go_on(self, rest: Iterator[None]) -> None:
        """Not as `in_turns`, which waits for a disk that lags: that it does is told here."""
        self._rest = None
        for _ in rest:
            self._rest = rest
            self.broker.later(lambda: self._go_on(rest))
            return

    def _told(self) -> Iterator[None]:
        """All to some, and the others in the next turns: thousands may want to hear all of it.
        Who they are is found before, for each reading in a turn of its own: where somebody has
        subscribed since, to whatever, that takes as long as to tell them.
        """
        broker = self.broker
        age, most, routes = broker.age, 0, list[Route]()
        for name in list(broker.readings):
            routes.append(broker.route(broker.itself, name))
            most = max(most, len(routes[-1].subscriptions))
            if most > TOLD:
                yield
        for at in range(0, most, TOLD):
            if at:
                yield
            for route in routes:
                if route.name in broker.readings:
                    tell(broker, route, at, TOLD, broker.age != age)

    def _fill(self, readings: dict[str, Callable[[], str]]) -> None:
        broker, metrics, state = self.broker, self.broker.metrics, self.broker.state
        counters: dict[str, Callable[[], int]] = {
            "bytes/received": lambda: metrics.bytes_received,
            "bytes/sent": lambda: broker.outgoing.bytes_sent,
            "clients/active": lambda: len(broker.clients),
            "clients/connected": lambda: len(broker.clients),
            "clients/disconnected": self._away,
            "clients/expired": lambda: metrics.expired,
            "clients/inactive": self._away,
            "clients/maximum": lambda: max(self._most_clients, self._clients()),
            "clients/total": self._clients,
            "connections/socket/count": lambda: metrics.connections - metrics.connections_ended,
            "messages/received": lambda: metrics.messages_in,
            "messages/sent": lambda: metrics.messages_out,
            "messages/stored": self._stored,
            "publish/bytes/received": lambda: metrics.bytes_in,
            "publish/bytes/sent": lambda: broker.outgoing.bytes_sent,
            "publish/messages/dropped": lambda: sum(metrics.dropped.values()),
            "publish/messages/received": lambda: metrics.messages_in,
            "publish/messages/sent": lambda: metrics.messages_out,
            "retained messages/count": lambda: len(state.retained),
            "shared_subscriptions/count": lambda: sum(
                len(group.members) for group in broker.groups.by_filter.values()
            ),
            "store/messages/bytes": self._stored_bytes,
            "store/messages/count": self._stored,
            "subscriptions/count": self._subscriptions,
        }
        for name, counter in counters.items():
            readings[PREFIX + name] = _number(counter)
        readings[PREFIX + "version"] = lambda: f"hubbub version {self._version}"
        readings[PREFIX + "uptime"] = lambda: f"{self._uptime()} seconds"
        loads = {
            "bytes/received": counters["bytes/received"],
            "bytes/sent": counters["bytes/sent"],
            "connections": lambda: metrics.clients,
            "messages/received": counters["messages/received"],
            "messages/sent": counters["messages/sent"],
            "publish/dropped": counters["publish/messages/dropped"],
            "publish/received": counters["publish/messages/received"],
            "publish/sent": counters["publish/messages/sent"],
            "sockets": lambda: metrics.connections,
        }
        for name, figure in broker.log.figures().items():
            readings[f"{PREFIX}journal/{name}"] = figure
        now = broker.clock.now()
        self._loads = [Load(counter, now) for counter in loads.values()]
        for name, load in zip(loads, self._loads, strict=True):
            for index, minutes in enumerate(MINUTES):
                readings[f"{PREFIX}load/{name}/{minutes}min"] = load.reading(index)
        self._add_losses()

    def _add_losses(self) -> None:
        """A name for every reason for which something was lost, or turned away."""
        metrics, readings = self.broker.metrics, self.broker.readings
        for what, counts in (("dropped", metrics.dropped), ("refused", metrics.refused)):
            for reason in counts:
                name = f"{PREFIX}{what}/{reason}"
                if name not in readings:
                    readings[name] = _counted(counts, reason)

    def _uptime(self) -> int:
        return (self.broker.clock.stamp() - self.broker.metrics.started) // 1_000_000

    def _away(self) -> int:
        return sum(not session.connected for session in self.broker.state.sessions.values())

    def _clients(self) -> int:
        return len(self.broker.clients) + self._away()

    def _stored(self) -> int:
        """What is retained, and each delivery that waits for a client or on its way to it."""
        state, clients = self.broker.state, self.broker.clients.values()
        lasting = sum(len(one.backlog.entries) for one in state.sessions.values())
        passing = sum(one.unacknowledged() for one in clients if not one.lasting)
        return len(state.retained) + lasting + passing

    def _stored_bytes(self) -> int:
        return sum(one.backlog.bytes for one in self.broker.state.sessions.values())

    def _subscriptions(self) -> int:
        broker = self.broker
        lasting = sum(len(one.subscriptions) for one in broker.state.sessions.values())
        return lasting + sum(
            len(session.subscriptions) for session in broker.clients.values() if not session.lasting
        )


def _number(counter: Callable[[], int]) -> Callable[[], str]:
    return lambda: str(counter())


def _counted(counts: dict[str, int], reason: str) -> Callable[[], str]:
    return lambda: str(counts[reason])
