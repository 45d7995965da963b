"""Clocks of nodes that are apart: what a client says next, at another node, is later anyway."""

from __future__ import annotations

import pytest

from hubbub.cluster.membership import Membership
from hubbub.cluster.retained import LATER
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_CLOCK_SECONDS, CLUSTER_DEAD_SECONDS
from tests.cluster.test_heritage import Dying
from tests.cluster.world import Lines, World
from tests.core.recording import Recording, StillClock


class Apart(StillClock):
    """Behind what the test's clock says by so many seconds, or ahead; at rows alone."""

    def __init__(self, true: StillClock, seconds: float) -> None:
        self.true, self.apart = true, seconds
        super().__init__()

    def now(self) -> float:
        return self.true.seconds

    def stamp(self) -> int:
        return int((self.true.seconds + self.apart) * 1_000_000)


class Skewed(World):
    """`a` is ahead."""

    def __init__(self, seconds: float) -> None:
        self.ahead = seconds
        super().__init__()

    def add(self, name: str) -> Membership:
        clock = Apart(self.clock, self.ahead if name == "a" else 0)
        broker = Broker(clock, Recording(clock), "all")
        member = self.members[name] = Membership(broker, Lines(self, name), "0")
        member.begin()
        return member

    def end(self, name: str) -> None:
        del self.members[name]
        for other in self.members:
            self.lines(other).lines.pop(name, None)


@pytest.mark.parametrize("seconds", [-50, -1, 0, 0.2, 1, 20, 50])
def test_who_goes_on_elsewhere_says_later_things_whatever_clocks_say(seconds: float) -> None:
    """Of what it said at a node that is dead now one of two heard, and tells the other one."""
    world = Skewed(seconds)
    world.meet()
    world.publish(world.client("a", "writer"), "x", b"1", retain=True)
    world.tick()
    world.lines("a").lines["b"].clear()
    world.carry()
    world.end("a")
    world.wait(0.5)
    assert world.retained("c") == {"x": b"1"} and world.retained("b") == {}
    world.publish(world.client("b", "writer"), "x", b"2", retain=True)
    world.wait(2)
    world.members["b"].nodes["c"].ask()
    world.members["c"].nodes["b"].ask()
    world.wait(8)
    assert world.retained("b") == world.retained("c") == {"x": b"2"}


@pytest.mark.parametrize("goes_on", ["a", "c"])
def test_what_replaced_one_of_a_clock_that_is_ahead_is_later_though_others_missed_it(
    goes_on: str,
) -> None:
    """Node a replaced it, and was killed before anybody heard so: it is started again, or c is its
    heir. That its message is later than its time the journal alone says.
    """
    world = Dying()
    world.meet()
    world.hears_of_one_ahead()
    world.publish(world.client("a", "writer"), "x", b"later", retain=True)
    world.tick()
    for line in world.lines("a").lines.values():
        line.clear()
    if goes_on == "a":
        world.restart("a")
    else:
        world.inherit("c", "a", world.dies("a"))
    world.wait(5)
    assert all(world.retained(name) == {"x": b"later"} for name in world.members)


def later_rows(world: World, name: str) -> int:
    return sum(one.startswith(LATER) for one in world.members[name].broker.state.taken)


def test_clocks_that_are_right_cost_no_row_of_a_retained_message() -> None:
    for seconds, rows in ((0.05, 0), (5, 1)):
        world = Skewed(seconds)
        world.meet()
        world.publish(world.client("b", "writer"), "x", b"1", retain=True)
        world.publish(world.client("a", "writer"), "y", b"1", retain=True)
        world.wait(1)
        assert later_rows(world, "b") == rows
        assert later_rows(world, "a") == 0


def test_a_clock_that_is_shut_out_moves_no_stamps() -> None:
    world = Skewed(CLUSTER_CLOCK_SECONDS + 5)
    world.wait(2)
    world.publish(world.client("b", "writer"), "x", b"1", retain=True)
    assert later_rows(world, "b") == 0


def test_a_clock_that_is_shut_out_is_trouble_as_long_as_it_is_heard() -> None:
    """At both ends; nobody knows whose is wrong."""
    world = Skewed(CLUSTER_CLOCK_SECONDS + 60)
    world.wait(2)
    said = world.members["b"].status()
    assert said["trouble"].startswith("node 'a' is shut out: its clock is +120 s from this one")
    assert "node 'b' is shut out: its clock is -120 s" in world.members["a"].trouble()
    clocks = {one["name"]: one["ahead_seconds"] for one in said["clocks"]}
    assert clocks["a"] == pytest.approx(120, abs=1) and clocks["c"] == pytest.approx(0, abs=1)
    world.end("a")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    said = world.members["b"].status()
    assert said["trouble"] == "" and [one["name"] for one in said["clocks"]] == ["c"]


def test_a_beat_that_was_held_for_long_does_not_set_time_back() -> None:
    world = Skewed(20)
    world.meet()
    stamps, time = world.members["b"].stamps, world.clock.stamp()
    before = stamps.by_all_clocks(time)
    assert before - time == pytest.approx(20_000_000, abs=100_000)
    stamps.hears(time + 16_000_000, world.clock.now())
    assert stamps.by_all_clocks(time) == before


def test_a_clock_that_is_mended_costs_rows_for_as_long_as_clocks_need_for_that() -> None:
    world = Skewed(20)
    world.meet()
    world.end("a")
    stamps, last = world.members["b"].stamps, 0
    for second in range(300):
        time = stamps.by_all_clocks(world.clock.stamp())
        assert time > last, "nothing that was told is later"
        last = time
        if second > 12 * 20:
            assert time == world.clock.stamp()
        world.wait(1)
