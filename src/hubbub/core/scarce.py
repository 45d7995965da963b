"""What a disk that fills has left for what stays there, shared out: of each user a fifth.

    ......... taken .........|------- the last of it -------|<- kept free ->|
        everything, of all     of each user a fifth of that   nothing that stays

One who fills the disk would fill it for all, and the bounds of sessions and queues do not help: a
user may have, and publish to, so many that all disks are smaller. Counted is what users publish
that stays (in queues, for sessions that are away, delayed, retained) since so little is left, in
proportion to what the disk really lost. What came back (it was taken, and folded) is
nobody's any more, and what the disk lost beyond a few times all that was published was taken by
others: by other programs, or by traffic that passes through.

    left when it began, less what others took   = most
    most - left now                             = taken, of each in proportion to what it published

A message that would take more than is left of its sender's share is refused, too: one of 30 MB
would take all that a small disk has, as a byte that stays takes its room six times.

Who has taken much, or is to be refused, is counted anew: of what it published to a queue or for
sessions no more than lies there now. So who is heard at once has taken nothing, whatever the disk
has still of it, and whoever fills it meanwhile. Where nothing is left to share out, or nearly,
each user may have a little all the same.

What the hub moves by itself (what is due, dead letters) is never refused; a dead letter counts for
whose its queue was. What another node of a cluster kept for this one counts for that node, which
has a share as a user has: without it one user there filled the disk for all who are here. It is not
refused (it was acknowledged there), but waits there (`cluster.taking`). Asked by the broker where
something is to stay, and only then; told by the hub how the disk is, a few times a second. No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.clock import Clock
from hubbub.core.limits import SCARCE_PLACES, SCARCE_USERS, SHARE
from hubbub.core.low import Low, megabytes
from hubbub.core.names import HUB
from hubbub.core.quotas import DISK, Quotas, payer
from hubbub.core.session import Session
from hubbub.core.state import Key, State

WEIGHT: Final = 6  # a byte takes its own room, and that of five snapshots (`journal.room`)
ROW: Final = 200  # bytes beside the payload, in the segment and in snapshots
LAST: Final = "the last of the disk"
LITTLE: Final = 10  # part of what is shared out: a user's, however little is left of it

# Where a message waits: in queues, by their topics, and for sessions; () = somewhere.
Places = tuple[str | Key, ...]
SOMEWHERE: Final[Places] = ()


class Spender:
    """What one user published that stays: bytes, by where that waits, and together."""

    __slots__ = ("places", "total")

    def __init__(self) -> None:
        self.places: dict[Places, int] = {}
        self.total = 0

    def spend(self, size: int, places: Places) -> None:
        known = self.places
        if places not in known and len(known) >= SCARCE_PLACES:
            places = SOMEWHERE
        known[places] = known.get(places, 0) + size
        self.total += size

    def scale(self, part: int, whole: int) -> None:
        """Of all of it, that part is left."""
        self._keep({places: size * part // whole for places, size in self.places.items()})

    def recount(self, state: State) -> None:
        """No more than lies there now."""
        known = self.places.items()
        self._keep({
            places: min(size, sum(_lies(state, place) for place in places)) if places else size
            for places, size in known
        })  # fmt: skip

    def _keep(self, known: dict[Places, int]) -> None:
        self.places = {places: size for places, size in known.items() if size > 0}
        self.total = sum(self.places.values())


def _lies(state: State, place: str | Key) -> int:
    """How many bytes wait in a queue, or for a session, with those of their rows."""
    if isinstance(place, str):
        queue = state.queue_at(place)
        return queue.bytes + ROW * len(queue.messages) if queue is not None else 0
    session = state.sessions.get(place)
    return session.backlog.bytes + ROW * len(session.backlog.entries) if session else 0


class Scarce:
    """`on`: whether it is shared out now, `used_up`: whether somebody had all of a share when the
    disk was last looked at. `brought_by`: for whom counts what nobody here published.
    """

    def __init__(self, clock: Clock, quotas: Quotas, state: State) -> None:
        self.on = self.used_up = False
        self.brought_by = ""
        self._clock = clock
        self._low = Low()
        self._quotas = quotas
        self._state = state
        self._most = 0
        self._left = 0
        self._zone = 0
        self._total = 0
        self._users: dict[str, Spender] = {}

    def look(self, left: int, zone: int) -> bool:
        """So many bytes are left until nothing is taken that stays (less than none: it is a guess
        that errs on that side), and that many are to be shared out. Whether that begins or ends
        now.
        """
        was, self.on = self.on, self._low.look(left, zone, self._clock.now())
        if not self.on:
            self._users, self._total, self._most, self.used_up = {}, 0, 0, False
            return was
        self._most = max(self._most, left) if was else left
        self._left, self._zone = left, zone
        self._bound()
        taken = self._most - left
        if self._total > taken:
            total = self._total
            for one in self._users.values():
                one.scale(taken, total)
            self._sum_up()
        much = self._of_much()
        for who in much:
            self._recount(who)
        self.used_up = any([self._taken(who) >= self._share() for who in much])
        return not was

    def _of_much(self) -> list[str]:
        """Who has taken a good part of its share: few of very many, so all are asked for little."""
        taken = SHARE * max(1, self._most - self._left)
        least = max(1, self._share() * self._total // taken)
        return [who for who, one in self._users.items() if one.total >= least]

    def spend(
        self, sender: Session, size: int, count: int = 1, places: Places = SOMEWHERE
    ) -> None:
        """So many messages are to stay there, with payloads of that size each."""
        who = payer(sender) or self.brought_by
        if not (self.on and who):
            return
        if len(self._users) >= SCARCE_USERS and who not in self._users:
            average = self._total // len(self._users)
            for one in self._users.values():
                one.scale(max(0, one.total - average), one.total)
            self._sum_up()
        spender = self._users.get(who)
        if spender is None:
            spender = self._users[who] = Spender()
        more = count * (size + ROW)
        spender.spend(more, places)
        self._total += more

    def lacks(self, sender: Session, size: int = 0) -> str:
        """Why nothing more of this client, or not so many bytes, may stay, "" if it may: that is a
        refusal.
        """
        why = self.why_not(sender, size)
        if why:
            self._quotas.refuse(DISK, sender, why)
        return why

    def why_not(self, sender: Session, size: int = 0) -> str:
        """The same for who asks again, of less: nothing is refused yet."""
        moved = sender.number == HUB  # it was there before, and acknowledged
        who = payer(sender)
        if not self.on or moved or not who or not self._is_over(who, WEIGHT * size):
            return ""
        taken, share = megabytes(self._taken(who)), megabytes(self._share())
        more = "" if self._is_over(who) else f" and would take {megabytes(WEIGHT * size)} more"
        return f"{who} has taken {taken} of {self._shared()}{more}, and {share} are the most"

    def has_its_share(self, who: str, less: int = 0) -> str:
        """Why no more of a node is taken now, "" if it is. `less`: by so many of a hundred it must
        have less than that.
        """
        if not self.on or not self._is_over(who, self._share() * less // 100):
            return ""
        taken, share = megabytes(self._taken(who)), megabytes(self._share())
        return f"{who} has brought {taken} of {self._shared()}, and {share} are the most"

    def says(self) -> str:
        """For who looks at the hub; "" while nothing is shared out."""
        return f"no user gets more than {megabytes(self._share())} of {self._shared()}" * self.on

    def _shared(self) -> str:
        """How much that is, unless each may have a little of what is less, by that guess."""
        most = min(self._most, self._zone)
        return f"the last {megabytes(most)} on the disk" if most > self._share() else LAST

    def _is_over(self, who: str, more: int = 0) -> bool:
        """Whether a user has all of its share, or would with so much more, also if it is counted
        anew.
        """
        if self._taken(who) + more < self._share():
            return False
        self._recount(who)
        return self._taken(who) + more >= self._share()

    def _recount(self, who: str) -> None:
        spender = self._users.get(who)
        if spender is None:
            return
        before = spender.total
        spender.recount(self._state)
        self._total -= before - spender.total
        self._bound()

    def _bound(self) -> None:
        """What the disk lost beyond what was published, others took."""
        self._most = min(self._most, self._left + WEIGHT * self._total)

    def _sum_up(self) -> None:
        self._users = {who: one for who, one in self._users.items() if one.total > 0}
        self._total = sum(one.total for one in self._users.values())

    def _taken(self, who: str) -> int:
        """What the disk lost to one who published so much that stays."""
        spender = self._users.get(who)
        if spender is None or not spender.total:
            return 0
        return (self._most - self._left) * spender.total // self._total

    def _share(self) -> int:
        return max(1, min(self._most, self._zone) // SHARE, self._zone // LITTLE)
