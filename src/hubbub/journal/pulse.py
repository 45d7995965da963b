"""How the journal does: commits, their size, and how long the latest of them took.

The writer adds, `$SYS`, the status and `/metrics` read. Seconds in, milliseconds out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from hubbub.core.metrics import Histogram

LATEST: Final = 1000  # commits of which the times are kept: some seconds under load


class Pulse:
    """Counts since the start, and the latest times. Only `synced` is called by the thread."""

    def __init__(self) -> None:
        self.commits = 0
        self.rows = 0
        self.bytes = 0
        self.failures = 0
        self.slowed = 0  # how often publishers had to wait for the disk
        self.commit_seconds = Histogram()
        self.sync_seconds = Histogram()
        self._commits: deque[float] = deque(maxlen=LATEST)
        self._syncs: deque[float] = deque(maxlen=LATEST)
        self._rows: deque[int] = deque(maxlen=LATEST)

    def synced(self, seconds: float) -> None:
        self._syncs.append(seconds)
        self.sync_seconds.add(seconds)

    def committed(self, seconds: float, rows: int, size: int) -> None:
        """A group is durable, so long after it was handed over."""
        self.commits += 1
        self.rows += rows
        self.bytes += size
        self.commit_seconds.add(seconds)
        self._commits.append(seconds)
        self._rows.append(rows)

    def commit_ms(self, share: float) -> float:
        """So many of the latest commits took no longer, in milliseconds."""
        return _quantile(self._commits, share)

    def sync_ms(self, share: float) -> float:
        return _quantile(self._syncs, share)

    def syncs_per_second(self) -> float:
        """What the disk could do at most, one sync after the other; 0 if nothing was synced."""
        total = sum(self._syncs)
        return len(self._syncs) / total if total else 0.0

    def group_rows(self) -> float:
        """Rows of a group, on average."""
        return sum(self._rows) / len(self._rows) if self._rows else 0.0

    def figures(self) -> dict[str, Callable[[], float]]:
        """By name, what `$SYS/broker/journal/` and the status say."""
        return {
            "commits": lambda: self.commits,
            "commit ms/50": lambda: self.commit_ms(0.5),
            "commit ms/99": lambda: self.commit_ms(0.99),
            "sync ms/50": lambda: self.sync_ms(0.5),
            "sync ms/99": lambda: self.sync_ms(0.99),
            "syncs per second": self.syncs_per_second,
            "group rows": self.group_rows,
            "rows": lambda: self.rows,
            "bytes written": lambda: self.bytes,
            "failures": lambda: self.failures,
            "slowed": lambda: self.slowed,
        }


def _quantile(times: deque[float], share: float) -> float:
    ordered = sorted(times.copy())
    return ordered[int(share * (len(ordered) - 1))] * 1000 if ordered else 0.0
