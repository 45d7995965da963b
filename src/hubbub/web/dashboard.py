"""The page of the hub: its files as they lie in `static/dashboard`, for everybody.

They say nothing of the hub: what they show they ask the API for, as whoever logs in (`login`).
Plain modules, nothing is built; a file more is there when it lies there. The policy that goes with
the page lets it load and ask nothing but this hub, and run nothing that is not such a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hubbub.web.login import Sessions

FILE: Final = "/admin/{file:path}"
TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
POLICY: Final = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
))  # fmt: skip
HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def routes(sessions: Sessions) -> list[Route]:
    return [
        Route("/admin/session", sessions.who),
        Route("/admin/login", sessions.login, methods=["POST"]),
        Route("/admin/logout", sessions.logout, methods=["POST"]),
        Route(FILE, _file),
    ]


async def page(request: Request) -> Response:
    return _answer("index.html")


async def _file(request: Request) -> Response:
    return _answer(request.path_params["file"])


def _answer(name: str) -> Response:
    if name not in _files():
        return PlainTextResponse("there is no such file\n", 404)
    return Response(_files()[name], headers={**HEADERS, "content-type": _type(name)})


def _type(name: str) -> str:
    return TYPES[name.rpartition(".")[2]]


@cache
def _files() -> dict[str, bytes]:
    """All of them, by their path below the folder."""
    return dict(_below(files("hubbub.web").joinpath("static/dashboard"), ""))


def _below(folder: Traversable, place: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _below(one, f"{place}{one.name}/")
        elif one.name.rpartition(".")[2] in TYPES:
            yield place + one.name, one.read_bytes()
