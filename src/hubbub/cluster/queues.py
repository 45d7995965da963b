"""Queues at home at another node: what is published into them here, and two of one name.

    publish -> route -> Outlet -> what is kept for the home -> there as any publish into the queue

A queue has one home, the node where it began; who asks for something of it elsewhere is relayed
(`core.homes`). A publish waits for nobody: it is kept here, whatever its QoS is, until the home's
journal has it, each message once and in order.

Two nodes that could not hear one another may each begin a queue of one name. The older one stays;
what waits in the other is moved behind, as if it were published now. Called by routes and the
directory. No I/O.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from hubbub.cluster.named import Named
from hubbub.core.limits import CLUSTER_PIECE
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.queue import PROTOCOL
from hubbub.core.session import FULL, Session, Subscription
from hubbub.core.topics import QUEUE
from hubbub.errors import UnreadableError

if TYPE_CHECKING:
    from hubbub.cluster.estates import Estate
    from hubbub.cluster.membership import Membership

MOVED: Final = "moved to the older queue of its name at another node"

log = logging.getLogger("hubbub.cluster")


class Outlet(Session):
    """The way into the queues of one estate. What was published there has its row already."""

    def __init__(self, membership: Membership, estate: str) -> None:
        broker = membership.broker
        super().__init__(PROTOCOL, estate, broker.open)
        self.membership = membership
        self.entrance = Subscription(self, QUEUE, 2, (SPELLED, SPELLED, SPELLED), literal=True)

    def deliver(self, run: Run, subscription: Subscription) -> None:
        estate = self._estate()
        estate.take_back()
        for index in range(run.count):
            self._keep(estate, run.sender, run.first + index, max(run.qos, 1))
        estate.pump()

    def crosses(self) -> bool:
        return True

    def lacks_room(self, sender: Session, count: int, size: int) -> str:
        estate = self.membership.estates.get(self.client)
        return "" if estate is None else estate.lacks_room(sender, count, size)

    def unacknowledged(self) -> int:
        estate = self.membership.estates.get(self.client)
        return estate.unacknowledged() if estate is not None else 0

    def keep(self, message: Message, name: str) -> None:
        """A message that was in a queue here."""
        moved = message.copied()
        moved.topic = name
        self._estate().keep_copy(moved, max(message.qos, 1), "")

    def _estate(self) -> Estate:
        estate = self.membership.estate_of(self.client)
        estate.keep()
        return estate

    def _keep(self, estate: Estate, sender: Session, seq: int, qos: int) -> None:
        if estate.lacks_room(sender, 1, 0):  # who can be told so was refused before
            self.membership.broker.metrics.drop(FULL)
        else:
            estate.note(sender, seq, qos, "")


class Outlets:
    """Those of a node of a cluster, by the estate."""

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self._by_estate = Named[Outlet]()
        self._moving: dict[str, int] = {}  # so many messages of each have gone

    def to(self, estate: str) -> Outlet:
        outlet = self._by_estate.get(estate)
        if outlet is None:
            outlet = self._by_estate[estate] = Outlet(self.membership, estate)
        return outlet

    def give_up(self, client: str, home: str) -> None:
        """The older queue of that name is at another node: this one goes behind it, in turns."""
        if client in self._moving:
            return
        self._moving[client] = 0
        node = self.membership.directory.holder(home)
        log.warning("%s began earlier at node %r: what is in the one here goes behind it",
                    client, node)  # fmt: skip
        self._go_on(client)

    def _go_on(self, client: str) -> None:
        """Some more of it, to the node that is its home now: a turn later it may be another one."""
        membership, broker = self.membership, self.membership.broker
        name = client.removeprefix(QUEUE)
        home = membership.directory.home(PROTOCOL, client)
        if name not in broker.state.queues or not home:
            del self._moving[client]
            return
        outlet = self.to(home)
        try:
            count = broker.queues.move(
                name, lambda message: outlet.keep(message, client), CLUSTER_PIECE
            )
        except UnreadableError:
            broker.again((self, client), lambda: self._go_on(client))
            return
        self._moving[client] += count
        broker.metrics.drop(MOVED, count)
        membership.estate_of(home).pump()
        if name in broker.state.queues:
            broker.later(lambda: self._go_on(client))
        else:
            node = membership.directory.holder(home)
            log.warning("%d messages of %s went to node %r", self._moving.pop(client), client, node)
