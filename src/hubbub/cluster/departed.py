"""Clients that are gone from any node, and when they had come there: the last ones of all.

Who dies with wills is not asked any more whether their clients were elsewhere since; others are
(`cluster.wills`). Anybody may make very many such notes, so of who has over a fifth the oldest are
forgotten first. A long name is kept as its digest, under a protocol that no client speaks: nobody
takes it for another one's, and a node of before, which does not know it, for nobody's.

Called by the membership, by `cluster.wills` and the directory. No I/O.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

from hubbub.cluster.estates import Key
from hubbub.core.limits import CLUSTER_LEFT, CLUSTER_LONG
from hubbub.schema import name_to_wire

DIGEST: Final = "#"  # behind the name of a protocol
SHARE: Final = 5


def short(key: Key) -> Key:
    """The key, or what stands for it where many are remembered."""
    protocol, client = key
    if len(client) <= CLUSTER_LONG // 4:  # however many bytes a letter has
        return key
    wire = name_to_wire(client)
    if len(wire) <= CLUSTER_LONG:
        return key
    return protocol + DIGEST, hashlib.sha256(wire).hexdigest()


class Departed:
    """`_since`: when they had come, the oldest note first; `_whose` they are; `_of`: the same by
    whose; `_many`: who has over a fifth.
    """

    def __init__(self) -> None:
        self._since: dict[Key, int] = {}
        self._whose: dict[Key, str] = {}
        self._of: dict[str, dict[Key, None]] = {}
        self._many: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._since)

    def items(self) -> Iterator[tuple[Key, int]]:
        yield from self._since.items()

    def since(self, key: Key) -> int:
        """When a client had come that is gone; 0 of who is not remembered."""
        return self._since.get(short(key), 0)

    def note(self, key: Key, since: int, whose: str = "") -> None:
        """`whose`: to whom it is put down, "" = nobody says: who tells all that holds does not."""
        key = short(key)
        whose = whose or self._whose.get(key, "")
        since = max(since, self._since.get(key, 0))
        self._forget(key)
        while len(self._since) >= CLUSTER_LEFT:
            self._forget(self._oldest())
        self._since[key], self._whose[key] = since, whose
        its = self._of.setdefault(whose, {})
        its[key] = None
        if whose and len(its) > CLUSTER_LEFT // SHARE:
            self._many[whose] = None

    def _oldest(self) -> Key:
        return next(iter(self._of[next(iter(self._many))] if self._many else self._since))

    def _forget(self, key: Key) -> None:
        if self._since.pop(key, None) is None:
            return
        whose = self._whose.pop(key)
        its = self._of[whose]
        del its[key]
        if not its:
            del self._of[whose]
        if len(its) <= CLUSTER_LEFT // SHARE:
            self._many.pop(whose, None)
