"""A hub in this process for the tests of a client, on one free port of the loopback."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from hubbub.config.settings import Journal, Listener, Settings
from hubbub.runtime.node import Node


@contextlib.asynccontextmanager
async def serving(
    data: Path | None = None, port: int = 0, settings: Settings | None = None, **listener: Any
) -> AsyncIterator[Node]:
    """In memory, unless there is a directory; `listener` are its settings."""
    wanted = settings or Settings(
        listen=(),
        listener=(Listener(address=f"127.0.0.1:{port}", **listener),),
        data=str(data or "unused"),
        journal=Journal(record="all" if data else "none", durability="os"),
    )
    async with Node(wanted) as hub:
        yield hub


def url(hub: Node, scheme: str = "smq") -> str:
    return f"{scheme}://{hub.listeners[0].address}"


async def until(condition: Callable[[], bool]) -> None:
    """Wait until it is so; ten seconds are an error."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)
