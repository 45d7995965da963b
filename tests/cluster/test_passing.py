"""What is kept at another node alone: answered when that has it, once, in order, or kept here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hubbub.cluster import frames
from hubbub.cluster.membership import Membership
from hubbub.cluster.passing import BLOCK
from hubbub.core.limits import (
    CLUSTER_COPY_GATHER,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_KEPT_BYTES,
    CLUSTER_PASSED,
    CLUSTER_PASSED_SECONDS,
    CLUSTER_SLICE,
    CLUSTER_WINDOW,
)
from hubbub.core.link import Link
from hubbub.core.log import DISK, MEMORY
from hubbub.core.message import SPELLED, Message, Run, run_of
from hubbub.schema import PUBLISH
from tests.cluster.test_keeping import Keepers
from tests.cluster.world import Reader
from tests.core.recording import Recording


class Answers:
    """The transport of a publisher: each answer is the number of a message, in four bytes."""

    def __init__(self) -> None:
        self.said: list[int] = []

    def write(self, data: bytes) -> None:
        self.said += [int.from_bytes(data[at : at + 4]) for at in range(0, len(data), 4)]

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None: ...

    abort = close


class Publisher:
    """Says numbers and waits for an answer to each, as a client of MQTT does with QoS 1."""

    def __init__(self, session: Reader) -> None:
        self.session = session
        self.broker = session.broker
        self.answers = Answers()
        self.link = Link(self.broker.outgoing, self.answers)

    def say(
        self, number: int, topic: str = "x", qos: int = 1, retain: bool = False, level: int = DISK
    ) -> None:
        message = Message(topic, b"%d" % number, qos, retain, "p", self.session.client)
        run = run_of(message, self.session, self.broker.route(self.session, topic))
        run.level = level
        self.broker.publish(run)
        self.link.hold(number.to_bytes(4), False, run.level, run.upto)


    def say_run(self, payloads: list[bytes], topic: str = "x") -> None:
        """As one run, for which there is one answer."""
        messages = [Message(topic, one, 1, False, "p", self.session.client) for one in payloads]
        route = self.broker.route(self.session, topic)
        run = Run(self.session, route, 1, len(payloads), SPELLED, b"")
        run.replace(messages)
        run.level = DISK
        self.broker.publish(run)
        self.link.hold((1).to_bytes(4), False, run.level, run.upto)


class Passers(Keepers):
    """As hubs that record nothing but what must be."""

    def add(self, name: str, rows: Recording | None = None) -> Membership:
        member = super().add(name, rows)
        member.broker.record = "durable"
        return member

    def publisher(self, name: str = "a", client: str = "writer") -> Publisher:
        return Publisher(self.client(name, client))

    def warm(self, publisher: Publisher) -> None:
        """There are numbers to pass others on with."""
        publisher.say(0)
        self.wait(1)

    def here(self, name: str = "a") -> list[bytes]:
        """What is in the journal of that node, without what `warm` said."""
        rows = [row for row in self.log(name).rows if row.kind == PUBLISH]
        return [row.payload for row in rows if row.payload != b"0"]

    def passed(self) -> int:
        passing = self.members["a"].estates["b"].passing
        assert passing is not None
        return passing.count


@pytest.fixture
def world() -> Iterator[Passers]:
    world = Passers(names=("a", "b"))
    world.meet()
    world.lasting("b", "device", "x", "y")
    yield world


@pytest.fixture
def publisher(world: Passers) -> Publisher:
    publisher = world.publisher()
    world.warm(publisher)
    publisher.answers.said.clear()
    return publisher


def all_of(count: int, first: int = 1) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def waits(world: Passers) -> list[bytes]:
    """Without those that `warm` said."""
    return [one for one in world.waiting("b", "device") if one != b"0"]


def test_it_is_in_one_journal_and_answered_when_it_is_there(
    world: Passers, publisher: Publisher
) -> None:
    world.log("b").prompt = False
    for number in range(1, 4):
        publisher.say(number)
    world.carry()
    assert waits(world) == all_of(1) and world.here() == [], "the others gather for its answer"
    assert publisher.answers.said == [] and world.passed() == 3
    assert world.members["a"].status()["nodes"][0]["waiting"] == 3
    world.log("b").sync()
    world.carry()
    assert waits(world) == all_of(3) and publisher.answers.said == [1] and world.passed() == 2
    world.log("b").sync()
    world.carry()
    assert publisher.answers.said == [1, 2, 3] and world.passed() == 0
    rows = [row for row in world.log("b").rows if row.payload in all_of(3)]
    assert [row.properties for row in rows] == [b"", b"", b""], "no other journal has it"


def test_who_does_not_last_here_gets_it_too(world: Passers, publisher: Publisher) -> None:
    live = world.client("a", "live")
    live.wish("x")
    publisher.say(1)
    world.carry()
    assert live.got == [("x", b"1")] and waits(world) == [b"1"] and world.here() == []


@pytest.mark.parametrize("had", [False, True])
def test_who_does_not_answer_gets_it_again_under_its_number(
    world: Passers, publisher: Publisher, had: bool
) -> None:
    """Whether it `had` taken it, and the answer was lost, or not."""
    world.log("b").prompt = False
    if had:
        publisher.say(1)
        world.carry()
        world.log("b").sync()
        world.cut.update("ab")
        world.carry()
    else:
        world.cut.update("ab")
        publisher.say(1)
    world.wait(CLUSTER_PASSED_SECONDS + 1)
    assert publisher.answers.said == [1] and world.here() == [b"1"] and world.passed() == 0
    publisher.say(2)
    world.log("b").prompt = True
    world.wait(CLUSTER_DEAD_SECONDS)
    world.cut.clear()
    world.meet()
    assert waits(world) == all_of(2)
    assert world.kept("a", "b") == 0 and publisher.answers.said == [1, 2]


def test_what_was_kept_after_all_is_answered_when_it_is_safe_here(
    world: Passers, publisher: Publisher
) -> None:
    world.log("a").prompt = False
    world.cut.update("ab")
    publisher.say(1)
    world.wait(CLUSTER_PASSED_SECONDS + 1)
    assert world.here() == [b"1"] and publisher.answers.said == []
    world.log("a").sync()
    world.carry()
    assert publisher.answers.said == [1]


def test_a_frame_that_is_lost_comes_again(world: Passers, publisher: Publisher) -> None:
    publisher.say(1)
    world.tick()
    world.lines("a").lines["b"].clear()
    publisher.say(2)
    world.wait(3)
    assert waits(world) == world.here() == all_of(2) and publisher.answers.said == [1, 2]
    publisher.say(3)
    world.carry()
    assert waits(world) == all_of(3) and world.here() == all_of(2), "later ones are passed on again"


@pytest.mark.parametrize("retain, qos", [(True, 1), (False, 2)])
def test_what_must_be_kept_here_overtakes_nothing(
    world: Passers, publisher: Publisher, retain: bool, qos: int
) -> None:
    world.log("b").prompt = False
    publisher.say(1)
    publisher.say(2, "y", qos, retain)
    publisher.say(3)
    world.carry()
    world.log("b").sync()
    world.wait(2)
    assert waits(world) == all_of(3) and world.here() == all_of(3)
    assert publisher.answers.said == [1, 2, 3]


def test_a_crash_uses_no_number_twice(world: Passers, publisher: Publisher) -> None:
    """What was passed on is in no row here: of its number the journal knows by the block alone."""
    for number in range(1, 4):
        publisher.say(number)
    world.carry()
    publisher.say(4)  # and nobody was promised that
    world.restart("a")
    again = world.publisher()
    world.meet()
    for number in range(5, 8):
        again.say(number)
        world.wait(1)
    assert waits(world) == [*all_of(3), *all_of(3, 5)] and again.answers.said == [5, 6, 7]


def test_no_number_is_told_before_its_block_is_safe(world: Passers) -> None:
    publisher = world.publisher()
    world.log("a").prompt = False
    publisher.say(1)
    world.carry()
    assert world.passed() == 1 and waits(world) == []
    world.log("a").sync()
    world.carry()
    assert waits(world) == [b"1"] and world.here() == []


def test_what_is_kept_goes_first(world: Passers, publisher: Publisher) -> None:
    world.log("b").prompt = False
    publisher.say(1, qos=2)
    world.clock.seconds += CLUSTER_PASSED_SECONDS
    publisher.say(2)
    world.carry()
    assert waits(world) == [b"1"] and world.passed() == 1, "the other one waits for it"
    world.log("b").sync()
    world.carry()
    assert waits(world) == all_of(2) and world.here() == [b"1"]


def test_much_that_is_kept_makes_nobody_wait(world: Passers, publisher: Publisher) -> None:
    world.cut.update("ab")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    for number in range(1, CLUSTER_WINDOW + 100):
        publisher.say(number)
    world.cut.clear()
    while not waits(world):
        world.clock.seconds += 0.25
        for member in world.members.values():
            member.wake(world.clock.now())
        world.carry(3)
    publisher.say(CLUSTER_WINDOW + 100)
    assert world.passed() == 0
    world.wait(2)
    assert waits(world) == all_of(CLUSTER_WINDOW + 100)


def test_blocks_follow_one_another(world: Passers, publisher: Publisher) -> None:
    passing = world.members["a"].estates["b"].passing
    assert passing is not None
    begin = passing.end
    passing.next = passing.end - 2
    for number in range(1, 5):
        publisher.say(number)
    world.carry()
    assert waits(world) == all_of(4) and world.here() == []
    assert (passing.next, passing.end) == (begin + 2, begin + BLOCK)


def test_the_end_of_a_block_that_was_taken_back_means_nothing_any_more(
    world: Passers, publisher: Publisher
) -> None:
    """What is kept goes on with its numbers, and comes by that end when nothing else is to do."""
    passing = world.members["a"].estates["b"].passing
    assert passing is not None
    passing.next = passing.end - 4
    end = passing.end
    publisher.say(1)
    world.carry()
    for number in range(2, 5):
        publisher.say(number, qos=2)
    world.wait(CLUSTER_PASSED_SECONDS + 1)
    keeping = world.members["a"].estates["b"].keeping
    assert keeping is not None and keeping.backlog.next == end
    publisher.say(5)
    world.carry()
    assert waits(world) == all_of(5) and world.here() == all_of(3, 2)


def test_who_is_full_is_waited_for_once(world: Passers, publisher: Publisher) -> None:
    """Not each second anew, for what may be hours."""
    there = world.members["b"].broker
    there.keep_room("the disk is full")
    publisher.say(1)
    world.wait(CLUSTER_PASSED_SECONDS + 1)
    for number in range(2, 5):
        publisher.say(number)
        world.carry()
        assert publisher.answers.said == list(range(1, number + 1))
        world.wait(CLUSTER_PASSED_SECONDS + 1)
    there.keep_room("")
    world.wait(CLUSTER_PASSED_SECONDS + 1)
    publisher.say(5)
    world.carry()
    assert waits(world) == all_of(5) and world.here() == all_of(4)


def test_numbers_that_were_not_told_are_free_again(world: Passers, publisher: Publisher) -> None:
    """Else who says this and that in turn would be ahead of all clocks soon."""
    for number in range(1, 100, 2):
        publisher.say(number)
        publisher.say(number + 1, qos=2)
        world.wait(CLUSTER_PASSED_SECONDS + 0.25)
    assert waits(world) == all_of(100)
    backlog = world.members["a"].estates["b"].keeping.backlog  # type: ignore[union-attr]
    assert backlog.next < world.clock.stamp() + BLOCK


@pytest.mark.parametrize(
    "why", ["old node", "less there", "level", "lasts here", "everything is recorded"]
)
def test_else_it_is_kept_here(world: Passers, publisher: Publisher, why: str) -> None:
    member = world.members["a"]
    if why == "old node":
        member.nodes["b"].keeps = 0
    elif why == "less there":
        member.broker.log.most = "os"  # of what the other one has in memory alone
    elif why == "lasts here":
        world.lasting("a", "other", "x")
    elif why == "everything is recorded":
        member.broker.record = "all"
        member.broker.age += 1
    publisher.say(1, level=MEMORY if why == "level" else DISK)
    assert world.passed() == 0 and world.here() == [b"1"]
    world.carry()
    assert waits(world) == [b"1"] and publisher.answers.said == [1]


def test_no_more_is_on_its_way_than_may_be(world: Passers, publisher: Publisher) -> None:
    world.log("b").prompt = False
    for number in range(1, CLUSTER_PASSED + 3):
        publisher.say(number)
        assert world.passed() <= CLUSTER_PASSED
    assert world.here() == all_of(CLUSTER_PASSED + 2), "what is too much is kept, and those before"
    for _ in range(CLUSTER_PASSED // CLUSTER_WINDOW + 1):
        world.carry()
        world.log("b").sync()
        world.wait(0.25)
    assert waits(world) == all_of(CLUSTER_PASSED + 2)
    assert publisher.answers.said == list(range(1, CLUSTER_PASSED + 3))


def test_whom_nobody_waits_for_any_more_holds_up_nobody(
    world: Passers, publisher: Publisher
) -> None:
    world.cut.update("ab")
    publisher.say(1)
    world.log("a").prompt = False
    world.members["a"].let_go(world.members["a"].estates["b"])
    world.carry()
    assert publisher.answers.said == [], "not before that is safe"
    world.log("a").sync()
    world.carry()
    assert publisher.answers.said == [1] and not world.members["a"].broker.handing


def test_a_node_that_lets_go_of_all_answers_nothing(world: Passers, publisher: Publisher) -> None:
    """Its clients are cut off then (`heritage.discard_promises`)."""
    publisher.say(1)
    world.members["a"].estates["b"].begin_anew()
    world.carry()
    assert publisher.answers.said == [] and not world.members["a"].broker.handing


def test_a_hub_that_stops_keeps_what_is_on_its_way(world: Passers, publisher: Publisher) -> None:
    world.cut.update("ab")
    publisher.say(1)
    world.members["a"].goodbye()
    assert world.here() == [b"1"]


def test_of_a_run_that_is_known_in_part_the_rest_is_taken(
    world: Passers, publisher: Publisher
) -> None:
    passing, member = world.members["a"].estates["b"].passing, world.members["b"]
    assert passing is not None
    publisher.say(1)
    world.carry()
    all_four = said(b"1234", 4)
    last = passing.next + 2  # of 1, which is known, 2, 3 and 4
    for _ in range(2):
        list(member.take(member.nodes["a"], frames.Kept("b", "a", last, 0, all_four)) or ())
    assert waits(world) == all_of(4)


def test_who_was_answered_says_more_before_the_next_ones_go(
    world: Passers, publisher: Publisher
) -> None:
    calls: list[Callable[[], None]] = []
    world.members["a"].pause = lambda seconds, call: calls.append(call)
    for number in range(1, CLUSTER_COPY_GATHER + 2):
        publisher.say(number)
    world.carry()
    assert publisher.answers.said == list(range(1, CLUSTER_COPY_GATHER + 2)) and len(calls) == 1
    publisher.say(100)
    world.carry()
    assert world.passed() == 1 and waits(world)[-1] != b"100"
    calls.pop()()
    world.carry()
    assert waits(world)[-1] == b"100" and world.passed() == 0 and not calls


def test_as_many_as_were_answered_do_not_wait(world: Passers, publisher: Publisher) -> None:
    calls: list[Callable[[], None]] = []
    world.members["a"].pause = lambda seconds, call: calls.append(call)
    for number in range(1, CLUSTER_COPY_GATHER + 2):
        publisher.say(number)
    world.carry()
    for number in range(1, CLUSTER_COPY_GATHER):
        publisher.say(number)
    world.carry()
    assert len(calls) == 1 and world.passed() == CLUSTER_COPY_GATHER - 1
    publisher.say(100)
    world.carry()
    assert world.passed() == 0 and waits(world)[-1] == b"100"


@pytest.mark.pure
def test_of_a_long_run_all_is_noted_and_answered(
    world: Passers, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is taken in several turns, and the answer to each is on its way before the next."""
    monkeypatch.setattr("hubbub.core.turns.Stint.over", lambda stint: True)
    count = 3 * CLUSTER_SLICE
    publisher.say_run(all_of(count))
    world.wait(CLUSTER_PASSED_SECONDS / 2)
    assert publisher.answers.said == [1], "before anything was taken back"
    assert waits(world) == all_of(count) and world.here() == []
    world.restart("b")
    world.wait(CLUSTER_DEAD_SECONDS)
    assert waits(world) == all_of(count) and world.kept("a", "b") == 0


