"""Frames that are lost, repeated and late, nodes that are cut off and come back.

After every schedule, and a while without faults, all nodes hold the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest.mock import patch

import pytest

from hubbub.cluster import frames, retained
from hubbub.cluster.estates import SLOW
from hubbub.cluster.hearing import LOST
from hubbub.core.limits import CLUSTER_DEAD_SECONDS
from hubbub.core.message import Run
from tests.cluster.test_keeping import Keepers
from tests.cluster.world import NAMES, Reader, World

TOPICS = ("x", "y", "z/1", "z/2", "s/1")
FILTERS = (*TOPICS[:4], "z/#", "+", "$share/g/s/1")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    world.meet()
    yield world


def test_what_is_lost_is_counted_and_the_rest_told_again(world: World) -> None:
    reader, writer = world.client("b", "reader"), world.client("a", "writer")
    world.carry()
    reader.wish("x")
    world.tick()
    world.lines("b").lines["a"].clear()  # the wish is lost
    world.publish(writer, "x", b"for nobody")
    world.wait(3)
    assert not reader.got
    assert world.members["a"].hearing.lost >= 1
    assert world.members["a"].broker.metrics.dropped[LOST] >= 1
    world.publish(writer, "x", b"after")
    world.carry()
    assert reader.got == [("x", b"after")]


def test_what_comes_twice_counts_once(world: World) -> None:
    reader, writer = world.client("b", "reader"), world.client("a", "writer")
    reader.wish("x")
    world.carry()
    world.publish(writer, "x", b"once")
    world.tick()
    line = world.lines("a").lines["b"]
    line.extend(list(line) * 3)
    world.carry()
    assert reader.got == [("x", b"once")]
    assert not world.members["b"].hearing.lost


def test_three_nodes_make_no_loop_and_nobody_hears_twice(world: World) -> None:
    readers = {name: world.client(name, f"reader-{name}") for name in NAMES}
    for reader in readers.values():
        reader.wish("#")
        reader.wish("x")
    world.carry()
    for name, reader in readers.items():
        world.publish(reader, "x", name.encode(), retain=name == "a")
    world.carry()
    for reader in readers.values():
        assert sorted(reader.got) == [("x", b"a"), ("x", b"b"), ("x", b"c")]


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_a_client_at_two_nodes_the_later_connection_stays(world: World, first: str) -> None:
    """Whichever node hears first of the other."""
    old = world.client("a", "dev")
    world.clock.seconds += 0.001
    new = world.client("b", "dev")
    world.tick()
    other = "b" if first == "a" else "a"
    for frame in world.lines(first).lines[other]:
        world.members[other].hear(frame)
    world.lines(first).lines[other].clear()
    world.carry()
    assert old.taken and not new.taken
    assert not old.number and new.number


def test_who_comes_again_under_its_number_is_on_another_connection(world: World) -> None:
    """Also where that it was gone, and there again, was lost on the way, and all is told anew."""
    number = world.client("a", "dev").number
    world.carry()
    world.cut.add("a")
    world.clock.seconds += 0.001
    second = world.client("b", "dev")  # of which a does not hear
    world.clock.seconds += 0.001
    third = world.client("a", "dev")
    assert third.number == number
    world.carry()
    world.cut.clear()
    world.wait(3)
    assert second.taken and not third.taken


def test_at_the_same_moment_the_greater_name_of_the_node_stays(world: World) -> None:
    left, right = world.client("a", "dev"), world.client("b", "dev")
    world.carry()
    assert left.taken and not right.taken


def test_a_node_that_falls_silent_is_one_change_for_each_client(world: World) -> None:
    watcher, device = world.client("b", "watcher"), world.client("a", "device")
    world.carry()
    address = f"$client/{device.number}"
    assert watcher.broker.observers.observe(watcher, address) == 1
    world.cut.add("a")
    world.wait(CLUSTER_DEAD_SECONDS - 1)
    assert not watcher.changes
    world.wait(2)
    assert watcher.changes == [(address, 0)]
    world.cut.clear()
    world.meet()
    assert watcher.changes == [(address, 0)]
    world.publish(watcher, address, b"you are back")  # it never knew that it was away
    world.carry()
    assert watcher.broker.client(device.number) is not None


def test_a_node_that_was_started_again_is_another_one(world: World) -> None:
    device = world.client("a", "device")
    world.carry()
    number = device.number
    assert number in world.members["b"].broker.phantoms
    world.clock.seconds += 1
    stale = frames.frame("a", world.members["a"].boot, 1, 99, frames.piece(frames.Beat("0", 0)))
    world.add("a")
    world.meet()
    assert number not in world.members["b"].broker.phantoms
    world.members["b"].hear(stale)
    assert "a" in world.members["b"].nodes


def test_of_two_nodes_with_one_name_the_later_takes_no_part(world: World) -> None:
    """They began while they could not hear one another."""
    elder = world.members["a"]
    world.clock.seconds += 1
    other = World(names=())
    other.clock = world.clock
    younger = other.add("a")
    younger.beat()
    elder.beat()
    beats = [
        frames.frame("a", member.boot, 0, 0, frames.piece(frames.Beat("0", world.clock.stamp())))
        for member in (elder, younger)
    ]
    elder.hear(beats[1])
    younger.hear(beats[0])
    assert not elder.excluded and sum(elder.hearing.refused.values()) == 1
    assert "has the name 'a'" in younger.excluded and younger.status()["up"] is False
    younger.hear(world.lines("b").lines["a"][0] if world.lines("b").lines["a"] else beats[0])
    assert not younger.nodes


def test_a_node_that_is_slower_than_its_senders_loses_and_it_is_counted(world: World) -> None:
    reader, writer = world.client("b", "reader"), world.client("a", "writer")
    reader.wish("x")
    world.carry()
    writer.broker.patience.seconds = 0  # else the publisher is made to wait
    world.lines("a").waits = 2 << 20  # NATS takes no more
    for number in range(10):
        world.publish(writer, "x", b"%d" % number)
        world.tick()
    world.lines("a").waits = 0
    world.wait(1)
    world.publish(writer, "x", b"room again")
    world.carry()
    assert reader.got == [("x", b"0"), ("x", b"room again")]
    assert world.members["a"].broker.metrics.dropped[SLOW] == 9


def test_a_cleared_name_is_forgotten_after_a_while(world: World) -> None:
    writer = world.client("a", "writer")
    for payload in (b"1", b""):
        world.publish(writer, "x", payload, retain=True)
    world.carry()
    stamps = world.members["b"].stamps
    assert "x" in stamps.cleared and "x" not in world.retained("b")
    with patch.object(retained, "REMEMBERED", 0):
        world.clock.seconds += 1
        world.publish(writer, "y", b"1", retain=True)
        world.publish(writer, "y", b"", retain=True)
        world.carry()
    assert "x" not in stamps.cleared


def test_a_clock_that_is_behind_still_replaces_what_is_there(world: World) -> None:
    """The stamp of a message is later than that of the one it replaces."""
    left, right = world.client("a", "left"), world.client("b", "right")
    world.clock.seconds += 30
    world.publish(left, "x", b"of tomorrow", retain=True)
    world.carry()
    world.clock.seconds -= 30
    world.publish(right, "x", b"newer", retain=True)
    world.carry()
    assert [world.retained(name) for name in NAMES] == [{"x": b"newer"}] * 3


def test_commands_do_not_cross(world: World) -> None:
    """Neither published, nor retained, nor subscribed to, nor in a frame that is made up."""
    name = "$CONTROL/dynamic-security/v1"
    done: list[Run] = []
    world.members["b"].broker.controls[name] = done.append
    reader, writer = world.client("b", "reader"), world.client("a", "writer")
    for wish in ("$CONTROL/#", name):
        reader.wish(wish)
    world.carry()
    assert not world.members["a"].estates["b"].wants
    for retain in (False, True):
        world.publish(writer, name, b"{}", retain)
    world.carry()
    member = world.members["b"]
    wire = name.encode()
    said = frames.Said(0, "p", b"x", wire, b"", 0, False, False, b"{}", 1, [], 0, "", False)
    list(member.hearing.said_by(member.nodes["a"], [said]))
    assert not done and not reader.got and name not in world.retained("b")
    assert sum(member.hearing.refused.values()) == 1


@pytest.mark.parametrize("level", ["x", "x" * 1_000], ids=["short", "long"])
def test_what_does_not_cross_is_refused_each_time(world: World, level: str) -> None:
    """Names that are said again are not looked at anew, and only the short ones."""
    reader = world.client("b", "reader")
    reader.wish("#")
    world.carry()
    member = world.members["b"]
    names = [f"{level}/1", f"$SYS/{level}", f"{level}/\0", f"$share/g/{level}", f"{level}/2", ""]
    for _ in range(3):
        for name in names:
            list(member.hearing.said_by(member.nodes["a"], [said_to(name)]))
    assert [name for name, _ in reader.got] == 3 * [f"{level}/1", f"{level}/2"]
    assert sum(member.hearing.refused.values()) == 3 * 4

    member.broker.controls[f"{level}/1"] = lambda run: None  # from now on
    list(member.hearing.said_by(member.nodes["a"], [said_to(f"{level}/1")]))
    assert sum(member.hearing.refused.values()) == 3 * 4 + 1


def said_to(name: str) -> frames.Said:
    wire = name.encode()
    return frames.Said(0, "p", b"x", wire, b"", 0, False, False, b"y", 1, [], 0, "", False)


def test_a_retained_message_reaches_a_group_at_another_node(world: World) -> None:
    reader, writer = world.client("b", "reader"), world.client("a", "writer")
    reader.wish("$share/g/x")
    world.carry()
    world.publish(writer, "x", b"plain")
    world.publish(writer, "x", b"kept", retain=True)
    world.carry()
    assert reader.got == [("x", b"plain"), ("x", b"kept")]
    assert world.retained("b") == {"x": b"kept"}


def test_retained_messages_wait_at_home_while_a_node_takes_none(world: World) -> None:
    writer = world.client("a", "writer")
    world.carry()
    world.lines("a").waits = 2 << 20
    for number in range(20):
        world.publish(writer, f"r/{number}", b"x" * 100_000, retain=True)
        world.tick()
    assert sum(map(len, world.lines("a").lines["b"])) < 500_000
    world.lines("a").waits = 0
    world.wait(3)
    assert len(world.retained("b")) == 20


@pytest.mark.parametrize("properties", [b"{{{", b"[1,2]", b"[" * 100_000])
def test_a_bad_record_takes_no_other_with_it(world: World, properties: bytes) -> None:
    reader = world.client("b", "reader")
    reader.wish("x")
    world.carry()
    member, life = world.members["b"], world.members["b"].nodes["a"].their_life
    seen = member.nodes["a"].seen
    rest = frames.Rest(b"", b"", b"", b"", b"", 0, properties)
    bad = frames.Said(0, "p", b"x", b"x", b"", 0, False, False, b"", 1, [rest], 0, "", False)
    good = frames.Said(0, "p", b"x", b"x", b"", 0, False, False, b"ok", 1, [], 0, "", False)
    pieces = frames.piece(bad) + frames.piece(good)
    member.hear(frames.frame("a", member.nodes["a"].boot, life, seen + 1, pieces))
    assert reader.got == [("x", b"ok")]
    assert sum(member.hearing.refused.values()) == 1
    for name in ("", " ", ">", "\x02", "a b"):
        member.hear(frames.frame(name, 1, 0, 0, frames.piece(frames.Beat("", 0))))
    assert set(member.nodes) == {"a", "c"}


# Schedules


def simulate(seed: int, steps: int = 120) -> None:
    world = World(seed)
    chance = world.chance
    world.lossy = chance.choice((0.0, 0.02, 0.2))
    clients = [world.client(name, f"{name}{n}") for name in NAMES for n in range(2)]
    sent: dict[str, int] = {}
    writers = clients[::2]
    steps_of: list[Callable[[], None]] = [
        lambda: world.wait(chance.choice((0.25, 0.5, 3.0))),
        lambda: world.carry(chance.randrange(20)),
        lambda: world.cut.symmetric_difference_update({chance.choice(NAMES)}),
        lambda: chance.choice(clients).wish(chance.choice(FILTERS)),
    ]

    def publish() -> None:
        writer, topic = chance.choice(writers), chance.choice(TOPICS)
        number = sent[writer.client] = sent.get(writer.client, 0) + 1
        keep = topic.startswith("z/")
        empty = keep and chance.random() < 0.2
        payload = b"" if empty else f"{writer.client} {number}".encode()
        world.clock.seconds += 0.001
        world.publish(writer, topic, payload, retain=keep)

    for _ in range(steps):
        chance.choice((publish, publish, publish, *steps_of))()
        check(world, clients)
    world.cut.clear()
    world.lossy = 0.0
    world.wait(CLUSTER_DEAD_SECONDS + 4)
    check(world, clients)
    assert world.retained("a") == world.retained("b") == world.retained("c"), seed
    numbers = {one.number for one in clients}
    for name, member in world.members.items():
        here = set(member.broker.clients)
        servers = {other.number for other in world.members.values() if other is not member}
        assert set(member.broker.phantoms) == numbers - here | servers, (seed, name)


def check(world: World, clients: list[Reader]) -> None:
    """In the order of each publisher and topic, each message once."""
    for client in clients:
        newest: dict[tuple[str, str], int] = {}
        for topic, payload in client.got:
            if not payload:
                continue
            writer, _, number = payload.decode().partition(" ")
            assert newest.get((writer, topic), 0) < int(number) or topic.startswith("z/")
            newest[writer, topic] = int(number)


@pytest.mark.parametrize("seed", range(60))
def test_schedules(seed: int) -> None:
    simulate(seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_schedules() -> None:
    for seed in range(10_000):
        simulate(seed)


@pytest.mark.pure
def test_what_waits_for_a_quorum_is_no_more_than_a_link_may_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest waits in the journal; beats leave all the time, and make no room for it."""
    monkeypatch.setattr("hubbub.core.link.LINK_BYTES", 10_000)
    monkeypatch.setattr("hubbub.cluster.membership.LINK_BYTES", 10_000)
    world = Keepers(names=("a", "b"))
    world.meet()
    world.lasting("b", "ann", "kept")
    world.wait(1)
    world.log("a").prompt = False
    writer = world.client("a", "w")
    for _ in range(200):
        world.say(writer, "kept", b"x" * 500)
    world.wait(30)
    link = world.members["a"].nodes["b"].link
    assert 10_000 <= link.held_bytes < 20_000
    world.log("a").sync()
    world.log("a").prompt = True
    world.wait(5)
    assert len(world.waiting("b", "ann")) == 200
