"""The page, as the application that `hubbub serve --app page:app` shows on the hub's own port."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

SITE = Path(__file__).parent / "site"

app = Starlette(routes=[Mount("/", StaticFiles(directory=SITE, html=True))])
