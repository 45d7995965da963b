"""Something by the names of nodes, as many as a cluster may have. No I/O."""

from __future__ import annotations

from typing import TypeVar

from hubbub.core.limits import CLUSTER_NAMES

T = TypeVar("T")


class Named(dict[str, T]):
    """Whoever reaches the engine can say any name: the oldest goes."""

    def __setitem__(self, name: str, what: T) -> None:
        self.pop(name, None)
        while len(self) >= CLUSTER_NAMES:
            del self[next(iter(self))]
        super().__setitem__(name, what)
