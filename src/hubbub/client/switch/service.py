"""What one `serve` is working on: requests in, answers out, over lost connections.

    take ─▶ working ─▶ respond ─▶ done
                          │ the hub is lost
                          ▼
                        kept ─▶ taken again: respond; other payload: work; never again: forget

A handler that fails is an answer too, which says so. Only of what asks for none nobody could be
told: it stays in the queue.

An answer is sent only on the word of the hub that it still has this very request. A hub without a
journal counts from 0 after a restart, and an id from before would hit another request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hubbub.client.switch.channel import Channel, Unavailable
from hubbub.client.usage import Payload, failure, reply_of
from hubbub.errors import CallFailed, HubbubError
from hubbub.protocols.switch.codec import Delivery

Handler = Callable[[bytes], Payload | Awaitable[Payload]]


class Reply(NamedTuple):
    """What is answered; `error`: it says why there is no answer."""

    payload: bytes
    error: bool = False


Respond = Callable[[Delivery, Reply], Awaitable[None]]

log = logging.getLogger("hubbub.client.switch")


class Service:
    """`channel` is where the requests come from; closing it makes them come again."""

    def __init__(
        self, channel: Channel, handler: Handler, concurrent: int, respond: Respond
    ) -> None:
        self._channel = channel
        self._handler = handler
        self._respond = respond
        self._slots = asyncio.Semaphore(concurrent)
        self._tasks: set[asyncio.Task[None]] = set()
        self._working: dict[int, Delivery] = {}
        self._kept: dict[int, tuple[Delivery, Reply]] = {}

    async def take(self, request: Delivery) -> None:
        """Begin with a request when there is room, then wait for room again.

        So nothing is asked of the hub that could not be begun with: it may be a lease. A request
        that is worked on is not new, though it may be on its second lease.
        """
        request.deliveries = 0
        if self._working.get(request.number) == request:
            return
        await self._slots.acquire()
        self._working[request.number] = request
        task = asyncio.create_task(self._work(request))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        async with self._slots:
            pass

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._slots.release()

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _work(self, request: Delivery) -> None:
        try:
            reply = await self._reply(request)
            if reply is not None:
                await self._send(request, reply)
        except HubbubError as error:
            log.error("request %s was not answered and stays: %s", _name(request), error)
        except Exception:
            log.exception("request %s was not answered and stays", _name(request))
        finally:
            if self._working.get(request.number) is request:
                del self._working[request.number]

    async def _reply(self, request: Delivery) -> Reply | None:
        """None: there is nobody to be told that the handler failed."""
        kept = self._kept.pop(request.number, None)
        self._kept = {n: kept for n, kept in self._kept.items() if n > request.number}  # in order
        if kept is not None and kept[0] == request:
            return kept[1]
        try:
            return Reply(await reply_of(self._handler(request.payload)))
        except Exception as error:
            _log_failure(request, error)
            return Reply(failure(error), error=True) if request.reply_to else None

    async def _send(self, request: Delivery, reply: Reply) -> None:
        try:
            await self._respond(request, reply)
        except (OSError, Unavailable) as error:
            self._kept[request.number] = (request, reply)
            self._channel.close(ConnectionResetError(f"an answer was not sent: {error}"))


def _name(request: Delivery) -> str:
    return f"{request.queue}:{request.number}"


def _log_failure(request: Delivery, error: Exception) -> None:
    """A traceback is for errors that nobody raised on purpose."""
    became = "was answered with an error" if request.reply_to else "was not answered and stays"
    trace = None if isinstance(error, HubbubError) else error
    level = logging.INFO if isinstance(error, CallFailed) else logging.ERROR
    log.log(level, "request %s %s: %s", _name(request), became, error, exc_info=trace)
