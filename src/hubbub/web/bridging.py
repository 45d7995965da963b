"""Bridges that are cut off, and resumed, while the hub runs.

    POST /api/v1/bridges/cut-off?name=NAME    its connection ends, and no other is made
    POST /api/v1/bridges/resume?name=NAME     it connects again

Each asks for the right to `manage` `$SYS/#`, and is a line of the log and a row of the journal
(`managed`). Of several processes the one that has the bridge does it. Called by `web.app`.
"""

from __future__ import annotations

import typing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hubbub.core.rights import MANAGE
from hubbub.core.session import Session
from hubbub.core.topics import HUB
from hubbub.errors import SettingError
from hubbub.runtime.cutoff import CutOff
from hubbub.schema import name_shown
from hubbub.web.guarded import ADMISSION, BRIDGES, refused, session_of
from hubbub.web.publish import Inside
from hubbub.web.query import asked
from hubbub.web.together import Together


class Host(Inside, typing.Protocol):
    """What this needs of the hub's node."""

    cutoff: CutOff


class Bridging:
    """These requests of one hub."""

    def __init__(self, hub: Host, together: Together) -> None:
        self._hub = hub
        self._together = together
        together.deeds |= {
            "cut off": partial(self._change, cut=True), "resume": partial(self._change, cut=False)
        }  # fmt: skip

    def routes(self) -> list[Route]:
        return [
            Route(f"{BRIDGES}/cut-off", partial(self.change, deed="cut off"), methods=["POST"]),
            Route(f"{BRIDGES}/resume", partial(self.change, deed="resume"), methods=["POST"]),
        ]

    async def change(self, request: Request, deed: str) -> Response:
        name, broker = asked(request).get("name", ""), self._hub.broker
        asks = session_of(request.scope[ADMISSION])
        if not broker.may(asks, MANAGE, HUB):
            return refused(403, broker.refuse(asks, MANAGE, HUB))
        done = await self._together.do(deed, {"name": name}, asks)
        if done.said is not None and "trouble" in done.said:
            return refused(503, done.said["trouble"])
        return done.answer(f"there is no bridge {name[:100]!r}")

    async def _change(
        self, given: dict[str, str], asks: Session, cut: bool
    ) -> dict[str, Any] | None:
        name, hub = given["name"], self._hub
        if name not in hub.cutoff.bridges:
            return None
        try:
            hub.cutoff.change(name, cut)
        except SettingError as error:
            return {"trouble": str(error)}
        await self._together.managed(asks, "cut off" if cut else "resume", f"bridge {name}")
        kept = hub.cutoff.directory is not None
        return {"bridge": name_shown(name), "cut_off": cut, "kept": kept}
