"""Wrong logins, counted where they come from: who guesses is slowed down, and nobody else.

Each counts for its address, and for the address and the user together; both halve every
HALF_LIFE seconds. Over a bound logins from there that would need work are refused until it has
decayed. Not for a user alone: then anybody could lock anybody out. Who was found right before
needs no work, and is let in; so is who shows a token that is right. Used by `gate`, `logins` and
`scram`; no I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

HALF_LIFE: Final = 60.0  # seconds: some ten tries a minute go on for ever
OF_USER: Final = 10.0  # of one user from one address: typing errors, and a client with an old one
OF_ADDRESS: Final = 100.0  # of all users from one address: many people may share it
REMEMBERED: Final = 20_000  # places; the ones that were quiet for longest go

Place = tuple[str, str | None]
"""An address and a user, who may have no name; None: all users of that address."""


class Guesses:
    """How many wrong ones there were of late, by place."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._scores: OrderedDict[Place, tuple[float, float]] = OrderedDict()

    def blocked(self, address: str, user: str) -> bool:
        """Whether one more from there, as that user, is not even looked at."""
        return (
            self._score((address, user)) >= OF_USER or self._score((address, None)) >= OF_ADDRESS
        )

    def wrong(self, address: str, user: str) -> None:
        places: tuple[Place, ...] = ((address, user), (address, None))
        for place in places:
            self._scores[place] = self._score(place) + 1.0, self._now()
            self._scores.move_to_end(place)
        while len(self._scores) > REMEMBERED:
            self._scores.popitem(last=False)

    def right(self, address: str, user: str) -> None:
        """It was no guess: what was wrong before were typing errors."""
        self._scores.pop((address, user), None)

    def _score(self, place: Place) -> float:
        score, when = self._scores.get(place, (0.0, 0.0))
        return float(score * 0.5 ** ((self._now() - when) / HALF_LIFE)) if score else 0.0
