"""Whose retained message is the last one, when several nodes keep the same name.

A message is retained by its node at a moment, its stamp; the greater stamp wins, of equal ones the
greater name of the node. So all nodes keep the same message, in whatever order they hear. A node
that publishes makes its stamp greater than that of the message it replaces. A name that was
cleared keeps its stamp in memory for an hour: until then who missed it is told.

Others may know a stamp that a crash took here, and a machine may come back with its clock behind:
what is retained then must still be later. So the journal says up to where stamps may have been
told, a little ahead, and those of the next life begin there. And it says the stamp of a message
that is later than its time, because what it replaced was: or after a start it would be taken for
older than that.

Clocks may be apart, and a client goes from one node to another: what it says next must be later. So
a node whose clock is behind another's takes that one's time for its stamps, as beats say it, also
when that one is dead. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.clock import SLEW
from hubbub.core.limits import RETAINED
from hubbub.core.message import Message, Run
from hubbub.core.state import State
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of

STAMP: Final = "hub-stamp"  # property of a message retained at another node: its stamp and node
REMEMBERED: Final = 3600 * 1_000_000  # microseconds in which a cleared name is known as such
CEILING: Final = "$stamps"  # the journal's row of it: no stamp that was told is greater
LATER: Final = "$stamp/"  # before a name: the stamp of its message, where that is not its time
UNSAID: Final = -1  # such a row is as if it had never been there
# Microseconds by which another node's clock is ahead, from which on that one's counts: beats need
# as long at times, and of each message that is later than its time there is a row more.
APART: Final = 100_000
AHEAD: Final = 5_000_000  # microseconds: a row in so many at most; so far ahead is the next life

Stamp = tuple[int, str]
NEVER: Final[Stamp] = (0, "")


class Stamps:
    """`cleared`: names without a message, by their stamp, the oldest first. `sure`: the row that
    must be safe before a stamp is told. `_ahead`: by how much the clock of any node was ahead of
    the monotonic one here (microseconds), when that was `_heard_at` (monotonic seconds).
    """

    def __init__(self, broker: Broker, node: str) -> None:
        self.broker = broker
        self.node = node
        self.cleared: dict[str, Stamp] = {}
        self.sure = 1
        self._known: dict[str, Stamp] = {}
        self._ahead = 0
        self._heard_at: float | None = None
        self._least = 0

    def begin(self) -> None:
        """The journal is read: whatever its hub told in lives before is earlier from now on."""
        self._least = self._ceiling()

    def _ceiling(self) -> int:
        return self.broker.state.taken.get(CEILING, 0)

    def of(self, name: str) -> Stamp:
        return self._of(name, self.broker.state.retained_seq(name))

    def _of(self, name: str, seq: int) -> Stamp:
        known = self._known.get(name) or self.cleared.get(name)
        if known is not None:
            return known
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
        return own_stamp(self.broker.state, message.topic, message.time), self.node

    def has(self, name: str, payload: bytes) -> bool:
        """Whether that is what is retained here."""
        seq = self.broker.state.retained_seq(name)
        message = self.broker.log.look(seq) if seq else None
        return message is not None and message.payload == payload

    def hears(self, stamp: int, at: float) -> None:
        """What a node's clock said when its frame came here, `at` (monotonic seconds). Frames are
        late, never early: the greatest counts.
        """
        ahead = stamp - round(at * 1_000_000)
        if self._heard_at is None or ahead >= self._is_ahead(at):
            self._ahead, self._heard_at = ahead, at

    def _is_ahead(self, now: float) -> int:
        """A clock that goes back does so by a twelfth of the time that passes at most, and what a
        dead node has told gets no later: less is never too little.
        """
        return self._ahead - round((now - (self._heard_at or 0.0)) * 1_000_000 / SLEW)

    def by_all_clocks(self, time: int) -> int:
        """That time here, or what it is by the clock that is ahead of all others."""
        if self._heard_at is None:
            return time
        now = self.broker.clock.now()
        latest = round(now * 1_000_000) + self._is_ahead(now)
        return latest if latest - time > APART else time

    def next(self, name: str, before: int, run: Run) -> Stamp:
        """Of the message that is retained here now. `before`: the number of what it replaces."""
        time = run.time or self.broker.clock.stamp()
        known = self.by_all_clocks(time)
        stamp = max(known, self._of(name, before)[0] + 1, self._least)
        self._note(name, run.first, stamp if stamp > time else UNSAID)
        if stamp > self._ceiling():
            row = Row(0, 0, schema.TAKEN, client=column_of(CEILING), number=stamp + AHEAD)
            self.sure = self.broker.change(row)
        return stamp, self.node

    def _note(self, name: str, first: int, stamp: int) -> None:
        """A stamp that is later than the message is in the journal, with it or not at all."""
        if stamp > 0 or LATER + name in self.broker.state.taken:
            row = Row(0, 0, schema.TAKEN, client=column_of(LATER + name), number=stamp)
            self.sure = self.broker.change(row)
            self.broker.log.together(first or self.sure)

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


def own_stamp(state: State, name: str, time: int) -> int:
    """Of a message that was retained at that time by the node whose state this is."""
    return max(time, state.taken.get(LATER + name, 0))
