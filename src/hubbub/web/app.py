"""The web application behind the port: status as JSON and as a page.

The listener gives it every connection whose first HTTP request no protocol takes; uvicorn speaks
HTTP on it from then on. It shows the hub; what changes something is in `publish`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import typing
from collections.abc import Mapping
from email.utils import formatdate
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as WebRequest
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from hubbub.config.settings import Settings
from hubbub.core.clock import Clock
from hubbub.core.gate import Admission, Opening
from hubbub.core.ids import UNKNOWN
from hubbub.core.limits import (
    FIGURES_KEPT,
    FIGURES_SECONDS,
    KIB,
    PIPELINED,
    REFUSALS_KEPT,
)
from hubbub.core.rights import MANAGE
from hubbub.core.topics import HUB
from hubbub.runtime.archive import JournalArchive
from hubbub.runtime.figures import Figures
from hubbub.runtime.siblings import Says, Siblings
from hubbub.schema import name_shown
from hubbub.web import bridging, dashboard, ending, listing, openapi, prometheus, requeueing, script
from hubbub.web.guarded import (
    ADMISSION,
    API,
    HEALTH,
    HISTORY,
    IDS,
    JOURNAL,
    MISTAKE,
    PAGE,
    PUBLISH,
    QUEUE,
    READY,
    RETAINED,
    Guarded,
    dismissed,
    refused,
    session_of,
    token_of,
)
from hubbub.web.history import history
from hubbub.web.journal import JournalApi
from hubbub.web.login import LEAVE, VISIT, Sessions, Visits
from hubbub.web.looking import Looking
from hubbub.web.mounted import Mounted
from hubbub.web.numbers import number_in
from hubbub.web.offers import Offered
from hubbub.web.publish import FAR, FORGET, PROTOCOL, PublishApi
from hubbub.web.query import asked
from hubbub.web.together import Figured, Listed, Together
from hubbub.wire.http import Request, response

log = logging.getLogger("hubbub.web")

_DATE_SECONDS = 1.0
_STOP_SECONDS = 2.0
_PAGING = {"limit": 1_000, "offset": 999_999_999}  # of the status, and the most of each
_LISTED = {**_PAGING, "limit": 10_000}  # the same of what `ls` lists
POINTS = 1_000  # of the figures, if nobody says how many: what a chart can show
_OURS = (PAGE, "/api/v1/", "/metrics", script.PATH, HEALTH, READY)  # before a mounted application


METRICS, FIGURES = "metrics", "figures"  # what processes of one hub ask one another
_OF_EACH = (
    "started", "client_count", "client_protocols", "connections", "connections_made",
    "connections_refused", "sessions_away", "queue_count", "retained", "messages_in",
    "messages_out", "bytes_received", "bytes_sent", "logins_refused", "actions_refused",
    "dropped", "refused",
)  # fmt: skip


class Host(ending.Host, bridging.Host, typing.Protocol):
    """What the application needs of the node that it is part of."""

    clock: Clock

    async def status(self, limit: int = ..., offset: int = ...) -> dict[str, Any]: ...
    async def metrics(self) -> dict[str, Any]: ...
    @property
    def figures(self) -> Figures: ...
    def unready(self) -> str: ...
    @property
    def archive(self) -> JournalArchive | None: ...
    @property
    def siblings(self) -> Siblings | None: ...


class Application:
    """Runs the ASGI application inside the hub's loop, on sockets the listener accepted.

    uvicorn keeps its own server loop out of it: we make its protocol objects by hand, which is
    not documented API; the version is pinned and `tests/web` holds what we rely on.
    """

    def __init__(self, hub: Host, mounted: Mounted | None = None) -> None:
        self._hub = hub
        self.mounted = mounted
        self._journals: dict[int, JournalApi] = {}  # of several processes those of all
        self._publish: PublishApi
        self._token = b""
        self._visits = Visits(hub.clock, lambda: hub.siblings)
        self._together = Together(hub, self._safe)
        self._looking = Looking(hub, self._together)
        self._ending = ending.Ending(hub, self._together)
        self._requeueing = requeueing.Requeueing(hub, self._together)
        self._bridging = bridging.Bridging(hub, self._together)
        self.asgi = Starlette(
            routes=[
                Route("/", dashboard.page),
                Route(PAGE, self._admin),
                *dashboard.routes(Sessions(self._visits, self._came_in, refused)),
                Route("/api/v1/status", self._status),
                Route("/api/v1/refusals", self._refusals),
                Route("/api/v1/figures", self._figures),
                Route("/api/v1/ls/{kind}", self._list),
                *self._looking.routes(),
                *self._ending.routes(),
                *self._requeueing.routes(),
                *self._bridging.routes(),
                Route(QUEUE, self._queue, methods=["GET", "DELETE"]),
                Route(RETAINED, self._retained, methods=["GET", "DELETE"]),
                Route(openapi.PATH, self._described),
                Route(JOURNAL, self._rows),
                Route(HISTORY + "/{topic:path}", self._history),
                Route(PUBLISH, self._take, methods=["POST"]),
                Route(PUBLISH + "/{query}", self._forget, methods=["DELETE"]),
                Route(IDS, self._remove_id, methods=["DELETE"]),
                Route("/metrics", self._metrics),
                Route(HEALTH, self._alive),
                Route(READY, self._ready),
                Route(script.PATH, self._script),
                Route(script.TYPES, self._script),
            ],
            exception_handlers={
                404: _not_found, 405: _not_so, 500: _erred, HTTPException: _failed
            },  # fmt: skip
        )
        # Lifespan and WebSockets are the mounted application's; ours has none.
        ws, lifespan = ("websockets-sansio", "auto") if mounted is not None else ("none", "off")
        self._config = Config(
            mounted.app if mounted is not None else self.asgi, http=Offered, ws=cast(Any, ws),
            lifespan=cast(Any, lifespan), log_config=None, access_log=False, server_header=False,
            proxy_headers=False,
        )  # fmt: skip
        self._state = ServerState()
        self._date: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Begin. The broker is recovered: what publishes and reads the journal can."""
        hub = self._hub
        self.apply(hub.settings)
        self._publish = PublishApi(hub)
        self._config.load()
        self._refresh_date()
        if self.mounted is not None:
            await self.mounted.start(self._config)

    def apply(self, settings: Settings) -> None:
        """Take the token of the settings. SettingError if its file cannot be read."""
        self._token = token_of(settings.api)

    def claims(self, request: Request) -> bool:
        """Whether this is the mounted application's: a WebSocket on that path, or any request."""
        if self.mounted is None:
            return False
        return not request.websocket or self.mounted.claims(request)

    def dismiss(self, request: Request, opening: Opening) -> bytes:
        """The whole answer to who shows nothing where something must be shown, b"" to others."""
        if self.mounted is not None:
            return b""
        refusal = dismissed(request, opening, self._token)
        if refusal is None:
            return b""
        headers = [*self._state.default_headers, *refusal.raw_headers]
        said = ((name.decode("latin-1"), text.decode("latin-1")) for name, text in headers)
        return response(
            refusal.status_code, bytes(refusal.body),
            tuple((name, text) for name, text in said if name != "content-length"), close=True,
        )  # fmt: skip

    def adopt(self, transport: asyncio.Transport, data: bytes, opening: Opening) -> Visited:
        """Take over a socket whose first bytes were `data`."""
        state = self.mounted.state if self.mounted is not None else {}
        protocol = cast(Any, self._config.http_protocol_class)(self._config, self._state, state)
        broker = self._hub.broker
        protocol.app = Guarded(
            self.asgi, opening, broker.own(PROTOCOL, ""), lambda: self._token, broker,
            self._visits,
        )  # fmt: skip
        if self.mounted is not None:
            protocol.app = _Beside(protocol.app, self._config.loaded_app, opening)
        visited = Visited(transport, protocol, self._hub)
        transport.set_protocol(visited)
        visited.connection_made(transport)
        if protocol.client is not None:  # a balancer may stand between
            protocol.client = opening.address, opening.port
        visited.data_received(data)
        return visited

    async def stop(self) -> None:
        """Finish the requests under way, but not for long."""
        self._looking.end()
        if self._date is not None:
            self._date.cancel()
        for connection in list(self._state.connections):
            cast(Any, connection).shutdown()
        until = asyncio.get_running_loop().time() + _STOP_SECONDS
        while self._state.tasks and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        if self.mounted is not None:
            await self.mounted.stop()

    def _refresh_date(self) -> None:
        """uvicorn's server does this once a second; here nobody else would."""
        now = formatdate(usegmt=True).encode()
        self._state.default_headers = [(b"date", now), *self._config.encoded_headers]
        loop = asyncio.get_running_loop()
        self._date = loop.call_later(_DATE_SECONDS, self._refresh_date)

    def said(self) -> dict[str, Says]:
        """What one of several processes says to another one."""

        async def metrics(given: bytes) -> bytes:
            return prometheus.page(await self._hub.metrics())

        async def figures(given: bytes) -> bytes:
            found = await self._hub.status(1)
            journal = found["journal"]
            return json.dumps({
                **{name: found[name] for name in _OF_EACH}, "lost": sum(found["dropped"].values()),
                "journal": journal["directory"], "trouble": journal["trouble"],
                "attention": _attention(found),
            }).encode()  # fmt: skip

        async def visit(given: bytes) -> bytes:
            return self._visits.lend(given, self._token)

        async def leave(given: bytes) -> bytes:
            return self._visits.left(given)

        own = {
            METRICS: metrics, FIGURES: figures, VISIT: visit, LEAVE: leave,
            FAR: self._publish.far, FORGET: self._publish.forget_here,
        }  # fmt: skip
        return own | self._together.said()

    # The API

    async def _rows(self, request: WebRequest) -> Response:
        hub, given = self._hub, request.query_params
        if not hub.broker.log.records:
            return refused(404, "this hub keeps no journal: see journal.record and durability")
        try:
            number = number_in(given, "process") if "process" in given else 0
        except ValueError as error:
            return refused(400, str(error))
        path = Path(hub.settings.data)
        if hub.siblings is None:
            number = 0  # there is one
        elif number in hub.siblings.numbers:
            path = path.with_name(str(number))
        else:
            return refused(400, _each_journal(len(hub.siblings.names)))
        if number not in self._journals:
            self._journals[number] = JournalApi(path)
        return await self._journals[number](request)

    async def _described(self, request: WebRequest) -> Response:
        """The API, for programs that read such a thing."""
        routes = self.asgi.routes
        return JSONResponse(openapi.document(routes, listing.KINDS, version("hubbub")))

    async def _history(self, request: WebRequest) -> Response:
        return await history(request, self._hub.broker, self._hub.archive)

    async def _take(self, request: WebRequest) -> Response:
        return await self._publish.publish(request)

    async def _forget(self, request: WebRequest) -> Response:
        return await self._publish.forget(request)

    async def _queue(self, request: WebRequest) -> Response:
        """One route for both, so that a third method hears of both (RFC 9110, 10.2.1)."""
        if request.method == "DELETE":
            return await self._ending.queue(request)
        return await self._looking.queue(request)

    async def _retained(self, request: WebRequest) -> Response:
        if request.method == "DELETE":
            return await self._ending.retained(request)
        return await self._looking.retained(request)

    async def _remove_id(self, request: WebRequest) -> Response:
        """A topic or a sub-topic has no number any more; what is retained there stays. Sub-topics
        are for who may manage the hub: no rule knows their names.
        """
        given, broker = asked(request), self._hub.broker
        asks = session_of(request.scope[ADMISSION])
        if len(given) != 1 or not given.keys() <= {"topic", "subtopic"}:
            return refused(400, "expected ?topic=NAME or ?subtopic=NAME")
        [(which, name)] = given.items()
        about = name if which == "topic" else HUB
        if not broker.may(asks, MANAGE, about):
            return refused(403, broker.refuse(asks, MANAGE, about))
        remove = broker.ids.remove if which == "topic" else broker.ids.remove_subtopic
        why = remove(name, asks)
        if why:
            return refused(404 if why == UNKNOWN else 409, why)
        await self._publish.safe()
        return JSONResponse({"removed": name_shown(name)})

    # Pages

    async def _status(self, request: WebRequest) -> JSONResponse:
        try:
            wanted = _paging(request.query_params)
        except ValueError as error:
            return refused(400, str(error))
        found, siblings = await self._hub.status(**wanted), self._hub.siblings
        if siblings is not None:
            found = {"process": siblings.place, "processes": await _each(siblings), **found}
        return JSONResponse(found)

    async def _figures(self, request: WebRequest) -> Response:
        """How it was: columns of the points that the hub keeps, the oldest first."""
        given = request.query_params
        try:
            since = number_in(given, "since") if "since" in given else 0
            most = number_in(given, "most", FIGURES_KEPT) if "most" in given else POINTS
        except ValueError as error:
            return refused(400, str(error))
        found = await self._together.figures(since, max(most, 1))
        return JSONResponse({
            "seconds": FIGURES_SECONDS, "figures": found.columns, **_of(found),
        })  # fmt: skip

    async def _refusals(self, request: WebRequest) -> JSONResponse:
        """Why was somebody refused? The last ones, the newest first, of one user or client."""
        given = request.query_params
        try:
            limit = number_in(given, "limit", 2 * REFUSALS_KEPT) if "limit" in given else 100
        except ValueError as error:
            return refused(400, str(error))
        found = await self._together.refusals(given.get("user"), given.get("client"), limit)
        return JSONResponse({"refusals": found.items, **_of(found)})

    async def _list(self, request: WebRequest) -> JSONResponse:
        """What there is, of one kind: a page of it."""
        given, kind = asked(request), request.path_params["kind"]
        if kind not in listing.KINDS:
            return refused(404, f"{kind[:40]!r} is none of {', '.join(listing.KINDS)}")
        try:
            wanted = _paging(given, _LISTED)
        except ValueError as error:
            return refused(400, str(error))
        limit, offset = wanted.get("limit", 100), wanted.get("offset", 0)
        found = await self._together.listed(kind, given.get("search", ""), limit, offset)
        return JSONResponse({kind: found.items, "count": found.total, **_of(found)})

    async def _metrics(self, request: WebRequest) -> Response:
        siblings = self._hub.siblings
        if siblings is not None:
            said = prometheus.together(await siblings.all_say(METRICS))
        else:
            said = await self.said()[METRICS](b"")
        return Response(said, media_type=prometheus.CONTENT_TYPE)

    async def _alive(self, request: WebRequest) -> Response:
        """The loop turns: that is all it says."""
        return PlainTextResponse("alive\n")

    async def _ready(self, request: WebRequest) -> Response:
        """Whether it takes all that is published; it listens once its journal is read."""
        reason = self._hub.unready()
        return PlainTextResponse(f"{reason or 'ready'}\n", 503 if reason else 200)

    async def _safe(self) -> None:
        await self._publish.safe()

    def _came_in(self, admission: Admission) -> None:
        self._hub.broker.audit.connected(session_of(admission))

    async def _script(self, request: WebRequest) -> Response:
        """Also for pages of the other `origins`; the listener has refused all else."""
        return Response(script.source(request.url.path), headers=script.HEADERS)

    async def _admin(self, request: WebRequest) -> Response:
        return RedirectResponse("/") if self.mounted is None else await dashboard.page(request)


