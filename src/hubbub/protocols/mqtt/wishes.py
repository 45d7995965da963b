"""What a client had subscribed to when a message came that it was not sent yet, or not for good.

    number   first     …     end of an era    …    end of the next    …    next
             |  changes that came later undone |  fewer of them  |  as it is now

A message carries the identifiers of the subscriptions that matched when it came, and a repeated
one is the packet that was sent, with the same RETAIN (5.0, 3.3.1.1). So what changes while
something waits is kept until that is over. It is not kept over a restart of the hub: then what
waits is sent as the subscriptions are. Called by the session. No I/O.
"""

from __future__ import annotations

from hubbub.core.limits import SUBSCRIPTIONS
from hubbub.core.session import Subscription
from hubbub.core.topics import SHARE, matches, shared_filter
from hubbub.protocols.mqtt.dialect import Ids
from hubbub.protocols.mqtt.options import unpack


class Wishes:
    """`_eras`: (the number of the first delivery after it, filter -> what it was before).

    `_count`: how many changes they have together.
    """

    __slots__ = ("_count", "_eras")

    def __init__(self) -> None:
        self._eras: list[tuple[int, dict[str, Subscription | None]]] = []  # few, as a rule none
        self._count = 0

    def change(
        self, topic_filter: str, old: Subscription | None, first: int, following: int
    ) -> None:
        """`old` changes now. What waits has the numbers from `first` to before `following`."""
        self._forget(first)
        if first == following:
            return
        if not self._eras or self._eras[-1][0] != following:
            self._eras.append((following, {}))
        changes = self._eras[-1][1]
        self._count += topic_filter not in changes
        changes.setdefault(topic_filter, old)
        while self._count > SUBSCRIPTIONS:  # somebody plays: it gets what it asks now
            self._drop()

    def changed_since(self, number: int, first: int) -> bool:
        """Whether anything changed since a delivery came; `first` is the oldest that waits."""
        if self._eras:
            self._forget(first)
        return bool(self._eras) and number < self._eras[-1][0]

    def at(self, number: int, now: dict[str, Subscription]) -> list[Subscription]:
        """The subscriptions when the delivery with that number came; `now` are those of now."""
        then: dict[str, Subscription | None] = dict(now)
        for end, changes in reversed(self._eras):
            if number < end:
                then.update(changes)
        return [one for one in then.values() if one is not None]

    def _forget(self, first: int) -> None:
        while self._eras and self._eras[0][0] <= first:
            self._drop()

    def _drop(self) -> None:
        self._count -= len(self._eras.pop(0)[1])


def those_for(wishes: list[Subscription], topic: str, own: bool) -> list[Subscription]:
    """Those that a message matches; `own`: the client published it itself."""
    return [one for one in wishes if not (own and one.no_local) and _covers(one, topic)]


def _covers(subscription: Subscription, topic: str) -> bool:
    name = subscription.filter
    return matches(shared_filter(name) if name.startswith(SHARE) else name, topic)


def asked_by(matching: list[Subscription]) -> tuple[bool, Ids]:
    """What several subscriptions ask for one copy: the retain flag as it is, identifiers."""
    asked = [unpack(one.options) for one in matching if one.options]
    ids = tuple(sorted(one.identifier for one in asked if one.identifier))
    return any(one.as_published for one in asked), ids
