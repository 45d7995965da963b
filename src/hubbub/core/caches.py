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

import contextlib
import weakref
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

LONG: Final = 512  # bytes of a name that weigh as much as an answer: names may have 64 KiB
FREED: Final = 8  # answers at a time: 100,000 at once keep everybody waiting for 60 ms
LOOKED_FREED: Final = 500  # with a look: a millisecond, if each is all that is left of a session


def weight_of(name: str | bytes) -> int:
    """Of something small with a name, where so many are counted."""
    return 1 + len(name) // LONG


class Caches:
    """As many answers in all tables as weigh `most`; `emptied` is called when they begin anew.

    Who is gone says so (`forget`), or is followed (`goes_with`): what it had is not counted then.
    What is out of date goes by and by, if somebody says what is (`look`).
    """

    __slots__ = (
        "most", "_emptied", "_tables", "_weights", "_weight", "_owners", "_old", "_round", "_at",
    )  # fmt: skip

    def __init__(self, most: int, emptied: Callable[[], None] | None = None) -> None:
        self.most = most
        self._emptied = emptied
        self._tables: dict[int, dict[Any, Any]] = {}
        self._weights: dict[int, int] = {}
        self._weight = 0
        self._owners: dict[int, object] = {}  # references to them, which call when they are gone
        self._old: list[Any] = []  # answers of before, of which a few go with each new one
        self._round: list[int] = []  # tables that are looked at, the next one last
        self._at = 0  # so many answers of that were looked at

    def __len__(self) -> int:
        """What all weigh that are there."""
        return self._weight

    def keep(
        self, table: dict[Any, Any], name: object, answer: object, weight: int = 1
    ) -> None:
        if name not in table and self._weight + weight > self.most:
            self._empty()
        elif self._old:
            del self._old[-FREED:]
        place = id(table)
        self._tables[place] = table
        more = weight - (name in table)  # what it replaces may have been lighter
        self._weights[place] = self._weights.get(place, 0) + more
        self._weight += more
        table[name] = answer

    def look(self, is_stale: Callable[[Any], bool], most: int) -> bool:
        """Let go of what is stale among the next `most` answers; whether it was the end of all."""
        self._round = self._round or list(self._tables)
        while self._round and most > 0:
            table = self._tables.get(self._round[-1], {})
            names = list(islice(table, self._at, self._at + most))
            stale = [name for name in names if is_stale(table[name])]
            for name in stale:
                self._let_go(table, name)
            self._at += len(names) - len(stale)
            if len(names) < most:
                self._round.pop()
                self._at = 0
            most -= len(names) + 1
        del self._old[-LOOKED_FREED:]
        return not self._round

    def _let_go(self, table: dict[Any, Any], name: object) -> None:
        weight = self._weights[id(table)] // len(table)  # what one there weighs
        self._weights[id(table)] -= weight
        self._weight -= weight
        self._old.append(table.pop(name))

    def forget(self, table: dict[Any, Any]) -> None:
        """Who has it is gone, or another one now. A table of other caches stays as it is."""
        if id(table) in self._tables:
            self._drop(id(table))
            table.clear()

    def goes_with(self, owner: object, table: dict[Any, Any]) -> None:
        """Forget the table when its owner is gone, which nobody says."""
        place = id(table)
        if place not in self._owners:
            with contextlib.suppress(TypeError):  # some compiled objects cannot be followed
                self._owners[place] = weakref.ref(owner, lambda _: self._drop(place))

    def _drop(self, place: int) -> None:
        self._owners.pop(place, None)
        if self._tables.pop(place, None) is not None:
            self._weight -= self._weights.pop(place)

    def _empty(self) -> None:
        for table in self._tables.values():
            self._old.extend(table.values())
            table.clear()
        self._tables.clear()
        self._weights.clear()
        self._weight = 0
        if self._emptied is not None:
            self._emptied()
