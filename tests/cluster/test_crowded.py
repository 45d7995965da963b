"""While the disk is behind, what other nodes publish waits; all else they say is heard."""

from __future__ import annotations

import pytest

from hubbub.cluster import frames
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_SLICE
from tests.cluster.test_keeping import Keepers
from tests.cluster.world import World


class Crowded(Keepers):
    """`crowd`: the nodes whose disks are behind."""

    def __init__(self) -> None:
        super().__init__(names=("a", "b"))
        self.crowd: set[str] = set()
        for name, member in self.members.items():
            member.hearing.crowded = lambda name=name: name in self.crowd  # type: ignore[misc]
        self.meet()


def test_messages_wait_in_their_order_and_who_is_there_is_known() -> None:
    world = Crowded()
    reader, writer = world.client("a", "reader"), world.client("b", "writer")
    reader.wish("x")
    world.carry()
    world.crowd.add("a")
    for number in range(50):
        world.publish(writer, "x", b"%d" % number)
        world.carry()
    late = world.client("b", "late")
    late.wish("y")
    world.wait(3 * CLUSTER_DEAD_SECONDS)
    assert not reader.got and "b" in world.members["a"].nodes
    here = world.members["a"]
    assert len(here.nodes["b"].clients) == 3 and ("y", True) in here.estates["b"].wants
    world.crowd.clear()
    world.publish(writer, "x", b"50")
    world.carry()
    assert [payload for _, payload in reader.got] == [b"%d" % number for number in range(51)]
    assert not here.hearing.lost and not len(here.hearing.aside) and not here.hearing.aside.room


def test_what_waited_is_said_when_the_disk_has_less_to_do_though_nobody_says_more() -> None:
    world = Crowded()
    reader, writer = world.client("a", "reader"), world.client("b", "writer")
    reader.wish("x")
    world.carry()
    world.crowd.add("a")
    world.publish(writer, "x", b"1")
    world.carry()
    world.cut.update("ab")
    world.crowd.clear()
    world.wait(0.5)
    assert [payload for _, payload in reader.got] == [b"1"]


def test_two_nodes_whose_disks_are_behind_do_not_wait_for_one_another() -> None:
    """What each kept for the other waits; that it was taken is heard, and nobody is dead."""
    world = Crowded()
    writers = {name: world.client(name, f"writer-{name}") for name in "ab"}
    for name in "ab":
        world.lasting(name, f"device-{name}", f"for-{name}")
    world.carry()
    world.crowd.update("ab")
    for number in range(300):
        world.say(writers["a"], "for-b", b"%d" % number)
        world.say(writers["b"], "for-a", b"%d" % number)
    world.wait(4 * CLUSTER_DEAD_SECONDS)
    for name, other in ("ab", "ba"):
        assert set(world.members[name].nodes) == {other}
        assert not world.waiting(name, f"device-{name}") and world.kept(name, other) == 300
    world.crowd.remove("a")  # one disk is enough: the other node's is still behind
    world.wait(2)
    everything = [b"%d" % number for number in range(300)]
    assert world.waiting("a", "device-a") == everything
    assert world.kept("b", "a") == 0, "b hears so, though its disk is behind"
    world.crowd.clear()
    world.wait(2)
    assert world.waiting("b", "device-b") == everything and world.kept("a", "b") == 0


@pytest.mark.pure
def test_what_waits_is_bounded_counted_and_what_is_kept_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_ASIDE_BYTES", 100_000)
    world = Crowded()
    reader, writer = world.client("a", "reader"), world.client("b", "writer")
    reader.wish("x")
    world.lasting("a", "device", "y")
    world.carry()
    world.crowd.add("a")
    for number in range(200):
        world.publish(writer, "x", b"x" * 1_000)
        world.say(writer, "y", b"%d" % number)
        world.carry()
    hearing = world.members["a"].hearing
    assert hearing.aside.room <= 100_000 + 3_000
    dropped = world.members["a"].broker.metrics.dropped
    assert dropped["the disk is too slow for other nodes"] > 100
    world.crowd.clear()
    world.wait(4)
    assert len(reader.got) == 13, "one node alone has half of the room"
    assert world.waiting("a", "device") == [b"%d" % number for number in range(200)]
    assert world.kept("b", "a") == 0 and not hearing.aside.room


@pytest.mark.pure
def test_what_is_retained_and_found_no_room_is_told_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_ASIDE_BYTES", 100_000)
    world = Crowded()
    writer = world.client("b", "writer")
    world.carry()
    world.crowd.add("a")
    for number in range(200):
        world.publish(writer, f"x/{number}", b"x" * 1_000, retain=True)
        world.carry()
    world.wait(1)
    world.crowd.clear()
    world.wait(4)
    assert world.retained("a") == world.retained("b") and len(world.retained("a")) == 200
    here = world.members["a"]
    assert not here.nodes["b"].declined and not here.hearing.aside.room


