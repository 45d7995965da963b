"""What connections make the hub keep: one budget of bytes for all, and who goes when it is spent.

A client may send half of a message, ask much and read none of the answers. Each connection has a
bound of its own for that, but a thousand of them fill the memory of any machine. So they are
weighed as they grow; over the budget the heaviest of the user who has the most goes, with a
reason, until an eighth is free. Who was not let in has a small budget apart, so that nobody without
a login can spend that of the others. And half a message whose rest does not come in HALF_SECONDS is
no message.

    a socket was read, or its link grew ──> weigh ──> over the budget? ──> relieve
    a few times a second, some of all ────> look ───> half a message too old? ──> end

The node owns one; sockets report to it. No I/O.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from hubbub.core.connection import Connection
from hubbub.core.connection import Protocol as Spoken
from hubbub.core.gate import STRANGER, VISITOR, Opening, Whose, owner
from hubbub.core.limits import (
    HALF_SECONDS,
    LINK_CHOKED,
    MIB,
    RELIEVED,
    STRANGE_BYTES,
    WAITING_BYTES,
    WEIGHED_BYTES,
)
from hubbub.core.link import Link
from hubbub.core.metrics import Metrics
from hubbub.runtime.binding import hung_up
from hubbub.runtime.strangers import Stranger
from hubbub.wire.source import source_of
from hubbub.wire.websocket import Frames

if TYPE_CHECKING:
    from hubbub.runtime.rates import Toll

LEFT: Final = -1  # instead of bytes: nothing more can come of it
CROWDED_OUT: Final = "no room for what it keeps waiting"
LOOKED_AT: Final = 2_000  # sockets of one turn at most: some milliseconds
LOOKED_LEAST: Final = 100
LOOKS: Final = 20  # for all of them: five seconds, beside the thirty that half a message has
MINUTE: Final = 60.0  # from one line of the log to the next

log = logging.getLogger("hubbub.listener")


class Holder(Protocol):
    """A connection that may make the hub keep something."""

    def whose(self) -> Whose: ...

    def weight(self, shared: set[int] | None = None) -> int:
        """Bytes. With `shared`, what is sent to many counts for the first of them only."""

    def crowd_out(self, reason: str) -> None: ...

    def half_since(self, now: float) -> float | None:
        """Since when nothing came of the rest of a message; None if nothing is half sent."""


class Conversing:
    """What a socket makes the hub keep: the first of its parts, each of which goes on from the one
    before (`rates`, `framing`, `expiry`, `arriving`, `socket`). `received` counts its bytes; `half`
    is what that was when something half sent grew last, at `quiet`; `kept` was read of a stranger
    that stands in line.
    """

    __slots__ = ("half", "quiet", "kept")
    link: Link | None
    connection: Connection | None
    frames: Frames | None
    transport: asyncio.Transport | None
    opening: Opening | None
    protocol: Spoken | None
    stranger: Stranger | None
    host: str
    port: int
    secure: bool
    held: bool
    paused: bool
    toll: Toll | None
    received: int

    def __init__(self) -> None:
        self.half = 0
        self.quiet = 0.0
        self.kept = b""

    def run(self, action: Callable[[], None]) -> None:
        raise NotImplementedError

    def whose(self) -> Whose:
        if self.stranger is not None:
            http = self.protocol is not None and self.protocol.raw_head
            return Whose(VISITOR if http else STRANGER, source_of(self.host))
        shown = self.opening.credentials if self.opening is not None else None
        return Whose.known(shown.owner if shown is not None else owner("", self.host))

    def weight(self, shared: set[int] | None = None) -> int:
        link, half = self.link, self._half() + len(self.kept)
        if self.toll is not None:
            half += self.toll.left
        connection = self.connection
        if connection is not None and connection.lasting > WEIGHED_BYTES:
            half += connection.lasting
        if link is None:
            return half
        unread = link.size + link.held_bytes
        if unread <= LINK_CHOKED:
            return half
        piece = link.largest
        # The same bytes may be on their way to many, unless each has them encrypted or framed.
        if shared is not None and piece is not None and not (self.secure or link.framing):
            unread -= len(piece) if id(piece) in shared else 0
            shared.add(id(piece))
        return half + max(unread, 0)

    def _half(self) -> int:
        half = self.connection.waiting() if self.connection is not None else 0
        return half + self.frames.waiting() if self.frames is not None else half

    def half_since(self, now: float) -> float | None:
        works = self.connection is not None and self.connection.works()
        slowed = self.toll is not None and self.toll.slowed
        if slowed and self.connection is not None:
            return self._left_since(now)
        if works or self.held or self.paused or slowed or not self._half():
            self.half = 0
            return None
        if self.half != self.received:
            self.half, self.quiet = self.received, now
        return self.quiet

    def _left_since(self, now: float) -> float | None:
        """Since when a client is gone of whom nothing is read because of its rate: what it said
        before is heard for a while, and not for as long as it would take.
        """
        gone = hung_up(self.transport)
        if not gone:
            self.half = 0
            return None
        if self.half != LEFT:
            self.half, self.quiet = LEFT, now
        return self.quiet if gone == 1 else -HALF_SECONDS

    def crowd_out(self, reason: str) -> None:
        """Who reads nothing is not told why."""
        link, connection, transport = self.link, self.connection, self.transport
        if link is None or connection is None or transport is None:
            return
        unread = link.size + link.held_bytes > LINK_CHOKED
        unread = unread or (self.half == LEFT and hung_up(transport) > 0)
        self.run(lambda: connection.crowded_out(reason))
        if unread:
            transport.abort()


class Budget:
    """What some may keep together. `most`: bytes, `total`: those that were found at the last
    looks. `name`: how it is told to who is ended.
    """

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self.total = 0
        self.weights: dict[Holder, int] = {}
        self._ended = 0
        self._told_again = 0.0

    def set(self, holder: Holder, weight: int) -> None:
        before = self.weights.get(holder, 0)
        if weight:
            self.weights[holder] = weight
        elif before:
            del self.weights[holder]
        self.total += weight - before

    def heaviest(self) -> Iterator[Holder]:
        """Of who was not let in before others, then of who has the most: one, and again."""
        sums: defaultdict[Whose, int] = defaultdict(int)
        own: defaultdict[Whose, list[Holder]] = defaultdict(list)
        for holder in sorted(self.weights, key=self.weights.__getitem__):
            whose = holder.whose()
            sums[whose] += self.weights[holder]
            own[whose].append(holder)
        row = [(whose.standing, -size, whose) for whose, size in sums.items()]
        heapify(row)
        while row:
            standing, size, whose = heappop(row)
            holder = own[whose].pop()
            weight = self.weights.get(holder, 0)
            if weight:  # others may have gone with one that was ended
                yield holder
            if own[whose]:
                heappush(row, (standing, size + weight, whose))

    def end(self, holder: Holder) -> None:
        weight = self.weights[holder]
        self.set(holder, 0)
        self._ended += 1
        holder.crowd_out(
            f"{weight} bytes that it keeps waiting are the most here, and all connections "
            f"together may keep {self.most} ({self.name})"
        )

    def tell(self, now: float) -> None:
        if self._ended and now >= self._told_again:
            self._told_again = now + MINUTE
            log.warning(
                "ended %d connections: what all keep waiting is more than %s = %d MiB",
                self._ended, self.name, self.most // MIB,
            )  # fmt: skip
            self._ended = 0


class Waiting:
    """All of one hub. `most`: bytes of those who were let in."""

    def __init__(self, metrics: Metrics, most: int = WAITING_BYTES) -> None:
        self._metrics = metrics
        self._all = Budget("limits.waiting_bytes", most)
        self.strange = Budget("before they are let in", 0)
        self.apply(most)
        self._round: Iterator[Holder] = iter(())
        self._some = LOOKED_LEAST

    def apply(self, most: int) -> None:
        """A setting has changed."""
        self._all.most = most
        self.strange.most = min(STRANGE_BYTES, most)

    @property
    def total(self) -> int:
        """Bytes of those who were let in, as they were found at the last looks."""
        return self._all.total

    def weigh(self, holder: Holder) -> None:
        """It may keep more than before, or less."""
        budget = self._set(holder, holder.weight())
        if budget.total > budget.most:
            self._relieve(budget)

    def forget(self, holder: Holder) -> None:
        """It is gone, with all that it kept."""
        self._set(holder, 0)

    def _set(self, holder: Holder, weight: int) -> Budget:
        """Where it belongs now: it may have been let in since."""
        strange = weight > 0 and holder.whose().standing == STRANGER
        self.strange.set(holder, weight if strange else 0)
        self._all.set(holder, 0 if strange else weight)
        return self.strange if strange else self._all

    def _relieve(self, budget: Budget) -> None:
        """Look at all that keep something as they are now, then end the heaviest."""
        shared: set[int] = set()
        for holder in list(budget.weights):
            self._set(holder, holder.weight(shared))
        if budget.total <= budget.most:
            return
        enough = budget.most - budget.most // RELIEVED
        for holder in budget.heaviest():
            self._metrics.drop(CROWDED_OUT)
            budget.end(holder)
            if budget.total <= enough:
                break

    def look(self, now: float, holders: Iterable[Holder]) -> None:
        """Some of all, in turns: weigh them, and end who left something half sent."""
        seen = 0
        for holder in islice(self._round, self._some):
            seen += 1
            self._look_at(holder, now)
        if seen < self._some:
            following = list(holders)
            self._some = min(max(len(following) // LOOKS, LOOKED_LEAST), LOOKED_AT)
            self._round = iter(following)
        self._all.tell(now)
        self.strange.tell(now)

    def _look_at(self, holder: Holder, now: float) -> None:
        self.weigh(holder)
        since = holder.half_since(now)
        if since is not None and now - since > HALF_SECONDS:
            holder.crowd_out(f"nothing came of the rest of a message for {HALF_SECONDS:g} s")
