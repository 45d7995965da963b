"""What is ended by hand: a client's connection, a whole queue.

    DELETE /api/v1/clients?protocol=NAME&client=ID   it is told, where its protocol can, and ended
    DELETE /api/v1/queue?name=NAME                   the queue is gone, with all that it holds

Each asks for its right by itself, and is a line of the log and a row of the journal (`managed`).
Who is ended may come again: to keep somebody out is the affair of the rules. Called by `web.app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.core.rights import DESTROY, MANAGE
from hubbub.core.topics import QUEUE
from hubbub.web.guarded import ADMISSION, CLIENTS, refused, session_of
from hubbub.web.publish import Inside

OF_OTHERS: Final = "$SYS/#"  # who may manage the hub may end those who are there
TOLD: Final = "ended by hand"


class Ending:
    """These requests of one hub. `safe` waits until what was done is durable."""

    def __init__(self, hub: Inside, safe: Callable[[], Awaitable[None]]) -> None:
        self._hub = hub
        self._safe = safe

    def routes(self) -> list[Route]:
        return [Route(CLIENTS, self.client, methods=["DELETE"])]

    async def client(self, request: Request) -> Response:
        given, broker = request.query_params, self._hub.broker
        if not given.keys() >= {"protocol", "client"}:
            return refused(400, "expected ?protocol=NAME&client=ID")
        protocol, name = given["protocol"], given["client"]
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, MANAGE, OF_OTHERS):
            return refused(403, broker.refuse(asks, MANAGE, OF_OTHERS))
        session = broker.sessions.get((protocol, name))
        if session is None or not session.number or not protocol:
            return refused(404, f"no client {name[:100]!r} is connected by {protocol[:20]!r}")
        broker.audit.managed(asks, "end", f"{protocol} {name}")
        session.goodbye(TOLD)
        self._hub.schedule()
        await self._safe()
        return JSONResponse({"ended": name})

    async def queue(self, request: Request) -> Response:
        name, broker = request.query_params.get("name", ""), self._hub.broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, DESTROY, QUEUE + name):
            return refused(403, broker.refuse(asks, DESTROY, QUEUE + name))
        if name not in broker.state.queues:
            return refused(404, f"there is no queue {name[:100]!r}")
        broker.queues.destroy(name)
        broker.audit.managed(asks, "destroy", QUEUE + name)
        self._hub.schedule()
        await self._safe()
        return JSONResponse({"destroyed": name})
