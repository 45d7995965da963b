"""Whether what is published somewhere stays on the disk, and where it waits then.

    a queue, a bound queue       stays, whoever takes from it
    later                        stays until it is due
    sessions that last           stays for who is away, or does not read
    groups with such members     stays if nobody of them is ready

Asked by the broker while the disk has little room (`Context.tight`), and only then. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.queue import PROTOCOL as QUEUE_PROTOCOL
from hubbub.core.route import Route
from hubbub.core.scarce import Places
from hubbub.core.share import Group
from hubbub.core.topics import QUEUE

FEW: Final = 4  # places of a message, of more nobody keeps an account


def stays(route: Route, qos: int, count: int = 1) -> bool:
    """Whether one of so many messages waits on the disk there."""
    if route.must or route.delay or route.name.startswith(QUEUE):
        return True
    if not qos:
        return False
    if any(state.keeps() for state, _ in route.audience):
        return True
    return any(group.keeps(count) for group in _groups(route))


def places_of(route: Route) -> Places:
    """The queues and sessions where it waits; () if that is more than can be said."""
    if route.name.startswith(QUEUE):
        return (route.name,)
    if route.delay or _groups(route):
        return ()
    sessions = [one.session for one in route.subscriptions]
    queues = [one.client for one in sessions if one.protocol == QUEUE_PROTOCOL]
    away = [(one.protocol, one.client) for one, _ in route.audience if one.keeps()]
    return (*queues, *away) if len(queues) + len(away) <= FEW else ()


def _groups(route: Route) -> list[Group]:
    return [one.session for one in route.subscriptions if isinstance(one.session, Group)]
