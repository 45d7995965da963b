"""A node is removed for good, by hand: what has to hold first, and what is done.

    it is away ── what is left of it, here and as others say? ──┬─ something: refused, unless forced
                                                                └─ nothing: its stream gets a last
                                                  stop, and all forget it (`cluster.roster`)

Nobody votes: whoever is asked does it, and tells the others; who is away hears it later. Called by
the node for the web pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from hubbub.cluster import wills
from hubbub.cluster.membership import Membership
from hubbub.cluster.roster import Rest
from hubbub.runtime.heirs import Heirs

ASK_SECONDS: Final = 2.0  # for which others may take to say what they know
LOOK_SECONDS: Final = 0.02

MISSING, REFUSED, UNABLE = 404, 409, 503  # as HTTP says it


class Refusal(NamedTuple):
    """Why it was not done, and what kind of reason that is."""

    kind: int
    text: str


async def remove(
    membership: Membership, heirs: Heirs | None, schedule: Callable[[], None], name: str,
    force: bool,
) -> Refusal | Rest:  # fmt: skip
    """What went with it."""
    refusal = _is_away(membership, name)
    if refusal is None and not membership.roster.knows(name):
        if heirs is None or not await heirs.has_stream(name):
            removed = name in membership.roster.removed
            what = "was removed already" if removed else "was never there"
            refusal = Refusal(MISSING, f"node {name[:60]!r} {what}")
    if refusal is not None:
        return refusal
    rest, silent = await _rest(membership, schedule, name)
    untaken = heirs is not None and not await heirs.is_taken_over(name)
    if not force and (why := _would_lose(name, rest, silent, untaken)):
        return Refusal(REFUSED, why)
    refusal = _is_away(membership, name)  # it may be back meanwhile
    if refusal is not None:
        return refusal
    if heirs is not None:
        await heirs.stop_for_good(name)
    membership.roster.remove(name)
    return rest


def _is_away(membership: Membership, name: str) -> Refusal | None:
    if name == membership.name:
        return Refusal(REFUSED, f"this is node {name!r} itself: stop it, and ask another one")
    if name in membership.nodes or membership.hearing.lives(name):
        return Refusal(REFUSED, f"node {name!r} is there: stop it first")
    if membership.trouble() or not membership.engine.up:
        trouble = membership.trouble() or "the cluster cannot be reached"
        return Refusal(UNABLE, f"others cannot be told: {trouble}")
    if not wills.heard_all(membership):
        text = "this hub has not heard yet who is there: ask once more in some seconds"
        return Refusal(UNABLE, text)
    return None


async def _rest(
    membership: Membership, schedule: Callable[[], None], name: str
) -> tuple[Rest, list[str]]:
    """As all know it together, and who does not answer."""
    roster, loop = membership.roster, asyncio.get_running_loop()
    answers = roster.ask(name)
    schedule()
    until = loop.time() + ASK_SECONDS
    try:
        while loop.time() < until and membership.nodes.keys() - answers.keys():
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        roster.answers.pop(name, None)
    said = [roster.rest(name), *answers.values()]
    sessions, queues = (max(column) for column in list(zip(*said, strict=True))[:2])
    silent = sorted(membership.nodes.keys() - answers.keys())
    return Rest(sessions, queues, sum(one.messages for one in said)), silent


def _would_lose(name: str, rest: Rest, silent: list[str], untaken: bool) -> str:
    what = [
        f"{count:,} {word}{'s' * (count != 1)}"
        for word, count in zip(("session", "queue", "message"), rest, strict=True)
        if count
    ]
    if untaken:
        why = "nobody has taken over its copy so far, which another node does within a minute"
    elif what:
        why = f"nobody has taken over {', '.join(what)} (what is there, and what waits for it)"
    elif silent:
        why = f"node {', '.join(silent)} does not say what waits for it"
    else:
        return ""
    return f"node {name!r} would take with it what was acknowledged: {why}. --force (force=1) does"
