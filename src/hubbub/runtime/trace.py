"""What `-v` shows: each subscription, publish, delivery and end of a connection, as it happens.

    user 'ann' (client 'panel') subscribes to 'house/#' with QoS 1 [mqtt, 192.0.2.7, listener …]
    'sensor' publishes 'house/t' with QoS 1, 4 bytes
    'panel' gets 'house/t' with QoS 1, 4 bytes

It hears what the broker tells its hooks, while it is on; off it is not there, and costs nothing.
A delivery is shown when the message is routed: a slow or absent client gets it later, or not. What
comes out of a queue, or was retained before, is not shown. `clients` are patterns of client ids
(`*` for any characters); a line is shown if its client matches one. Made and switched by `server`.
"""

from __future__ import annotations

import logging
from fnmatch import fnmatchcase
from typing import Final

from hubbub.core.audit import who
from hubbub.core.broker import Broker
from hubbub.core.hooks import Hooks
from hubbub.core.message import Run
from hubbub.core.session import Session, Subscription

RECEIVERS: Final = 100  # of one publish that have a line; a line says how many more there are
NAME: Final = 200  # characters of a name

log = logging.getLogger("hubbub.trace")


class Trace(Hooks):
    """Switched on and off while the hub runs; both may be called again."""

    def __init__(self, broker: Broker, clients: tuple[str, ...] = ()) -> None:
        self.clients = clients
        self._broker = broker
        self._inner: Hooks | None = None
        self.shows = False

    def switch(self, on: bool) -> None:
        broker = self._broker
        if on and not self.shows:
            self._inner, broker.inspector = broker.inspector, self
            broker.watcher = self
        elif self.shows and not on:
            broker.inspector, broker.watcher = self._inner, None
        self.shows = on

    def _wanted(self, session: Session) -> bool:
        return not self.clients or any(fnmatchcase(session.client, one) for one in self.clients)

    def disconnected(self, session: Session, number: int, reason: str) -> None:
        if self._wanted(session):
            one = who(session)
            log.debug("%s is gone: %s%s", one, reason or "in order", one.way(), extra=one.extra())

    def subscribed(self, subscription: Subscription) -> None:
        session = subscription.session
        if self._wanted(session):
            one, name = who(session), subscription.filter[:NAME]
            log.debug(
                "%s subscribes to %r with QoS %d%s", one, name, subscription.qos, one.way(),
                extra=one.extra(),
            )  # fmt: skip

    def unsubscribed(self, session: Session, name: str) -> None:
        if self._wanted(session):
            one = who(session)
            log.debug("%s unsubscribes from %r%s", one, name[:NAME], one.way(), extra=one.extra())

    def passes(self, run: Run) -> bool:
        if self._inner is not None and not self._inner.passes(run):
            return False
        what = f"{run.route.name[:NAME]!r} with QoS {run.qos}"
        what += f"{', to be retained' if run.retain else ''}, {run.payload_size()} bytes"
        what += f", {run.count} times" if run.count > 1 else ""
        sender = run.sender
        if self._wanted(sender):
            log.debug("%s publishes %s", _named(sender), what, extra=who(sender).extra())
        subscriptions = run.route.subscriptions
        for subscription in subscriptions[:RECEIVERS]:
            session = subscription.session
            if self._wanted(session):
                qos = f"QoS {min(run.qos, subscription.qos)}"
                gets = what.replace(f"QoS {run.qos}", qos, 1)
                log.debug("%s gets %s", _named(session), gets, extra=who(session).extra())
        if len(subscriptions) > RECEIVERS:
            log.debug("and %d more get it", len(subscriptions) - RECEIVERS)
        return True

    def undelivered(self, run: Run) -> None:
        if self._inner is not None:
            self._inner.undelivered(run)


def _named(session: Session) -> str:
    return repr(session.client[:NAME]) if session.protocol else f"the hub ({session.client})"
