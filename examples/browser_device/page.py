"""The page, as the application that `hubbub serve --app page:app` shows on the hub's own port."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles

app = StaticFiles(directory=Path(__file__).parent / "site", html=True)