def _of(found: Listed | Figured) -> dict[str, Any]:
    """How the processes are whose things these are, if there are several."""
    return {"processes": found.processes} if found.processes else {}


def _each_journal(count: int) -> str:
    return (
        f"this hub has {count} processes, each with a journal of its own: ?process=1 to {count} "
        "says which. Spark reads all with all of them in url, separated by commas "
        "(http://HOST:PORT?process=1,http://HOST:PORT?process=2), or with their directory as path"
    )


def _attention(found: dict[str, Any]) -> list[str]:
    """What of one process somebody should know who looks at another one, beside its journal."""
    cluster, full = found.get("cluster", {}), [one for one in found["queues"] if one["full"]]
    said = {
        "what would stay is refused": found["limits"]["not_taken"],
        "the cluster": cluster.get("trouble"),
        "copies": cluster.get("copies", {}).get("trouble"),
        "a queue is full": full[0]["name"] if full else "",
    }
    return [f"{what}: {why}" for what, why in said.items() if why]


async def _each(siblings: Siblings) -> list[dict[str, Any]]:
    """Every process in a line; one that does not answer too."""
    said = await siblings.all_say(FIGURES)
    return [
        {"process": number, "up": number in said, **json.loads(said.get(number, b"{}"))}
        for number in siblings.numbers
    ]


