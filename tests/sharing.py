"""Who takes which file when several processes share the tests (`make test`): pytest-xdist's own
`loadfile`, but that some of them begin at the front of the list and the others at its end.

`tests/conftest.py` makes it, and the list: at the front stands what keeps a processor busy, at the
end what waits.
"""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# Three of seven, two of six: each wants a good half of a processor; what waits comes beside them.
BUSY: Final = ("gw1", "gw3", "gw5")


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]  # it ships no types
    def _assign_work_unit(self, node: WorkerController) -> None:
        busy = BUSY[: (self.numnodes - 1) // 2]
        files = self.workqueue if node.gateway.id in busy else reversed(self.workqueue)
        self.workqueue.move_to_end(next(iter(files)), last=False)
        super()._assign_work_unit(node)
