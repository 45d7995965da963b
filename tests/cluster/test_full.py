"""As much as may be is kept for a node: who publishes more is refused, and nothing is let go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.cluster import keeping
from hubbub.core import quotas
from hubbub.core.low import LASTS
from hubbub.core.message import Message
from hubbub.core.queue import PLAIN
from hubbub.core.scarce import WEIGHT
from tests.cluster.test_keeping import KEEP, Keepers
from tests.cluster.test_passing import Passers, Publisher
from tests.cluster.world import Reader

MOST = 10
BIG = 100_000  # bytes of a message
ZONE = 3 * 5 * WEIGHT * BIG  # of which a fifth is three of them


pytestmark = pytest.mark.pure


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "CLUSTER_KEPT", MOST)
    monkeypatch.setitem(quotas.POOLS, quotas.KEPT, MOST)


def nobody(world: Keepers) -> Reader:
    """A client whose share is not asked."""
    found = world.client("a", "writer")
    found.address = ""
    return found


def user(world: Keepers, name: str) -> Reader:
    found = world.client("a", name)
    found.user, found.payer = name, ""
    return found


def taken(writer: Reader, topic: str, numbers: range, qos: int = 1) -> list[bytes]:
    """What a protocol answers for that tells publishers of bounds, as those do."""
    broker, said = writer.broker, []
    for number in numbers:
        route = broker.route(writer, topic)
        if not (route.bounded and broker.lacks_room(writer, route, 1, False, qos)):
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


@pytest.mark.parametrize("who", [nobody, lambda world: user(world, "ann")])
def test_what_was_let_in_as_one_is_kept_as_a_whole(who: Callable[[Keepers], Reader]) -> None:
    """Of a run for a group one message was asked about, and of two that get it each for itself."""
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x", "y")
    world.lasting("b", "member", "$share/g/x", "$share/g/z")
    writer = who(world)
    broker = writer.broker
    world.apart()
    assert broker.lacks_room(writer, broker.route(writer, "z"), MOST + 1, False, 1, again=True)
    assert quotas.KEPT not in broker.metrics.refused, "nobody is: they are asked about one by one"
    taken(writer, "y", range(1))
    taken(writer, "x", range(MOST))
    taken(writer, "z", range(MOST))
    assert not broker.metrics.dropped
    assert world.kept("a", "b") in (MOST, MOST // 5)


def test_a_node_that_takes_nothing_is_full_for_groups_and_addresses_too() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    device = world.lasting("b", "member", "$share/g/x")
    ann, fifth = user(world, "ann"), MOST // 5
    other = world.members["b"].broker
    other.keep_room("its disk is full")
    assert len(taken(ann, "x", range(MOST))) == fifth
    assert not taken(ann, f"$client/{device.number}", range(1))
    assert len(taken(nobody(world), "x", range(2 * MOST))) == MOST - fifth
    assert not ann.broker.metrics.dropped
    world.say(ann, "x", b"will")
    assert world.kept("a", "b") == MOST
    other.keep_room("")
    world.wait(5)
    assert len(world.waiting("b", "member")) == MOST


def test_what_did_not_stay_for_want_of_room_is_nobodys() -> None:
    """It counted, and who had nothing there was refused for ever."""
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x")
    ann = user(world, "ann")
    world.apart()
    ann.broker.keep_room("the disk is full")
    for _ in range(MOST):
        world.say(ann, "x", b"will")
    assert not world.kept("a", "b")
    ann.broker.keep_room("")
    assert len(taken(ann, "x", range(MOST))) == MOST // 5


def test_what_is_for_later_is_its_publishers_and_waits_for_room() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x")
    ann, bob = user(world, "ann"), user(world, "bob")
    broker, fifth = ann.broker, MOST // 5
    world.apart()
    said = taken(ann, "$delayed/1/x", range(2 * MOST))
    world.clock.seconds += 2
    broker.delays.wake()
    assert world.kept("a", "b") == fifth, "the hub says it, but not on its own account"
    others = taken(bob, "x", range(MOST))
    assert len(others) == fifth
    world.cut.clear()
    for _ in said:
        world.wait(5)
        broker.delays.wake()
    assert sorted(world.waiting("b", "device")) == sorted(said + others), "it was acknowledged"
    assert not broker.metrics.dropped and not broker.state.delayed


def test_dead_letters_are_of_whoever_the_queue_is() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "worker", "$queue/dead")
    ann, bob = user(world, "ann"), user(world, "bob")
    broker = ann.broker
    world.apart()
    queue = broker.queues.named("q", None, ann)
    broker.queues.configure(queue, PLAIN._replace(dead_letter="dead"))
    for _ in range(2 * MOST):
        broker.post(Message("$queue/q", b"", 1, expires=broker.clock.stamp() + 1), ann)
    world.clock.seconds += 1
    broker.queues.overdue.wake()
    assert not queue.messages and world.kept("a", "b") == MOST // 5
    assert taken(bob, "$queue/dead", range(1))


def test_what_is_handed_on_counts_before_it_is_kept_here() -> None:
    """One that must be kept here was let in, and dropped when what was handed on came before it."""
    world = Passers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x", qos=2)
    ann = user(world, "ann")
    broker, publisher = ann.broker, Publisher(ann)
    route = broker.route(ann, "x")
    said = []
    for number in range(MOST):
        if not broker.lacks_room(ann, route, 1, False):
            said.append(number)
            publisher.say(number)
    assert broker.handing and len(said) == MOST // 5
    assert broker.lacks_room(ann, route, 1, False, qos=2)
    hub = nobody(world)
    assert not broker.lacks_room(hub, route, 1, False, qos=2), "the hub's own has no share"
    world.wait(1)
    assert not broker.lacks_room(ann, route, 1, False, qos=2)
    assert world.waiting("b", "device") == [b"%d" % number for number in said]


def test_an_answer_is_asked_about_where_it_goes() -> None:
    """It was acknowledged, and so was its request; then it was dropped."""
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x")
    world.lasting("b", "asker", "$queue/answers")
    ann = user(world, "ann")
    broker = ann.broker
    world.apart()
    number = broker.replies.id_of(Message("t", b"?", 1, reply_to="$queue/answers", seq=1), ann)
    taken(ann, "x", range(MOST))
    assert not taken(ann, f"$client/{number}", range(1)), "it is refused"
    world.cut.clear()
    world.wait(5)
    assert taken(ann, f"$client/{number}", range(1))
    world.wait(1)
    assert len(world.members["b"].broker.state.queues["answers"].messages) == 1
    assert not broker.metrics.dropped
    gone = broker.replies.id_of(Message("t", b"?", 1, reply_to="$queue/gone", seq=2), ann)
    assert taken(ann, f"$client/{gone}", range(1)) and not broker.state.queues


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


def test_what_one_node_brings_does_not_take_the_last_of_a_disk(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has a share as a user has, and what it keeps waits where it is; others go on."""
    world = Keepers(names=("a", "b", "c"))
    world.meet()
    world.lasting("b", "device", "x").broker.disconnect(
        world.members["b"].broker.sessions["p", "device"], "away"
    )
    member = world.members["b"]
    here, left = member.broker, ZONE - 1
    ann, carl, local = (world.client(*one) for one in (("a", "ann"), ("c", "carl"), ("b", "bob")))
    local.address = "192.0.2.7"
    here.share_room(left, ZONE)

    def loses() -> None:
        nonlocal left
        left -= WEIGHT * BIG
        here.share_room(left, ZONE)

    for number in range(4):
        world.say(ann, "x", b"%d" % number * BIG)
        world.wait(1)
        if number < 3:
            loses()
    assert len(world.waiting("b", "device")) == 3, "the fourth one waits"
    assert world.kept("a", "b") == 1 and member.nodes["a"].declined
    assert "node 'a' has brought" in caplog.text and "waits there" in caplog.text
    assert not here.scarce.lacks(local)
    world.say(carl, "x", b"c")
    world.wait(1)
    assert world.waiting("b", "device")[-1] == b"c", "another node has a share of its own"
    here.share_room(3 * ZONE, ZONE)
    world.clock.seconds += LASTS
    here.share_room(3 * ZONE, ZONE)
    world.wait(1)
    assert world.kept("a", "b") == 0 and not member.nodes["a"].declined
    assert len(world.waiting("b", "device")) == 5
