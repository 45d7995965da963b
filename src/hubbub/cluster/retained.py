"""Whose retained message is the last one, when several nodes keep the same name.

A message is retained by its node at a moment, its stamp; the greater stamp wins, of equal ones the
greater name of the node. So all nodes keep the same message, in whatever order they hear. A node
that publishes makes its stamp greater than that of the message it replaces. A name that was
cleared keeps its stamp in memory for an hour: until then who missed it is told. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.broker import Broker
from hubbub.core.limits import RETAINED
from hubbub.core.message import Message
from hubbub.errors import UnreadableError

STAMP: Final = "hub-stamp"  # property of a message retained at another node: its stamp and node
REMEMBERED: Final = 3600 * 1_000_000  # microseconds in which a cleared name is known as such

Stamp = tuple[int, str]
NEVER: Final[Stamp] = (0, "")


class Stamps:
    """`cleared`: names without a message, by their stamp, the oldest first."""

    def __init__(self, broker: Broker, node: str) -> None:
        self.broker = broker
        self.node = node
        self.cleared: dict[str, Stamp] = {}
        self._known: dict[str, Stamp] = {}

    def of(self, name: str) -> Stamp:
        known = self._known.get(name) or self.cleared.get(name)
        if known is not None:
            return known
        seq = self.broker.state.retained.get(name, 0)
        try:
            message = self.broker.log.read(seq) if seq else None
        except UnreadableError:
            return NEVER
        return self.stamp_of(message) if message is not None else NEVER

    def stamp_of(self, message: Message) -> Stamp:
        """As the journal remembers it."""
        said = (message.properties or {}).get(STAMP)
        if isinstance(said, list) and len(said) == 2:
            return int(said[0]), str(said[1])
        return message.time, self.node

    def has(self, name: str, payload: bytes) -> bool:
        """Whether that is what is retained here."""
        seq = self.broker.state.retained.get(name, 0)
        message = self.broker.log.look(seq) if seq else None
        return message is not None and message.payload == payload

    def next(self, name: str) -> Stamp:
        """Of a message that is retained here now."""
        return max(self.broker.clock.stamp(), self.of(name)[0] + 1), self.node

    def keep(self, name: str, stamp: Stamp, cleared: bool) -> None:
        self._known.pop(name, None)
        self.cleared.pop(name, None)
        if cleared:
            self.cleared[name] = stamp
            self._forget()
        elif len(self._known) < RETAINED:
            self._known[name] = stamp

    def _forget(self) -> None:
        oldest = self.broker.clock.stamp() - REMEMBERED
        while self.cleared:
            name, stamp = next(iter(self.cleared.items()))
            if stamp[0] > oldest and len(self.cleared) <= RETAINED:
                break
            del self.cleared[name]
