"""A hub in a thread of its own, for programs without a loop: what `with hub:` makes of it.

What a function of the program raises that ends a program (`sys.exit`) ends the loop of that thread
too: the hub stops in order then, and who runs the block gets it. Knows nothing of hubs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable

from hubbub.runtime.loop import new_event_loop

log = logging.getLogger("hubbub.program")


class OwnThread:
    """Begins with `start`, and raises what that raises; `end` has `stop` called and waits."""

    def __init__(
        self, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
    ) -> None:
        self._start = start
        self._stop = stop
        self._ended_by: BaseException | None = None
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name="hubbub", daemon=True
        )
        self._thread.start()
        ready.result()

    def end(self) -> None:
        """Raises what ended it before."""
        with contextlib.suppress(RuntimeError):  # its loop is closed already
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        if self._ended_by is not None:
            raise self._ended_by

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._run_until_told(ready))
        except BaseException as error:
            log.error("the hub has ended: a function of the program raised %r", error)
            self._ended_by = error

    async def _run_until_told(self, ready: concurrent.futures.Future[None]) -> None:
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self._start()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        try:
            await self._ending.wait()
        finally:
            await self._stop()