PIECE_BYTES = 4 * KIB  # heard before it is counted again what waits: some hundred requests


class Visited(asyncio.Protocol):
    """Before uvicorn's protocol on a connection: knows since when nothing comes that is expected,
    and how many requests wait for their answers, of which uvicorn keeps any number.

    A WebSocket of the mounted application is that one's own affair: uvicorn takes the transport.
    """

    def __init__(self, transport: asyncio.Transport, protocol: Any, hub: Host) -> None:
        self._transport = transport
        self._protocol = protocol
        self._clock = hub.clock
        self._metrics = hub.broker.metrics
        self._heard = self._clock.now()
        self._left = 0  # bytes of answers that were not taken when last looked at, and since when
        self._stuck = self._heard
        self.connection_made = protocol.connection_made  # type: ignore[method-assign]
        self.connection_lost = protocol.connection_lost  # type: ignore[method-assign]
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        """In pieces: nobody knows how many requests a read brings."""
        self._heard = self._clock.now()
        self._metrics.bytes_received += len(data)
        for at in range(0, len(data), PIECE_BYTES):
            self._protocol.data_received(data[at : at + PIECE_BYTES])
            if len(self._protocol.pipeline) > PIPELINED:
                log.info("closed: more than %d requests wait for their answers", PIPELINED)
                self._transport.abort()
            if self._transport.is_closing() or self._transport.get_protocol() is not self:
                return

    def waits_since(self) -> float | None:
        """When the last byte came, if the rest of a request or the next one is to come; or since
        when the client has taken no byte of an answer.
        """
        if self._transport.get_protocol() is not self:
            return None
        cycle = self._protocol.cycle
        works = cycle is not None and not (cycle.response_complete or cycle.more_body)
        return self._not_taken_since() if works else self._heard

    def _not_taken_since(self) -> float | None:
        left = self._transport.get_write_buffer_size()
        if left != self._left:
            self._left, self._stuck = left, self._clock.now()
        return self._stuck if left else None


