"""What the hub counts. Counters go up per run, never per byte looked at; nobody resets them."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final


class Histogram:
    """How long things took: how many within each of `BOUNDS`, and all together in seconds."""

    __slots__ = ("counts", "seconds")
    BOUNDS: Final[tuple[float, ...]] = (  # so that it is one object where it is compiled
        0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    )  # fmt: skip

    def __init__(self) -> None:
        self.counts = [0] * (len(self.BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.seconds += seconds


class Traffic:
    """Messages that were published, and delivered, by all who speak one protocol."""

    __slots__ = ("published", "delivered")

    def __init__(self) -> None:
        self.published = 0
        self.delivered = 0


class Metrics:
    """Plain numbers; `dropped` is by reason, `refused` by pool (`core.quotas`). Read
    by the status page and by `$SYS`.

    `traffic` is by protocol, "" for the hub itself and the program around it. `messages_in` are all
    that were published, by other nodes too. `bytes_in` are those of published messages,
    `bytes_received` all that sockets brought. `clients`: how often one was let in,
    `expired`: lasting sessions that ended while it was away,
    `held_back`: how often a publisher began to wait for a slow reader; `slowed`: how often a client
    waited because of its rate, by the setting (`runtime.rates`).
    """

    __slots__ = (
        "messages_in", "bytes_in", "traffic", "bytes_received", "connections",
        "connections_ended", "connections_refused", "dropped", "refused",
        "started", "clients", "expired",
        "held_back", "slowed",
    )  # fmt: skip

    def __init__(self, started: int = 0) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.traffic: dict[str, Traffic] = {}
        self.bytes_received = 0
        self.connections = 0
        self.connections_ended = 0
        self.connections_refused = 0
        self.clients = 0
        self.expired = 0
        self.held_back = 0
        self.dropped: dict[str, int] = {}
        self.refused: dict[str, int] = {}
        self.slowed: dict[str, int] = {}
        self.started = started

    @property
    def messages_out(self) -> int:
        return sum(one.delivered for one in self.traffic.values())

    def of(self, protocol: str) -> Traffic:
        """What is counted of those who speak that."""
        if protocol not in self.traffic:
            self.traffic[protocol] = Traffic()
        return self.traffic[protocol]

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + count
