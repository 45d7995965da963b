"""What goes live to another node does not overtake what was kept for the same filter before."""

from __future__ import annotations

import pytest

from hubbub.cluster import frames
from hubbub.core.limits import CLUSTER_WINDOW
from hubbub.core.message import Message
from tests.cluster.test_keeping import Keepers
from tests.cluster.test_passing import Passers
from tests.cluster.world import Reader


def say(writer: Reader, numbers: range, qos: int) -> None:
    for number in numbers:
        writer.broker.post(Message("x", b"%d" % number, qos), writer)


def settle(world: Keepers) -> None:
    world.log("a").prompt = world.log("b").prompt = True
    for _ in range(4):
        world.log("a").sync()
        world.log("b").sync()
        world.wait(1)


def is_over(world: Keepers) -> bool:
    """Whether nothing is kept for the other node any more."""
    estate = world.members["a"].estates["b"]
    return not estate.ebbing and not any(wish.qos for wish in estate.wants.values())


@pytest.mark.parametrize("wish", ["x", "+"])
@pytest.mark.parametrize("waits", [2, CLUSTER_WINDOW + 100])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", [Keepers, Passers])
def test_who_does_not_last_stays_when_the_last_one_who_does_is_over(
    kind: type[Keepers], qos: int, waits: int, wish: str
) -> None:
    """What was for both waits for the journal, or for room; what follows is for one alone."""
    world = kind(names=("a", "b"))
    world.meet()
    device = world.lasting("b", "device", "x", qos=qos)
    live, writer = world.client("b", "live"), world.client("a", "writer")
    live.wish(wish)
    say(writer, range(1), qos)
    world.wait(1)
    world.log("a").prompt = world.log("b").prompt = False
    say(writer, range(1, waits), qos)
    world.carry()
    device.broker.end(device)
    world.carry()
    say(writer, range(waits, waits + 3), qos)
    world.carry()
    settle(world)
    assert [payload for _, payload in live.got] == [b"%d" % one for one in range(waits + 3)]
    assert is_over(world)


@pytest.mark.parametrize("wish", ["x", "+"])
@pytest.mark.parametrize("waits", [2, CLUSTER_WINDOW + 100])
@pytest.mark.parametrize("kind", [Keepers, Passers])
def test_who_comes_after_the_last_one_who_lasted_gets_what_waits_first(
    kind: type[Keepers], waits: int, wish: str
) -> None:
    """Nobody wants it for a moment; but what was kept is still to come."""
    world = kind(names=("a", "b"))
    world.meet()
    device = world.lasting("b", "device", "x")
    writer = world.client("a", "writer")
    say(writer, range(1), 1)
    world.wait(1)
    world.log("a").prompt = world.log("b").prompt = False
    say(writer, range(1, waits), 1)
    world.carry()
    device.broker.end(device)
    world.carry()
    live = world.client("b", "live")
    live.wish(wish)
    world.carry()
    say(writer, range(waits, waits + 3), 1)
    world.carry()
    settle(world)
    got = [int(payload) for _, payload in live.got]
    assert got[-3:] == [waits, waits + 1, waits + 2] and got == sorted(set(got))
    assert is_over(world)
    say(writer, range(waits + 3, waits + 4), 1)
    world.carry()
    assert live.got[-1][1] == b"%d" % (waits + 3), "live again"


def test_a_group_without_members_there_is_not_chosen_for_what_follows() -> None:
    """It promises no order; who is left elsewhere gets all."""
    world = Keepers(names=("a", "b", "c"))
    world.meet()
    device = world.lasting("b", "device", "$share/g/x")
    writer = world.client("a", "writer")
    world.log("b").prompt = False
    say(writer, range(CLUSTER_WINDOW + 100), 1)
    world.carry()
    device.broker.end(device)
    world.carry()
    live = world.client("c", "live")
    live.wish("$share/g/x")
    world.carry()
    live.got.clear()
    say(writer, range(100_000, 100_003), 1)
    world.carry()
    assert [payload for _, payload in live.got][-3:] == [b"100000", b"100001", b"100002"]


@pytest.mark.parametrize("topic", ["x", "x/+", "$share/g/x"])
def test_who_subscribes_once_more_is_never_gone_for_others(topic: str) -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    device = world.lasting("b", "device", topic)
    device.broker.subscribe(device.wish(topic, 2))
    world.tick()
    said = [
        type(record) for line in world.lines("b").lines.values() for data in line
        for record in frames.opened(data).records
    ]  # fmt: skip
    assert frames.Leaves not in said
    world.carry()
    writer = world.client("a", "writer")
    world.say(writer, topic.removeprefix("$share/g/").replace("+", "y"), b"1")
    world.carry()
    assert world.waiting("b", "device") == [b"1"]
    assert device.broker.unsubscribe(device, topic)
    world.carry()
    assert (topic, topic == "x") not in world.members["a"].estates["b"].wants