def test_what_another_node_said_meanwhile_is_not_taken_once_more(
    world: Passers, publisher: Publisher
) -> None:
    """A long run waits for the disk, half taken; who said it dies, and its heir says all of it."""
    member, count = world.members["b"], 3 * CLUSTER_SLICE
    begin = member.holdings.took("b", "a")
    run = said(b"".join(b"%4d" % number for number in range(1, count + 1)), count)
    record = frames.Kept("b", "a", begin + count, 0, run)
    first = member.take(member.nodes["a"], record)
    assert first is not None
    next(first)
    list(member.take(member.nodes["a"], record) or ())
    list(first)
    assert waits(world) == [b"%4d" % number for number in range(1, count + 1)]
    assert member.holdings.took("b", "a") == begin + count


def said(payloads: bytes, count: int, topic: bytes = b"x", rests: int = 0) -> frames.Said:
    more = [frames.Rest(b"", b"", b"", b"", b"", 0, b"{}")] * rests
    return frames.Said(
        0, "p", b"writer", topic, b"", 1, False, False, payloads, count, more, 0, "", False
    )  # fmt: skip


def test_what_differs_in_its_payloads_alone_is_one_record() -> None:
    given = [said(b"12", 2), said(b"3", 1), said(b"45", 1), said(b"67", 1), said(b"8", 1),
             said(b"9", 1, b"y"), said(b"", 1, b"y", 1), said(b"", 1, b"y", 1)]  # fmt: skip
    found = [(one.payloads, one.count) for one in frames.joined(given)]
    assert found == [(b"123", 3), (b"4567", 2), (b"8", 1), (b"9", 1), (b"", 1), (b"", 1)]
    assert list(frames.joined([])) == []


