"""Of very many queues those that people should see first. Called by what shows queues. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hubbub.core.queue import Queue
from hubbub.core.queues import Queues

LOOKED: Final = 1_000  # queues that are looked at in a turn: a millisecond


def foremost(queues: Queues, most: int, found: list[Queue]) -> Iterator[None]:
    """Find at most so many, those first that need it: what is full, what waits and nobody reads it,
    what waits; with a stop behind each LOOKED of all.
    """
    rows: tuple[list[Queue], ...] = [], [], [], []
    for number, queue in enumerate(list(queues.broker.state.queues.values()), 1):
        row = rows[_rank(queues, queue)]
        if len(row) < most:
            row.append(queue)
        if not number % LOOKED:
            yield
    for row in rows:
        found += row[: most - len(found)]


def _rank(queues: Queues, queue: Queue) -> int:
    if not queue.messages:
        return 3
    if queues.is_full(queue):
        return 0
    return 2 if queue.readers or queue.consumers else 1
