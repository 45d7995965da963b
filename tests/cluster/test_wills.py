"""Whose the wills of a node are that was stopped, and what was due there: its heir's alone. And
nobody's, once its client is connected elsewhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from hubbub import schema
from hubbub.cluster import frames, heritage, wills
from hubbub.cluster.membership import Membership
from hubbub.cluster.node import Node, Phantom
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_LEFT
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.runtime.copying import MARKER, Copying
from hubbub.schema import Row
from tests.cluster.roaming import roaming
from tests.cluster.test_heritage import Dying
from tests.cluster.test_moves import member
from tests.cluster.test_two_hubs import Pair, pair, until
from tests.cluster.world import Lines, World
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Device, Stage

__all__ = ["pair"]

WILL = codec.Will(b"gone", b"will", 0, False)
AT = 1000


def member_of(stage: Stage) -> Membership:
    found = Membership(stage.broker, Lines(World(names=()), "a"), "0")
    found.relays.serve([stage.mqtt])
    return found


def watcher_at(stage: Stage) -> Device:
    watcher = stage.device("watcher")
    watcher.subscribe("gone", 0, "later", 0)
    watcher.hear()
    return watcher


@pytest.mark.parametrize("lasting", [False, True])
def test_who_was_not_dead_publishes_no_will_of_who_is_gone_for_its_heir(lasting: bool) -> None:
    """It stood still for some seconds, and its heir has published them."""
    stage = Stage()
    member, watcher = member_of(stage), watcher_at(stage)
    device = stage.device("ann", not lasting, will=WILL)
    heritage.let_go(stage.broker, member, [stage.mqtt], AT)
    stage.tick()
    assert device.far.closed
    assert not watcher.far.closed
    assert watcher.hear() == []
    assert not folded(stage.log.rows).wills


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_due_after_a_start_until_it_is_known_whose_it_is(
    tmp_path: Path, stopped: bool
) -> None:
    """What an heir has said a second time, and retained, would replace what was said since."""
    before = Stage()
    before.device("ann", will=WILL)
    before.device("bob").publish("$delayed/5/later", b"due", 1)
    after = Stage()
    after.log.rows, after.log.position = list(before.log.rows), before.log.position
    after.log.sync()
    after.broker.state = folded(after.log.rows)
    (tmp_path / MARKER).write_text("")
    journal: Any = Journal(tmp_path, after.clock, "disk", lambda seq: None)
    settings = Settings(cluster=Cluster(url=("nats://127.0.0.1:1",), name="a", copies="1"))
    copying = Copying(member_of(after), journal, settings, [after.mqtt], lambda: None)
    after.broker.recover([after.mqtt])
    watcher = watcher_at(after)
    after.pass_time(10)

    def said() -> list[str]:
        after.broker.delays.wake()
        after.mqtt.wake(after.clock.now())
        after.tick()
        return watcher.hear()

    assert said() == []
    if stopped:
        heritage.let_go(after.broker, copying.membership, [after.mqtt], AT)
    copying._decided()
    assert sorted(said()) == ([] if stopped else ["gone=will", "later=due"])
    copying._decided()
    assert said() == []
    journal.directory.release()


def started_again(will: codec.Will, clean: bool) -> tuple[Stage, Device]:
    """A hub that was killed while ann was connected, and is back; nobody has said who is where."""
    before = Stage()
    before.device("ann", clean, will=will)
    after = Stage()
    after.log.rows, after.log.position = list(before.log.rows), before.log.position
    after.log.sync()
    after.broker.state = folded(after.log.rows)
    after.broker.undecided = True
    after.broker.recover([after.mqtt])
    return after, watcher_at(after)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_will_of_before_a_start_is_not_said_if_its_client_is_elsewhere(
    clean: bool, elsewhere: bool
) -> None:
    stage, watcher = started_again(WILL, clean)
    if elsewhere:
        stage.broker.phantoms[77] = Phantom("mqtt", "ann", stage.broker.open, 77, "b")
    stage.pass_time(1)
    assert watcher.hear() == []
    wills.known(member_of(stage), wills.WHO_IS_WHERE)
    stage.mqtt.wake(stage.clock.now())
    stage.tick()
    assert watcher.hear() == ([] if elsewhere else ["gone=will"])
    state = folded(stage.log.rows)
    assert not state.wills
    assert all(one.will is None for one in state.sessions.values())


@pytest.mark.parametrize("reached", [False, True])
def test_after_a_start_it_waits_for_whoever_may_be_slow(reached: bool) -> None:
    """A node that stood still for two seconds has not said yet that the client is there. Without
    NATS nobody can say it, and after a minute it is said as by a hub that is alone.
    """
    stage, watcher = started_again(WILL, clean=True)
    member = member_of(stage)
    engine = cast(Lines, member.engine)
    engine.complete, engine.up = False, reached
    wills.wait_to_know(member, wills.WHO_IS_WHERE)
    wills.listen(member)
    wait = CLUSTER_DEAD_SECONDS if reached else wills.UNKNOWN_SECONDS

    def said_after(seconds: float) -> list[str]:
        stage.pass_time(seconds)
        wills.look(member, stage.clock.now())
        stage.mqtt.wake(stage.clock.now())
        stage.tick()
        return watcher.hear()

    assert said_after(wait - 1) == []
    assert said_after(2) == ["gone=will"]
    assert said_after(wait) == []


@pytest.mark.parametrize("says", [True, False])
def test_after_a_start_it_waits_for_whoever_has_not_said_all(says: bool) -> None:
    """What is long to say, or was lost on the way, may need more than five seconds."""
    stage, watcher = started_again(WILL, clean=True)
    (will,) = stage.broker.state.wills.values()
    member = member_of(stage)
    cast(Lines, member.engine).complete = False
    wills.wait_to_know(member, wills.WHO_IS_WHERE)
    wills.listen(member)
    node = member.nodes["b"] = Node(member, "b", member.estate_of("b"), 1, 1, 0)
    node.ask()

    def said_after(seconds: float) -> list[str]:
        stage.pass_time(seconds)
        wills.look(member, stage.clock.now())
        stage.tick()
        return watcher.hear()

    assert said_after(CLUSTER_DEAD_SECONDS + 1) == []
    if says:
        came = (77, "mqtt", b"ann", will.time + 1)
        list(member.hearing.said_by(node, [frames.Whole(node.asking, 78, [came], [], [], [])]))
        assert said_after(0) == []
        assert not stage.broker.undecided
    else:
        assert said_after(wills.UNKNOWN_SECONDS) == ["gone=will"]
    assert not folded(stage.log.rows).wills


async def test_who_comes_to_another_node_is_not_said_to_be_lost(pair: Pair) -> None:
    """The other node has let it in: what this one said would come behind what it says there."""
    a, b = await pair.both()
    ends: dict[str, Any] = {"expiry": 0, "clean": True}
    async with roaming(a, "watcher", **ends) as watcher:
        await watcher.subscribe("wills")
        for lost in (False, True):
            async with roaming(a, will=("wills", b"gone"), **ends) as device:
                if lost:
                    await device.drop()
                    assert await watcher.take(1) == [b"gone"]
                    continue
                async with roaming(b, **ends):
                    await until(lambda: not member(a).broker.sessions.get(("mqtt", "device-1")))
                    b.publish(b"still there", "wills")
                    assert await watcher.take(1) == [b"still there"]


@pytest.mark.parametrize("seconds", [-1, 1])
@pytest.mark.parametrize("said", ["when it left", "when it met"])
def test_a_will_of_before_a_start_is_not_said_if_its_client_was_elsewhere_since(
    seconds: int, said: str
) -> None:
    """It was lost there, or left: what it said last is not followed by a will of before."""
    stage, watcher = started_again(WILL, True)
    (will,) = stage.broker.state.wills.values()
    member = member_of(stage)
    node = Node(member, "b", member.estate_of("b"), 1, 1, 0)
    since = will.time + seconds
    if said == "when it left":
        member.take(node, frames.Came(77, "mqtt", b"ann", since))
        member.take(node, frames.Left(77, since))
    else:
        whole = frames.Whole(0, 78, [], [], [], [("mqtt", b"ann", since)])
        list(member.hearing.said_by(node, [whole]))
    wills.known(member, wills.WHO_IS_WHERE)
    stage.mqtt.wake(stage.clock.now())
    stage.tick()
    assert watcher.hear() == (["gone=will"] if seconds < 0 else [])
    assert not folded(stage.log.rows).wills


def test_who_was_away_hears_who_came_and_went_meanwhile() -> None:
    world = World(names=("a", "b"))
    world.meet()
    came = world.clock.stamp()
    one = world.client("a", "ann")
    world.wait(1)
    one.broker.disconnect(one, "lost")
    world.wait(1)
    assert dict(world.members["b"].left.items()) == {("p", "ann"): came}
    late = world.add("c")
    world.meet()
    assert dict(late.left.items()) == {("p", "ann"): came}
    for number in range(CLUSTER_LEFT):
        wills.went(late, ("p", f"{number}"), 1)
    assert len(late.left) == CLUSTER_LEFT and not late.left.since(("p", "ann"))


def test_an_heir_says_no_will_of_who_was_elsewhere_since() -> None:
    world = Dying()
    world.meet()
    reader = world.client("b", "r")
    reader.wish("will/#")
    for name in ("ann", "bob"):
        row = Row(0, 0, schema.WILL, b"p", name.encode(), f"will/{name}".encode())
        world.member("a").broker.change(row)
    copy = world.dies("a")
    gone = world.client("c", "ann")
    world.wait(1)
    gone.broker.disconnect(gone, "lost")
    world.wait(1)
    world.inherit("b", "a", copy)
    assert [topic for topic, _ in reader.got] == ["will/bob"]
