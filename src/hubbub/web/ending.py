"""What is ended by hand: connections, sessions, queues, what is retained and what is delayed.

    DELETE /api/v1/clients?protocol=NAME&client=ID    its connection: told, where its protocol can
    DELETE /api/v1/sessions?protocol=NAME&client=ID   that, and what it left here when it is away
    DELETE /api/v1/sessions/away?protocol=NAME&seconds=N   all that have been away so long (`away`)
    DELETE /api/v1/queue?name=NAME                    the queue is gone, with all that it holds
    DELETE /api/v1/retained?topic=NAME                nothing is retained there any more
    DELETE /api/v1/delayed?seq=NUMBER                 that message will not be published
    DELETE /api/v1/nodes?name=NAME&force=1            that node of the cluster is removed for good

Each asks for its right by itself, and is a line of the log and a row of the journal (`managed`).
Who is ended may come again: to keep somebody out is the affair of the rules. Of several processes
the one that has the thing does it (`together`). Called by `web.app`.
"""

from __future__ import annotations

import logging
import typing
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.cluster.roster import Rest
from hubbub.core.message import Message
from hubbub.core.rights import DESTROY, MANAGE
from hubbub.core.session import Revival, Session
from hubbub.core.topics import HUB, OWN, QUEUE
from hubbub.runtime.removal import Refusal
from hubbub.schema import name_shown
from hubbub.web.away import ENDED, SHOWN, Away
from hubbub.web.guarded import ADMISSION, CLIENTS, DELAYED, NODES, SESSIONS, refused, session_of
from hubbub.web.numbers import number_in
from hubbub.web.publish import Inside
from hubbub.web.query import asked
from hubbub.web.together import Together

TOLD: Final = "ended by hand"
MOST_SECONDS: Final = 10**10

log = logging.getLogger("hubbub")


class Host(Inside, typing.Protocol):
    """What ending needs of the hub's node."""

    @property
    def protocols(self) -> Sequence[Revival]: ...
    async def remove_node(self, name: str, force: bool) -> Refusal | Rest: ...


