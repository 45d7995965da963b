"""Of two queues of one name the younger one goes behind the older, in turns, however large."""

from __future__ import annotations

from hubbub.cluster.queues import MOVED
from hubbub.core.limits import CLUSTER_PIECE
from tests.cluster.test_keeping import Keepers
from tests.core.recording import StillClock

LARGE = 3 * CLUSTER_PIECE


class Twins(Keepers):
    """Nodes that could not hear one another, and each began a queue."""

    def __init__(self) -> None:
        super().__init__(names=("a", "b"))
        self.meet()
        self.apart()
        for name, count in (("a", 3), ("b", LARGE)):
            self.members[name].broker.queues.named("jobs")
            writer = self.client(name, f"w{name}")
            for number in range(count):
                self.say(writer, "$queue/jobs", b"%s %d" % (name.encode(), number))
            assert isinstance(self.clock, StillClock)
            self.clock.seconds += 1

    def left(self) -> int:
        queue = self.members["b"].broker.state.queues.get("jobs")
        return len(queue.messages) if queue is not None else 0

    def met(self) -> None:
        """Node b hears of the older queue: the first piece of its own has gone."""
        self.cut.clear()
        for _ in range(1000):
            if self.left() < LARGE:
                break
            if not any(self.lines(name).lines.get(other) for name, other in ("ab", "ba")):
                self.clock.seconds += 0.25
                for member in self.members.values():
                    member.wake(self.clock.now())
            self.carry(1)

    def in_queue(self) -> list[bytes]:
        broker = self.members["a"].broker
        found = [broker.log.read(seq) for seq in broker.state.queues["jobs"].messages.values()]
        return [message.payload for message in found if message is not None]

    def all_there(self, *later: bytes) -> bool:
        expected = [b"a %d" % number for number in range(3)]
        expected += [b"b %d" % number for number in range(LARGE)]
        return self.in_queue() == [*expected, *later]


def test_a_large_queue_moves_in_turns_and_what_is_published_meanwhile_comes_last() -> None:
    world = Twins()
    world.met()
    assert LARGE - 2 * CLUSTER_PIECE <= world.left() < LARGE
    world.say(world.client("b", "late"), "$queue/jobs", b"meanwhile")
    world.wait(20)
    assert world.all_there(b"meanwhile")
    broker = world.members["b"].broker
    assert "jobs" not in broker.state.queues
    assert broker.metrics.dropped[MOVED] == LARGE + 1


def test_who_is_killed_between_two_turns_goes_on_when_it_is_back() -> None:
    world = Twins()
    world.met()
    assert world.left()
    world.restart("b")
    world.wait(30)
    assert world.all_there()
    assert "jobs" not in world.members["b"].broker.state.queues


def test_what_is_left_stays_when_the_older_queue_is_destroyed_meanwhile() -> None:
    world = Twins()
    world.met()
    left = world.left()
    assert left
    world.members["a"].directory.there.clear()
    world.members["b"].directory.there.clear()
    world.tick()
    assert world.left() >= left - CLUSTER_PIECE > 0
    assert not world.members["b"].relays.outlets._moving
