"""The application of `hubbub serve --app MODULE:NAME`: any ASGI application, on the hub's ports.

It gets every HTTP request that is neither a protocol's nor one of the hub's own paths, and the
WebSockets that its routes name; the rest of its life (start-up, shutdown) is in the lifespan of
ASGI. It reaches the hub through the state of its scopes. Made by the server, run by `app`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from starlette.routing import Match
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.importer import ImportFromStringError, import_from_string
from uvicorn.lifespan.off import LifespanOff
from uvicorn.lifespan.on import LifespanOn

from hubbub.errors import HubbubError, SettingError
from hubbub.wire.http import Request


class Mounted:
    """One application. `hub` is what it finds as `scope["state"]["hub"]`.

    Where the application has a `state` of its own (Starlette, FastAPI) it is there too:
    a lifespan function sees no scope, but `app.state.hub`.
    """

    def __init__(self, app: ASGIApp, hub: object) -> None:
        self.app = app
        self.state: dict[str, Any] = {"hub": hub}
        self._lifespan: LifespanOn | LifespanOff | None = None
        if hasattr(app, "state"):
            app.state.hub = hub

    async def start(self, config: Config) -> None:
        """Begin its lifespan, if it has one. HubbubError if that fails."""
        lifespan = self._lifespan = config.lifespan_class(config)
        lifespan.state.update(self.state)
        await lifespan.startup()
        if lifespan.should_exit:
            raise HubbubError("the application failed to start; its own message is above")
        self.state = lifespan.state

    async def stop(self) -> None:
        if self._lifespan is not None:
            await self._lifespan.shutdown()

    def claims(self, request: Request) -> bool:
        """Whether a WebSocket is the application's: whether a route of it is for that path.

        Of an application without routes nobody can know, so it has no WebSockets; nor have files,
        which are often mounted at / for all that no other route is for.
        """
        path = request.path.decode("latin-1")
        scope = {"type": "websocket", "path": path, "root_path": "", "headers": []}
        routes = getattr(self.app, "routes", ())
        found = next((one for one in routes if one.matches(scope)[0] is Match.FULL), None)
        return found is not None and not isinstance(getattr(found, "app", None), StaticFiles)


def load(place: str) -> ASGIApp:
    """The application at MODULE:NAME, from the current directory on. SettingError if not there."""
    sys.path.insert(0, os.getcwd())
    try:
        app: ASGIApp = import_from_string(place)
    except ImportFromStringError as error:
        raise SettingError(f"--app {place}: {error}") from None
    if not callable(app):
        raise SettingError(f"--app {place}: expected an ASGI application, got {app!r}")
    return app
