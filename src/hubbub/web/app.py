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
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from hubbub.core.connection import Opening
from hubbub.core.rights import Credentials, Rights
from hubbub.wire.http import CHALLENGE, Request, authorization

_DATE_SECONDS = 1.0
_STOP_SECONDS = 2.0
_SHOWN = "$SYS/#"


class Application:
    """Runs the ASGI application inside the hub's loop, on sockets the listener accepted.

    uvicorn keeps its own server loop out of it: we make its protocol objects by hand, which is
    not documented API; the version is pinned and `tests/web` holds what we rely on.
    """

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self.asgi = Starlette(
            routes=[
                Route("/", self._page),
                Route("/admin/", self._admin),
                Route("/api/v1/status", self._status),
            ],
            exception_handlers={404: _not_found},
        )
        self._say_status = status
        self._config = Config(
            self.asgi, http="httptools", ws="none", lifespan="off", log_config=None,
            access_log=False, server_header=False, proxy_headers=False,
        )  # fmt: skip
        self._state = ServerState()
        self._date: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        self._config.load()
        self._refresh_date()

    def claims(self, request: Request) -> bool:
        """Whether a WebSocket on this path is the application's. None is, so far."""
        return False

    def adopt(self, transport: asyncio.Transport, data: bytes, opening: Opening) -> None:
        """Take over a socket whose first bytes were `data`."""
        protocol = cast(Any, self._config.http_protocol_class)(self._config, self._state, {})
        protocol.app = Guarded(self._config.loaded_app, opening)
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

    def _refresh_date(self) -> None:
        """uvicorn's server does this once a second; here nobody else would."""
        now = formatdate(usegmt=True).encode()
        self._state.default_headers = [(b"date", now), *self._config.encoded_headers]
        loop = asyncio.get_running_loop()
        self._date = loop.call_later(_DATE_SECONDS, self._refresh_date)

    # Pages

    async def _status(self, request: WebRequest) -> JSONResponse:
        return JSONResponse(self._say_status())

    async def _page(self, request: WebRequest) -> HTMLResponse:
        text = html.escape(json.dumps(self._say_status(), indent=2))
        return HTMLResponse(_PAGE.replace("{status}", text))

    async def _admin(self, request: WebRequest) -> RedirectResponse:
        return RedirectResponse("/")


class Guarded:
    """The application behind the gate of one connection's listener.

    Each request is asked for its credentials: one connection may carry those of several people.
    What the pages show of the hub is for those who may subscribe to its `$SYS/#`.
    """

    def __init__(self, app: ASGIApp, opening: Opening) -> None:
        self._app = app
        self._opening = opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
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
            return PlainTextResponse(reason + "\n", 401, {CHALLENGE[0]: CHALLENGE[1]})
        if not rights.may_subscribe(_SHOWN):
            return PlainTextResponse(f"This needs the right to read {_SHOWN}\n", 403)
        return None

    async def _ask(self, user: str, secret: bytes) -> tuple[Rights | None, str]:
        answer = asyncio.get_running_loop().create_future()

        def done(rights: Rights | None, reason: str) -> None:
            if not answer.done():  # the connection went meanwhile
                answer.set_result((rights, reason))

        opening = self._opening
        shown = Credentials("", user, secret, opening.address, opening.certificate)
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
