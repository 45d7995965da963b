"""QoS 2 toward a client that accepts nothing else while an exchange is open.

    to the client     PUBLISH ->  <- PUBREC   PUBREL ->   <- PUBCOMP    nothing else ->
    from the client   <- PUBLISH  PUBREC ->   <- PUBREL   PUBCOMP ->    nothing else ->

Some clients of 3.1 and 3.1.1 read exactly the packet they wait for. Where one is served, a delivery
begins when no exchange is open, and what is written meanwhile stays aside in its order, the PUBREC
for the client's own next PUBLISH included: it would be read where the PUBREL is expected. A client
that does not go on makes the others wait EXCLUSIVE_SECONDS, counted from the first open exchange.
Called by the session; writes to the link only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.core.clock import Clock
from hubbub.core.link import Link

EXCLUSIVE_SECONDS: Final = 5.0
CLIENTS: Final = "Sagittarius-MQTT"  # how the ids of clients begin that need this


class Serial:
    """The open exchanges of one connection. `waiting` are its other PUBRECs, with their levels.

    `among`: where a connection is while it has one, for whoever looks at the clock. `freed` is
    called when the clock has ended them.
    """

    def __init__(self, link: Link, clock: Clock, among: set[Serial]) -> None:
        self.freed: Callable[[], None] | None = None
        self.link = link
        self._clock = clock
        self._among = among
        self._until = 0.0
        self._delivered: set[int] = set()
        self._taken: set[int] = set()
        self._waiting: list[tuple[int, bytes, int]] = []

    @property
    def busy(self) -> bool:
        return bool(self._delivered or self._taken)

    def _begin(self) -> None:
        if not self.busy:
            self._until = self._clock.now() + EXCLUSIVE_SECONDS
            self._among.add(self)

    # To the client

    def deliver(self, packet_id: int, packet: bytes) -> None:
        """The PUBLISH of a delivery, or the PUBREL of one that goes on after a reconnection."""
        self._begin()
        self._delivered.add(packet_id)
        self.link.hold(packet)
        self.link.shut()

    def delivered(self, packet_id: int) -> None:
        """Its PUBCOMP came."""
        self._delivered.discard(packet_id)
        self._go_on()

    # From the client

    def take(self, packet_id: int) -> None:
        """A PUBLISH of the client's; what comes of it, its own copy too, stays aside already."""
        if not self._delivered:
            self._begin()
            self._taken.add(packet_id)
            self.link.shut()

    def receive(self, packet_id: int, packet: bytes, level: int) -> None:
        """The PUBREC for it."""
        if self._delivered:
            self._waiting.append((packet_id, packet, level))
            return
        self.take(packet_id)
        self.link.pass_aside(packet, level=level)

    def complete(self, packet_id: int, packet: bytes) -> None:
        """The PUBCOMP; a barrier, or what stood aside would overtake it."""
        self.link.pass_aside(packet, barrier=True)
        self._taken.discard(packet_id)
        self._go_on()

    # The end

    def _go_on(self) -> None:
        if self._delivered:
            return
        waiting, self._waiting = self._waiting, []
        for packet_id, packet, level in waiting:
            self.receive(packet_id, packet, level)
        if not self._taken:
            self._among.discard(self)
            self.link.reopen()

    def wake(self, now: float) -> None:
        """Where the client has not finished in time the others go on."""
        if not self.busy or now < self._until:
            return
        self._delivered.clear()
        self._taken.clear()
        for _, packet, level in self._waiting:
            self.link.pass_aside(packet, level=level)
        self._waiting.clear()
        self._among.discard(self)
        self.link.reopen()
        if self.freed is not None:
            self.freed()

    def leave(self) -> None:
        """The connection is gone."""
        self._among.discard(self)
