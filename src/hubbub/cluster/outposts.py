"""Consumers of MQTT, SMQ and the program at a node that is not the home of their queue.

    home                                     node of the consumers
    queue ── lease ── Lodger ══ Lent ══> Outpost ── lease ── consumer
                         <═════ Done ════   `───── acknowledged
                         <═════ Takes ═══   so many may be there at once; 0: all come back

The home lends messages to a node as it leases them to a consumer; there a queue of the same name,
which nobody else sees, leases each to one of its own. The first acknowledgement wins, at home. When
the two nodes lose one another, or a frame between them, the home gives all that it had lent to
others. Requests of message-switch are relayed instead (`protocols.switch.elsewhere`). Called by the
membership for records and time, by the broker as `core.homes`. No I/O.

What is at a node nobody else can have, so that is little: as much as one consumer has. A frame
costs both nodes the same whether it brings one message or a hundred, so where one that is looked at
has gone within CLUSTER_LENT_SECONDS twice as many come, and few again where one stays for longer:
what is more than that, and waits for a consumer, goes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hubbub.cluster import frames, taking
from hubbub.cluster.node import Node, messages_of
from hubbub.core.limits import (
    CLUSTER_LENT,
    CLUSTER_LENT_MOST,
    CLUSTER_LENT_SECONDS,
    CLUSTER_LOOK,
)
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.queue import PROTOCOL, Queue
from hubbub.core.route import Route
from hubbub.core.session import Session, Subscription
from hubbub.core.topics import QUEUE
from hubbub.schema import name_from_wire, name_to_wire

if TYPE_CHECKING:
    from hubbub.cluster.membership import Membership

NONE: Final = -1  # of the ids of messages

class Lodger(Session):
    """At home: the consumers of one other node, as one. `room`: so many it has at most,
    `turn`: since it asked for the time so numbered.
    """

    def __init__(self, membership: Membership, node: Node, queue: Queue) -> None:
        super().__init__(PROTOCOL, node.name, membership.broker.open)
        self.membership = membership
        self.there = node
        self.queue = queue
        self.number = membership.number
        self.room = self.turn = 0
        self.place = Subscription(self, queue.client, 2, (SPELLED, SPELLED, SPELLED))

    def ready(self) -> bool:
        return len(self.leases) < self.room and self.there.ready()

    def all_but(self, kept: list[int]) -> list[int]:
        """What it does not have any more, if it has those."""
        here = set(kept)
        return [number for _, number in self.leases.values() if number not in here]

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        number = self.leases[message.seq][1]
        run = self.membership.crossing.read_back(message)
        said = self.membership.crossing.said(run)
        name = name_to_wire(self.queue.name)
        self.there.tell(frames.Lent(name, number, self.turn, said, returns=True))


class Outpost(Queue):
    """At the node of the consumers. `home`: of which node its queue is, `since` when: one that
    begins anew is another one. `theirs`: the ids at home of what it has; `told`: how many the home
    was told may be here, `wanted`: how many may, while somebody takes them; `turn`: how often
    some went back, to know what was lent before. `returns`: the home takes some back. `_sample`:
    the one that is looked at, and `_since` when.
    """

    def __init__(self, membership: Membership, name: str) -> None:
        super().__init__(name, 0, "")
        self.membership = membership
        self.home = ""
        self.since = 0
        self.theirs: dict[int, int] = {}
        self.told = self.turn = 0
        self.wanted = CLUSTER_LENT
        self.returns = False
        self._sample, self._since = NONE, 0.0

    def known_as(self, number: int) -> int:
        return self.theirs.get(number, number)

    def remove(self, number: int) -> int:
        """A consumer is done with it."""
        theirs = self.theirs.pop(number, None)
        if theirs is not None:
            self._tell(frames.Done(name_to_wire(self.name), theirs))
        if number == self._sample and self._stays():
            self._want(CLUSTER_LENT)
        return super().remove(number)

    def look_at(self, number: int) -> None:
        """It came. Where as many as half of those that may be here have since one that is done with
        by now, soon enough, there was hardly room for more; from it on the next ones are counted.
        """
        followed, soon = number - self._sample, not self._stays()
        if self._sample in self.messages:
            return
        if self._sample == NONE or not soon or 2 * followed >= self.told:
            if self._sample != NONE and soon:
                self._want(min(2 * self.wanted, CLUSTER_LENT_MOST))
            self._sample, self._since = number, self.membership.broker.clock.now()

    def _stays(self) -> bool:
        return self.membership.broker.clock.now() - self._since > CLUSTER_LENT_SECONDS

    def _want(self, room: int) -> None:
        self.wanted = room
        if self.told:  # else nobody is there, or all has just gone back
            self._ask_for(room)

    def _ask_for(self, room: int) -> None:
        if room != self.told:
            self._tell(frames.Takes(name_to_wire(self.name), room, self.turn))
            self.told = room

    def _send_back(self) -> None:
        """Consumers here are slow now, and who has room at home could have what waits for them: all
        above CLUSTER_LENT, the newest first. What one of them has stays. What is on its way here
        was lent behind those, and goes back with them: it is of the turn before.
        """
        before = len(self.messages)
        while len(self.messages) > CLUSTER_LENT and self.waiting:
            number = self.waiting.pop()
            if number in self.messages:
                del self.theirs[number]
                self.remove(number)
        if len(self.messages) < before:
            self.turn += 1
            self._sample = NONE  # which may be one of those, and was not taken
            kept = list(self.theirs.values())
            self._tell(frames.Takes(name_to_wire(self.name), self.told, self.turn, kept))

    def look(self) -> None:
        """Say how many it takes, where that has changed: none while no consumer is connected."""
        broker = self.membership.broker
        home = broker.queues.home_of(self.name)
        node, since = "", 0
        if home is not None and not home.lacks:
            node = home.node
            since = self.membership.directory.began_there(home.estate, PROTOCOL, QUEUE + self.name)
        if (node, since) != (self.home, self.since):
            self.lose()
            self.home, self.since = node, since
        if self._stays():
            self.wanted = CLUSTER_LENT
        wanted = self.wanted if any(one.session.number for one in self.consumers) else 0
        if self.home and wanted != self.told:
            if wanted:
                self._ask_for(wanted)
            else:
                self.end()
        if self.told == CLUSTER_LENT and self.returns:
            self._send_back()

    def end(self) -> None:
        """Nobody takes from there any more."""
        self._ask_for(0)
        self.lose()

    def lose(self) -> None:
        """What it has is the home's again, which gives it to others."""
        self.told = 0
        self.turn += 1
        self.theirs.clear()
        self._sample = NONE
        for number in list(self.messages):
            self.remove(number)

    def _tell(self, record: frames.Record) -> None:
        node = self.membership.nodes.get(self.home)
        if node is not None:
            node.tell(record)


