"""The web application behind the port: status as JSON and a plain page.

The listener gives it every connection whose first HTTP request no protocol takes; uvicorn speaks
HTTP on it from then on. It is given functions that read the hub, and never changes it.
"""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import Callable
from email.utils import formatdate
from importlib.resources import files
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from hubbub.core.connection import Opening
from hubbub.core.rights import Credentials, Rights, words_of
from hubbub.web import prometheus
from hubbub.web.mounted import Mounted
from hubbub.wire.http import CHALLENGE, Request, authorization

_DATE_SECONDS = 1.0
_STOP_SECONDS = 2.0
_SHOWN = "$SYS/#"
_OURS = ("/admin/", "/api/v1/", "/metrics", "/hubbub.js")  # before a mounted application
_CLIENT = "/hubbub.js"  # the JavaScript client: no secret, and what shows credentials itself


class Application:
    """Runs the ASGI application inside the hub's loop, on sockets the listener accepted.

    uvicorn keeps its own server loop out of it: we make its protocol objects by hand, which is
    not documented API; the version is pinned and `tests/web` holds what we rely on.
    """

    def __init__(
        self, status: Callable[[], dict[str, Any]], mounted: Mounted | None = None
    ) -> None:
        self.mounted = mounted
        self.asgi = Starlette(
            routes=[
                Route("/", self._page),
                Route("/admin/", self._admin),
                Route("/api/v1/status", self._status),
                Route("/metrics", self._metrics),
                Route(_CLIENT, self._script),
            ],
            exception_handlers={404: _not_found},
        )
        self._say_status = status
        self._client = files("hubbub.web").joinpath("static/hubbub.js").read_bytes()
        # Lifespan and WebSockets are the mounted application's; ours has none.
        ws, lifespan = ("websockets-sansio", "auto") if mounted is not None else ("none", "off")
        self._config = Config(
            mounted.app if mounted is not None else self.asgi, http="httptools", ws=cast(Any, ws),
            lifespan=cast(Any, lifespan), log_config=None, access_log=False, server_header=False,
            proxy_headers=False,
        )  # fmt: skip
        self._state = ServerState()
        self._date: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._config.load()
        self._refresh_date()
        if self.mounted is not None:
            await self.mounted.start(self._config)

    def claims(self, request: Request) -> bool:
        """Whether a WebSocket on this path is the mounted application's."""
        return self.mounted is not None and self.mounted.claims(request)

    def adopt(self, transport: asyncio.Transport, data: bytes, opening: Opening) -> None:
        """Take over a socket whose first bytes were `data`."""
        state = self.mounted.state if self.mounted is not None else {}
        protocol = cast(Any, self._config.http_protocol_class)(self._config, self._state, state)
        protocol.app = Guarded(self.asgi, opening)
        if self.mounted is not None:
            protocol.app = _Beside(protocol.app, self._config.loaded_app)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    async def stop(self) -> None:
        """Finish the requests under way, but not for long."""
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

    # Pages

    async def _status(self, request: WebRequest) -> JSONResponse:
        return JSONResponse(self._say_status())

    async def _metrics(self, request: WebRequest) -> Response:
        return Response(prometheus.page(self._say_status()), media_type=prometheus.CONTENT_TYPE)

    async def _page(self, request: WebRequest) -> HTMLResponse:
        text = html.escape(json.dumps(self._say_status(), indent=2))
        return HTMLResponse(_PAGE.replace("{status}", text))

    async def _script(self, request: WebRequest) -> Response:
        """Also for pages of the other `origins`; the listener has refused all else."""
        headers = {"access-control-allow-origin": "*", "cache-control": "no-cache"}
        return Response(self._client, media_type="text/javascript", headers=headers)

    async def _admin(self, request: WebRequest) -> Response:
        return RedirectResponse("/") if self.mounted is None else await self._page(request)


class _Beside:
    """The hub's own pages, and the mounted application for every other path.

    What that shows, and to whom, is its own affair: it is not behind the gate.
    """

    def __init__(self, ours: ASGIApp, mounted: ASGIApp) -> None:
        self._ours = ours
        self._mounted = mounted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["path"].startswith(_OURS)
        await (self._ours if ours else self._mounted)(scope, receive, send)


class Guarded:
    """The application behind the gate of one connection's listener.

    Each request is asked for its credentials: one connection may carry those of several people.
    What the pages show of the hub is for those who may subscribe to its `$SYS/#`; the JavaScript
    client is for everybody.
    """

    def __init__(self, app: ASGIApp, opening: Opening) -> None:
        self._app = app
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] != _CLIENT:
            refusal = await self._refusal(scope)
            if refusal is not None and scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": "not let in"})
                return
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        header = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        rights, reason = await self._ask(*authorization(header))
        if rights is None:
            return PlainTextResponse(words_of(reason) + "\n", 401, {CHALLENGE[0]: CHALLENGE[1]})
        if not rights.may_subscribe(_SHOWN):
            return PlainTextResponse(f"This needs the right to read {_SHOWN}\n", 403)
        return None

    async def _ask(self, user: str, secret: bytes) -> tuple[Rights | None, str]:
        answer = asyncio.get_running_loop().create_future()

        def done(rights: Rights | None, reason: str) -> None:
            if not answer.done():  # the connection went meanwhile
                answer.set_result((rights, reason))

        opening = self._opening
        shown = Credentials("", user, secret, opening.address, opening.certificate, opening)
        opening.gate.authenticate(shown, done)
        found: tuple[Rights | None, str] = await answer
        return found


def _not_found(request: WebRequest, error: Exception) -> PlainTextResponse:
    """A message-switch path without a login is answered as its clients know it."""
    return PlainTextResponse("Please log in.", 404)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Hubbub</title>
<meta http-equiv="refresh" content="2">
<style>body{font:15px/1.5 system-ui;margin:2rem auto;max-width:60rem}pre{font-size:13px}</style>
<h1>Hubbub</h1>
<p>This hub as it stands, every two seconds. The same as JSON: <a href="/api/v1/status">status</a>.
<pre>{status}</pre>
"""
