"""When the credentials of a connection hold no more: their time is over, or the rules changed.

A socket has a timer once its client showed a token. The machine's clock may be set meanwhile, so it
is looked at once a minute; and a gate may be patient for some seconds more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from hubbub.runtime.framing import Framed

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


class Expiring(Framed):
    """What a socket does when its client may not stay."""

    __slots__ = ()
    expiry: Expiry | None

    def until(self, when: float) -> None:
        """End it at that time (seconds since 1970), unless it shows other credentials before."""
        if self.expiry is None:
            over = partial(self._show_out, "its token has expired")
            self.expiry = Expiry(self._is_out, over)  # type: ignore[misc]  # the socket's slot
        self.expiry.at(when)

    def look_again(self) -> None:
        """The rules of the gate changed: end a client that they do not let in any more."""
        if self._is_out():
            self._show_out("its credentials or permissions were changed")

    def _is_out(self) -> bool:
        """Whether the gate would not let it in again."""
        opening = self.opening
        if opening is None or opening.credentials is None or self.link is None:
            return False
        return not opening.gate.still_in(opening.credentials)

    def _show_out(self, reason: str) -> None:
        connection, link = self.connection, self.link
        if connection is None or link is None:
            return

        def end() -> None:
            connection.show_out(reason)
            link.close(reason)

        self.run(end)
