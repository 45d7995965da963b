"""What one frame says may be work for seconds: others are served meanwhile, in order."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hubbub.cluster import frames, wills
from hubbub.core.limits import (
    CLUSTER_DEAD_SECONDS,
    CLUSTER_FRAME_BYTES,
    CLUSTER_FRAME_MESSAGES,
    CLUSTER_RUN,
    CLUSTER_UNHEARD_BYTES,
)
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
        for portion in frames.cut(b"".join(map(frames.piece, records)), CLUSTER_FRAME_BYTES):
            node.sent += 1
            self.here.hear(frames.frame("b", there.boot, node.life, node.sent, portion))

    def beat(self, name: str, apart: float = 0.0) -> None:
        """A node says that it is there."""
        beat = frames.Beat("0", self.clock.stamp() + int(apart * 1_000_000))
        self.here.hear(frames.frame(name, 1, 0, 0, frames.piece(beat)))

    def turn(self) -> None:
        unsettled, self.here.broker.unsettled = self.here.broker.unsettled, []
        for session in unsettled:
            session.settle()

    def turns(self) -> int:
        """Until all was heard; how many there were."""
        count = 0
        while self.here.broker.unsettled:
            count += 1
            self.turn()
        return count


def run(count: int, topic: bytes = b"x") -> frames.Said:
    return frames.Said(0, "p", b"w", topic, b"", 0, False, False, b"", count, [], 0, "", False)


def test_a_run_of_very_many_messages_is_heard_in_turns_and_in_order() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN), run(1, b"last"))
    world.say(run(1, b"behind it"))
    assert world.here.hearing.is_behind("b")
    assert len(reader.got) < CLUSTER_RUN
    world.here.nodes["b"].heard -= CLUSTER_DEAD_SECONDS + 1
    world.here.wake(time.monotonic())
    assert "b" in world.here.nodes, "it has said something that was not heard yet"
    assert world.turns() > 3
    assert [topic for topic, _ in reader.got[-3:]] == ["x", "last", "behind it"]
    assert len(reader.got) == CLUSTER_RUN + 2
    assert not world.here.hearing.is_behind("b") and not world.here.hearing.lost


def test_a_run_that_says_it_is_retained_or_kept_takes_no_longer() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(replace(run(CLUSTER_RUN), retain=True))
    assert 0 < len(reader.got) < CLUSTER_RUN
    world.turns()
    assert len(reader.got) == CLUSTER_RUN
    world.say(frames.Kept("a", "b", world.clock.stamp(), 0, run(CLUSTER_RUN)))
    assert CLUSTER_RUN < len(reader.got) < 2 * CLUSTER_RUN
    world.turns()
    assert len(reader.got) == 2 * CLUSTER_RUN
    assert not world.here.hearing.refused


def test_a_long_run_of_which_one_message_is_retained_is_heard_in_turns() -> None:
    world, count = Busy(), 20_000
    reader = world.client("a", "reader")
    reader.wish("#")
    rests = [frames.Rest(b"%d" % one, b"", b"", b"", b"", 0, b'{"a": 1}') for one in range(count)]
    world.say(replace(run(count), retain=True, rests=rests, stamp=world.clock.stamp(), node="b"))
    assert 0 < len(reader.got) < count
    assert world.turns() > 3
    assert [payload for _, payload in reader.got] == [b"%d" % one for one in range(count)]
    assert world.retained("a") == {"x": b"%d" % (count - 1)}


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
    while world.here.hearing.is_behind("b"):
        assert world.here.directory.home("p", "known") == "b"
        world.turn()
    assert world.here.directory.home("p", "over") == ""
    assert len(world.here.directory.there["b"]) == 30_001
    assert len(world.here.nodes["b"].clients) == 30_001


def test_all_that_holds_is_looked_at_piece_by_piece_before_anything_of_it_is_done() -> None:
    """Each client and filter is one piece to be known, and one to be there; a turn has two."""
    world, count = Busy(), 50
    ticks = itertools.count(1_000, 100)
    world.clock.now = lambda: float(next(ticks))  # type: ignore[method-assign]
    world.clock.spent = world.clock.now  # type: ignore[method-assign]
    said = whole(world, [], count)
    said.holdings[0].wants += [(b"%d" % number, True, False) for number in range(count)]
    world.say(said)
    assert world.turns() >= 2 * count - 5  # a turn is over when that was asked twice
    assert len(world.here.estates["b"].wants) == count


def test_who_is_gone_meanwhile_is_not_heard_any_more() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN), run(1, b"last"))
    world.here.forget(world.here.nodes["b"], "the test says so")
    world.turns()
    assert 0 < len(reader.got) < CLUSTER_RUN
    assert not world.here.hearing.is_behind("b")


@pytest.mark.pure
def test_what_waits_to_be_heard_is_bounded_and_what_is_more_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert CLUSTER_UNHEARD_BYTES > 2 * 1024 * 1024
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_UNHEARD_BYTES", 100_000)
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    world.say(run(CLUSTER_RUN))
    for _ in range(100):
        world.say(run(1, b"waits"))
    world.turns()
    world.say(run(1, b"after"))
    world.turns()
    assert 0 < world.here.hearing.lost < 100, "half of it is free for others"
    assert reader.got[-1] == ("after", b"")


@pytest.mark.pure
def test_a_node_that_says_very_much_leaves_room_for_others_and_keeps_them_waiting_for_one_frame(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also if many do, each under any name that it likes."""
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_UNHEARD_BYTES", 1_000_000)
    world = Busy()
    world.beat("c")
    for _ in range(1_000):
        world.say(run(CLUSTER_RUN))
    for number in range(100):
        for _ in range(3):
            world.beat(f"stranger-{number}")
    for number in range(3):
        world.beat("d", number / 1_000)
    hearing = world.here.hearing
    assert hearing.is_behind("b") and hearing.is_behind("d") and not hearing.is_behind("c")
    assert hearing.unheard.room < 1_000_000 + 10_000
    turns = 0
    while "d" not in world.here.nodes and turns < 2_000:
        world.turn()
        turns += 1
    assert hearing.is_behind("b") and turns < 2_000
    assert 1 <= world.members["b"].nodes["a"].sent - world.here.nodes["b"].seen


