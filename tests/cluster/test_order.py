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


@pytest.mark.parametrize("waits", [2, CLUSTER_WINDOW + 100])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("kind", [Keepers, Passers])
def test_who_does_not_last_stays_when_the_last_one_who_does_is_over(
    kind: type[Keepers], qos: int, waits: int
) -> None:
    """What was for both waits for the journal, or for room; what follows is for one alone."""
    world = kind(names=("a", "b"))
    world.meet()
    device = world.lasting("b", "device", "x", qos=qos)
    live, writer = world.client("b", "live"), world.client("a", "writer")
    live.wish("x")
    say(writer, range(1), qos)
    world.wait(1)
    world.log("a").prompt = world.log("b").prompt = False
    say(writer, range(1, waits), qos)
    world.carry()
    device.broker.end(device)
    world.carry()
    say(writer, range(waits, waits + 3), qos)
    world.carry()
    world.log("a").prompt = world.log("b").prompt = True
    for _ in range(4):
        world.log("a").sync()
        world.log("b").sync()
        world.wait(1)
    assert [payload for _, payload in live.got] == [b"%d" % one for one in range(waits + 3)]
    estate = world.members["a"].estates["b"]
    assert not estate.ebbing and not estate.wants["x", True].qos, "nothing is kept any more"


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
