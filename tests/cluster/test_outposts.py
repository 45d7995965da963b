"""Consumers of queues that begin at another node."""

from __future__ import annotations

from hubbub.core.limits import CLUSTER_LOOK
from hubbub.core.message import Message
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