def test_a_joined_record_has_an_end() -> None:
    found = list(frames.joined(said(b"", 1) for _ in range(CLUSTER_SLICE + 1)))
    assert [one.count for one in found] == [CLUSTER_SLICE, 1]
    found = list(frames.joined(said(bytes(CLUSTER_KEPT_BYTES // 2), 1) for _ in range(3)))
    assert [one.count for one in found] == [2, 1]


@pytest.mark.parametrize("seed", range(40))
def test_lines_that_lose_and_repeat_and_processes_that_die(seed: int) -> None:
    """Each message that was answered is in the backlog at `b` once, and all that are, in order."""
    world = Passers(seed, ("a", "b"))
    world.meet()
    world.lasting("b", "device", "x/#", qos=2)
    world.slow = True
    chance, said, answered = world.chance, 0, set[int]()
    publisher = world.publisher()
    for _ in range(80):
        world.lossy = chance.choice((0.0, 0.0, 0.1, 0.5))
        match chance.randrange(14):
            case 0:
                world.cut.symmetric_difference_update("ab")
                world.wait(chance.choice((1, 2, CLUSTER_DEAD_SECONDS + 1)))
            case 1:
                world.restart("b")
                world.log("b").prompt = False
            case 2:
                answered |= set(publisher.answers.said)
                world.restart("a")
                world.log("a").prompt = chance.random() < 0.5
                publisher = world.publisher()
            case 3 | 4 | 5:
                world.wait(chance.choice((0.25, 0.5, 1)))
            case _:
                for _ in range(chance.randrange(1, 30)):
                    odd = chance.random() < 0.03
                    publisher.say(said, f"x/{said % 3}", 2 if odd else 1)
                    said += 1
                world.carry(chance.randrange(9))
    world.cut.clear()
    world.lossy = 0.0
    world.wait(CLUSTER_DEAD_SECONDS + 4)
    answered |= set(publisher.answers.said)
    found = [int(one) for one in world.waiting("b", "device")]
    assert found == sorted(set(found)), "each once, in order"
    assert answered <= set(found), sorted(answered - set(found))
    assert world.kept("a", "b") == world.passed() == 0
    assert set(publisher.answers.said) == {*publisher.answers.said} and len(answered) > said // 3
