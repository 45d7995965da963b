"""What a node was about to say when it was killed: said by the next one, or never believed."""

from __future__ import annotations

import pytest

from hubbub.core.limits import CLUSTER_DEAD_SECONDS
from tests.cluster.test_heritage import Dying, Ends


@pytest.mark.parametrize("again", [False, True])
def test_that_a_session_is_over_is_told_when_it_cannot_come_back(again: bool) -> None:
    """Its home is killed before the row of its end is on the disk, and is back with the session:
    where its client began anew that is still known. `again`: one more of it began meanwhile.
    """
    world = Dying(names=("a", "b"))
    for member in world.members.values():
        member.directory.moves["p"] = Ends(member.broker).end_away
    world.meet()
    world.lasting("a", "ann", "kept")
    rows, here = world.log("a"), world.member("b").directory
    world.member("b").relays.end("p", "ann")
    rows.prompt = False
    world.carry()
    assert ("p", "ann") not in world.member("a").broker.sessions
    if again:
        world.lasting("a", "ann", "other")
        rows.sync()
        world.carry()
        assert here.home("p", "ann") == "a"
        return
    rows.prompt = True
    back = world.restart("a")
    back.directory.moves["p"] = Ends(back.broker).end_away
    session = back.broker.sessions["p", "ann"]
    back.directory.began(session, back.broker.state.sessions["p", "ann"].began)
    world.wait(3)
    assert ("p", "ann") not in back.broker.sessions
    assert here.ends_before(("p", "ann")) < 0


@pytest.mark.parametrize("kept", [False, True])
def test_what_a_dead_node_retained_is_heard_by_who_is_there_at_its_heir(kept: bool) -> None:
    """It was killed behind its disk, and before it could say so to anybody: the next one does.
    `kept`: it kept it for a session that lasts there, too.
    """
    world = Dying()
    world.meet()
    readers = {name: world.client(name, f"r{name}") for name in "bc"}
    for reader in readers.values():
        reader.wish("state")
    if kept:
        world.lasting("b", "stays", "state")
    world.carry()
    writer = world.client("a", "w")
    world.say(writer, "state", b"told", retain=True)
    world.wait(1)
    for engine in (world.lines("a"), world.lines("b")):
        engine.up = False
    world.say(writer, "state", b"kept", retain=True)
    copy = world.kill("a")
    world.lines("b").up = True
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.inherit("b", "a", copy)
    world.wait(2)
    for reader in readers.values():
        assert reader.got == [("state", b"told"), ("state", b"kept")]
    assert world.retained("b") == world.retained("c") == {"state": b"kept"}
    if kept:
        assert world.waiting("b", "stays") == [b"told", b"kept"]


@pytest.mark.parametrize("inherited", [True, False])
def test_what_was_held_on_its_way_is_not_believed_once_there_is_an_heir(inherited: bool) -> None:
    """Nobody was promised the last message: the node was killed before that was safe."""
    world = Dying()
    world.meet()
    reader, writer = world.client("c", "r"), world.client("a", "w")
    reader.wish("state")
    world.carry()
    world.publish(writer, "state", b"safe", retain=True)
    world.wait(1)
    world.log("a").prompt = False
    world.member("a").beat()
    world.publish(writer, "state", b"not safe", retain=True)
    world.tick()
    held = list(world.lines("a").lines["c"])
    copy = world.dies("a")
    if inherited:
        world.inherit("b", "a", copy)
        world.wait(2)
    for frame in held:
        world.member("c").hear(frame)
    world.carry()
    said = [b"safe"] if inherited else [b"safe", b"not safe"]  # without one it may be a cable
    assert [payload for _, payload in reader.got] == said
    assert world.retained("c") == {"state": said[-1]}
    world.say(world.client("b", "w"), "state", b"once more", retain=True)
    world.wait(2)
    assert world.retained("b") == world.retained("c") == {"state": b"once more"}
