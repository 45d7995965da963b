"""Dead letters that go back, or messages of any queue to another one.

    GET  /api/v1/queue/requeue?name=NAME    how many would go where, and how many would stay, why
    POST /api/v1/queue/requeue?name=NAME    they do

`&to=QUEUE`: all go there, else each where it died. `&limit=N` of them are looked at, from the id
`&from=ID` on; the answer says the `next` one, and the id `before` which it ends, to be said again:
what dies anew while it goes on is not taken twice. Who asks needs the rights that it takes to give
a queue a place for its dead letters: to manage this queue, and to send to those others. Of several
processes the one that has the queue does it (`together`). Called by `web.app`.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hubbub.core.requeue import Requeue
from hubbub.core.rights import CONFIGURE, ENQUEUE
from hubbub.core.session import Session
from hubbub.core.topics import QUEUE
from hubbub.schema import name_shown
from hubbub.web.guarded import ADMISSION, refused, session_of
from hubbub.web.guarded import QUEUE as QUEUE_PATH
from hubbub.web.numbers import number_in
from hubbub.web.publish import Inside
from hubbub.web.query import asked
from hubbub.web.together import Together
from hubbub.web.turns import SECONDS, done_in_turns

REQUEUE: Final = QUEUE_PATH + "/requeue"
LOOKED: Final = 2_000  # messages of one request


class Requeueing:
    """These requests of one hub."""

    def __init__(self, hub: Inside, together: Together) -> None:
        self._hub = hub
        self._together = together
        self._one = asyncio.Lock()  # what is read for who looks; the other has its own bound
        together.deeds |= {
            "look at dead": partial(self._done, only_look=True),
            "requeue": partial(self._done, only_look=False),
            "rooms": self._say_rooms,
        }

    def routes(self) -> list[Route]:
        return [Route(REQUEUE, self.requeue, methods=["GET", "POST"])]

    async def requeue(self, request: Request) -> Response:
        only_look = request.method != "POST"
        given, broker = asked(request), self._hub.broker
        name, to = given.get("name", ""), given.get("to", "")
        asks = session_of(request.scope[ADMISSION])
        try:
            about = {
                key: str(number_in(given, key, *most))
                for key, most in (("limit", (LOOKED,)), ("from", ()), ("before", ()))
                if key in given
            }
        except ValueError as error:
            return refused(400, str(error))
        if not broker.may(asks, CONFIGURE, QUEUE + name):
            return refused(403, broker.refuse(asks, CONFIGURE, QUEUE + name))
        if to and not broker.may(asks, ENQUEUE, QUEUE + to):
            return refused(403, broker.refuse(asks, ENQUEUE, QUEUE + to))
        about |= {"name": name, "to": to}
        missing = f"there is no queue {name[:100]!r}"
        ends: dict[str, Any] = {}
        to_ask = [to]
        if not to:
            # Where they died is in themselves: only who looks at them knows what is to be asked.
            found = await self._together.do("look at dead", about, asks)
            if found.said is None:
                return found.answer(missing)
            about["allowed"] = json.dumps(self._allowed(asks, found.said))
            ends = {word: found.said[word] for word in ("next", "before")}
            about["before"] = str(ends["next"] if ends["next"] >= 0 else ends["before"])
            to_ask = found.said["places"]
        if self._together.siblings is not None:
            about["rooms"] = json.dumps(await self._rooms(to_ask, asks))
        deed = "look at dead" if only_look else "requeue"
        done = await self._together.do(deed, about, asks)
        if done.said is None:
            return done.answer(missing)
        said = done.said
        if said["next"] >= 0:
            ends["next"] = said["next"]
        return JSONResponse({
            "moved": {name_shown(one): count for one, count in said["moved"].items()},
            "stayed": said["stayed"], "next": said["next"], "before": said["before"], **ends,
        })  # fmt: skip

    def _allowed(self, asks: Session, found: dict[str, Any]) -> list[str]:
        """Of the places where they died those to which it may send."""
        broker, places = self._hub.broker, found["places"]
        allowed = [one for one in places if broker.may(asks, ENQUEUE, QUEUE + one)]
        for one in found["moved"]:
            if one not in allowed:
                broker.refuse(asks, ENQUEUE, QUEUE + one)
        return allowed

    async def _rooms(self, names: list[str], asks: Session) -> dict[str, list[int]]:
        """What there is room for in those queues of all processes."""
        siblings, found = self._together.siblings, dict[str, list[int]]()
        for process in siblings.numbers if siblings is not None else ():
            done = await self._together.do_at(process, "rooms", {"names": json.dumps(names)}, asks)
            found |= done.said or {}
        return found

    async def _say_rooms(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        broker, queues = self._hub.broker, self._hub.broker.queues
        there = [broker.state.queues.get(name) for name in json.loads(given["names"])]
        bounds = queues.max_messages, queues.max_bytes
        return {one.name: list(one.rooms(*bounds)) for one in there if one is not None}

    async def _done(
        self, given: dict[str, str], asks: Session, only_look: bool
    ) -> dict[str, Any] | None:
        broker = self._hub.broker
        queue = broker.state.queues.get(given["name"])
        if queue is None:
            return None
        allowed = json.loads(given["allowed"]) if "allowed" in given else None
        rooms = json.loads(given.get("rooms", "{}"))
        work = Requeue(
            broker, broker.queues, queue, asks, given["to"],
            allowed, int(given.get("from", 0)), int(given.get("before", -1)),
            int(given.get("limit", LOOKED)), only_look, SECONDS, rooms,
        )  # fmt: skip
        if only_look:
            async with self._one:
                await done_in_turns(self._hub, work.pieces())
        else:
            try:
                await done_in_turns(self._hub, work.pieces())
            finally:
                if work.moved:
                    await self._together.managed(asks, "requeue", QUEUE + given["name"])
        return {
            "moved": work.moved, "stayed": work.stayed, "next": work.next, "before": work.before,
            "places": list(work.places),
        }  # fmt: skip
