"""Shared subscriptions: `$share/<group>/<filter>`. Each message goes to one member of the group.

    name ── filter ──> Group ── in turn ──> a member that is connected and has room
                                            else one that is connected, or away and lasting
                                            else nobody: dropped and counted

A group is one receiver in the tree of filters, so a client gets its own copy beside it. The
choice of a lasting member is a `queued` row: the fold repeats it and chooses nothing. What a
member of QoS 1 had not acknowledged when its session ended goes to another member; of QoS 2 it
must not. A member that does not last may end with the hub, so what it has of QoS 1 is lent: a
`queued` row of the group's own, as long as the group has a lasting member. Called by the broker;
no I/O.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hubbub import schema
from hubbub.core.message import SPELLED, Run
from hubbub.core.rights import RECEIVE, Rights
from hubbub.core.session import Session, Subscription
from hubbub.core.state import SHARED
from hubbub.core.topics import shared_filter
from hubbub.schema import Row, column_of

if TYPE_CHECKING:
    from hubbub.core.broker import Broker


class Group(Session):
    """The members of one group with one filter, by their subscriptions."""

    def __init__(self, broker: Broker, name: str) -> None:
        super().__init__(SHARED, name, Rights())
        self.broker = broker
        self.members: deque[Subscription] = deque()
        spelled = (SPELLED, SPELLED, SPELLED)
        self.entrance = Subscription(self, shared_filter(name), 2, spelled)

    def lasts(self) -> bool:
        return any(member.session.lasting for member in self.members)

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if run.count == 1:
            self.give(run)
            return
        for index in range(run.count):
            self.give(run.part(index))

    def give(self, run: Run) -> None:
        """Hand a run of one message to the member whose turn it is."""
        member = self._choose(run)
        if member is None:
            self.broker.metrics.drop("nobody in the group can take it")
            self.broker.lend(run.first, self.client, False)
            return
        session = member.session
        qos = min(run.qos, member.qos)
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
            if qos == 1:
                session.shared[run.first] = self.client
            if run.route.shared:
                self.broker.lend(run.first, self.client, qos == 1 and not session.lasting)
        session.deliver(run, member)

    def _choose(self, run: Run) -> Subscription | None:
        """The next member that has room; if none has, who waits for the fewest messages."""
        members = self.members
        second: Subscription | None = None
        for _ in range(len(members)):
            members.rotate(-1)
            member = members[-1]
            session = member.session
            if not session.rights.may(RECEIVE, run.route.name):
                continue
            if session.ready():
                return member
            if min(run.qos, member.qos) and self._may_wait(session, run.payload_size()):
                if second is None or _patience(session) < _patience(second.session):
                    second = member
        return second

    def _may_wait(self, session: Session, size: int) -> bool:
        present = session.number != 0 or session.lasting
        return present and session.has_room(1, size)


def _patience(session: Session) -> tuple[bool, int]:
    """Who is connected comes first, then who has fewer messages before this one."""
    return session.number == 0, session.unacknowledged()
