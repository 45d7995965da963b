"""Whether no other hub of this name is there: asked before this one says or writes anything.

    subscribe to GROUP.all, ask GROUP.to.NAME ──→ nobody hears that: there is none
                                              ├─→ a node of that name says something: it lives
                                              └─→ silence, longer than a node that lives is silent

A second hub of one name would end what the first one has: the others would take it for the first
one that was started again, and it would stop the first one's stream. The question is a beat of a
node that was started last of all, so whoever lives answers, and it goes to that name alone. By a
connection of its own, and within what an account must grant without copies. Made by the engine and
by the copies; asyncio is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames
from hubbub.cluster.connecting import Complain, Entry
from hubbub.cluster.refusals import DENIED
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.limits import CLUSTER_DEAD_SECONDS

if TYPE_CHECKING:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

LAST: Final = (1 << 63) - 1  # a start that is later than any
NOBODY: Final = "503"  # what a server says for whom nobody hears

log = logging.getLogger("hubbub.cluster")


async def _quiet(error: Exception) -> None:
    log.debug("is there another node of this name: %s", error or type(error).__name__)


class Alone:
    """`taken` is called when another one lives; `stamp` is the clock of this node."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.taken: Callable[[], None] = lambda: None
        self.stamp: Callable[[], int] = lambda: 0
        self._found: bool | None = None
        self._asking = asyncio.Lock()

    async def ask(self, complain: Complain = _quiet) -> bool:
        """Once it is known it is not asked again. Waits until there are servers to ask."""
        async with self._asking:
            if self._found is None:
                self._found = await self._ask(complain)
                if not self._found:
                    self.taken()
            return self._found

    async def _ask(self, complain: Complain) -> bool:
        from nats.aio.client import Client

        name, everybody = self.settings.name, f"{self.settings.group}.all"
        question = frames.frame(name, LAST, 0, 0, frames.piece(frames.Beat("", self.stamp())))
        client = Client()
        try:
            await Entry(self.settings, f"hubbub {name} asks", complain).connect(client)
            heard = await client.subscribe(everybody)
            await client.flush()
            await client.publish(f"{self.settings.group}.to.{name}", question, reply=everybody)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLUSTER_DEAD_SECONDS):
                    return await self._hears_nobody(heard, client.flush)
            text = "a node %r is connected to NATS and says nothing: it is taken for dead"
            if DENIED.search(str(client.last_error)):
                text = "whether another node %r is there NATS does not let this one ask"
            log.warning(text, name)
            return True
        finally:
            with contextlib.suppress(Exception):
                await client.close()

    async def _hears_nobody(
        self, heard: Subscription, flush: Callable[[], Awaitable[None]]
    ) -> bool:  # fmt: skip
        while True:
            message = await heard.next_msg(timeout=None)
            if is_nobody(message):
                return True
            if frames.name_in(message.data) != self.settings.name:
                continue
            # It may be the last that one said before it ended: the server's answer counts.
            await flush()
            while heard.pending_msgs:
                if is_nobody(await heard.next_msg(timeout=None)):
                    return True
            return False


def is_nobody(message: Msg) -> bool:
    return (message.headers or {}).get("Status") == NOBODY
