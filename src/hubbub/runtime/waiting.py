"""What connections make the hub keep: one budget of bytes for all, and who goes when it is spent.

A client may send half of a message, ask much and read none of the answers. Each connection has a
bound of its own for that, but a thousand of them fill the memory of any machine. So they are
weighed as they grow; over the budget the heaviest goes, with a reason, until an eighth is free.
And half a message whose rest does not come in HALF_SECONDS is no message.

    a socket was read, or its link grew ──> weigh ──> over the budget? ──> relieve
    a few times a second, some of all ────> look ───> half a message too old? ──> end

The node owns one; sockets report to it. No I/O.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, Protocol

from hubbub.core.connection import Connection
from hubbub.core.limits import HALF_SECONDS, LINK_CHOKED, MIB, RELIEVED, WAITING_BYTES
from hubbub.core.link import Link
from hubbub.core.metrics import Metrics
from hubbub.wire.websocket import Frames

CROWDED_OUT: Final = "no room for what it keeps waiting"
LOOKED_AT: Final = 2_000  # sockets of one turn: under a millisecond
MINUTE: Final = 60.0  # from one line of the log to the next

log = logging.getLogger("hubbub.listener")


class Holder(Protocol):
    """A connection that may make the hub keep something."""

    def weight(self, shared: set[int] | None = None) -> int:
        """Bytes. With `shared`, what is sent to many counts for the first of them only."""

    def crowd_out(self, reason: str) -> None: ...

    def half_since(self, now: float) -> float | None:
        """Since when nothing came of the rest of a message; None if nothing is half sent."""


class Conversing:
    """What a socket makes the hub keep. `received` counts its bytes; `half` is what that was when
    something half sent grew last, at `quiet`.
    """

    __slots__ = ("half", "quiet")
    link: Link | None
    connection: Connection | None
    frames: Frames | None
    transport: asyncio.Transport | None
    secure: bool
    held: bool
    paused: bool
    received: int

    def __init__(self) -> None:
        self.half = 0
        self.quiet = 0.0

    def run(self, action: Callable[[], None]) -> None:
        raise NotImplementedError

    def weight(self, shared: set[int] | None = None) -> int:
        link, half = self.link, self._half()
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
        if works or self.held or self.paused or not self._half():
            self.half = 0
            return None
        if self.half != self.received:
            self.half, self.quiet = self.received, now
        return self.quiet

    def crowd_out(self, reason: str) -> None:
        """Who reads nothing is not told why."""
        link, connection, transport = self.link, self.connection, self.transport
        if link is None or connection is None or transport is None:
            return
        unread = link.size + link.held_bytes > LINK_CHOKED
        self.run(lambda: connection.crowded_out(reason))
        if unread:
            transport.abort()


class Waiting:
    """All of one hub. `most`: bytes, `total`: those that were found at the last looks."""

    def __init__(self, metrics: Metrics, most: int = WAITING_BYTES) -> None:
        self.most = most
        self.total = 0
        self._metrics = metrics
        self._weights: dict[Holder, int] = {}
        self._round: Iterator[Holder] = iter(())
        self._told_again = 0.0
        self._ended = 0

    def weigh(self, holder: Holder) -> None:
        """It may keep more than before, or less."""
        self._set(holder, holder.weight())
        if self.total > self.most:
            self._relieve()

    def forget(self, holder: Holder) -> None:
        """It is gone, with all that it kept."""
        self._set(holder, 0)

    def _set(self, holder: Holder, weight: int) -> None:
        before = self._weights.get(holder, 0)
        if weight:
            self._weights[holder] = weight
        elif before:
            del self._weights[holder]
        self.total += weight - before

    def _relieve(self) -> None:
        """Look at all that keep something as they are now, then end the heaviest."""
        shared: set[int] = set()
        for holder in list(self._weights):
            self._set(holder, holder.weight(shared))
        if self.total <= self.most:
            return
        enough = self.most - self.most // RELIEVED
        for holder in sorted(self._weights, key=self._weights.__getitem__, reverse=True):
            if self.total <= enough:
                break
            weight = self._weights.get(holder, 0)
            self._set(holder, 0)
            self._ended += 1
            self._metrics.drop(CROWDED_OUT)
            holder.crowd_out(
                f"{weight} bytes that it keeps waiting are the most here, and all connections "
                f"together may keep {self.most} (limits.waiting_bytes)"
            )

    def look(self, now: float, holders: Iterable[Holder]) -> None:
        """Some of all, in turns: weigh them, and end who left something half sent."""
        seen = 0
        for holder in islice(self._round, LOOKED_AT):
            seen += 1
            self._look_at(holder, now)
        if seen < LOOKED_AT:
            self._round = iter(list(holders))
        if self._ended and now >= self._told_again:
            self._told_again = now + MINUTE
            log.warning(
                "ended %d connections: what all keep waiting is more than limits.waiting_bytes = "
                "%d MiB", self._ended, self.most // MIB,
            )  # fmt: skip
            self._ended = 0

    def _look_at(self, holder: Holder, now: float) -> None:
        self.weigh(holder)
        since = holder.half_since(now)
        if since is not None and now - since > HALF_SECONDS:
            holder.crowd_out(f"nothing came of the rest of a message for {HALF_SECONDS:g} s")
