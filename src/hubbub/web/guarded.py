"""Who may ask the web application for what.

    /hubbub.js, /hubbub.d.ts   everybody: the JavaScript client is no secret
    /, /admin/                 everybody: the page with nothing in it, and the login (`login`)
    a cookie of the login      who logged in, if the word of its session is said where that is asked
    /healthz, /readyz          everybody: two words for what looks after the process
    /api/ with `api.token`     who shows that token, who then may everything
    all else                   whom the gate of the listener lets in, with the rights it gives

Each request is asked for its credentials: one connection may carry those of several people. What
the pages show of the hub is for those who may receive all of `$SYS/#`; the journal is for those
who may receive everything; what is published is asked about topic by topic, by `publish`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hubbub.config.settings import Api
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Opening, at_once
from hubbub.core.rights import TRACE, words_of
from hubbub.core.session import Session, Silent
from hubbub.core.topics import HUB
from hubbub.errors import SettingError
from hubbub.web import script
from hubbub.web.login import (
    DOOR,
    NEEDS_TOKEN,
    SCHEME,
    WORD,
    WRONG_WORD,
    Door,
    Visit,
    Visits,
    cookie_in,
    needs_word,
    says_word,
)
from hubbub.wire.http import CHALLENGE, Request, authorization

API: Final = "/api/"
JOURNAL: Final = "/api/v1/journal"
PUBLISH: Final = "/api/v1/publish"
IDS: Final = "/api/v1/ids"
HISTORY: Final = "/api/v1/history"
RETAINED: Final = "/api/v1/retained"
TAIL: Final = "/api/v1/tail"
QUEUE: Final = "/api/v1/queue"
CLIENTS: Final = "/api/v1/clients"
SESSIONS: Final = "/api/v1/sessions"
DELAYED: Final = "/api/v1/delayed"
NODES: Final = "/api/v1/nodes"
BRIDGES: Final = "/api/v1/bridges"
BY_NAME: Final = (
    PUBLISH, IDS, RETAINED, TAIL, QUEUE, CLIENTS, SESSIONS, DELAYED, NODES, BRIDGES, HISTORY,
)  # fmt: skip
ADMISSION: Final = "hubbub.admission"  # where a scope keeps who its request comes from
MISTAKE: Final = "the hub made a mistake: its log says which"
BROKEN_OFF: Final = "upload broken off"
NOT_TAKEN: Final = "answer not taken"  # of pipelined requests, by who has gone
HEALTH: Final = "/healthz"
READY: Final = "/readyz"
PAGE: Final = "/admin/"  # below it are the files of the page, and its login
OPEN: Final = ("/", script.PATH, script.TYPES, HEALTH, READY)  # without a login, as below PAGE
_SAFE: Final = ("GET", "HEAD", None)  # methods that change nothing; a WebSocket has none
_SHOWING: Final = frozenset(  # headers of who shows something, or has more to say
    ("authorization", "cookie", "content-length", "transfer-encoding", "expect", "upgrade")
)
_GONE: Final = "the handler is closed"  # uvloop, of a write
_EVERYTHING: Final = ("#", "$queue/#")


def token_of(settings: Api) -> bytes:
    """The token that opens `/api/`, b"" if none is set. SettingError if it cannot be read."""
    if not settings.token_file:
        return settings.token.encode()
    if settings.token:
        raise SettingError("api.token and api.token_file are both set: leave one of them out")
    try:
        token = Path(settings.token_file).read_bytes().strip()
    except OSError as error:
        raise SettingError(
            f"api.token_file: cannot read {settings.token_file}: {error.strerror}"
        ) from None
    if not token:
        raise SettingError(f"api.token_file: {settings.token_file} is empty, expected a token")
    return token


class Guarded:
    """The application behind the gate of one connection's listener.

    `everything` is for who shows what `token` says now.
    """

    def __init__(
        self,
        app: ASGIApp,
        opening: Opening,
        everything: Admission,
        token: Callable[[], bytes],
        broker: Broker,
        visits: Visits,
    ) -> None:
        self._app = app
        self._opening = opening
        self._everything = everything
        self._token = token
        self._broker = broker
        self._visits = visits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._served(scope, receive, send)
        except ClientDisconnect:
            self._broker.metrics.drop(BROKEN_OFF)  # nobody is there to be told
        except RuntimeError as error:
            # uvicorn tells only the last of pipelined requests that their connection is gone.
            if not str(error).endswith(_GONE):
                raise
            self._broker.metrics.drop(NOT_TAKEN)
            _leave(send)

    async def _served(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refusal = await self._refusal(scope)
            if refusal is not None and scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": "not let in"})
                return
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            await refused(503, "the hub is stopping")(scope, receive, send)

    async def _refusal(self, scope: Scope) -> Response | None:
        headers = {name.decode("latin-1"): v.decode("latin-1") for name, v in scope["headers"]}
        shown = headers.get("authorization", "")
        path = scope["path"]
        # The listener saw only the connection's first request.
        elsewhere = self._opening.site.refusal(headers, scope.get("method") not in _SAFE)
        if elsewhere is not None:
            return refused(*elsewhere)
        token = self._token()
        door = Door(self._opening, token, self._everything, self._ask, self._turn)
        if path in OPEN or path.startswith(PAGE):
            await self._turn()
            scope[DOOR] = door
            return None
        if not shown:
            visit = await self._visits.found(cookie_in(headers, self._opening), door)
            if visit is not None:
                return self._visited(scope, visit, headers)
        if path.startswith(API) and token:
            lacks = self._visits.tokens.lacks(_bearer(shown), token, self._opening, again=True)
            if lacks:
                await self._turn()
                self._opening.turn_away("", "", f"{path[:100]} wants the token of the API")
                return _wants_token(headers, lacks)
            scope[ADMISSION] = self._everything
            self._opening.carrier.let_in("", "")
            return None
        admission, reason = await self._ask(*authorization(shown))
        if admission is None:
            await self._turn()
            return _not_let_in(path, reason, headers)
        # Not `stays`: the next request may be somebody else's. What takes long asks `outdated`.
        scope[ADMISSION] = admission
        return _missing(self._broker, path, admission)

    def _visited(self, scope: Scope, visit: Visit, headers: dict[str, str]) -> Response | None:
        """What is refused to who is logged in by the page."""
        if needs_word(scope.get("method", "GET")) and not says_word(visit, headers.get(WORD, "")):
            return refused(403, WRONG_WORD)
        admission = scope[ADMISSION] = visit.admitted(self._opening)
        self._opening.carrier.let_in(admission.owner, "")
        return _missing(self._broker, scope["path"], admission)

    async def _turn(self) -> None:
        """Until there is time for who is not let in."""
        turn = asyncio.get_running_loop().create_future()

        def come() -> None:
            if not turn.done():
                turn.set_result(None)

        self._opening.carrier.turn(come)
        await turn

    async def _ask(self, user: str, secret: bytes) -> tuple[Admission | None, str]:
        answer = asyncio.get_running_loop().create_future()

        def decided(admission: Admission | None, reason: str) -> None:
            if not answer.done():  # the connection went meanwhile
                answer.set_result((admission, reason))

        self._opening.ask("", user, secret, decided, at_once)
        found: tuple[Admission | None, str] = await answer
        return found


def _leave(send: Send) -> None:
    """Say to uvicorn that nobody waits for this answer: else it complains that it is not whole, a
    line of the log for each connection of a flood.
    """
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle):
        cycle.disconnected = True


def dismissed(request: Request, opening: Opening, token: bytes) -> Response | None:
    """The answer to a connection's first request if it shows nothing where something must be
    shown; None if it is to be looked at by all that makes the application.

    Of a flood most are such. Refused here they take a third of the time.
    """
    headers, path = request.headers, request.path.decode("latin-1")
    shows = request.method != "GET" or "%" in path or not _SHOWING.isdisjoint(headers)
    if shows or path in OPEN or path.startswith(PAGE):
        return None
    if path.startswith(API) and token:
        opening.turn_away("", "", f"{path[:100]} wants the token of the API")
        return _wants_token(headers, NEEDS_TOKEN)
    if opening.gate.anonymous:
        return None
    reasons: list[str] = []
    opening.ask("", "", b"", lambda _, reason: reasons.append(reason), at_once)
    return _not_let_in(path, reasons[0], headers)


def _not_let_in(path: str, reason: str, headers: Mapping[str, str]) -> Response:
    if path.startswith(API):
        return refused(401, words_of(reason), _challenge(headers))
    return PlainTextResponse(words_of(reason) + "\n", 401, {CHALLENGE[0]: CHALLENGE[1]})


def session_of(admission: Admission, client: str = "") -> Session:
    """Whoever makes one request, as the broker knows clients."""
    session = Silent(admission.protocol, client, admission.rights)
    session.user, session.opening = admission.user, admission.opening
    session.payer = admission.owner
    session.address = admission.opening.address if admission.opening is not None else ""
    return session


def refused(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """How the API says no (RFC 9457); `error` is `detail` by the name that it had before."""
    said = {"title": HTTPStatus(status).phrase, "status": status, "detail": text, "error": text}
    return JSONResponse(said, status, headers, "application/problem+json")


def outdated(admission: Admission) -> JSONResponse | None:
    """How to end a request whose credentials hold no more, None while they do."""
    if admission.holds():
        return None
    words = "the credentials of this request have expired, or what they allow was changed"
    return refused(401, words, {CHALLENGE[0]: CHALLENGE[1]})


def _bearer(header: str) -> bytes:
    """The token that it says, b"" (which none is) if it says something else."""
    scheme, _, shown = header.strip().partition(" ")
    return shown.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""


def _challenge(headers: Mapping[str, str], scheme: str = CHALLENGE[1]) -> dict[str, str]:
    """What to show. A browser asks for a password by itself where it knows the scheme; the page
    has a form for that, and says with each request that it asks.
    """
    return {CHALLENGE[0]: SCHEME if WORD in headers else scheme}


def _wants_token(headers: Mapping[str, str], lacks: str) -> JSONResponse:
    wanted = (
        "expected `Authorization: Bearer TOKEN` with the token of this hub: the setting api.token "
        "or the file named by api.token_file"
    )
    return refused(
        401,
        wanted if lacks == NEEDS_TOKEN else lacks,
        _challenge(headers, 'Bearer realm="hubbub"'),
    )


def _missing(broker: Broker, path: str, admission: Admission) -> Response | None:
    """What a client that was let in lacks for this path, if anything."""
    if path.startswith(BY_NAME):  # they ask by themselves, name by name
        return None
    asks = session_of(admission)
    if path == JOURNAL:
        for name in _EVERYTHING:
            if not broker.may(asks, TRACE, name):
                why = broker.refuse(asks, TRACE, name)
                return refused(403, f"reading the journal means every topic and queue: {why}")
        return None
    if broker.may(asks, TRACE, HUB):
        return None
    why = broker.refuse(asks, TRACE, HUB)
    return refused(403, why) if path.startswith(API) else PlainTextResponse(why + "\n", 403)
