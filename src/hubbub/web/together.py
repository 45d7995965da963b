"""Several processes as one hub for who looks at it: their lists as one, and what one of them has.

    GET ls/clients ──> process 1 ── the first 100? ──> process 2    lists: each row says whose it is
    DELETE queue   ──> process 1 ── have you this? ──> process 2    deeds: done where the thing is

Who asks was asked for its rights where the request came to; processes of one hub trust one another.
One that does not answer in time is named, and the others' things are shown. A hub of one process
has no siblings, and nothing of this costs it anything. Called by `web.app`, `web.ending` and
`web.looking`; the questions are those of `runtime.siblings`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.session import Session, Silent
from hubbub.runtime.figures import Figures, together
from hubbub.runtime.siblings import DEED_SECONDS, Says, Siblings
from hubbub.web import listing
from hubbub.web.guarded import MISTAKE, refused

log = logging.getLogger("hubbub.web")

LIST, REFUSALS, POINTS, DEED = "list", "refusals", "points", "deed"  # what they ask one another
FAILED: Final = "failed"  # in what a deed says at another process: a status, and why
ALIKE: Final = ("retained",)  # kinds of which every process has all
# Kinds of few things that are put in order, of all processes together, and by what.
ORDERED: Final[dict[str, Callable[[dict[str, Any]], float]]] = {
    "gone": lambda row: -row["time"], "senders": listing.lightness,
}  # fmt: skip

Deed = Callable[[dict[str, str], Session], Awaitable[dict[str, Any] | None]]


class Listed(NamedTuple):
    """`processes`: how each of them is, [] if there is one alone."""

    items: list[dict[str, Any]]
    total: int
    processes: list[dict[str, Any]]


class Figured(NamedTuple):
    """Columns of points, and `processes` as above."""

    columns: dict[str, list[float]]
    processes: list[dict[str, Any]]


class Done(NamedTuple):
    """What a deed said, None if nobody has the thing; then `silent` says who may have it."""

    said: dict[str, Any] | None
    silent: str = ""

    def answer(self, missing: str) -> JSONResponse:
        if self.said is not None:
            return JSONResponse(self.said)
        if self.silent:
            return refused(503, f"{missing} here, and {self.silent}")
        return refused(404, missing)


class Host(Protocol):
    """What this needs of the hub's node."""

    broker: Broker
    clock: Clock

    @property
    def siblings(self) -> Siblings | None: ...
    @property
    def figures(self) -> Figures: ...