@pytest.mark.parametrize("gone", ["stopped", "silent", "has an heir"])
def test_what_waited_of_a_node_that_is_gone_is_said_unless_its_heir_says_it(gone: str) -> None:
    """It was heard in time. That was acknowledged, and whoever knows it may be gone for good."""
    world = Crowded()
    reader, writer = world.client("a", "reader"), world.client("b", "writer")
    reader.wish("#")
    world.lasting("a", "device", "for-a")
    world.carry()
    world.crowd.add("a")
    world.publish(writer, "x", b"live")
    world.publish(writer, "kept", b"acknowledged", retain=True)
    world.say(writer, "for-a", b"comes once")
    world.carry()
    here = world.members["a"]
    if gone == "stopped":
        world.members["b"].goodbye()
        world.carry()
    world.cut.update("ab")
    if gone == "silent":
        world.wait(CLUSTER_DEAD_SECONDS + 1)
    if gone == "has an heir":
        here.inherited["b"] = 1000
        here.forget(here.nodes["b"], "c has what it had")
    assert not here.nodes and not reader.got
    world.crowd.clear()
    world.wait(1)
    said = gone != "has an heir"
    assert [payload for _, payload in reader.got] == ([b"live", b"acknowledged"] if said else [])
    assert world.retained("a") == ({"kept": b"acknowledged"} if said else {})
    assert not len(here.hearing.aside) and not here.hearing.aside.room
    dropped = here.broker.metrics.dropped.get("the disk is too slow for other nodes", 0)
    assert dropped == (0 if said else 2) and not world.waiting("a", "device")
    here.inherited.clear()
    world.cut.clear()
    world.wait(2)
    assert world.waiting("a", "device") == [b"comes once"]
    assert world.retained("a") == {"kept": b"acknowledged"}


def test_what_waited_of_a_node_that_is_back_comes_before_what_it_says_then() -> None:
    world = Crowded()
    reader, writer = world.client("a", "reader"), world.client("b", "writer")
    reader.wish("#")
    world.carry()
    world.crowd.add("a")
    for number in range(10):
        world.publish(writer, "x", b"%d" % number, retain=True)
        world.carry()
    world.cut.update("ab")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.restart("b")
    world.cut.clear()
    world.wait(2)
    world.publish(world.client("b", "writer"), "x", b"10", retain=True)
    world.carry()
    assert not reader.got and "b" in world.members["a"].nodes
    world.crowd.clear()
    world.wait(1)
    assert [payload for _, payload in reader.got] == [b"%d" % number for number in range(11)]
    assert world.retained("a") == {"x": b"10"}


def test_a_long_run_goes_on_to_its_end_though_its_node_is_gone_meanwhile() -> None:
    world = Crowded()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.carry()
    world.crowd.add("a")
    here, count = world.members["a"], 10 * CLUSTER_SLICE
    said = frames.Said(0, "p", b"w", b"x", b"", 0, False, False, b"", count, [], 0, "", False)
    world.members["b"].nodes["a"].tell(said)
    world.carry()
    world.crowd.clear()
    world.clock.turned = -1.0  # as in a turn that took long so far: each piece is one
    here.hearing.go_on()
    assert 0 < len(reader.got) < count
    here.forget(here.nodes["b"], "the test says so")
    world.clock.turned = 0.0
    for _ in range(count):
        unsettled, here.broker.unsettled = here.broker.unsettled, []
        for session in unsettled:
            session.settle()
    assert len(reader.got) == count and not here.hearing.aside.room


@pytest.mark.pure
def test_what_was_kept_and_found_no_room_is_asked_for_while_live_messages_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is always something of a node that says a little more than the disk takes."""
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_ASIDE_BYTES", 100_000)
    world = Crowded()
    writer = world.client("b", "writer")
    world.client("a", "reader").wish("x")
    world.lasting("a", "device", "y")
    world.carry()
    here = world.members["a"]
    world.crowd.add("a")
    while not here.hearing.aside.is_full("b"):
        world.publish(writer, "x", b"x" * 1_000)
        world.carry()
    world.say(writer, "y", b"1")
    world.carry()
    assert here.nodes["b"].declined
    while len(here.hearing.aside) > 3:  # what waits gets less, and never nothing
        world.crowd.clear()
        here.hearing.aside.go_on()
        world.crowd.add("a")
    world.wait(2)
    assert len(here.hearing.aside) > 1 and not here.nodes["b"].declined
    world.crowd.clear()
    world.wait(2)
    assert world.waiting("a", "device") == [b"1"] and world.kept("b", "a") == 0


def test_a_message_in_parts_waits_too() -> None:
    world = World(names=("a", "b"))
    world.meet()
    here, there = world.members["a"], world.members["b"]
    reader = world.client("a", "reader")
    reader.wish("x")
    world.carry()
    here.hearing.crowded = lambda: True
    payload = b"x" * 1_000_000
    said = frames.Said(0, "p", b"w", b"x", b"", 0, False, False, payload, 1, [], 0, "", False)
    there.nodes["a"].tell(said)
    world.wait(1)
    assert not reader.got and here.hearing.aside.room > 1_000_000
    here.hearing.crowded = lambda: False
    world.wait(1)
    assert reader.got == [("x", payload)]
