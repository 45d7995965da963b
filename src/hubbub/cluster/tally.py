"""Who published how much of what waits for another node: one user does not fill it for all.

    numbers of what waits:   [ page | page | ... | page that goes on ]
                                 ^ {"user 'ann'": 9,200, "address 10.0.0.7": 800}

What waits goes in the order of its numbers, so a page of them is given back when the last one of it
has gone: a user counts as having up to a page more than it has. What was there before this start,
or came with the estate of a node that died, counts for nobody. Owned by what is kept for an estate
(`cluster.keeping`). No I/O.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from hubbub.core.limits import CLUSTER_KEPT
from hubbub.core.quotas import payer
from hubbub.core.session import Session

PAGE: Final = CLUSTER_KEPT // 100  # numbers: what counts is as much behind what is there, at most


@dataclass(slots=True)
class Page:
    """What users have of the numbers from `first` up to `end`."""

    first: int
    end: int
    users: dict[str, int] = field(default_factory=dict)


class Tally:
    """Of one backlog."""

    def __init__(self) -> None:
        self._users: dict[str, int] = {}
        self._pages: deque[Page] = deque()

    def of(self, sender: Session) -> int:
        """How much the user of this client has of it."""
        return self._users.get(payer(sender), 0)

    def add(self, sender: Session, count: int, end: int) -> None:
        """So many, the last ones before the number `end`, are of this client."""
        whose = payer(sender)
        if not (whose and count):
            return
        if not self._pages or end > self._pages[-1].first + PAGE:
            self._pages.append(Page(end - count, end))
        page = self._pages[-1]
        page.end = end
        page.users[whose] = page.users.get(whose, 0) + count
        self._users[whose] = self._users.get(whose, 0) + count

    def settle(self, first: int) -> None:
        """What is below this number waits no more."""
        while self._pages and self._pages[0].end <= first:
            for whose, count in self._pages.popleft().users.items():
                left = self._users.pop(whose) - count
                if left:
                    self._users[whose] = left
