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
from hubbub.core.limits import (
    HOLD_BACK_AGAIN,
    HOLD_BACK_BYTES,
    HOLD_BACK_FROM,
    HOLD_BACK_SECONDS,
)
from hubbub.core.link import Link
from hubbub.core.message import Run
from hubbub.core.metrics import Metrics
from hubbub.core.session import Session
from hubbub.core.topics import matches


@dataclass(slots=True)
class Slow:
    """A link that is behind: since when (monotonic), what each publisher has sent it since, in
    bytes, and what has those who wait heard again.
    """

    since: float
    sent: dict[Session, int] = field(default_factory=dict)
    waiting: dict[Session, Callable[[], None]] = field(default_factory=dict)


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
        self._in_vain: dict[Session, float] = {}  # who waited so, and until when it does not again

    def has(self, reader: Session, link: Link, run: Run) -> bool:
        """Whether a run may still be written to a choked link.

        False: drop it. Who reads what it says itself would wait for itself. Who has sent little
        did not fill the link, and is not made to wait for it: a reader could choke itself to stop
        a service that answers it. What one read of the publisher's socket brought is written, too,
        unless there is too much already: a thousand publishers may be heard in one turn.
        """
        sender, route = run.sender, run.route
        if sender.opening is None or not self.seconds or sender is reader:
            return False
        if len(route.subscriptions) > 1 and not any(matches(f, route.name) for f in self.filters):
            return False
        now = self._clock.now()
        slow = self._slow.get(link)
        if slow is None:
            slow = self._slow[link] = Slow(now)
        elif now - slow.since > self.seconds:
            return False
        slow.sent[sender] = slow.sent.get(sender, 0) + len(run.image)
        if slow.sent[sender] > HOLD_BACK_FROM and not self._waits(slow, sender, now):
            return False
        return link.size <= HOLD_BACK_BYTES

    def _waits(self, slow: Slow, sender: Session, now: float) -> bool:
        """Nothing more is heard of a publisher; False if it is not to wait, or cannot."""
        opening = sender.opening
        if opening is None or self._in_vain.get(sender, 0.0) > now:
            return False
        resume = opening.carrier.hold()  # also if it waits: another reader may have let it go on
        if resume is None:
            return False
        if sender not in slow.waiting:
            slow.waiting[sender] = resume
            self._metrics.held_back += 1
        return True

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
                self._in_vain.update(dict.fromkeys(slow.waiting, now + HOLD_BACK_AGAIN))
                slow.sent.clear()
                _resume(slow)
        if self._in_vain:
            self._in_vain = {one: over for one, over in self._in_vain.items() if over > now}


def _resume(slow: Slow) -> None:
    waiting, slow.waiting = slow.waiting, {}
    for resume in waiting.values():
        resume()