class Together:
    """What can be asked of this process for all, and what it asks the others. `deeds`: by what
    they are called; each is None if the thing is not here. `safe` waits until what was done is
    durable.
    """

    def __init__(self, hub: Host, safe: Callable[[], Awaitable[None]]) -> None:
        self._hub = hub
        self._safe = safe
        self.deeds: dict[str, Deed] = {}

    @property
    def siblings(self) -> Siblings | None:
        return self._hub.siblings

    def said(self) -> dict[str, Says]:
        return {
            LIST: self._say_list, REFUSALS: self._say_refusals, POINTS: self._say_points,
            DEED: self._do_for_another,
        }  # fmt: skip

    # Lists

    async def listed(self, kind: str, search: str, limit: int, offset: int) -> Listed:
        """A page of them: those of the first process, then those of the next one."""
        siblings = self.siblings
        if siblings is None or kind in ALIKE:
            return Listed(*await self._page(kind, search, limit, offset), [])
        reach = limit + offset if kind in ORDERED else limit * (offset == 0)
        ask = [kind, search, reach, 0]
        found = _decoded(await siblings.all_say(LIST, _encoded(ask)))
        counts = {number: said["count"] for number, said in found.items()}
        if offset and kind not in ORDERED:
            wanted = {
                number: _encoded([kind, search, *one])
                for number, one in shares(counts, limit, offset).items()
            }
            found = _decoded(await siblings.say(wanted, LIST))
        rows = [row | {"process": number} for number, one in found.items() for row in one["rows"]]
        if kind in ORDERED:
            rows = sorted(rows, key=ORDERED[kind])[offset:]
        each = [
            {"process": number, "up": number in counts, "count": counts.get(number, 0)}
            for number in siblings.numbers
        ]
        return Listed(rows[:limit], sum(counts.values()), each)

    async def _page(self, kind: str, search: str, limit: int, offset: int) -> listing.Page:
        things, siblings = listing.KINDS[kind](self._hub.broker), self.siblings
        beside = siblings.names if siblings is not None else ()
        return await listing.page(things, self._hub.clock, search, limit, offset, beside)

    async def _say_list(self, given: bytes) -> bytes:
        page = await self._page(*json.loads(given))
        return _encoded({"rows": page.items, "count": page.total})

    async def refusals(self, user: str | None, client: str | None, limit: int) -> Listed:
        """The last ones of all, the newest first."""
        siblings = self.siblings
        if siblings is None:
            rows = self._refused(user, client, limit)
            return Listed(rows, len(rows), [])
        found = _decoded(await siblings.all_say(REFUSALS, _encoded([user, client, limit])))
        rows = [row | {"process": number} for number, one in found.items() for row in one]
        rows.sort(key=lambda row: -row["time"])
        each = [{"process": number, "up": number in found} for number in siblings.numbers]
        return Listed(rows[:limit], len(rows), each)

    def _refused(self, user: str | None, client: str | None, limit: int) -> list[dict[str, Any]]:
        last = self._hub.broker.audit.refusals.last(user, client)
        return [one._asdict() for one in islice(last, limit)]

    async def _say_refusals(self, given: bytes) -> bytes:
        return _encoded(self._refused(*json.loads(given)))

    async def figures(self, since: int, most: int) -> Figured:
        """How it was, of all together."""
        siblings = self.siblings
        if siblings is None:
            return Figured(self._hub.figures.since(since, most), [])
        found = _decoded(await siblings.all_say(POINTS, _encoded([since, most])))
        each = [{"process": number, "up": number in found} for number in siblings.numbers]
        return Figured(together(list(found.values())), each)

    async def _say_points(self, given: bytes) -> bytes:
        return _encoded(self._hub.figures.since(*json.loads(given)))

    # Deeds

    async def do(self, deed: str, given: dict[str, str], asks: Session) -> Done:
        """Here, else at the process that has the thing."""
        said = await self.deeds[deed](given, asks)
        siblings = self.siblings
        if said is not None or siblings is None:
            return Done(said)
        return await self._do_at(siblings, siblings.others, deed, given, asks)

    async def do_at(self, process: int, deed: str, given: dict[str, str], asks: Session) -> Done:
        """At that one: each has things that are called the same."""
        siblings = self.siblings
        if siblings is None or process == siblings.number:
            return Done(await self.deeds[deed](given, asks))
        return await self._do_at(siblings, [process], deed, given, asks)

    async def _do_at(
        self, siblings: Siblings, numbers: list[int], deed: str, given: dict[str, str],
        asks: Session,
    ) -> Done:  # fmt: skip
        who = [asks.protocol, asks.client, asks.user, asks.address, asks.payer]
        about = dict.fromkeys(numbers, _encoded([deed, given, who]))
        found = await siblings.say(about, DEED, DEED_SECONDS)
        said = next((json.loads(one) for one in found.values() if one), None)
        if said is not None and FAILED in said:
            raise HTTPException(*said[FAILED])
        silent = [str(number) for number in numbers if number not in found]
        return Done(said, f"process {', '.join(silent)} does not answer" if silent else "")

    async def managed(self, asks: Session, verb: str, name: str) -> None:
        """Somebody did that here: it is told, and safe."""
        self._hub.broker.audit.managed(asks, verb, name)
        await self._safe()

    async def _do_for_another(self, given: bytes) -> bytes:
        """Who asks was let in there, and may do it."""
        deed, about, (protocol, client, user, address, payer) = json.loads(given)
        asks = Silent(protocol, client, self._hub.broker.open)
        asks.user, asks.address, asks.payer = user, address, payer
        try:
            said = await self.deeds[deed](about, asks)
        except HTTPException as error:
            said = {FAILED: [error.status_code, error.detail]}
        except Exception:  # without an answer who asks would wait for a minute
            log.exception("to %s for another process broke the hub's own code", deed)
            said = {FAILED: [500, MISTAKE]}
        return _encoded(said) if said is not None else b""


def shares(counts: Mapping[int, int], limit: int, offset: int) -> dict[int, tuple[int, int]]:
    """Which part of the page each of them has: how many, without its first how many."""
    found = {}
    for number, count in counts.items():
        have = min(limit, count - offset)
        if have > 0:
            found[number] = have, offset
            limit -= have
        offset = max(0, offset - count)
    return found


def _encoded(value: Any) -> bytes:
    """Names may be bytes that are no text: JSON in ASCII can say them."""
    return json.dumps(value, separators=(",", ":")).encode()


def _decoded(found: Mapping[int, bytes]) -> dict[int, Any]:
    return {number: json.loads(said) for number, said in found.items()}
