"""Back-pressure: publishers wait for the disk, and not the memory for them.

What waits to be written, and for the servers that have copies of it, is bounded:

    0 ── CONGESTED_BYTES ────────────── FLOODED_BYTES ──────────────
    all      who publishes is not            nobody is read from
    are      read from; where only           until it is less
    heard    servers are behind: who
             waits for a promise itself

Who only pings or reads is not held up by those who flood. Servers without a quorum answer nothing
for hours, while the disk keeps up: live traffic goes on then, as it has nothing to wait for.

Owned by the node, which measures after each group; sockets and bridges ask after each read. No I/O.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from hubbub.core.clock import Clock
from hubbub.core.limits import CONGESTED_BYTES, FLOODED_BYTES
from hubbub.core.link import Link
from hubbub.journal.writer import Journal
from hubbub.runtime.turn import Turn

log = logging.getLogger("hubbub")

SLOW_SECONDS: Final = 60.0  # from one line about a slow disk to the next


class Copied(Protocol):
    """What goes to servers as well, and how much of it they do not have yet."""

    @property
    def waiting_bytes(self) -> int: ...


class Held(Protocol):
    """A connection that can be left unread for a while."""

    transport: asyncio.Transport | None
    held: bool

    def go_on(self) -> None: ...


class Backpressure:
    """Whether somebody waits; without a `journal` nobody does. `measured` is called each time: what
    other nodes publish waits as well, and goes on before who publishes here is heard again.
    """

    def __init__(self, clock: Clock, turn: Turn) -> None:
        self.journal: Journal | None = None
        self.copied: Copied | None = None
        self.measured: Callable[[], None] = lambda: None
        self._clock = clock
        self._turn = turn
        self._held: set[Held] = set()
        self._slow_again = 0.0

    @property
    def congested(self) -> bool:
        """Whether so much waits that publishers do, too."""
        return self._turn.congested

    def crowded(self, publishes: bool, link: Link | None = None) -> bool:
        """Whether who is heard now must wait. `link`: its own, which holds what it is promised."""
        journal = self.journal
        if journal is None or not self.congested:
            return False
        if self._waiting_bytes(journal) > FLOODED_BYTES:
            return True
        return publishes and (self._disk_is_behind(journal) or link is None or bool(link.held))

    def hold_back(self, connection: Held) -> None:
        """Stop reading from it until less waits."""
        transport = connection.transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            connection.held = True
            self._held.add(connection)

    def measure(self) -> None:
        journal = self.journal
        if journal is None:
            return
        congested = self._waiting_bytes(journal) > CONGESTED_BYTES or journal.waits_for_room()
        if congested and not self.congested:
            self._tell(journal)
        self._turn.congested = journal.behind = congested
        self.measured()
        if not congested and self._held:
            held, self._held = self._held, set()
            for connection in held:
                connection.go_on()

    def _waiting_bytes(self, journal: Journal) -> int:
        """What waits for the disk, and for the servers that have copies."""
        return journal.pending_bytes + (self.copied.waiting_bytes if self.copied else 0)

    def _disk_is_behind(self, journal: Journal) -> bool:
        return journal.pending_bytes > CONGESTED_BYTES or journal.waits_for_room()

    def _tell(self, journal: Journal) -> None:
        journal.pulse.slowed += 1
        now = self._clock.now()
        if now < self._slow_again:
            return
        self._slow_again = now + SLOW_SECONDS
        if journal.waits_for_room():
            log.warning("publishers wait until there is room on the disk: %s", journal.shortage)
        elif self._disk_is_behind(journal):
            log.warning(
                "publishers wait for the disk: %d MB are to be written, a sync takes %.1f ms",
                journal.pending_bytes >> 20, journal.pulse.sync_ms(0.5),
            )  # fmt: skip
        else:
            log.warning(
                "publishers of QoS 1 and 2 wait for the servers of NATS: %d MB have no copy yet",
                self._waiting_bytes(journal) >> 20,
            )  # fmt: skip
