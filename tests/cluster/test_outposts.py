"""Consumers of queues that begin at another node."""

from __future__ import annotations

from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_LENT, CLUSTER_LENT_MOST, CLUSTER_LENT_SECONDS, CLUSTER_LOOK
from hubbub.core.message import Message
from hubbub.core.queue import Queue
from hubbub.core.queues import HANDED
from tests.cluster.test_keeping import Keepers
from tests.core.recording import Ear


def test_of_very_many_expected_queues_each_is_asked_for_some_looks_later() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    broker = world.members["a"].broker
    ann = world.lasting("a", "ann")
    count = 2 * CLUSTER_LOOK + 10
    for number in range(count):
        broker.queues.expect(f"q{number}", ann.wish(f"$queue/q{number}"))
    world.members["b"].broker.queues.named(f"q{count - 1}")
    world.carry()
    outposts = world.members["a"].outposts
    outposts.wake()
    assert not outposts.here, "not all are asked for in one look"
    for _ in range(2):
        outposts.wake()
    assert list(outposts.here) == [f"q{count - 1}"]
    assert len(broker.queues.expecting) == count - 1


def test_what_was_lent_goes_out_in_another_turn_where_consumers_had_much_in_this_one() -> None:
    """It waited until the next look, or until there was more."""
    world = Keepers(names=("a", "b"))
    world.meet()
    here, home = (world.members[name].broker for name in ("a", "b"))
    home.queues.named("q")
    world.carry()
    ann = Ear(here, "ann")
    here.subscribe(ann.wish("$queue/q", 1))
    world.carry()
    here.queues._handed, here.queues._handed_in = HANDED, here.clock.turned
    home.post(Message("$queue/q", b"x", 1))
    world.carry()
    assert ann.hear() == [("$queue/q", b"x", 1)]


class Hand(Ear):
    """A consumer that is done with what it has as soon as it is told to be."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__(broker, client)
        self.broker = broker

    def work(self, queue: Queue) -> list[bytes]:
        for number in [number for number, one in queue.leased.items() if one is self]:
            self.broker.queues.acknowledge(queue, number, self)
        self.broker.queues.dispatch(queue)
        return [payload for _, payload, _ in self.hear()]


def test_more_is_lent_where_it_is_taken_at_once_and_little_where_it_stays() -> None:
    """A frame for a few costs as much as one for very many; but what is lent nobody else has."""
    world = Keepers(names=("a", "b"))
    world.meet()
    here, home = (world.members[name].broker for name in ("a", "b"))
    queue = home.queues.named("q")
    world.carry()
    ann = Hand(here, "ann")
    here.subscribe(ann.wish("$queue/q", 1))
    world.carry()
    outpost = world.members["a"].outposts.here["q"]
    lodger = world.members["b"].outposts.lodgers["a", "q"]
    count = 10 * CLUSTER_LENT_MOST
    sent = [b"%d" % number for number in range(count)]
    for payload in sent:
        home.post(Message("$queue/q", payload, 1))
    world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT, CLUSTER_LENT)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT

    came = []
    while len(queue.messages) > count // 2:
        came += ann.work(outpost)
        world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT_MOST, CLUSTER_LENT_MOST)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT_MOST

    world.clock.seconds += 2 * CLUSTER_LENT_SECONDS
    world.members["a"].outposts.wake()
    came += ann.work(outpost)
    world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT, CLUSTER_LENT)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT

    while queue.messages:
        came += ann.work(outpost)
        world.carry()
    assert came == sent, "each came once, in order"
    assert not lodger.leases and not outpost.messages
