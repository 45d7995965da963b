"""What one frame says may be work for seconds: others are served meanwhile, in order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from hubbub.cluster import frames
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_RUN, CLUSTER_UNHEARD_BYTES
from tests.cluster.world import World


class Busy(World):
    """Time is that of this machine, so that a turn may be over."""

    def __init__(self) -> None:
        super().__init__(names=("a", "b"))
        self.meet()
        self.clock.now = time.monotonic  # type: ignore[method-assign]
        self.clock.spent = time.thread_time  # type: ignore[method-assign]
        self.here = self.members["a"]
        self.here.nodes["b"].heard = time.monotonic()

    def say(self, *records: frames.Record) -> None:
        """Node b says so to node a."""
        there = self.members["b"]
        node = there.nodes["a"]
        for portion in frames.cut(b"".join(map(frames.piece, records))):
            node.sent += 1
            self.here.hear(frames.frame("b", there.boot, node.life, node.sent, portion))

    def turns(self) -> int:
        """Until all was heard; how many there were."""
        count = 0
        while self.here.broker.unsettled:
            count += 1
            unsettled, self.here.broker.unsettled = self.here.broker.unsettled, []
            for session in unsettled:
                session.settle()
        return count


def run(count: int, topic: bytes = b"x") -> frames.Said:
    return frames.Said(0, "p", b"w", topic, b"", 0, False, False, b"", count, [], 0, "", False)


def test_a_run_of_very_many_messages_is_heard_in_turns_and_in_order() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN), run(1, b"last"))
    world.say(run(1, b"behind it"))
    assert world.here.hearing.is_behind()
    assert len(reader.got) < CLUSTER_RUN
    world.here.nodes["b"].heard -= CLUSTER_DEAD_SECONDS + 1
    world.here.wake(time.monotonic())
    assert "b" in world.here.nodes, "it has said something that was not heard yet"
    assert world.turns() > 3
    assert [topic for topic, _ in reader.got[-3:]] == ["x", "last", "behind it"]
    assert len(reader.got) == CLUSTER_RUN + 2
    assert not world.here.hearing.is_behind() and not world.here.hearing.lost


def whole(world: Busy, lasts: Sequence[tuple[str, bytes, int]], count: int) -> frames.Whole:
    clients = [(1_000_000 + number, "p", b"%d" % number, 1) for number in range(count)]
    number = world.members["b"].number
    return frames.Whole(0, number, clients, [], [frames.Holding("b", 0, [], list(lasts))])


def test_what_holds_of_a_large_node_is_heard_in_turns_and_known_sessions_stay() -> None:
    world = Busy()
    world.here.directory.moves["p"] = lambda client: True
    known = [("p", b"known", 5), ("p", b"over", 5)]
    world.say(whole(world, known, 0))
    assert world.turns() == 0
    assert world.here.directory.home("p", "over") == "b"
    more = [("p", b"%d" % number, 5) for number in range(30_000)]
    world.say(whole(world, [*more, known[0]], 30_000))
    while world.here.hearing.is_behind():
        assert world.here.directory.home("p", "known") == "b"
        unsettled, world.here.broker.unsettled = world.here.broker.unsettled, []
        for session in unsettled:
            session.settle()
    assert world.here.directory.home("p", "over") == ""
    assert len(world.here.directory.there["b"]) == 30_001
    assert len(world.here.nodes["b"].clients) == 30_001


def test_who_is_gone_meanwhile_is_not_heard_any_more() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN), run(1, b"last"))
    world.here.forget(world.here.nodes["b"], "the test says so")
    world.turns()
    assert 0 < len(reader.got) < CLUSTER_RUN
    assert not world.here.hearing.is_behind()


def test_what_waits_to_be_heard_is_bounded_and_what_is_more_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CLUSTER_UNHEARD_BYTES > 2 * 1024 * 1024
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_UNHEARD_BYTES", 1_000)
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN))
    for _ in range(100):
        world.say(run(1, b"waits"))
    world.turns()
    world.say(run(1, b"after"))
    world.turns()
    assert 0 < world.here.hearing.lost < 100
    assert reader.got[-1] == ("after", b"")