class Outposts:
    """`here`: of queues at home elsewhere, by name; `lodgers`: of nodes with consumers of queues
    that are at home here, by node and queue.
    """

    def __init__(self, membership: Membership) -> None:
        self.membership = membership
        self.broker = membership.broker
        self.here: dict[str, Outpost] = {}
        self.lodgers: dict[tuple[str, str], Lodger] = {}
        self._expected: list[str] = []  # still to be asked for in this round

    # Here

    def consume(self, name: str, subscription: Subscription) -> None:
        outpost = self.here.get(name)
        if outpost is None:
            outpost = self.here[name] = Outpost(self.membership, name)
        outpost.consumers.append(subscription)
        outpost.look()

    def consume_no_more(self, name: str, subscription: Subscription) -> bool:
        """False if it is no consumer of a queue elsewhere."""
        outpost = self.here.get(name)
        if outpost is None or subscription not in outpost.consumers:
            return False
        outpost.consumers.remove(subscription)
        outpost.give_back(subscription.session)
        outpost.look()
        if outpost.consumers:
            self.broker.queues.offer(outpost)
        else:
            del self.here[name]
        return True

    def begin(self, name: str) -> None:
        """A consumer has room again."""
        outpost = self.here.get(name)
        if outpost is not None:
            self.broker.queues.dispatch(outpost)

    def lent(self, node: Node, record: frames.Lent) -> None:
        name = name_from_wire(record.queue)
        outpost = self.here.get(name)
        if outpost is None or (outpost.home, outpost.turn) != (node.name, record.turn):
            return  # it is on its way back already
        said = record.said
        taking.check(said, 1)
        topic = name_from_wire(said.topic)
        messages = messages_of(said, topic)
        sender = taking.sender_of(self.membership, said, node.name, node.clients)
        run = Run(sender, Route(topic, 0), said.qos, len(messages), SPELLED, b"")
        run.replace(messages)
        first = self.broker.log.append_run(run, 0)
        number = outpost.next
        outpost.theirs[number] = record.number
        outpost.returns = record.returns
        outpost.add(number, first, len(messages[0].payload))
        outpost.look_at(number)
        self.broker.queues.dispatch(outpost)

    # At home

    def takes(self, node: Node, record: frames.Takes) -> None:
        name = name_from_wire(record.queue)
        queue, key = self.broker.state.queues.get(name), (node.name, name)
        lodger = self.lodgers.get(key)
        if lodger is not None and (not record.room or lodger.queue is not queue):
            self._leaves(key)
            lodger = None
        if queue is None or not record.room:
            return
        if lodger is None:
            lodger = self.lodgers[key] = Lodger(self.membership, node, queue)
            queue.consumers.append(lodger.place)
            queue.recall()
        back = lodger.all_but(record.kept) if lodger.turn != record.turn else []
        lodger.room, lodger.turn = record.room, record.turn
        if back:
            queue.wait_again(back)
            if record.kept:  # else it lost what it had, of which consumers may have had some
                queue.forget_deliveries(back)
            self.broker.queues.offer(queue)
        else:
            self.broker.queues.dispatch(queue)

    def done(self, node: Node, record: frames.Done) -> None:
        name = name_from_wire(record.queue)
        queue, lodger = self.broker.state.queues.get(name), self.lodgers.get((node.name, name))
        if queue is not None and lodger is not None and lodger.queue is queue:
            self.broker.queues.acknowledge(queue, record.number, lodger)
            self.broker.queues.dispatch(queue)

    def _leaves(self, key: tuple[str, str]) -> None:
        lodger = self.lodgers.pop(key)
        queue = lodger.queue
        lodger.room = 0
        if lodger.place in queue.consumers:
            queue.consumers.remove(lodger.place)
        queue.give_back(lodger)
        if self.broker.state.queues.get(queue.name) is queue:
            self.broker.queues.offer(queue)

    def ended(self, client: str) -> None:
        """That queue is no more, and its lodgers neither. Other nodes ask for one that begins anew:
        the old places would be in it otherwise, and what they get of it with nobody.
        """
        name = client.removeprefix(QUEUE)
        expected = self.broker.queues.expecting.get(name)
        for node in self.membership.nodes:
            lodger = self.lodgers.pop((node, name), None)
            if lodger is not None:
                lodger.room = 0
                if expected and lodger.place in expected:
                    expected.remove(lodger.place)
        if expected is not None and not expected:
            del self.broker.queues.expecting[name]

    # Both

    def torn(self, node: Node) -> None:
        """Something on the way to or from that node is lost: what was lent is not any more."""
        for key in [key for key in self.lodgers if key[0] == node.name]:
            self._leaves(key)
        for outpost in self.here.values():
            if outpost.home == node.name:
                outpost.lose()

    def wake(self) -> None:
        for name, outpost in list(self.here.items()):
            if name in self.broker.state.queues:  # it has begun here
                del self.here[name]
                outpost.end()
                for subscription in outpost.consumers:
                    self.broker.queues.consume(name, subscription)
                self.broker.queues.begin(name)
            else:
                outpost.look()
                self.broker.queues.dispatch(outpost)
        if self.membership.nodes:
            self._look_for_homes()

    def _look_for_homes(self) -> None:
        """Of queues that are expected here, some at each look: one may have begun elsewhere."""
        queues = self.broker.queues
        self._expected = self._expected or list(queues.expecting)
        asked, self._expected = self._expected[:CLUSTER_LOOK], self._expected[CLUSTER_LOOK:]
        for name in asked:
            if name in queues.expecting and queues.home_of(name) is not None:
                for subscription in queues.expecting.pop(name):
                    self.consume(name, subscription)
