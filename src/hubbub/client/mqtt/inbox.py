"""Messages that arrived and that the program has not taken yet, in order.

The client has two: one for callbacks, one for `messages()`. What the broker must have
acknowledged is bounded by its own window; of QoS 0 an inbox keeps so much and drops the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from hubbub.client.mqtt.session import Arrival

UNREAD_MESSAGES: Final = 65_536
UNREAD_BYTES: Final = 64 << 20


class Inbox:
    """A queue of arrivals with one taker at a time. `dropped`: messages of QoS 0 it refused."""

    def __init__(self) -> None:
        self.dropped = 0
        self._arrivals: deque[Arrival] = deque()
        self._bytes = 0
        self._wake = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._arrivals)

    def put(self, arrival: Arrival) -> None:
        full = len(self._arrivals) >= UNREAD_MESSAGES or self._bytes >= UNREAD_BYTES
        if full and arrival.message.qos == 0:
            self.dropped += 1
            return
        self._arrivals.append(arrival)
        self._bytes += len(arrival.message.payload)
        self._wake.set()

    def end(self, error: Exception | None) -> None:
        """Nothing more will come: `take` gives what is left, then None or the error."""
        self._ended, self._error = True, error
        self._wake.set()

    async def take(self) -> Arrival | None:
        while not self._arrivals:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            self._wake.clear()
            await self._wake.wait()
        arrival = self._arrivals.popleft()
        self._bytes -= len(arrival.message.payload)
        return arrival
