"""Consumers of queues that begin at another node."""

from __future__ import annotations

import random
from typing import NamedTuple, TypeVar

import pytest
from msgspec import Struct, msgpack

from hubbub.cluster import frames
from hubbub.cluster.outposts import Outpost
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_LENT, CLUSTER_LENT_MOST, CLUSTER_LENT_SECONDS, CLUSTER_LOOK
from hubbub.core.message import Message
from hubbub.core.queue import PLAIN, Queue, QueueSettings
from hubbub.core.queues import HANDED
from tests.cluster.test_keeping import Keepers
from tests.core.recording import Ear

E = TypeVar("E", bound=Ear)


def test_of_very_many_expected_queues_each_is_asked_for_some_looks_later() -> None:
    world = Keepers(names=("a", "b"))
    world.meet()
    broker = world.members["a"].broker
    ann = world.lasting("a", "ann")
    count = 2 * CLUSTER_LOOK + 10
    for number in range(count):
        broker.queues.expect(f"q{number}", ann.wish(f"$queue/q{number}"))
    world.members["b"].broker.queues.named(f"q{count - 1}")
    world.carry()
    outposts = world.members["a"].outposts
    outposts.wake()
    assert not outposts.here, "not all are asked for in one look"
    for _ in range(2):
        outposts.wake()
    assert list(outposts.here) == [f"q{count - 1}"]
    assert len(broker.queues.expecting) == count - 1


def test_what_was_lent_goes_out_in_another_turn_where_consumers_had_much_in_this_one() -> None:
    """It waited until the next look, or until there was more."""
    world, ann = apart(Ear)
    here, home = (world.members[name].broker for name in ("a", "b"))
    here.queues._handed, here.queues._handed_in = HANDED, here.clock.turned
    home.post(Message("$queue/q", b"x", 1))
    world.carry()
    assert ann.hear() == [("$queue/q", b"x", 1)]


def apart(consumer: type[E]) -> tuple[Keepers, E]:
    """A queue that is at home at node b, and its only consumer, ann at node a."""
    world = Keepers(names=("a", "b"))
    world.meet()
    here, home = (world.members[name].broker for name in ("a", "b"))
    home.queues.named("q")
    world.carry()
    ann = consumer(here, "ann")
    here.subscribe(ann.wish("$queue/q", 1))
    world.carry()
    return world, ann


