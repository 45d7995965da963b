"""The cluster as a program sees it: SMQ's cluster functions, `Hub.cluster`.

What the nodes share needs none of this: clients are reached by their numbers, and topics by their
names, wherever they are. All calls are made on the hub's loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hubbub.cluster import frames
from hubbub.cluster.estates import Estate
from hubbub.cluster.membership import Membership
from hubbub.core.message import Message, run_of
from hubbub.core.route import Route
from hubbub.core.session import Session

if TYPE_CHECKING:
    from hubbub.embed.hub import Hub


class Cluster:
    """The other nodes. `name` is this one's."""

    def __init__(
        self, hub: Hub, membership: Membership, payload_of: Callable[[Any], tuple[bytes, str]]
    ) -> None:
        self._hub = hub
        self._membership = membership
        self._payload_of = payload_of
        self.name = membership.name
        membership.shut = hub.shutdown

    def nodes(self) -> dict[str, int]:
        """The other nodes that are there, each with the number of the hub there.

        That number is like any client's: publish to it, observe it.
        """
        found = self._membership.nodes.values()
        return {node.name: node.number_there for node in found if node.number_there}

    def publish(
        self, data: Any, subtopic: str | int | None = None, ptid: int | None = None,
        *, node: str | None = None,
    ) -> int:  # fmt: skip
        """Publish to the hub (`etid` 1) of every other node, or of one; returns how many.

        The programs there hear it where they subscribed to "self". `ptid`: on behalf of a client
        of this node.
        """
        numbers = self.nodes()
        wanted = numbers.values() if node is None else [numbers[node]] if node in numbers else []
        return sum(self._hub.publish(data, number, subtopic, ptid) for number in list(wanted))

    def pubon(self, data: Any, ptid: int, topic: str, subtopic: str = "") -> int:
        """Publish on behalf of a client here, to the subscribers at all other nodes.

        Nobody here gets it. Returns how many nodes have a subscriber; 0 if nobody here has that
        number.
        """
        broker = self._membership.broker
        sender = broker.itself if ptid == broker.itself.number else broker.clients.get(ptid)
        if sender is None:
            return 0
        payload, kind = self._payload_of(data)
        message = Message(topic, payload, content_type=kind, subtopic=subtopic)
        message.protocol, message.client, message.sender = (
            sender.protocol, sender.client, sender.number,
        )  # fmt: skip
        run = run_of(message, sender, Route(topic, broker.age))
        matching = broker.matching(topic)
        found = {one.session: one for one in matching if self._is_a_node(one.session)}
        for estate, subscription in found.items():
            estate.deliver(run, subscription)
        self._hub.node.schedule()
        return len(found)

    @staticmethod
    def _is_a_node(session: Session) -> bool:
        """Whether it stands for one, and not for something that one has taken over."""
        return isinstance(session, Estate) and not session.generation

    def shutdown(self, msg: str | None = None) -> None:
        """End every connection at every node, as `Hub.shutdown(msg)` does at one."""
        for node in self._membership.nodes.values():
            node.tell(frames.Shut(msg))
        self._hub.node.schedule()
        self._hub.shutdown(msg)
