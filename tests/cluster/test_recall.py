"""What a node wants that is away is in the copy of one that lost its journal, or had a backup put
back; what it has heard since may be a part of that.
"""

from __future__ import annotations

import pytest

from hubbub.cluster import frames
from hubbub.cluster.keeping import kept_by
from hubbub.cluster.membership import Membership
from hubbub.core.limits import CLUSTER_DEAD_SECONDS
from tests.cluster.test_heritage import Dying, Ends
from tests.cluster.test_keeping import KEEP
from tests.core.recording import Recording


def met(world: Dying, name: str, other: str) -> Membership:
    """It has heard that the other one is there, and nothing of what that wants."""
    member = world.member(name)
    world.member(other).beat()
    member.hear(world.lines(other).lines[name].pop())
    assert not member.nodes[other].number_there
    return member


def away(world: Dying, name: str) -> None:
    """It is gone before it has said more."""
    world.kill(name)
    world.lines("a").lines.clear()


@pytest.mark.parametrize("kept", [True, False])
def test_who_has_heard_a_part_of_what_one_wants_knows_the_rest_from_its_copy(kept: bool) -> None:
    """Frames were lost: what came is what somebody there subscribed to last."""
    world = Dying(names=("a", "b"))
    world.meet()
    world.lasting("b", "bob", "kept")
    world.say(world.client("a", "w"), "kept", b"before")
    world.carry()
    copy = world.kill("a")
    world.back("a")
    member = met(world, "a", "b")
    member.take(member.nodes["b"], frames.Wants("b", b"other", True, kept))
    world.inherit("a", "a", copy)
    away(world, "b")
    world.wait(10)
    world.say(world.client("a", "w"), "kept", b"after")
    assert world.kept("a", "b") == 1


def test_who_has_a_backup_knows_from_its_copy_what_was_wanted_since() -> None:
    world = Dying(names=("a", "b"))
    world.meet()
    world.lasting("b", "bob", "kept")
    log, backup = world.log("a"), Recording(world.clock)
    backup.rows, backup.durable = list(log.rows), log.durable
    world.lasting("b", "ben", "more")
    copy = world.kill("a")
    world.kill("b")
    world.back("a", backup)
    world.inherit("a", "a", copy)
    writer = world.client("a", "w")
    for topic in ("kept", "more"):
        world.say(writer, topic, b"after")
    assert world.kept("a", "b") == 2


def test_what_an_estate_wants_is_not_known_when_its_holder_is() -> None:
    """Node b has said all, became the heir of c, and is gone before it has said what that wants."""
    world = Dying()
    world.meet()
    world.lasting("c", "cat", "kept")
    copy = world.kill("a")
    world.kill("c")
    world.back("a")
    world.wait(1)
    member = world.member("a")
    assert member.met("b") and not member.knows("c")
    member.take(member.nodes["b"], frames.Holds("c", 1))
    world.inherit("a", "a", copy)
    away(world, "b")
    world.wait(10)
    world.say(world.client("a", "w"), "kept", b"after")
    assert world.kept("a", "c") == 1


def test_which_sessions_are_at_one_that_is_away_stays_known_whatever_a_copy_says() -> None:
    """Nothing was to be kept for them here, so none of it is forgotten because a dead node did."""
    world = Dying()
    for member in world.members.values():
        member.directory.moves["p"] = Ends(member.broker).end_away
    world.meet()
    world.lasting("c", "old", "kept")
    copy = world.dies("a")
    there = world.member("c").broker
    there.end(there.sessions["p", "old"])
    world.lasting("c", "cat", "live", qos=0)
    member = world.restart("b", lost=True)
    member.directory.moves["p"] = Ends(member.broker).end_away
    world.wait(3)
    world.kill("c")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    assert "c" not in member.estates and member.directory.home("p", "cat") == "c"
    world.inherit("b", "a", copy)
    assert "c" in member.estates and member.directory.home("p", "cat") == "c"


def test_what_an_heir_goes_on_to_keep_for_one_that_it_never_met_is_not_kept_for_ever() -> None:
    world = Dying()
    world.meet()
    world.lasting("c", "cat", "kept")
    world.kill("c")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.say(world.client("a", "w"), "kept", b"once")
    copy = world.kill("a")
    member = world.restart("b", lost=True)
    world.inherit("b", "a", copy)
    world.say(world.client("b", "w"), "kept", b"twice")
    assert [world.kept("b", name) for name in ("c", kept_by("c", "a"))] == [1, 1]
    for seconds in (KEEP - 1, 2):
        assert "c" in member.estates
        world.clock.seconds += seconds
        world.wait(1)
    assert "c" not in member.estates
