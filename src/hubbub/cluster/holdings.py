"""What lasts at this node: its own estate, and those that it took over (`cluster.estates`).

    a subscription comes or goes  → counted for the estate it is of; the first and the last are told
    all that holds of each estate → told to a node that is met, or asks

Which sessions are of which estate, and how far each has what others keep for it, is in the journal.
Made by the membership. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from hubbub.cluster import estates, frames
from hubbub.cluster.directory import Directory
from hubbub.cluster.estates import AHEAD, HELD, OF, Key, taken_row, took_of
from hubbub.cluster.retained import UNSAID
from hubbub.core.broker import Broker
from hubbub.schema import name_to_wire

OWN: Final = ""  # the node's own estate, whatever that is called by now

Filter = tuple[str, bool]
"""And whether it is a literal one."""


class Holdings:
    """`own`: the estate that this node began; `held`: that and those it took over, by their
    generations. `shares`: queues that had one of their name in an estate that came. `tell` says
    something to all nodes. `keep`: for how many seconds others keep messages for an estate that
    nobody holds.
    """

    def __init__(
        self, broker: Broker, name: str, keep: int, tell: Callable[[frames.Record], None]
    ) -> None:
        self.broker = broker
        self.name = name
        self.keep = keep
        self.own = name
        self.held: dict[str, int] = {self.own: 0}
        self._tell = tell
        self._wants: dict[str, dict[Filter, list[int]]] = {OWN: {}}
        self._took: dict[tuple[str, str], int] = {}
        self._members: dict[Key, str] | None = None
        self.shares: set[tuple[Key, str]] = set()
        self._empty_since: dict[str, float] = {}

    def look(self) -> None:
        """What the journal says of estates has changed."""
        state = self.broker.state
        self.own = estates.own(state, self.name)
        self.held = {self.own: 0, **estates.held(state)}
        self._members = None
        self.shares = set(estates.members(state, estates.ALSO))
        self._took.clear()

    def begin_anew(self, members: dict[Key, str]) -> None:
        """Another one is the node's own. `members`: of those before, as long as they are there."""
        self.look()
        self._members = members

    @property
    def members(self) -> dict[Key, str]:
        """What is of estates that were taken over. Asked while a journal is read, too."""
        if self._members is None:
            self._members = dict(estates.members(self.broker.state))
        return self._members

    def left(self, key: Key) -> None:
        """That session, or queue, is over: one of its name that begins is of this node."""
        shares = {one for one in self.shares if one[0] == key}
        self.shares -= shares
        for estate in [self.members.pop(key, OWN), *(estate for _, estate in shares)]:
            if estate != OWN:
                self.broker.change(taken_row(f"{OF}{estate}/{key[0]}/{key[1]}", UNSAID))

    # What is kept for them elsewhere

    def took(self, estate: str, origin: str) -> int:
        """The number of the last message taken of what an origin kept for one of them."""
        pair = estate, origin
        if pair not in self._took:
            self._took[pair] = self.broker.state.taken.get(took_of(*pair), 0)
        return self._took[pair]

    def was_ahead(self, time: int) -> None:
        """The journal's last row is of that time, which is to come: the clock had been ahead."""
        if time > self.broker.state.taken.get(AHEAD, 0):
            self.broker.change(taken_row(AHEAD, time))

    def latest(self) -> int:
        """No number begins later, of what others keep: they begin at their clocks' time, and those
        were ahead with this one's.
        """
        return max(self.broker.clock.stamp(), self.broker.state.taken.get(AHEAD, 0))

    def note(self, estate: str, origin: str, number: int) -> None:
        """It is in the journal when the frame is, or the piece of an adoption."""
        self._took[estate, origin] = number

    # What they want

    def count(self, estate: str, wish: Filter, kept: bool, change: int) -> None:
        """One more, or less, subscribes; `kept`: it lasts. Messages are kept for those of who does,
        whatever the QoS of others is.
        """
        wants, (name, literal) = self._wants.setdefault(estate, {}), wish
        here = wants.setdefault(wish, [0, 0])
        before = _wish(here)
        here[kept] += change
        now = _wish(here)
        told = estate or self.own
        if now is None:
            del wants[wish]
            self._tell(frames.Leaves(told, name_to_wire(name), literal))
        elif now != before:
            self._tell(frames.Wants(told, name_to_wire(name), literal, now))

    def all(self, directory: Directory) -> list[frames.Holding]:
        """What holds of each."""
        return [self._holding(name, directory) for name in self.held]

    def _holding(self, estate: str, directory: Directory) -> frames.Holding:
        label = OWN if estate == self.own else estate
        wants = [
            (name_to_wire(name), literal, here[1] > 0)
            for (name, literal), here in self._wants.get(label, {}).items()
        ]
        return frames.Holding(estate, self.held[estate], wants, directory.all_here(label))

    # What is over

    def release(self, origins: Collection[str]) -> list[str]:
        """Those that were taken over and have nothing in them any more are let go of, and are to be
        told once that is safe. `origins`: those in which something was published that others do
        not have yet.
        """
        if len(self.held) == 1:
            return []
        state, full = self.broker.state, {self.own, *origins, *self.members.values()}
        over = [one for one in self.held if self._is_over(one, one in full)]
        for estate in over:
            begin = took_of(estate, "")
            for name in [HELD + estate, *(one for one in state.taken if one.startswith(begin))]:
                self.broker.change(taken_row(name, UNSAID))
            self.look()
        return over

    def _is_over(self, estate: str, full: bool) -> bool:
        """Whether it was empty for so long that others keep nothing for it any more."""
        if full:
            self._empty_since.pop(estate, None)
            return False
        now = self.broker.clock.now()
        return now - self._empty_since.setdefault(estate, now) > self.keep

    def forget_origin(self, origin: str) -> None:
        """Nothing that was published in it comes any more."""
        for estate in self.held:
            name = took_of(estate, origin)
            self._took.pop((estate, origin), None)
            if name in self.broker.state.taken:
                self.broker.change(taken_row(name, UNSAID))


def _wish(counts: list[int]) -> bool | None:
    """Whether messages are kept for a filter; None = nobody wants any. `counts`: of who does not
    last, and of who does.
    """
    return counts[1] > 0 if any(counts) else None
