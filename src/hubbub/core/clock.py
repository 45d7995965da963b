"""The two clocks of the hub. The hub makes one; a simulation passes its own.

`now` is for time-outs: monotonic seconds. `stamp` is for rows: UTC microseconds that never go
back, even when the machine's clock does, so that time orders the journal.
"""

from __future__ import annotations

import time

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class Clock:
    """Reads the machine's clocks; `at_least` raises the floor of the stamps (after a restart)."""

    def __init__(self) -> None:
        self._last = 0

    def now(self) -> float:
        return time.monotonic()

    def stamp(self) -> int:
        self._last = max(self._last, time.time_ns() // 1000)
        return self._last

    def at_least(self, stamp: int) -> None:
        self._last = max(self._last, stamp)
