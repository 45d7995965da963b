"""Connections that the web application has: a listener counts them, and ends those that stall.

The application's server reads and writes them, and tells nobody when one ends; so they are looked
at once a second. Called by the listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from hubbub.core.connection import NEVER
from hubbub.core.gate import Opening
from hubbub.core.limits import HALF_SECONDS
from hubbub.wire.http import Request


class Guest(Protocol):
    """One of them, as the application knows it."""

    def waits_since(self) -> float | None:
        """Since when the rest of a request, or the next one, does not come; None = it works."""


Adopt = Callable[[asyncio.Transport, bytes, Opening], Guest]
Dismiss = Callable[[Request, Opening], bytes]


class Visit:
    """Such a connection, or one in its TLS handshake, as a stranger (`strangers.Visitor`).

    `late`: its answer waits at the door (`door`), as those of a flood do.
    """

    def __init__(self, transport: asyncio.Transport, guest: Guest | None = None) -> None:
        self._transport = transport
        self._guest = guest
        self.late = False

    def occupied(self) -> bool:
        if self._guest is None or self.late or self._transport.is_closing():
            return False
        return self._guest.waits_since() is None

    def turn_away(self) -> None:
        self._transport.abort()


class Guests:
    """Those of one listener; `departed` is told of each that is gone."""

    def __init__(self, departed: Callable[[str], None]) -> None:
        self._departed = departed
        self._all: dict[asyncio.Transport, tuple[Guest, str, Callable[[], None]]] = {}
        # Of those that are closed what is still to be sent, and since when it is as much.
        self._left: dict[asyncio.Transport, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(
        self, transport: asyncio.Transport, guest: Guest, source: str, gone: Callable[[], None]
    ) -> None:
        """`source`: the address that it is counted to; `gone` is called when it has left."""
        self._all[transport] = guest, source, gone

    def sweep(self, now: float = NEVER) -> None:
        """Count out who left; with a time, end those whose request does not go on."""
        for transport, (guest, source, gone) in list(self._all.items()):
            if transport.is_closing():
                if self._takes_on(transport, now):
                    continue
                del self._all[transport]
                self._departed(source)
                gone()
            elif now != NEVER:
                since = guest.waits_since()
                if since is not None and now - since > HALF_SECONDS:
                    transport.abort()

    def _takes_on(self, transport: asyncio.Transport, now: float) -> bool:
        """Whether one that is closed is still here, as it has not taken all of its answer; who
        takes nothing at all is ended.
        """
        size = transport.get_write_buffer_size()
        before, since = self._left.get(transport, (0, now))
        if now != NEVER and size:
            since = since if size == before else now
            self._left[transport] = size, since
            if now - since > HALF_SECONDS:
                transport.abort()
                size = 0
        if not size:
            self._left.pop(transport, None)
        return size > 0

    def end(self) -> None:
        """The hub is stopping, and the application has had its time."""
        for transport, (_, source, gone) in self._all.items():
            transport.abort()
            self._departed(source)
            gone()
        self._all.clear()
        self._left.clear()
