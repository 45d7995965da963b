"""Sessions whose clients have been away for long, all of them together.

    GET    /api/v1/sessions/away?protocol=NAME&seconds=N    which they are, page by page
    DELETE /api/v1/sessions/away?protocol=NAME&seconds=N    they are over, so many of them at once

Each is ended as one that is ended by its name (`ending`), in turns of which each takes a moment:
there may be a million. Where a hub has several processes each looks among its own. Called by
`ending`, which has asked for the right.
"""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hubbub.core.session import Revival, Session
from hubbub.web.publish import Inside
from hubbub.web.query import sayable
from hubbub.web.together import Together
from hubbub.web.turns import SECONDS, done_in_turns

ENDED: Final = 5_000  # of one request
SHOWN: Final = 10_000  # of one answer: for each all are gone through
LOOKED: Final = 1_000  # sessions of one piece: half a millisecond
DAY: Final = 86_400
_SECOND: Final = 1_000_000


class Host(Inside, typing.Protocol):
    """What this needs of the hub's node."""

    @property
    def protocols(self) -> Sequence[Revival]: ...


class Away:
    """These requests of one hub."""

    def __init__(self, hub: Host, together: Together) -> None:
        self._hub = hub
        self._together = together
        together.deeds |= {"look away": self._looked, "end away": self._ended}

    async def all(
        self, deed: str, asks: Session, protocol: str, seconds: int, limit: int, offset: int = 0
    ) -> dict[str, Any]:
        """Of all processes, one after the other. `silent`: those that do not answer."""
        siblings = self._together.siblings
        rows: list[dict[str, Any]] = []
        count, silent = 0, []
        clock = self._hub.broker.clock
        until = clock.now() + SECONDS
        for process in siblings.numbers if siblings is not None else [0]:
            given = {
                "protocol": protocol, "away": str(seconds), "limit": str(limit - len(rows)),
                "offset": str(max(0, offset - count)),
            }  # fmt: skip
            if deed == "end away":
                if count and clock.now() > until:
                    break  # who asks on comes to the others
                given["limit"] = str(limit - count)
            done = await self._together.do_at(process, deed, given, asks)
            if done.said is None:
                silent.append(process)
            else:
                count += done.said["count"]
                rows += done.said.get("sessions", [])
        return {"count": count, "sessions": rows, "silent": silent}

    def _found(self, given: dict[str, str]) -> Iterator[Session | None]:
        """Those that are meant; None for each of the others."""
        broker, protocol = self._hub.broker, given["protocol"]
        before = broker.clock.stamp() - int(given["away"]) * _SECOND
        for session in list(broker.sessions.values()):
            key = session.protocol, session.client
            state = broker.state.sessions.get(key)
            meant = (
                session.protocol == protocol and not session.number and state is not None
                and 0 < state.left <= before and key not in broker.lost
            )  # fmt: skip
            yield session if meant else None

    async def _looked(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        first, limit = int(given["offset"]), int(given["limit"])
        broker, rows, count = self._hub.broker, [], 0
        for number, session in enumerate(self._found(given), 1):
            if session is not None:
                if first <= count < first + limit:
                    state = broker.state.sessions[session.protocol, session.client]
                    rows.append(sayable({
                        "client": session.client, "user": session.user, "left": state.left,
                        "waiting": len(state.backlog.entries),
                    }))  # fmt: skip
                count += 1
            if not number % LOOKED:
                await asyncio.sleep(0)
        return {"count": count, "sessions": rows}

    async def _ended(self, given: dict[str, str], asks: Session) -> dict[str, Any] | None:
        over = list[str]()
        try:
            await done_in_turns(self._hub, self._end(given, over))
        finally:
            if over:
                away = f"{given['protocol']} {len(over)} away for {int(given['away']) / DAY:g} days"
                await self._together.managed(asks, "end sessions", away)
        return {"count": len(over)}

    def _end(self, given: dict[str, str], over: list[str]) -> Iterator[None]:
        """Those that are meant, as many as may be; `over` gets the clients whose sessions were."""
        if self._hub.broker.undecided:
            return  # another node may have what lasts here
        protocols = [one for one in self._hub.protocols if one.name == given["protocol"]]
        most, clock = int(given["limit"]), self._hub.broker.clock
        until = clock.now() + SECONDS
        for passed, session in enumerate(self._found(given), 1):
            if len(over) >= most or (over and clock.now() > until):
                return
            if session is not None and any(one.end_away(session.client) for one in protocols):
                over.append(session.client)  # else it has come back since it was found
            if session is not None or not passed % LOOKED:
                yield