class Ending:
    """These requests of one hub."""

    def __init__(self, hub: Host, together: Together) -> None:
        self._hub = hub
        self._together = together
        self._away = Away(hub, together)
        together.deeds |= {
            "end": partial(self._ended, whole=False),
            "end session": partial(self._ended, whole=True),
            "destroy": self._destroyed,
            "cancel": self._cancelled,
        }

    def routes(self) -> list[Route]:
        return [
            Route(CLIENTS, self.client, methods=["DELETE"]),
            Route(SESSIONS, self.session, methods=["DELETE"]),
            Route(SESSIONS + "/away", self.away, methods=["GET", "DELETE"]),
            Route(DELAYED, self.delayed, methods=["DELETE"]),
            Route(NODES, self.node, methods=["DELETE"]),
        ]

    async def client(self, request: Request) -> Response:
        return await self._end(request, whole=False)

    async def session(self, request: Request) -> Response:
        return await self._end(request, whole=True)

    async def away(self, request: Request) -> Response:
        """All that have been away for so long are looked at, or over, part by part."""
        given, broker = asked(request), self._hub.broker
        looks = request.method != "DELETE"
        most = SHOWN if looks else ENDED
        try:
            seconds = number_in(given, "seconds", MOST_SECONDS)
            limit = number_in(given, "limit", most) if "limit" in given else most
            offset = number_in(given, "offset") if "offset" in given else 0
        except ValueError as error:
            return refused(400, str(error))
        protocol = given.get("protocol", "")
        if not protocol or seconds < 1:
            return refused(400, "expected ?protocol=NAME&seconds=N, at least 1")
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, MANAGE, HUB):
            return refused(403, broker.refuse(asks, MANAGE, HUB))
        deed = "look away" if looks else "end away"
        return JSONResponse(
            await self._away.all(deed, asks, protocol, seconds, limit, offset)
        )

    async def _end(self, request: Request, whole: bool) -> Response:
        """A connection; the `whole` session, which may be away, with all that waits for it."""
        given, broker = asked(request), self._hub.broker
        if not given.keys() >= {"protocol", "client"}:
            return refused(400, "expected ?protocol=NAME&client=ID")
        protocol, name = given["protocol"], given["client"]
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, MANAGE, HUB):
            return refused(403, broker.refuse(asks, MANAGE, HUB))
        about = {"protocol": protocol, "client": name}
        done = await self._together.do("end session" if whole else "end", about, asks)
        what = "has a session" if whole else "is connected"
        return done.answer(f"no client {name[:100]!r} {what} by {protocol[:20]!r}")

    async def _ended(
        self, given: dict[str, str], asks: Session, whole: bool
    ) -> dict[str, Any] | None:
        protocol, name = given["protocol"], given["client"]
        session = self._hub.broker.sessions.get((protocol, name))
        here = session is not None and session.number != 0 and protocol != ""
        if here and session is not None:
            session.goodbye(TOLD)
        left = whole and any(
            one.end_away(name) for one in self._hub.protocols if one.name == protocol
        )
        if not (here or left):
            return None
        verb = "end session" if whole else "end"
        return await self._done(asks, verb, f"{protocol} {name}", {"ended": name})

    async def queue(self, request: Request) -> Response:
        name, broker = asked(request).get("name", ""), self._hub.broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, DESTROY, QUEUE + name):
            return refused(403, broker.refuse(asks, DESTROY, QUEUE + name))
        done = await self._together.do("destroy", {"name": name}, asks)
        return done.answer(f"there is no queue {name[:100]!r}")

    async def _destroyed(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        name, broker = given["name"], self._hub.broker
        if name not in broker.state.queues:
            return None
        broker.queues.destroy(name)
        return await self._done(asks, "destroy", QUEUE + name, {"destroyed": name})

    async def retained(self, request: Request) -> Response:
        """As a publisher clears it: who is subscribed gets the empty message; with QoS 1, if it
        asked for that, also who is away and comes again.
        """
        name, broker = asked(request).get("topic", ""), self._hub.broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, MANAGE, name):
            return refused(403, broker.refuse(asks, MANAGE, name))
        if name not in broker.state.retained or name.startswith(OWN):
            return refused(404, f"nothing is retained at {name[:100]!r} that could be cleared")
        broker.post(Message(name, b"", 1, True))
        return JSONResponse(await self._done(asks, "clear", name, {"cleared": name}))

    async def delayed(self, request: Request) -> Response:
        """Its topic is on the disk, so it is asked for the right of all. Each process counts its
        rows by itself: of several it must be said which one.
        """
        given, broker = asked(request), self._hub.broker
        asks, siblings = session_of(request.scope[ADMISSION]), self._together.siblings
        try:
            seq = number_in(given, "seq")
            process = number_in(given, "process") if "process" in given else 0
        except ValueError as error:
            return refused(400, str(error))
        if siblings is not None and process not in siblings.numbers:
            most = len(siblings.names)
            return refused(400, f"expected &process=N, 1 to {most}: each has its own row {seq}")
        if not broker.may(asks, MANAGE, HUB):
            return refused(403, broker.refuse(asks, MANAGE, HUB))
        done = await self._together.do_at(process, "cancel", {"seq": str(seq)}, asks)
        return done.answer(f"no message {seq} is delayed")

    async def _cancelled(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        seq = int(given["seq"])
        if not self._hub.broker.delays.cancel(seq):
            return None
        return await self._done(asks, "cancel", f"message {seq}", {"cancelled": str(seq)})

    async def node(self, request: Request) -> Response:
        """Another node, that is away and is not to come back, with all that nobody has of it. Any
        node can do it: all are told.
        """
        given, broker = asked(request), self._hub.broker
        asks, name = session_of(request.scope[ADMISSION]), given.get("name", "")
        if not broker.may(asks, MANAGE, HUB):
            return refused(403, broker.refuse(asks, MANAGE, HUB))
        try:
            done = await self._hub.remove_node(name, given.get("force", "0") not in ("", "0"))
        except Exception as error:  # servers of copies that do not answer: of many kinds
            log.warning("node %r was not removed: %s", name, error or type(error).__name__)
            return refused(503, f"the copies cannot be looked at: {error or type(error).__name__}")
        if isinstance(done, Refusal):
            return refused(done.kind, done.text)
        counts = {word: str(count) for word, count in done._asdict().items()}
        return JSONResponse(await self._done(asks, "end node", name, {"removed": name, **counts}))

    async def _done(
        self, asks: Session, verb: str, name: str, said: dict[str, str]
    ) -> dict[str, Any]:
        await self._together.managed(asks, verb, name)
        return {key: name_shown(one) for key, one in said.items()}
