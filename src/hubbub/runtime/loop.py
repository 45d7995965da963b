"""The event loop of the process, and what it does with waits. Called by whoever runs a hub."""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from hubbub.errors import HubbubError

# Seconds that the loop can wait. It makes less than half of it a turn at once: who looks then
# whether it is time, and is early, looks in each turn until it is, and the loop never sleeps.
SHORTEST: Final = 0.001


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, whose sockets cost a third less. HubbubError on anything but Linux."""
    if sys.platform != "linux":
        raise HubbubError(f"Hubbub runs on Linux, this is {sys.platform}")
    import uvloop

    return uvloop.new_event_loop()
