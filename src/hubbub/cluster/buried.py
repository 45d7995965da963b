"""Nodes that were stopped and have an heir: what they said before is not heard, however late it is.

A frame may be held on its way until the heir has adopted what its sender had. The sender may have
promised none of it, and its publisher says to the heir once more what it was not answered: it
would be there twice. Owned by the membership. No I/O.
"""

from __future__ import annotations

from typing import TypeVar

from hubbub.core.clock import Clock
from hubbub.core.limits import CLUSTER_CLOCK_SECONDS, CLUSTER_NAMES

T = TypeVar("T")


class Named(dict[str, T]):
    """Something by the names of nodes. Whoever reaches the engine can say any: the oldest goes."""

    def __setitem__(self, name: str, what: T) -> None:
        self.pop(name, None)
        while len(self) >= CLUSTER_NAMES:
            del self[next(iter(self))]
        super().__setitem__(name, what)


class Buried:
    """By name when a node had started that was stopped, 0 if it was never met; until when it is not
    heard: one that never says that it knows of its stop would never be; and which message that is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._boots = Named[int]()
        self._nodes = Named[tuple[int, float, int]]()

    def met(self, name: str, boot: int) -> None:
        self._boots[name] = boot

    def bury(self, name: str, at: int) -> None:
        """A node has an heir now, or is about to, of what it had before that message."""
        until = self._clock.now() + CLUSTER_CLOCK_SECONDS
        self._nodes[name] = self._boots.get(name, 0), until, at

    def says(self, name: str, boot: int, fenced: int) -> bool:
        """Whether a frame is from before its node was stopped. `fenced`: which stop it says that it
        knows of.
        """
        known, until, at = self._nodes.get(name, (-1, 0.0, 0))
        if boot != known and known:
            return False
        if fenced < at and self._clock.now() < until:
            return True
        del self._nodes[name]
        return False
