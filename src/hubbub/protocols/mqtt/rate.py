"""How often something may be done in a second: connecting. No I/O."""

from __future__ import annotations


class Rate:
    """How many things in a second: `most`, 0 = any number. A second begins with its first."""

    __slots__ = ("_count", "_since", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._since = 0.0
        self._count = 0

    def takes(self, now: float, count: int) -> bool:
        """Whether so many more are within the bound."""
        if now - self._since >= 1.0:
            self._since, self._count = now, 0
        self._count += count
        return not self.most or self._count <= self.most
