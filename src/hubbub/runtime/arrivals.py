"""How many connections an address or a user may have, and how fast an address may open them.

    accepted ──> an address has too many, or too fast ──> unwelcome: told so in the words of what
        │                                                 it speaks; TLS is closed
        └──> let in ──> its user has too many ──> the same

Off unless a setting says so: behind one address may be a whole company, and what a hub can hold is
bounded by its files anyway. Addresses of `limits.unbounded_addresses` are not counted, nor are Unix
sockets; behind a balancer of `proxies` the address is the client's. A user is one whose name was
checked: any other counts by its address alone. The node owns one; sockets report to it. No I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Protocol

from hubbub.config.limits import Limits
from hubbub.config.settings import networks
from hubbub.core.clock import Clock
from hubbub.core.gate import Credentials, Opening
from hubbub.core.metrics import Metrics
from hubbub.core.rights import TOO_FAST, TOO_MANY, worded
from hubbub.wire.source import Network, is_among, source_of

BY_ADDRESS: Final = "connections of an address"
BY_USER: Final = "connections of a user"
RATE: Final = "connections of an address in a second"
MINUTE: Final = 60.0  # from one line of the log about somebody to the next
REMEMBERED: Final = 10_000  # addresses, or lines of the log, before those that are over are let go

log = logging.getLogger("hubbub.listener")


class Open(Protocol):
    """A connection: how it began, None before it was let in."""

    opening: Opening | None


class Arrivals:
    """The connections of one hub, by who has them."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._limits = Limits()
        self._unbounded: list[Network] = []
        self._asked: dict[str, bool] = {}  # whether an address is one of these
        self._open: dict[str, int] = {}
        self._due: dict[str, float] = {}  # when an address has paid for what it opened
        # By whose it is: its client. Empty where no bound is set: an opening knows whose it is.
        self._users: dict[str, dict[Opening, str]] = {}
        self._told: dict[tuple[str, str], float] = {}

    def apply(self, limits: Limits, here: Iterable[Open] = ()) -> None:
        """The settings have changed; `here`: the connections that are open."""
        before, self._limits = self._limits, limits
        self._unbounded, self._asked = networks(limits.unbounded_addresses), {}
        if not limits.user_connections:
            self._users = {}
        elif not before.user_connections:
            for one in here:
                if one.opening is not None and one.opening.whose:
                    self._count(one.opening)

    def _count(self, opening: Opening) -> None:
        self._users.setdefault(opening.whose, {})[opening] = opening.client

    # By address

    def come(self, address: str) -> tuple[str, str]:
        """One more is open: to whom it is counted (for `leave`), and why it may not stay, or ""."""
        if self._is_unbounded(address):
            return "", ""
        source, limits = source_of(address), self._limits
        there, now = self._open.get(source, 0), self._clock.now()
        most, rate = limits.address_connections, limits.address_connections_per_second
        if most and there >= most:
            words = f"this address has {there} connections, and {most} are the most"
            self._tell(BY_ADDRESS, f"address {source}", f"limits.address_connections = {most}", now)
            return "", worded(TOO_MANY, words)
        if rate and self._too_fast(source, rate, now):
            words = f"more than {rate} connections of this address in a second; try again later"
            setting = f"limits.address_connections_per_second = {rate}"
            self._tell(RATE, f"address {source}", setting, now)
            return "", worded(TOO_FAST, words)
        self._open[source] = there + 1
        return source, ""

    def _is_unbounded(self, address: str) -> bool:
        """Asked for each connection, and the answer for an address stays as long as the setting."""
        known = self._asked.get(address)
        if known is None:
            if len(self._asked) >= REMEMBERED:
                self._asked.clear()
            known = "/" in address or is_among(address, self._unbounded)
            self._asked[address] = known
        return known

    def leave(self, source: str) -> None:
        """One that was counted to that address is gone."""
        left = self._open.get(source, 0) - 1
        if left > 0:
            self._open[source] = left
        else:
            self._open.pop(source, None)

    def _too_fast(self, source: str, rate: int, now: float) -> bool:
        """A second's worth may come at once; what is refused is not counted."""
        due = max(self._due.get(source, 0.0), now - 1.0)
        if due > now - 1.0 / rate:
            return True
        if len(self._due) >= REMEMBERED:
            self._due = {one: until for one, until in self._due.items() if until > now - 1.0}
        self._due[source] = due + 1.0 / rate
        return False

    # By user

    def lacks(self, shown: Credentials) -> str:
        """Why a client that the gate would let in may not come, or "". Who comes back may always:
        its older connection ends.
        """
        most = self._limits.user_connections
        if not (most and shown.proved and shown.user):
            return ""
        there = self._users.get(shown.owner, {})
        if len(there) < most or shown.opening in there:
            return ""
        if shown.client and shown.client in there.values():
            return ""
        setting = f"limits.user_connections = {most}"
        self._tell(BY_USER, shown.owner, setting, self._clock.now())
        words = f"this user has {len(there)} connections, and {most} are the most"
        return worded(TOO_MANY, words)

    def enter(self, opening: Opening, whose: str, client: str) -> None:
        """A client was let in. Over HTTP it may be another one with each request."""
        if opening.whose != whose:
            self.exit(opening)
            opening.whose, opening.client = whose, client
            if self._limits.user_connections:
                self._count(opening)

    def exit(self, opening: Opening) -> None:
        """Its connection is gone."""
        whose, opening.whose = opening.whose, ""
        users = self._users.get(whose)
        if users is not None and users.pop(opening, None) is not None and not users:
            del self._users[whose]

    def _tell(self, what: str, whose: str, setting: str, now: float) -> None:
        metrics = self._metrics
        metrics.connections_refused += 1
        metrics.refused[what] = metrics.refused.get(what, 0) + 1
        if now < self._told.get((what, whose), 0.0):
            return
        if len(self._told) >= REMEMBERED:
            self._told.clear()
        self._told[what, whose] = now + MINUTE
        log.warning("refused connections of %s: %s", whose, setting)