def test_who_came_behind_much_that_waits_is_there() -> None:
    """Nobody takes it over, nor says a will of who may be connected there."""
    world = Busy()
    world.here.joined = world.here.up_since = time.monotonic()
    wills.wait_to_know(world.here, wills.WHO_IS_WHERE)
    world.say(run(CLUSTER_RUN))
    world.beat("c")
    assert "c" not in world.here.nodes
    assert world.here.hearing.lives("c")
    wills.look(world.here, time.monotonic() + CLUSTER_DEAD_SECONDS + 1)
    assert wills.WHO_IS_WHERE in world.here.unknown
    world.turns()
    assert "c" in world.here.nodes
    world.here.up_since -= CLUSTER_DEAD_SECONDS + 1
    wills.look(world.here, time.monotonic())
    assert wills.WHO_IS_WHERE in world.here.unknown, "it has not said all that is with it"
    world.here.nodes["c"].asking = 0
    wills.look(world.here, time.monotonic())
    assert wills.WHO_IS_WHERE not in world.here.unknown


def test_who_says_ever_more_keeps_nobody_else_alive() -> None:
    world = Busy()
    world.beat("c")
    world.say(run(CLUSTER_RUN), run(CLUSTER_RUN))
    world.here.nodes["c"].heard -= CLUSTER_DEAD_SECONDS + 1
    world.here.wake(time.monotonic())
    assert world.here.hearing.is_behind("b")
    assert set(world.here.nodes) == {"b"}


def test_the_clock_of_who_waited_for_long_is_right() -> None:
    world = Busy()
    world.beat("d", 61)
    assert "d" in world.here.shunned
    world.say(run(CLUSTER_RUN))
    world.beat("c")
    world.clock.seconds += 100
    world.turns()
    assert "c" in world.here.nodes and "c" not in world.here.shunned


@pytest.mark.pure
def test_who_said_what_there_was_no_room_for_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_UNHEARD_BYTES", 10)
    world = Busy()
    world.beat("d")
    world.say(run(CLUSTER_RUN))
    world.here.nodes["d"].heard -= CLUSTER_DEAD_SECONDS + 1
    world.beat("c")
    world.beat("d")
    world.here.wake(time.monotonic())
    assert "d" in world.here.nodes and world.here.hearing.lives("c")
    world.turns()
    assert "c" not in world.here.nodes


def test_a_frame_of_hours_of_work_is_refused_and_one_of_seconds_keeps_nobody_waiting() -> None:
    world = Busy()
    reader = world.client("a", "reader")
    reader.wish("#")
    much = CLUSTER_FRAME_MESSAGES // CLUSTER_RUN
    world.say(*[run(CLUSTER_RUN)] * (much + 1))
    assert sum(world.here.hearing.refused.values()) == 1 and not reader.got
    world.say(*[run(CLUSTER_RUN)] * much)
    world.beat("c")
    world.beat("d")
    for _ in range(4):
        world.turn()
    assert {"c", "d"} <= set(world.here.nodes) and world.here.hearing.is_behind("b")
    with pytest.raises(frames.Foreign, match="bytes"):
        frames.opened(b"HBC" + bytes(4 * CLUSTER_FRAME_BYTES))


def test_messages_that_were_kept_are_work_as_live_ones_are() -> None:
    world = Busy()
    much = CLUSTER_FRAME_MESSAGES // CLUSTER_RUN
    kept = [frames.Kept("a", "b", one + 1, one, run(CLUSTER_RUN)) for one in range(much + 1)]
    world.say(*kept)
    (reason,) = world.here.hearing.refused
    assert reason.startswith("a frame of") and "messages" in reason


@pytest.mark.pure
def test_frames_with_nothing_in_them_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.cluster.hearing.CLUSTER_UNHEARD_BYTES", 100_000)
    world = Busy()
    world.say(run(CLUSTER_RUN))
    for _ in range(1_000):
        world.here.hear(frames.frame("x", 1, 0, 0, b""))
        world.here.hear(b"")
    assert len(world.here.hearing.unheard) < 100
