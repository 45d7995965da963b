"""What arrived and the program has not taken yet, in order and bounded.

The clients of MQTT and SMQ have two each: one for callbacks, one for `messages()`. What does not
fit is dropped and counted, unless it must not be: what an MQTT broker wants acknowledged is bounded
by its own window. Reading goes on, because the answers to our own questions come on the same
connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Generic, TypeVar

UNREAD_MESSAGES: Final = 65_536
UNREAD_BYTES: Final = 64 << 20

T = TypeVar("T")


class Inbox(Generic[T]):
    """A queue with one taker at a time. `dropped`: what it refused because it was full."""

    def __init__(self) -> None:
        self.dropped = 0
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int, must: bool = False) -> None:
        """Add `item` of `size` bytes; a full inbox refuses it, unless it `must` be kept."""
        full = len(self._items) >= UNREAD_MESSAGES or self._bytes >= UNREAD_BYTES
        if full and not must:
            self.dropped += 1
            return
        self._items.append((item, size))
        self._bytes += size
        self._wake.set()

    def end(self, error: Exception | None) -> None:
        """Nothing more will come: `take` gives what is left, then None or the error."""
        self._ended, self._error = True, error
        self._wake.set()

    async def take(self) -> T | None:
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._wake.clear()
            await self._wake.wait()
        item, size = self._items.popleft()
        self._bytes -= size
        return item
