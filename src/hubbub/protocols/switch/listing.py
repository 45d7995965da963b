"""`GET /list/PREFIX`: the queues that a client may know of. There may be 100,000. No I/O.

Sorted as the original does: by bytes, the last one first. Each turn brings some names of what was
there when it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.queue import Queue
from hubbub.core.rights import LIST
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.session import Visitor
from hubbub.protocols.switch.wait import Report, Wakeups
from hubbub.schema import name_to_wire

PIECE: Final = 500  # names that are looked at, or said: less than half a millisecond


class Listing(Report):
    """One answer on its way. `alive`: only those somebody ever read, which the original
    means, or that a consumer of another protocol has.
    """

    def __init__(
        self, wakeups: Wakeups, broker: Broker, session: Visitor, prefix: str, alive: bool
    ) -> None:
        super().__init__(wakeups, broker)
        self._session = session
        self._prefix = prefix
        self._alive = alive
        self._said: list[bytes] = []

    def pieces(self) -> Iterator[None]:
        runs: list[list[bytes]] = [[]]
        for number, queue in enumerate(list(self._broker.state.queues.values()), 1):
            if self._shows(queue):
                runs[-1].append(name_to_wire(queue.name))
            if not number % PIECE:
                runs[-1].sort(reverse=True)
                runs.append([])
                yield
        runs[-1].sort(reverse=True)
        for number, name in enumerate(merge(*runs, reverse=True), 1):
            self._said.append(codec.quoted(name))
            if not number % PIECE:
                yield

    def _shows(self, queue: Queue) -> bool:
        if not queue.name.startswith(self._prefix):
            return False
        if self._alive and queue.polled is None and not queue.consumers:
            return False
        rights, broker = self._session.rights, self._broker
        return rights is broker.open or broker.may(self._session, LIST, queue.client)

    def whole(self) -> bytes:
        return b"[%b]" % b",".join(self._said)
