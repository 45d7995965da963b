"""When the credentials of a connection are over: a timer that does not trust one clock.

A socket has one once its client showed a token. The machine's clock may be set meanwhile, so it is
looked at once a minute; and a gate may be patient for some seconds more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

MINUTE: Final = 60.0
PATIENT: Final = 1.0  # seconds until a gate that still lets it stay is asked again


class Expiry:
    """Calls `end` after a time, once `over` says so; of several times the last counts."""

    def __init__(self, over: Callable[[], bool], end: Callable[[], None]) -> None:
        self._over = over
        self._end = end
        self._timer: asyncio.TimerHandle | None = None

    def at(self, when: float) -> None:
        """In seconds since 1970."""
        self.cancel()
        wait = min(max(when - time.time(), 0.0), MINUTE)
        self._timer = asyncio.get_running_loop().call_later(wait, self._look, when)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, when: float) -> None:
        self._timer = None
        if self._over():
            self._end()
        else:
            self.at(max(when, time.time() + PATIENT))
