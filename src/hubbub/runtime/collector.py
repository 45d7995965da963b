"""The collector of cycles, in a process where much stays and little is in a cycle.

Python looks at all that lives whenever a fourth has been added, some 100 ns an object: a hub that
takes in 100,000 clients or names stands still for a tenth of a second, again and again. Here what
a full look leaves is put aside (`gc.freeze`): it goes as ever when nobody refers to it any more,
and is not looked at again. So most full looks are a few milliseconds, however much there is.

What is put aside and comes to be in a cycle later stays. Whoever leaves such cycles behind (a web
page that is cut off, a program, a library) makes what is aside grow, so everything is looked at
once that has doubled: what nobody refers to is never more than what somebody does, or MANY.

    full look ──> all that is left goes aside ──> counted ──> twice as much as when everything was
                                                              looked at? ──> all of it, next time

`hubbub serve` begins it; an embedded hub leaves the collector to its program. All commands load
their libraries without it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MANY: Final = 100_000  # objects: some 20 MB, and a look at them takes 10 ms
ALL: Final = -1  # in place of a count: everything is looked at next time
UNCOUNTED: Final = -2
FULL: Final = 2  # the generation of a look at all that is not aside


@contextmanager
def not_collecting() -> Iterator[None]:
    """For a start: nothing of it is garbage, and to look for some takes a third of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """For what a program loads before it does anything: it stays, and is never looked at. Of a
    command that asks a hub one thing that saves a fourth of the CPU.
    """
    with not_collecting():
        yield
        gc.freeze()


class Aside:
    """Puts aside what full looks leave, or has everything looked at the next time.

    `_least`: how much was aside when everything had been looked at; `_more`: how much was put there
    since, of which some may have gone. All that is aside is counted seldom, as that takes 20 ns an
    object: after a start when much has come.
    """

    def __init__(self) -> None:
        self._least = self._more = 0

    def begin(self) -> None:
        """What is there by now stays. It is not looked at: of a million clients and names that a
        start reads that takes a second, and hardly anything of them is garbage.
        """
        gc.freeze()
        self._least, self._more = UNCOUNTED, 0
        gc.callbacks.append(self.looked)

    def end(self) -> None:
        gc.callbacks.remove(self.looked)
        gc.unfreeze()

    def looked(self, phase: str, info: dict[str, int]) -> None:
        """The collector calls this before and after each look."""
        if phase != "stop" or info["generation"] != FULL:
            return
        if self._least == ALL:  # it was everything
            gc.freeze()
            self._least, self._more = gc.get_freeze_count(), 0
            return
        self._more += len(gc.get_objects(FULL))
        gc.freeze()
        if self._more > MANY and self._least == UNCOUNTED:
            self._least = max(gc.get_freeze_count() - self._more, 0)
        most = max(self._least, MANY)
        if self._more > most:
            self._more = max(gc.get_freeze_count() - self._least, 0)
        if self._more > most:
            self._least = ALL
            gc.unfreeze()
