"""Who was lost here just now may be at another node already, which this one has not heard so far.

    lost ──→ its will is a row that is due ──→ a mark goes to the engine and comes back
        what others had said by then is heard ──→ it came to one of them: nobody says the will
                                                  else it is said

A hub that stands still for a second finds two things when it goes on: that a client's connection is
lost, and that another node has let the client in. Which it reads first is chance, and a will would
come behind what the client has said since. So wills that are due at once wait for what the engine
had for this node when the connection was seen to be lost: a millisecond, `CLUSTER_MARK_SECONDS` at
most, and as long again for who is lost while a mark is out: one is for all who were lost before
it. Where the engine carries nothing nobody waits.

What waits is a row, so it is said at the next start if the hub is killed. Owned by the membership,
asked by the protocols; `broker.lost` are those who wait, as they were: what they may do is asked
when their wills are said, and what these leave counts as theirs, as of who does not wait. No I/O.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from hubbub.cluster import wills
from hubbub.cluster.estates import Key
from hubbub.core.limits import CLUSTER_MARK_SECONDS
from hubbub.core.session import Session, Silent
from hubbub.core.turns import Stint

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

LOOK_SECONDS: Final = 0.3  # from one look to the next, where the hub does not stand still


class Lost:
    """`_asked`: for whom a mark is on its way, the `_round`th one, for how many seconds more, and
    when it was back (0 = not yet); `_next`: who was lost since. `_looked`: when that was last done
    (both monotonic seconds). `_stops`: this hub does, so nobody is to wait.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._broker = membership.broker
        self._asked: set[Key] = set()
        self._next: set[Key] = set()
        self._round = 0
        self._left = self._looked = self._back = 0.0
        self._stops = False

    def waits(self, session: Session) -> bool:
        """Its connection is over: whether its will waits until it is known where its client is."""
        here = self._membership
        if self._stops or here.excluded or not here.engine.up:
            return False
        key = session.protocol, session.client
        self._broker.lost[key] = _as_it_was(session)
        self._next.add(key)
        if not self._asked:
            self._ask()
        return True

    def stop(self) -> None:
        """The hub ends its connections itself: wills are said while others can hear them."""
        self._stops = True
        self._asked, self._next = set(), set()
        self._broker.look_awake()
        for key in sorted(self._broker.lost):
            self._say(key)

    def elsewhere(self, key: Key, since: int) -> None:
        """A client came to another node at that time."""
        gone = self._broker.lost.get(key)
        if gone is not None and gone.came < since:
            del self._broker.lost[key]
            session = self._broker.sessions.get(key)
            if session is None or not session.number:
                wills.withdraw(self._broker, key)

    def _ask(self) -> None:
        self._asked, self._next = self._next, set()
        self._round += 1
        self._looked, self._back = self._broker.clock.now(), 0.0
        self._left = CLUSTER_MARK_SECONDS
        self._membership.engine.mark(partial(self._is_back, self._round))

    def _is_back(self, number: int) -> None:
        if self._asked and number == self._round and not self._back:
            self._back = self._broker.clock.now()
            self.look()

    def look(self) -> None:
        """When the mark is back, when more was heard, and a few times a second. Time in which this
        hub stood still once more does not count: it could hear nothing.
        """
        if not self._asked:
            return
        here, now = self._membership, self._broker.clock.now()
        self._left -= min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        heard = self._back > 0 and here.hearing.has_heard(self._back)
        if heard or not here.engine.up or self._left <= 0:
            self._broker.look_awake()
            asked, self._asked = self._asked - self._next, set()
            self._say_on(deque(sorted(asked)))
            if self._next:
                self._ask()
            here.relays.hurry()

    def _say_on(self, keys: deque[Key]) -> None:
        """A turn's worth: of a network that was cut ten thousand take half a second."""
        stint = Stint(self._broker.clock)
        while keys:
            self._say(keys.popleft())
            if keys and stint.over():
                self._broker.later(partial(self._say_on, keys))
                return

    def _say(self, key: Key) -> None:
        """The will of one that is nowhere else, and was not lost once more meanwhile; of before
        this hub stood still it waits until that is known.
        """
        if key in self._asked or key in self._next:
            return
        self.elsewhere(key, self._membership.left.since(key))  # maybe, and is gone from there, too
        gone = self._broker.lost.get(key)
        protocol = self._membership.relays.protocols.get(key[0])
        try:
            if gone is not None and gone.came >= self._broker.stood and protocol is not None:
                protocol.was_lost(key[1])
        finally:
            self._broker.lost.pop(key, None)


def _as_it_was(session: Session) -> Session:
    """Whoever has published what a client left; that may be another one's by then."""
    gone = Silent(session.protocol, session.client, session.rights)
    gone.user, gone.address, gone.payer = session.user, session.address, session.payer
    gone.opening, gone.came = session.opening, session.came
    return gone
