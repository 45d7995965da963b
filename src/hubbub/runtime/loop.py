"""The event loop of the process. Called by whoever runs a hub there."""

from __future__ import annotations

import asyncio
import sys

from hubbub.errors import HubbubError


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, whose sockets cost a third less. HubbubError on anything but Linux."""
    if sys.platform != "linux":
        raise HubbubError(f"Hubbub runs on Linux, this is {sys.platform}")
    import uvloop

    return uvloop.new_event_loop()
