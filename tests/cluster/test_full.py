"""As much as may be is kept for a node: who publishes more is refused, and nothing is let go."""

from __future__ import annotations

import pytest

from hubbub.cluster import keeping
from hubbub.core import quotas
from hubbub.core.message import Message
from tests.cluster.test_keeping import KEEP, Keepers
from tests.cluster.test_passing import Passers
from tests.cluster.world import Reader

MOST = 10


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "CLUSTER_KEPT", MOST)
    monkeypatch.setitem(quotas.POOLS, quotas.KEPT, MOST)


def nobody(world: Keepers) -> Reader:
    """A client whose share is not asked."""
    found = world.client("a", "writer")
    found.address = ""
    return found


def taken(writer: Reader, topic: str, numbers: range, qos: int = 1) -> list[bytes]:
    """What a protocol answers for that tells publishers of bounds, as those do."""
    broker, said = writer.broker, []
    for number in numbers:
        route = broker.route(writer, topic)
        if not (route.bounded and broker.is_full(writer, route, 1, False, qos)):
            said.append(b"%d" % number)
            broker.post(Message(topic, said[-1], qos), writer)
    return said


@pytest.mark.parametrize("kind", [Keepers, Passers])
def test_who_publishes_for_a_node_that_is_away_is_refused_and_told(kind: type[Keepers]) -> None:
    world = kind(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x", "y")
    writer = nobody(world)
    world.apart()
    said = taken(writer, "x", range(MOST + 5))
    assert len(said) == MOST
    assert not taken(writer, "y", range(1)), "it is all that is kept for the node"
    assert taken(writer, "x", range(1), qos=0), "which is not kept"
    assert not writer.broker.metrics.dropped.get("backlog full")
    world.cut.clear()
    world.wait(5)
    assert world.waiting("b", "device") == said
    assert len(taken(writer, "x", range(3))) == 3, "there is room again"


def test_what_cannot_be_refused_takes_nothing_with_it() -> None:
    """A will, or what a hub says itself, is let go; not what was acknowledged before it."""
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x")
    world.lasting("b", "member", "$share/g/x")
    writer = nobody(world)
    world.apart()
    said = taken(writer, "x", range(2 * MOST))
    for _ in range(3):
        world.say(writer, "x", b"will")
    assert writer.broker.metrics.dropped["backlog full"] >= 3
    world.cut.clear()
    world.wait(5)
    assert world.waiting("b", "device") == said


def test_a_queue_whose_home_is_away_is_full_then() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "worker", "$queue/jobs")
    writer = nobody(world)
    world.apart()
    said = taken(writer, "$queue/jobs", range(MOST + 5))
    assert len(said) == MOST
    assert not writer.broker.metrics.dropped.get("backlog full")
    world.cut.clear()
    world.wait(5)
    assert len(world.members["b"].broker.state.queues["jobs"].messages) == MOST


@pytest.mark.parametrize("kind", [Keepers, Passers])
def test_one_user_does_not_fill_it_for_all(kind: type[Keepers]) -> None:
    world = kind(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x", "y")
    world.lasting("b", "worker", "$queue/jobs")
    world.lasting("b", "member", "$share/g/z")
    ann, again, bob = (world.client("a", name) for name in ("ann", "again", "bob"))
    ann.user = again.user = "ann"
    bob.address = "192.0.2.7"
    broker = ann.broker
    world.apart()
    fifth = MOST // 5
    said = taken(ann, "x", range(MOST))
    assert len(said) == fifth
    for name in ("y", "$queue/jobs", "z"):
        assert not taken(again, name, range(1)), "nor by another client, or for another there"
    assert broker.metrics.refused[quotas.KEPT] == MOST - fifth + 3
    assert taken(ann, "x", range(1), qos=0), "which is not kept"
    said += taken(bob, "x", range(MOST))
    assert len(said) == 2 * fifth, "who comes from another address has as much"
    assert not broker.metrics.dropped.get("backlog full")
    world.say(ann, "x", b"will")
    assert broker.metrics.dropped["backlog full"] == 1, "it cannot be refused"
    world.cut.clear()
    world.wait(5)
    assert world.waiting("b", "device") == said
    assert len(taken(ann, "$queue/jobs", range(fifth))) == fifth, "there is room again"


def test_who_is_refused_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x")
    ann = world.client("a", "ann")
    ann.user = "ann"
    world.apart()
    taken(ann, "x", range(MOST))
    assert "user 'ann' has 2 messages for a node, and 2 of 10 are the most" in caplog.text


def test_a_group_asks_who_has_room() -> None:
    world = Keepers(names=("a", "b", "c"))
    world.meet()
    for name in "bc":
        world.lasting(name, f"at-{name}", "$share/g/x")
    writer = nobody(world)
    world.cut.update("a")
    world.wait(10)
    said = taken(writer, "x", range(3 * MOST))
    assert len(said) == 2 * MOST, "as many as both nodes may have"
    world.cut.clear()
    world.wait(5)
    assert sorted(world.waiting("b", "at-b") + world.waiting("c", "at-c")) == sorted(said)


def test_a_queue_whose_home_is_away_for_too_long_begins_anew_and_goes_behind_the_older() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "worker", "$queue/jobs")
    writer = nobody(world)
    world.say(writer, "$queue/jobs", b"1")
    world.carry()
    world.apart()
    world.say(writer, "$queue/jobs", b"let go")
    world.clock.seconds += KEEP
    a, b = (world.members[name] for name in "ab")
    a.wake(world.clock.now())
    assert "jobs" not in a.broker.state.queues and "b" not in a.estates
    world.say(writer, "$queue/jobs", b"2")
    assert len(a.broker.state.queues["jobs"].messages) == 1, "it is at home here"
    world.cut.clear()
    world.meet()
    world.wait(5)
    assert "jobs" not in a.broker.state.queues
    found = [b.broker.log.read(seq) for seq in b.broker.state.queues["jobs"].messages.values()]
    assert [one.payload for one in found if one is not None] == [b"1", b"2"]
    world.say(writer, "$queue/jobs", b"3")
    world.wait(1)
    assert len(b.broker.state.queues["jobs"].messages) == 3