class Hand(Ear):
    """A consumer that is done with what it has as soon as it is told to be."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__(broker, client)
        self.broker = broker

    def work(self, queue: Queue) -> list[bytes]:
        for number in [number for number, one in queue.leased.items() if one is self]:
            self.broker.queues.acknowledge(queue, number, self)
        self.broker.queues.dispatch(queue)
        return [payload for _, payload, _ in self.hear()]


class Grown(NamedTuple):
    world: Keepers
    consumer: Window
    outpost: Outpost
    queue: Queue
    came: list[bytes]


class Window(Hand):
    """One that has as many at once as a client of MQTT."""

    def ready(self) -> bool:
        return super().ready() and len(self.leases) < CLUSTER_LENT


def grown(count: int, settings: QueueSettings = PLAIN, returns: bool = True) -> Grown:
    """Node a has as many of `count` messages at node b as may be, for one consumer."""
    world = Keepers(names=("a", "b"))
    world.meet()
    here, home = (world.members[name].broker for name in ("a", "b"))
    queue = home.queues.named("q")
    home.queues.configure(queue, settings)
    world.carry()
    ann = Window(here, "ann")
    here.subscribe(ann.wish("$queue/q", 1))
    world.carry()
    for number in range(count):
        home.post(Message("$queue/q", b"%d" % number, 1))
    world.carry()
    outpost = world.members["a"].outposts.here["q"]
    came = []
    while outpost.told < CLUSTER_LENT_MOST or len(outpost.messages) < CLUSTER_LENT_MOST:
        came += ann.work(outpost)
        world.carry()
    outpost.returns = returns
    return Grown(world, ann, outpost, queue, came)


@pytest.mark.parametrize("settings", [PLAIN, QueueSettings(lease=60, max_deliveries=1)])
def test_what_waits_for_a_consumer_that_is_slow_now_goes_to_those_at_home(
    settings: QueueSettings,
) -> None:
    """As much as one consumer has stays; the rest waited until that one had done with all."""
    count = 10 * CLUSTER_LENT_MOST
    world, ann, outpost, queue, came = grown(count, settings)
    home = world.members["b"].broker
    bob = Hand(home, "bob")
    home.subscribe(bob.wish("$queue/q", 1))
    for _ in range(50):
        world.wait(0.25)
        came += bob.work(queue)
    assert len(ann.leases) == len(outpost.messages) == len(queue.messages) == CLUSTER_LENT
    came += ann.work(outpost)
    world.carry()
    assert not queue.messages and not outpost.messages and not outpost.theirs
    assert sorted(came, key=int) == [b"%d" % number for number in range(count)], "each once"


def test_what_came_back_is_lent_again_in_order_when_it_is_taken_at_once() -> None:
    count = 10 * CLUSTER_LENT_MOST
    world, ann, outpost, queue, came = grown(count)
    world.wait(0.25)
    assert len(outpost.messages) == len(queue.leased) == CLUSTER_LENT
    while queue.messages:
        came += ann.work(outpost)
        world.carry()
    assert came == [b"%d" % number for number in range(count)]


def test_what_is_said_to_be_there_twice_or_was_not_lent_changes_nothing() -> None:
    world, _, outpost, queue, _ = grown(10 * CLUSTER_LENT_MOST)
    member = world.members["b"]
    first, last, waits = min(queue.leased), max(queue.leased), list(queue.waiting)
    kept = [one for one in queue.leased if one not in (first, last)]
    turn = outpost.turn + 1
    record = frames.Takes(b"q", CLUSTER_LENT, turn, [*kept, *kept, waits[0], 10**9])
    for _ in range(2):
        member.outposts.takes(member.nodes["a"], record)
        assert list(queue.waiting) == [first, last, *waits]
    assert sorted(queue.leased) == sorted(kept)


@pytest.mark.parametrize("seed", range(8))
def test_one_consumer_has_all_in_order_however_slow_the_line_is(seed: int) -> None:
    """What was on its way while some went back came before those."""
    chance = random.Random(seed)
    world, ann = apart(Window)
    home, outpost = world.members["b"].broker, world.members["a"].outposts.here["q"]
    came: list[bytes] = []
    sent = went_back = 0
    for _ in range(600):
        turn = outpost.turn
        match chance.choices(range(5), (20, 20, 3, 5, 20))[0]:
            case 0 if len(came) > sent - 300:
                for _ in range(chance.randint(1, 60)):
                    home.post(Message("$queue/q", b"%d" % sent, 1))
                    sent += 1
            case 1:
                world.carry(chance.randint(1, 8))
            case 2:
                world.clock.seconds += chance.choice((0.001, 2 * CLUSTER_LENT_SECONDS))
            case 3:
                world.members["a"].outposts.wake()
            case _:
                came += ann.work(outpost)
        went_back += outpost.turn > turn
    while len(came) < sent:
        world.wait(0.25)
        came += ann.work(outpost)
    assert came == [b"%d" % number for number in range(sent)]
    assert went_back, "the line was never slow"


def test_what_a_home_lent_between_a_loss_and_the_news_of_it_is_not_forgotten() -> None:
    """The home knew first and lent again; the other node then took that for what was lost."""
    world, ann, outpost, queue, came = grown(10 * CLUSTER_LENT_MOST)
    here, home = world.members["a"], world.members["b"]
    home.outposts.torn(home.nodes["a"])
    home.outposts.takes(home.nodes["a"], frames.Takes(b"q", CLUSTER_LENT, outpost.turn))
    here.outposts.torn(here.nodes["b"])
    for _ in range(100):
        world.wait(0.25)
        came += ann.work(outpost)
    assert not queue.messages
    assert set(came) == {b"%d" % number for number in range(10 * CLUSTER_LENT_MOST)}


@pytest.mark.parametrize("seed", range(10))
def test_nothing_stays_with_nobody_where_frames_are_lost(seed: int) -> None:
    chance = random.Random(seed)
    world = Keepers(seed, names=("a", "b", "c"))
    world.meet()
    home = world.members["b"].broker
    queue = home.queues.named("q")
    world.carry()
    crew = [(name, Window(world.members[name].broker, name * 2)) for name in ("a", "c")]
    for name, consumer in crew:
        world.members[name].broker.subscribe(consumer.wish("$queue/q", 1))
    world.carry()

    def work() -> None:
        name, consumer = chance.choice(crew)
        came.update(consumer.work(world.members[name].outposts.here["q"]))

    came: set[bytes] = set()
    sent = 0
    world.lossy = 0.05
    for _ in range(400):
        match chance.choices(range(4), (20, 20, 4, 20))[0]:
            case 0 if len(came) > sent - 300:
                for _ in range(chance.randint(1, 60)):
                    home.post(Message("$queue/q", b"%d" % sent, 1))
                    sent += 1
            case 1:
                world.carry(chance.randint(1, 12))
            case 2:
                world.wait(0.25)
            case _:
                work()
    world.lossy = 0.0
    for _ in range(200):
        world.wait(0.25)
        work()
    assert not queue.messages and came == {b"%d" % number for number in range(sent)}


@pytest.mark.parametrize("anew", ["b", "c"])
def test_a_queue_that_ends_and_begins_anew_lends_to_who_asks_for_it_then(anew: str) -> None:
    """Its consumers wait for one that begins anew, and so did the places of other nodes: what those
    got was with nobody.
    """
    world = Keepers(names=("a", "b", "c"))
    world.meet()
    brokers = {name: member.broker for name, member in world.members.items()}
    crew = [(name, Window(brokers[name], name * 2)) for name in ("a", "b", "c")]
    brokers["b"].queues.named("q")
    world.carry()
    for name, consumer in crew:
        brokers[name].subscribe(consumer.wish("$queue/q", 1))
    world.carry()
    came: dict[str, set[bytes]] = {name: set() for name in brokers}

    def work() -> None:
        for name, consumer in crew:
            queue = brokers[name].state.queues.get("q")
            queue = queue or world.members[name].outposts.here.get("q")
            if queue is not None:
                came[name].update(consumer.work(queue))
        world.wait(0.25)

    for number in range(100):
        brokers["b"].post(Message("$queue/q", b"before %d" % number, 1))
    work()
    brokers["b"].queues.destroy("q")
    assert not world.members["b"].outposts.lodgers
    if anew == "c":
        world.carry()
    brokers[anew].queues.named("q")
    for number in range(300):
        brokers[anew].post(Message("$queue/q", b"%d" % number, 1))
    for _ in range(50):
        work()
    assert not brokers[anew].state.queues["q"].messages
    sent = {b"%d" % number for number in range(300)}
    assert set.union(*came.values()) >= sent
    assert all(some & sent for some in came.values()), "each has some of it"


def test_a_home_lends_nothing_more_to_a_node_at_which_a_queue_of_that_name_has_begun() -> None:
    """Its place stayed there, and what it was lent came to nobody."""
    world, ann = apart(Window)
    here, home = world.members["a"], world.members["b"]
    assert home.outposts.lodgers
    world.clock.seconds += 1
    here.broker.queues.named("q")
    here.outposts.wake()
    world.carry()
    assert not home.outposts.lodgers
    bob = Hand(home.broker, "bob")
    home.broker.subscribe(bob.wish("$queue/q", 1))
    home.broker.post(Message("$queue/q", b"x", 1))
    assert bob.work(home.broker.state.queues["q"]) == [b"x"]


def test_nothing_goes_back_to_a_home_of_a_version_that_does_not_read_it() -> None:
    world, _, outpost, queue, _ = grown(10 * CLUSTER_LENT_MOST, returns=False)
    world.wait(1)
    assert outpost.told == CLUSTER_LENT
    assert len(outpost.messages) == len(queue.leased) == CLUSTER_LENT_MOST


class LentBefore(Struct, array_like=True, tag=31):
    """As a version says it that is told what goes back, not what stays."""

    queue: bytes
    number: int
    turn: int
    said: frames.Said
    returns: bool = False


def test_nothing_goes_back_between_two_of_which_one_says_what_goes_and_one_what_stays() -> None:
    """Each took the word of the other for its opposite: up to 80 messages were with nobody."""
    said = frames.Said(1, "p", b"c", b"$queue/q", b"", 1, False, False, b"x", 1, [], 0, "b", False)
    now = msgpack.encode(frames.Lent(b"q", 1, 0, said, returns=True))
    assert not msgpack.decode(now, type=LentBefore).returns
    before = msgpack.encode(LentBefore(b"q", 1, 0, said, returns=True))
    assert not msgpack.decode(before, type=frames.Lent).returns
    assert msgpack.decode(now, type=frames.Lent).returns


def test_more_is_lent_where_it_is_taken_at_once_and_little_where_it_stays() -> None:
    """A frame for a few costs as much as one for very many; but what is lent nobody else has."""
    world, ann = apart(Hand)
    home, outpost = world.members["b"].broker, world.members["a"].outposts.here["q"]
    queue = home.state.queues["q"]
    lodger = world.members["b"].outposts.lodgers["a", "q"]
    count = 10 * CLUSTER_LENT_MOST
    sent = [b"%d" % number for number in range(count)]
    for payload in sent:
        home.post(Message("$queue/q", payload, 1))
    world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT, CLUSTER_LENT)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT

    came = []
    while len(queue.messages) > count // 2:
        came += ann.work(outpost)
        world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT_MOST, CLUSTER_LENT_MOST)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT_MOST

    world.clock.seconds += 2 * CLUSTER_LENT_SECONDS
    world.members["a"].outposts.wake()
    came += ann.work(outpost)
    world.carry()
    assert (outpost.told, lodger.room) == (CLUSTER_LENT, CLUSTER_LENT)
    assert len(lodger.leases) == len(outpost.messages) == CLUSTER_LENT

    while queue.messages:
        came += ann.work(outpost)
        world.carry()
    assert came == sent, "each came once, in order"
    assert not lodger.leases and not outpost.messages
