"""Shared subscriptions: `$share/<group>/<filter>`. Each message goes to one member of the group.

    name ── filter ──> Group ── in turn ──> a member that is connected and has room
                                            else one that is connected, or away and lasting
                                            else nobody: dropped and counted

A group is one receiver in the tree of filters, so a client gets its own copy beside it. The
choice of a lasting member is a `queued` row: the fold repeats it and chooses nothing. What a
member of QoS 1 had not acknowledged when its session ended goes to another member; of QoS 2 it
must not. Where lasting members are at another node, that is a lasting member here: what is for one
of them is kept until that node has it. A member that does not last may end with the hub, so what it
has of QoS 1 is on loan: a `queued` row of the group's own, as long as the group has a lasting
member. Called by the broker; no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from hubbub import schema
from hubbub.core.context import Context
from hubbub.core.limits import PREFETCH
from hubbub.core.message import SPELLED, Run, run_of
from hubbub.core.quotas import payer
from hubbub.core.rights import RECEIVE, Rights
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription
from hubbub.core.state import SHARED
from hubbub.core.topics import shared_filter
from hubbub.errors import UnreadableError
from hubbub.schema import Row, column_of

# Of a hundred that are away each took its time of each message, and as many wait for each.
CONSIDERED: Final = 8


class Group(Session):
    """The members of one group with one filter, by their subscriptions.

    Where members are at another node, that node is a member here; it chooses among its own.
    """

    def __init__(self, broker: Context, name: str, loan: Callable[[int, str, bool], None]) -> None:
        super().__init__(SHARED, name, Rights())
        self.broker = broker
        self.once = True
        self._loan = loan
        self.members: deque[Subscription] = deque()
        spelled = (SPELLED, SPELLED, SPELLED)
        self.entrance = Subscription(self, shared_filter(name), 2, spelled)

    def lasts(self) -> bool:
        return any(
            member.session.lasting and (member.qos or not member.session.far)
            for member in self.members
        )

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if run.count == 1:
            self.give(run)
            return
        for index in range(run.count):
            self.give(run.part(index))

    def give(self, run: Run, refused: bool = False) -> None:
        """Hand a run of one message to the member whose turn it is. `refused`: one that was ready
        had no room for it: now it is for somebody who has.
        """
        member = self._choose(run, refused)
        if member is None:
            self.broker.metrics.drop("nobody in the group can take it")
            self._loan(run.first, self.client, False)
            return
        session = member.session
        qos = min(run.qos, member.qos)
        if qos and session.far:
            session.keep_for(run, qos, self.client)
            self._loan(run.first, self.client, False)
            return
        if qos:
            if not run.first:
                run.first = self.broker.log.keep(run)
            if session.lasting:
                row = Row(
                    0, 0, schema.QUEUED, session.protocol.encode(), column_of(session.client),
                    column_of(self.client if qos == 1 else ""), ref=run.first, qos=qos,
                    number=run.payload_size(),
                )  # fmt: skip
                self.broker.change(row)
            lent = qos == 1 and not session.lasting and session.chosen(self.client)
            if run.route.shared:
                self._loan(run.first, self.client, lent)
        elif run.route.shared:
            self._loan(run.first, self.client, False)
        session.deliver(run, member)

    def _choose(self, run: Run, refused: bool) -> Subscription | None:
        """The next member that has room; if none has, who waits for the fewest messages, of the
        next CONSIDERED that are connected, or else away: others are considered for the next one.
        """
        members, sender = self.members, run.sender
        second: Subscription | None = None
        left = [CONSIDERED, CONSIDERED]  # of who is away, and of others
        for _ in range(len(members)):
            members.rotate(-1)
            member = members[-1]
            session = member.session
            here = session.number != 0 or session.far
            if not (here or left[0]) or (session.far and sender.far):
                continue
            if not session.rights.may(RECEIVE, run.route.name):
                continue
            qos = min(run.qos, member.qos)
            if session.ready() and not (_is_full(session, qos, sender, 1) and payer(sender)):
                if not (refused and qos and session.lacks_room(sender, 1, run.payload_size())):
                    return member
            if qos and left[here] and self._may_wait(session, sender, 1, run.payload_size()):
                left[here] -= 1
                if second is None or _patience(session) < _patience(second.session):
                    second = member
        if not all(left):
            members.rotate(-1)
        return second

    def crosses(self) -> bool:
        return any(member.session.far for member in self.members)

    def lacks_room(self, sender: Session, count: int, size: int) -> str:
        """Whether none is there, and no member that lasts, if it has some, takes more."""
        found = not self.lasts() or any(
            (member.session.ready() and not _is_full(member.session, member.qos, sender, count))
            or (member.qos > 0 and self._may_wait(member.session, sender, count, size))
            for member in self.members
        )
        return "" if found else f"no member of the group {self.client!r} can take more"

    def keeps(self, count: int = 1) -> bool:
        """Whether what comes now would stay on the disk for one of its members. Of several some
        may: nobody is ready for any number.
        """
        ready = count == 1 and any(member.session.ready() for member in self.members)
        return self.lasts() and not ready

    def _may_wait(self, session: Session, sender: Session, count: int, size: int) -> bool:
        waits = session.number != 0 or session.lasting
        soon = session.number != 0 and session.unacknowledged() < PREFETCH
        if self.broker.tight and not soon and self.broker.lacks_disk(sender):
            return False
        return waits and not session.lacks_room(sender, count, size)


def _is_full(session: Session, qos: int, sender: Session, count: int) -> bool:
    """A node that is there, and takes nothing: its disk may be full. What nobody pays for is given
    again, or passed on, and was acknowledged: that goes there all the same.
    """
    return session.far and qos > 0 and session.lacks_room(sender, count, 0) != ""


def _patience(session: Session) -> tuple[bool, int]:
    """Who is connected comes first, then who has fewer messages before this one."""
    return session.number == 0, session.unacknowledged()


class Groups:
    """The groups of a broker, by their whole filter, and what they have on loan."""

    def __init__(self, broker: Context) -> None:
        self.broker = broker
        self.by_filter: dict[str, Group] = {}

    def join(self, subscription: Subscription) -> None:
        name = subscription.filter
        group = self.by_filter.get(name)
        if group is None:
            group = self.by_filter[name] = Group(self.broker, name, self.loan)
            self.broker.filters.add(group.entrance)
        group.members.append(subscription)
        if self.broker.filters.told is not None:
            self.broker.filters.told(subscription, 1)

    def leave(self, subscription: Subscription) -> None:
        group = self.by_filter[subscription.filter]
        group.members.remove(subscription)
        if self.broker.filters.told is not None:
            self.broker.filters.told(subscription, -1)
        if not group.members:
            self.broker.filters.remove(group.entrance)
            group.entrance.session = self.broker.itself  # else they refer to one another for ever
            del self.by_filter[subscription.filter]

    def done(self, session: Session, number: int, seq: int) -> None:
        """A member has acknowledged a delivery, which may be of a group: nobody else gets it."""
        group = session.shared.pop(number, "")
        if group and not session.lasting:
            self.loan(seq, group, False)

    def give_all_again(self, shared: Iterable[tuple[int, str]]) -> None:
        """A member is gone that had not acknowledged these, which may be very many."""
        self.broker.in_turns(self._given_again(shared))

    def _given_again(self, shared: Iterable[tuple[int, str]]) -> Iterator[None]:
        for seq, name in shared:
            self.give_again(seq, name)
            yield

    def give_again(self, seq: int, name: str, refused: bool = False) -> None:
        """A member of the group is gone and had not acknowledged this message, or has `refused` it.
        """
        broker = self.broker
        try:
            message, group = broker.log.read(seq), self.by_filter.get(name)
        except UnreadableError:
            broker.again((seq, name), partial(self.give_again, seq, name, refused))
            return
        if message is None or group is None:
            self.loan(seq, name, False)
            return
        route = Route(message.topic, broker.age)
        route.shared = group.lasts() or (seq, name) in broker.state.on_loan
        group.give(run_of(message, broker.itself, route), refused)

    def loan(self, seq: int, group: str, on_loan: bool) -> None:
        """A message of the group is with a member that does not last, or not any more."""
        if on_loan != ((seq, group) in self.broker.state.on_loan):
            kind = schema.QUEUED if on_loan else schema.ACK
            row = Row(0, 0, kind, SHARED.encode(), column_of(group), ref=seq, number=1)
            self.broker.change(row)
