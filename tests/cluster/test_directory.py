"""Which sessions are over: that a client began anew is known until each old home has said so."""

from __future__ import annotations

import msgspec
import pytest

from hubbub.cluster import frames
from hubbub.cluster.directory import Directory
from hubbub.cluster.node import Node
from tests.cluster.test_clocks import Skewed
from tests.cluster.world import World

ANN = "p", "ann"


@pytest.fixture
def world() -> World:
    world = World()
    world.meet()
    return world


def seen_at_a(world: World) -> tuple[Directory, Node, Node]:
    """What `a` knows of the others."""
    here = world.members["a"]
    return here.directory, here.nodes["b"], here.nodes["c"]


def test_a_session_of_before_that_is_over_is_not_the_one_that_a_client_ended(world: World) -> None:
    """It was said when that was safe, behind all that holds, which was said at once."""
    here, b, _ = seen_at_a(world)
    here.lasts(b, "b", "p", b"ann", 7)
    here.over(b, "b", "p", b"ann", 5)
    assert here.home(*ANN) == "b"
    anew = here.begin_anew(*ANN)
    here.over(b, "b", "p", b"ann", 5)
    here.lasts(b, "b", "p", b"ann", 7)
    assert here.home(*ANN) == "" and here.ends_before(ANN) == anew + 1
    here.over(b, "b", "p", b"ann", 7)
    assert here.ends_before(ANN) == -1


def test_who_began_anew_ends_sessions_of_two_homes_each_of_which_is_to_hear_it(
    world: World,
) -> None:
    here, b, c = seen_at_a(world)
    here.lasts(c, "c", "p", b"ann", 5)
    here.lasts(b, "b", "p", b"ann", 7)
    here.begin_anew(*ANN)
    here.over(b, "b", "p", b"ann", 7)
    here.lasts(c, "c", "p", b"ann", 5)
    assert here.home(*ANN) == "" and here.ends_before(ANN) > 7
    here.over(c, "c", "p", b"ann", 5)
    assert here.ends_before(ANN) == -1


def test_who_begins_anew_twice_ends_what_it_ended_the_first_time(world: World) -> None:
    here, b, c = seen_at_a(world)
    here.lasts(c, "c", "p", b"ann", 5)
    first = here.begin_anew(*ANN)
    here.lasts(b, "b", "p", b"ann", first + 2)
    assert here.begin_anew(*ANN) > first + 2
    here.over(b, "b", "p", b"ann", first + 2)
    here.lasts(c, "c", "p", b"ann", 5)
    assert here.home(*ANN) == ""


def test_a_node_of_before_does_not_say_when_it_began(world: World) -> None:
    here, b, _ = seen_at_a(world)
    here.lasts(b, "b", "p", b"ann", 7)
    here.begin_anew(*ANN)
    here.over(b, "b", "p", b"ann")
    assert here.ends_before(ANN) == -1


def test_nodes_of_before_read_what_ends_and_say_it_without_a_time() -> None:
    encode = msgspec.msgpack.encode
    assert frames.read(encode([16, "b", "p", b"ann"])) == frames.Over("b", "p", b"ann", 0)
    longer = encode([16, "b", "p", b"ann", 7, "of a node to come"])
    assert frames.read(longer) == frames.Over("b", "p", b"ann", 7)


@pytest.mark.parametrize("seconds", [-20, 0, 20])
def test_what_begins_at_another_node_later_is_not_over_whatever_clocks_say(seconds: float) -> None:
    """The client began anew where the clock is ahead, and goes on from there at once."""
    world = Skewed(seconds)
    world.meet()
    here, _, c = seen_at_a(world)
    here.lasts(c, "c", "p", b"ann", 7)
    anew = here.begin_anew(*ANN)
    world.clock.seconds += 1
    there = world.members["b"]
    assert there.directory.since(ANN, there.broker.clock.stamp()) > anew
