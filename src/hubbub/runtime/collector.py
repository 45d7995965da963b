"""The collector of cycles, in a process where much stays and next to nothing is in a cycle.

Python looks at all that lives whenever a fourth has been added, some 40 ns an object: a hub that
takes in 100,000 clients or names stands still for a tenth of a second, again and again. Here what
a full look leaves is put aside (`gc.freeze`): it goes as ever when nobody refers to it any more,
and is not looked at again, so that a full look is a few milliseconds, however much there is.

What comes to be in a cycle afterwards would stay. Connections are in none when they have ended
(`tests/runtime/test_collector.py`); for what may be, a page's or a program's, everything is looked
at once as many connections have gone as there are. `hubbub serve` begins it; an embedded hub
leaves the collector to its program.
"""

from __future__ import annotations

import gc
from typing import Final

from hubbub.core.metrics import Metrics

MANY: Final = 20_000  # connections that ended: before that, what they may have left is a few MB
FULL: Final = 2  # the generation of a look at all that is not put aside


class Aside:
    """Puts aside what full looks leave, or has everything looked at the next time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._gone = metrics.connections_ended

    def begin(self) -> None:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.looked)

    def end(self) -> None:
        gc.callbacks.remove(self.looked)
        gc.unfreeze()

    def looked(self, phase: str, info: dict[str, int]) -> None:
        """The collector calls this before and after each look."""
        if phase != "stop" or info["generation"] != FULL:
            return
        gone = self._metrics.connections_ended
        if gone - self._gone > max(MANY, self._metrics.connections - gone):
            self._gone = gone
            gc.unfreeze()
        else:
            gc.freeze()
