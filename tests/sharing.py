"""Who takes which file when several processes share the tests (`make test`): pytest-xdist's own
`loadfile`, but that every second one begins at the front of the list and the others at its end.

`tests/conftest.py` makes it, and the list: at the front stands what keeps a processor busy, at the
end what waits.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]  # it ships no types
    def _assign_work_unit(self, node: WorkerController) -> None:
        files = self.workqueue if _busy(node) else reversed(self.workqueue)
        self.workqueue.move_to_end(next(iter(files)), last=False)
        super()._assign_work_unit(node)


def _busy(node: WorkerController) -> bool:
    """Of five processes two: they are called gw0, gw1 and so on."""
    return int(node.gateway.id[2:]) % 2 == 1
