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

What the hub does by itself counts for nobody, nor does what other nodes send. Asked by the broker
where something is to stay, and only then; told by the hub how the disk is, a few times a second.
No I/O.
"""

from __future__ import annotations

from typing import Final

from hubbub.core.limits import SCARCE_USERS, SHARE
from hubbub.core.names import HUB
from hubbub.core.quotas import DISK, Quotas, payer
from hubbub.core.session import Session

WEIGHT: Final = 6  # a byte takes its own room, and that of five snapshots (`journal.room`)
ROW: Final = 100  # bytes beside the payload, of a usual name and the columns
AGAIN: Final = 5 / 4  # as much must be left before nobody counts any more: else it would flicker


class Scarce:
    """`on`: whether it is shared out now, `used_up`: whether somebody had all of a share when the
    disk was last looked at.
    """

    def __init__(self, quotas: Quotas) -> None:
        self.on = self.used_up = False
        self._quotas = quotas
        self._most = 0
        self._left = 0
        self._total = 0
        self._users: dict[str, int] = {}

    def look(self, left: int, zone: int) -> bool:
        """So many bytes are left until nothing is taken that stays, and that many are to be shared
        out. Whether that begins or ends now.
        """
        was, self.on = self.on, left < (zone * AGAIN if self.on else zone)
        if not self.on:
            self._users, self._total, self._most, self.used_up = {}, 0, 0, False
            return was
        self._left = max(0, left)
        self._most = min(max(self._most, self._left), self._left + WEIGHT * self._total)
        taken = self._most - self._left
        if self._total > taken:
            total = self._total
            self._keep({who: spent * taken // total for who, spent in self._users.items()})
        self.used_up = self._taken(max(self._users.values(), default=0)) >= self._share()
        return not was

    def spend(self, sender: Session, size: int, count: int = 1) -> None:
        """So many messages are to stay, with payloads of that size each."""
        who = _payer(sender)
        if not (self.on and who):
            return
        users = self._users
        if len(users) >= SCARCE_USERS and who not in users:
            average = self._total // len(users)
            self._keep({one: spent - average for one, spent in users.items()})
            users = self._users
        more = count * (size + ROW)
        users[who] = users.get(who, 0) + more
        self._total += more

    def _keep(self, users: dict[str, int]) -> None:
        self._users = {who: spent for who, spent in users.items() if spent > 0}
        self._total = sum(self._users.values())

    def lacks(self, sender: Session) -> str:
        """Why nothing more of this client may stay, "" if it may: that is a refusal."""
        why = self.why_not(sender)
        if why:
            self._quotas.refuse(DISK, sender, why)
        return why

    def why_not(self, sender: Session) -> str:
        """The same for who asks again, of less: nothing is refused yet."""
        if not self.on:
            return ""
        taken, share = self._taken(self._users.get(_payer(sender), 0)), self._share()
        if taken < share:
            return ""
        return (
            f"{payer(sender)} has taken {megabytes(taken)} of the last {megabytes(self._most)} "
            f"on the disk, and {megabytes(share)} are the most"
        )

    def _taken(self, spent: int) -> int:
        """What the disk lost to one who published so much that stays."""
        return (self._most - self._left) * spent // self._total if spent else 0

    def _share(self) -> int:
        return max(1, self._most // SHARE)


def _payer(sender: Session) -> str:
    """What the hub moves was there before: what is due, and dead letters."""
    return "" if sender.number == HUB else payer(sender)


def megabytes(size: int) -> str:
    """As people are told of it."""
    return f"{size / 1e6:,.0f} MB" if size >= 1e7 else f"{size / 1e6:,.1f} MB"
