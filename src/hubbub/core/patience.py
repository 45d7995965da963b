"""A reader that is slower than its sender: the sender waits, where nobody else waits with it.

    publish -> the only reader's link is choked -> written all the same, and
               nothing more is heard of the publisher -> the link drained, or SECONDS passed
                                                          -> heard again; or, the time being over,
                                                             what comes for it is dropped

What is acknowledged waits in a backlog, and has no need of this. A message without an
acknowledgement is dropped where its reader is behind, because ten others should not wait for one.
If that one is the only one who gets it, there are no others: its publisher is slowed down to what
it takes, as a file that crosses a connection is. What else that publisher has to say waits too,
so the time is bounded (docs/decisions/0020).

Sessions ask when they would drop; sockets say when a link has drained; no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hubbub.core.clock import Clock
from hubbub.core.limits import HOLD_BACK_BYTES, HOLD_BACK_SECONDS
from hubbub.core.link import Link
from hubbub.core.message import Run
from hubbub.core.metrics import Metrics
from hubbub.core.session import Session
from hubbub.core.topics import matches


@dataclass(slots=True)
class Slow:
    """A link that is behind: since when (monotonic), and what has its publishers heard again."""

    since: float
    waiting: list[Callable[[], None]] = field(default_factory=list)


class Patience:
    """`seconds` for which publishers wait for one reader until it has drained; 0 = not at all.
    `filters`: topics where they do however many others read them.
    """

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self.seconds = HOLD_BACK_SECONDS
        self.filters: Sequence[str] = ()
        self._clock = clock
        self._metrics = metrics
        self._slow: dict[Link, Slow] = {}

    def has(self, reader: Session, link: Link, run: Run) -> bool:
        """Whether a run may still be written to a choked link, for its publisher waits from now on.

        False: drop it. Who reads what it says itself would wait for itself. What one read of the
        publisher's socket brought is written, too, unless there is too much already: a thousand
        publishers may be heard in one turn.
        """
        opening = run.sender.opening
        if opening is None or not self.seconds or run.sender is reader:
            return False
        route = run.route
        if len(route.subscriptions) > 1 and not any(matches(f, route.name) for f in self.filters):
            return False
        slow = self._slow.get(link)
        if slow is None:
            slow = self._slow[link] = Slow(self._clock.now())
        elif self._clock.now() - slow.since > self.seconds:
            return False
        resume = opening.hold()
        if resume is None:
            return False
        if resume not in slow.waiting:
            slow.waiting.append(resume)
            self._metrics.held_back += 1
        return link.size <= HOLD_BACK_BYTES

    def drained(self, link: Link) -> None:
        """Its reader has caught up, or is gone."""
        slow = self._slow.pop(link, None)
        if slow is not None:
            _resume(slow)

    def wake(self) -> None:
        """Who waited for too long waits no more, and the reader gets no more until it drained."""
        now = self._clock.now()
        for link, slow in list(self._slow.items()):
            if link.transport is None:
                del self._slow[link]
                _resume(slow)
            elif now - slow.since > self.seconds:
                _resume(slow)


def _resume(slow: Slow) -> None:
    waiting, slow.waiting = slow.waiting, []
    for resume in waiting:
        resume()
