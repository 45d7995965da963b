"""Lines of what waits, one for each node: who says very much keeps others waiting for a turn.

    add ──→ the line of a node, if there is room ──→ the first of the first line, for a turn
                                                          └── then the next line has one

All of them take `most` bytes together, and each as much as it leaves to others: one that is alone
half. What is first may be work for many turns. Owned by the hearing. No I/O.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

DONE: Final = object()

T = TypeVar("T")


class Line(Generic[T]):
    """What waits of one node, the first one while it is worked on, too, and how much each takes;
    `room` is what all do, `going` what is left of the first.
    """

    __slots__ = ("waiting", "room", "going")

    def __init__(self) -> None:
        self.waiting: deque[tuple[T, int]] = deque()
        self.room = 0
        self.going: Iterator[None] | None = None


class Lines(Generic[T]):
    """`work` does what waits, in pieces. `room`: what all take."""

    def __init__(self, most: int, work: Callable[[T], Iterator[None]]) -> None:
        self.room = 0
        self._most = most
        self._work = work
        self._lines: OrderedDict[str, Line[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._lines)

    def __len__(self) -> int:
        """How much waits, of all nodes."""
        return sum(len(line.waiting) for line in self._lines.values())

    def __contains__(self, name: str) -> bool:
        return name in self._lines

    def firsts(self) -> Iterator[T]:
        """The oldest of each line."""
        for line in self._lines.values():
            yield line.waiting[0][0]

    def _free(self, name: str) -> tuple[int, int]:
        """What a node takes, and what it may."""
        line = self._lines.get(name)
        return (line.room if line is not None else 0), self._most - self.room

    def is_full(self, name: str) -> bool:
        takes, may = self._free(name)
        return takes >= may

    def has_much_room(self, name: str) -> bool:
        """Whether it takes less than half of what it may."""
        takes, may = self._free(name)
        return 2 * takes < may

    def add(self, name: str, what: T, size: int) -> None:
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line()
        line.waiting.append((what, size))
        self._takes(line, size)

    def _takes(self, line: Line[T], size: int) -> None:
        line.room += size
        self.room += size

    def go_on(self) -> bool:
        """With the first of the first line; False if the turn is over, and more of it is left."""
        if not self._lines:
            return True
        name, line = next(iter(self._lines.items()))
        what, size = line.waiting[0]
        if line.going is None:
            line.going = self._work(what)
        over = True
        try:
            over = next(line.going, DONE) is DONE
        finally:
            if over:
                line.going = None
                line.waiting.popleft()
                self._takes(line, -size)
            if line.waiting:
                self._lines.move_to_end(name)
            else:
                del self._lines[name]
        return over
