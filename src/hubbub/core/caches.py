"""Tables of answers that are cheap to find again, and together have no more than one bound.

    who asks ──> its table, a dict ──> the answer that is there
                     └── else found, and `keep(table, name, answer)`
                             └── all tables together are full: all begin anew

A table belongs to a group of clients with equal permissions, or to one client whose answers are its
own. There may be one or a hundred thousand of them, so a bound for each would be none.

The broker has one for routes and one for what leads to them, each gate has its own for verdicts.
Finds nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

FREED: Final = 8  # answers at a time: 100,000 at once keep everybody waiting for 60 ms


class Caches:
    """`most` answers in all tables; `emptied` is called when they begin anew.

    Who drops a table, or takes something out of it, need not say so: what was in it is counted
    until then, and not longer kept than until then.
    """

    __slots__ = ("most", "_emptied", "_tables", "_count", "_old")

    def __init__(self, most: int, emptied: Callable[[], None] | None = None) -> None:
        self.most = most
        self._emptied = emptied
        self._tables: list[dict[Any, Any]] = []
        self._count = 0
        self._old: list[Any] = []  # answers of before, of which a few go with each new one

    def __len__(self) -> int:
        """Answers that were kept since all began anew."""
        return self._count

    def keep(self, table: dict[Any, Any], name: object, answer: object) -> None:
        if name not in table:
            if self._count >= self.most:
                self._empty()
            elif self._old:
                del self._old[-FREED:]
            if not table:
                self._tables.append(table)
            self._count += 1
        table[name] = answer

    def _empty(self) -> None:
        for table in self._tables:
            self._old.extend(table.values())
            table.clear()
        self._tables.clear()
        self._count = 0
        if self._emptied is not None:
            self._emptied()