class _Beside:
    """The hub's own pages, and the mounted application for every other path.

    What that shows, and to whom, is its own affair: it is not behind the gate.
    """

    def __init__(self, ours: ASGIApp, mounted: ASGIApp, opening: Opening) -> None:
        self._ours = ours
        self._mounted = mounted
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["path"].startswith(_OURS)
        if not ours:
            self._opening.carrier.let_in("", "")
        await (self._ours if ours else self._mounted)(scope, receive, send)


def _paging(given: Mapping[str, str], most: Mapping[str, int] = _PAGING) -> dict[str, int]:
    """What of `limit` and `offset` is given. ValueError says what is wrong with one."""
    return {name: number_in(given, name, least) for name, least in most.items() if name in given}


async def _not_found(request: WebRequest, error: Exception) -> Response:
    """Paths of message-switch never come here, but on a connection that began with a page."""
    see = f": see {openapi.PATH}" if request.url.path.startswith(API) else ""
    return _no(request, 404, f"there is nothing at {request.url.path[:100]!r}{see}")


async def _not_so(request: WebRequest, error: Exception) -> Response:
    said = cast(HTTPException, error).headers or {}
    takes = ", ".join(sorted(said.get("Allow", "").split(", ")))  # of a set: in any order
    text = f"expected {takes} here, got {request.method[:20]}"
    return _no(request, 405, text, {"Allow": takes})


async def _erred(request: WebRequest, error: Exception) -> Response:
    return _no(request, 500, MISTAKE)


async def _failed(request: WebRequest, error: Exception) -> Response:
    said = cast(HTTPException, error)
    return _no(request, said.status_code, said.detail)


def _no(
    request: WebRequest, status: int, text: str, headers: dict[str, str] | None = None
) -> Response:
    """In the form of the place."""
    if request.url.path.startswith(API):
        return refused(status, text, headers)
    return PlainTextResponse(f"{text}\n", status, headers)
