"""What a node says of its cluster in the hub's status. Called by the membership."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership


def trouble(membership: Membership) -> str:
    """Why it takes no part, or others do not, in words; "" if all is well."""
    said = [membership.excluded or membership.engine.trouble]
    for name, why in membership.shunned.items():
        if membership.hearing.lives(name):
            said.append(f"node {name!r} is shut out: {why}: set the one that is wrong (NTP)")
    return "; ".join(filter(None, said))


def report(membership: Membership) -> dict[str, Any]:
    """`kept`: messages that wait for others; those of `away` wait until they are back. `relayed`:
    connections here whose session is elsewhere, `relayed_home`: those elsewhere whose is here.
    `clocks`: of whoever is heard, also who is shut out for it, how far its clock is ahead of this.
    """
    here, estates = membership.nodes.values(), membership.estates.values()
    return {
        "name": membership.name,
        "up": membership.engine.up and not membership.excluded,
        "trouble": membership.trouble() or membership.broker.unmet,
        "messages_in": membership.messages_in,
        "messages_out": membership.messages_out,
        "frames_lost": membership.hearing.lost,
        "frames_refused": sum(membership.hearing.refused.values()),
        "phantoms": len(membership.broker.phantoms),
        "relayed": len(membership.relays.near),
        "relayed_home": len(membership.relays.far),
        "kept": sum(estate.unacknowledged() for estate in estates),
        "nodes": [
            {
                "name": node.name,
                "up": True,
                "version": node.version,
                "clients": len(node.clients) - 1,
                "filters": len(node.estate.wants),
                "waiting": node.unacknowledged(),
            }
            for node in here
        ],
        "away": _away(membership),
        "clocks": [
            {"name": name, "ahead_seconds": round(apart, 3)}
            for name, apart in sorted(membership.hearing.apart.items())
            if membership.hearing.lives(name)
        ],
    }


def _away(membership: Membership) -> list[dict[str, Any]]:
    """Nodes that are not there, and what nobody has of one that is. `since`: microseconds since
    1970, 0 = nobody knows; `heir`: who has what it had, or had it last; `waiting`: messages for
    what was there last.
    """
    directory, roster, waiting = membership.directory, membership.roster, dict[str, int]()
    since = dict(roster.away)
    for estate in membership.estates.values():
        if estate.holder is None:
            name = directory.holder(estate.client)
            waiting[name] = waiting.get(name, 0) + estate.unacknowledged()
            since.setdefault(name, directory.away_since(estate.client))
    return [
        {
            "name": name, "up": False, "since": at, "waiting": waiting.get(name, 0),
            "heir": ", ".join(roster.heirs(name)),
        }
        for name, at in since.items()
    ]  # fmt: skip
