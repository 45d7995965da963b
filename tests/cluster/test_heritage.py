"""A dead node's sessions go on at another one: each message once, in order, whatever is lost."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hubbub import schema
from hubbub.cluster import frames, heritage
from hubbub.cluster.directory import SUPERSEDED
from hubbub.cluster.keeping import Recall
from hubbub.cluster.membership import Membership
from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_NAMES
from hubbub.core.message import Message
from hubbub.core.queue import QueueSettings
from hubbub.core.state import State
from hubbub.runtime.copying import MARKER, copying
from hubbub.schema import Row
from tests.cluster.test_keeping import Keepers, Lasting, Lasts
from tests.cluster.world import Lines, Reader
from tests.core.recording import Recording, StillClock, folded, shape, snapshot

AT = 1_000  # the place of a fence in the stream of the dead node


class Dying(Keepers):
    """Nodes that die for good, with a copy of all that was durable; and their heirs."""

    def kill(self, name: str) -> tuple[State, dict[int, Row]]:
        rows = self.log(name)
        there = [row for row in rows.rows if row.seq <= rows.durable]
        del self.members[name]
        for member in self.members.values():
            member.engine.lines.pop(name, None)  # type: ignore[attr-defined]
        state = folded(there)
        needed = state.needed()
        return state, {row.seq: state.carried(row) for row in there if row.seq in needed}

    def dies(self, name: str) -> tuple[State, dict[int, Row]]:
        """Killed, and for so long that the others see it."""
        copy = self.kill(name)
        self.wait(CLUSTER_DEAD_SECONDS + 1)
        return copy

    def inherit(
        self, heir: str, dead: str, copy: tuple[State, dict[int, Row]], at: int = AT
    ) -> None:
        adoption = self.adoption(heir, dead, copy, at)
        for _ in adoption.pieces():
            """Nobody says anything meanwhile."""
        adoption.run()

    def adoption(
        self, heir: str, dead: str, copy: tuple[State, dict[int, Row]], at: int = AT
    ) -> heritage.Adoption:
        member = self.members[heir]
        return heritage.Adoption(member, dead, at, *copy, [Lasts(member.broker)])

    def back(self, name: str, rows: Recording | None = None, at: int = AT) -> Membership:
        """It finds that its stream was stopped there."""
        back = self.add(name, rows)
        heritage.let_go(back.broker, back, [], at)
        return back

    def member(self, name: str) -> Membership:
        return self.members[name]


class Ends(Lasts):
    def end_away(self, client: str) -> bool:
        self.broker.end(self.broker.sessions["p", client])
        return True


def test_a_session_with_what_waits_in_it_goes_on_at_the_heir() -> None:
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    writer = world.client("a", "w")
    world.say_many(writer, "kept", 5)
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    assert world.waiting("b", "ann") == [b"%d" % n for n in range(5)]
    world.wait(2)
    world.say(world.client("c", "w2"), "kept", b"after")
    world.wait(2)
    assert world.waiting("b", "ann")[-1] == b"after"
    assert world.member("c").directory.home("p", "ann") in ("", "b")


def test_of_two_sessions_of_one_client_the_later_one_stays() -> None:
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.say(world.client("a", "w"), "kept", b"old")
    copy = world.dies("a")
    world.lasting("b", "ann", "kept")
    world.inherit("b", "a", copy)
    assert world.waiting("b", "ann") == []
    assert world.member("b").broker.metrics.dropped[heritage.GONE] == 1


class Ahead(StillClock):
    """Of a machine whose clock is 50 s ahead of the world's."""

    def __init__(self, clock: StillClock) -> None:
        super().__init__()
        self.real = clock

    def now(self) -> float:
        return self.real.now()

    def stamp(self) -> int:
        return self.real.stamp() + 50_000_000


@pytest.mark.parametrize("told", [True, False])
def test_who_begins_anew_at_a_third_node_is_later_than_the_dead_one_whose_clock_is_ahead(
    told: bool,
) -> None:
    world = Dying()
    for member in world.members.values():
        member.directory.moves["p"] = Ends(member.broker).end_away
    world.meet()
    world.member("a").broker.clock = Ahead(world.clock)
    world.lasting("a", "ann", "kept")
    copy = world.dies("a")
    if not told:
        world.cut.add("c")
    world.member("c").relays.end("p", "ann")
    world.lasting("c", "ann", "other")
    world.inherit("b", "a", copy)
    world.cut.clear()
    world.wait(3)
    assert ("p", "ann") in world.member("c").directory.here
    assert ("p", "ann") not in world.member("b").directory.here


@pytest.mark.parametrize("heir", ["b", "c"])
def test_who_began_anew_without_a_session_has_none_when_the_heir_is_ready(heir: str) -> None:
    """Also if the heir is where it came: nobody else tells that it did."""
    world = Dying()
    for member in world.members.values():
        member.directory.moves["p"] = Ends(member.broker).end_away
    world.meet()
    world.lasting("a", "ann", "kept")
    copy = world.dies("a")
    world.member("c").relays.end("p", "ann")
    world.inherit(heir, "a", copy)
    world.wait(3)
    assert all(("p", "ann") not in world.member(name).directory.here for name in "bc")


@pytest.mark.parametrize("dead", ["a", "c"])
def test_an_old_home_that_does_not_know_yet_ends_nothing_at_the_heir(dead: str) -> None:
    """It comes back with its journal as it was, and says that the session is there."""
    world = Dying()
    for member in world.members.values():
        member.directory.moves["p"] = lambda client: True
    world.meet()
    world.lasting(dead, "ann", "kept")
    world.say(world.client(dead, "w"), "kept", b"kept")
    rows = world.log(dead)
    copy = world.dies(dead)
    world.inherit("b", dead, copy)
    assert ("p", "ann") in world.member("b").directory.here
    world.wait(1)
    back = world.add(dead, rows)
    back.directory.moves["p"] = lambda client: True
    began = back.broker.state.sessions["p", "ann"].began
    back.directory.began(back.broker.sessions["p", "ann"], began)
    world.wait(3)
    assert world.waiting("b", "ann") == [b"kept"]
    assert SUPERSEDED not in world.member("b").broker.metrics.dropped


def test_who_is_back_before_its_heir_is_ready_takes_nothing_that_is_kept_for_it() -> None:
    """Its session is gone, and the heir does not have it yet: what it took would be lost."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    rows = world.log("a")
    copy = world.dies("a")
    world.say(world.client("b", "w"), "kept", b"meanwhile")
    world.back("a", rows)
    world.wait(3)
    world.inherit("b", "a", copy)
    world.wait(1)
    assert world.waiting("b", "ann") == [b"meanwhile"]


def test_queues_keep_their_ids_and_pass_over_those_that_may_have_been_told() -> None:
    world = Dying()
    world.meet()
    broker = world.member("a").broker
    queue = broker.queues.named("jobs")
    broker.queues.configure(queue, QueueSettings(lease=5.0))
    broker.change(Row(0, 0, schema.AHEAD, number=100))
    writer = world.client("a", "w")
    for number in range(4):
        world.say(writer, "$queue/jobs", b"job %d" % number)
    broker.queues.acknowledge(queue, 0, broker.itself)
    copy = world.kill("a")
    world.inherit("b", "a", copy)
    heir = world.member("b").broker
    found = heir.state.queues["jobs"]
    assert list(found.messages) == [1, 2, 3]
    assert found.next == 104
    assert found.settings.lease == 5.0
    payloads = [heir.log.read(seq) for seq in found.messages.values()]
    assert [one.payload for one in payloads if one] == [b"job 1", b"job 2", b"job 3"]


def test_a_queue_of_the_same_name_gets_them_behind_its_own() -> None:
    world = Dying()
    world.meet()
    for name in ("a", "b"):
        world.member(name).broker.queues.named("jobs")
        world.say(world.client(name, f"w{name}"), "$queue/jobs", name.encode())
    world.inherit("b", "a", world.kill("a"))
    heir = world.member("b").broker
    found = [heir.log.read(seq) for seq in heir.state.queues["jobs"].messages.values()]
    assert [one.payload for one in found if one] == [b"b", b"a"]


def test_delayed_and_retained_messages_go_along() -> None:
    world = Dying()
    world.meet()
    writer = world.client("a", "w")
    for member in world.members.values():
        member.engine.up = False  # nobody is told
    world.say(writer, "$delayed/100/later", b"due")
    world.say(writer, "state", b"kept", retain=True)
    copy = world.kill("a")
    for member in world.members.values():
        member.engine.up = True
    world.wait(50)
    world.inherit("b", "a", copy)
    world.wait(2)
    assert world.retained("b")["state"] == b"kept"
    assert world.retained("c")["state"] == b"kept"
    reader = world.client("b", "r")
    reader.wish("later")
    for passes, due in ((40, []), (15, [("later", b"due")])):
        for _ in range(passes):
            world.wait(1)
            world.member("b").broker.delays.wake()
        assert reader.got == due


def test_who_was_not_dead_lets_go_of_everything_but_its_history() -> None:
    world = Dying()
    world.meet()
    broker = world.member("a").broker
    world.lasting("a", "ann", "kept")
    broker.queues.named("jobs")
    world.say(world.client("a", "w"), "$delayed/100/later", b"due")
    rows = len(world.log("a").rows)

    heritage.let_go(broker, world.member("a"), [Ends(broker)], AT)
    kept = [state for state in broker.state.sessions.values() if state.protocol == "p"]
    assert (kept, broker.state.queues, broker.state.delayed) == ([], {}, {})
    assert len(world.log("a").rows) > rows
    state = folded(world.log("a").rows)
    assert not state.queues


def test_who_was_back_and_died_before_it_had_let_go_is_not_taken_over_twice() -> None:
    """Its stream is stopped again, and says what it said the first time."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    broker = world.member("a").broker
    broker.queues.named("jobs")
    writer = world.client("a", "w")
    for topic in ("kept", "$queue/jobs", "$delayed/100/later"):
        world.say(writer, topic, b"once")
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    world.inherit("b", "a", copy, 2 * AT)
    heir = world.member("b").broker
    assert world.waiting("b", "ann") == [b"once"]
    assert len(heir.state.queues["jobs"].messages) == len(heir.state.delayed) == 1
    assert not heir.metrics.dropped.get(heritage.GONE)
    world.wait(2)
    assert heritage.known(world.member("c").broker.state) == {"a": 2 * AT}


def check(got: list[bytes], expected: list[bytes]) -> None:
    assert len(got) == len(set(got))
    assert set(expected) <= set(got)
    series: dict[bytes, list[int]] = {}
    for payload in got:
        writer, number = payload.split()
        series.setdefault(writer, []).append(int(number))
    for numbers in series.values():
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("seed", range(150))
def test_each_message_is_there_once_and_in_order_whoever_dies_and_whatever_is_lost(
    seed: int,
) -> None:
    """Sessions and writers at three nodes, lossy lines; one dies; later it is back, empty."""
    world = Dying(seed)
    world.slow = seed % 3 == 0
    for name in world.members:
        world.log(name).prompt = not world.slow
    chance = random.Random(seed)
    world.meet()
    writers: dict[str, Reader] = {}
    for name in world.members:
        world.lasting(name, f"at-{name}", "kept")
        writers[name] = world.client(name, f"w-{name}")
    world.wait(2)
    said: dict[str, list[tuple[bytes, int]]] = {name: [] for name in writers}

    def say(rounds: int) -> None:
        for _ in range(rounds):
            name = chance.choice(sorted(world.members))
            payload = b"%s %d" % (name.encode(), len(said[name]))
            world.say(writers[name], "kept", payload)
            said[name].append((payload, world.log(name).position))
            if chance.random() < 0.3:
                world.carry(chance.randrange(1, 20))

    world.lossy = 0.1
    say(60)
    durable = world.log("a").durable
    expected = [payload for payload, seq in said["a"] if seq <= durable]
    copy = world.kill("a")
    say(chance.randrange(1, 30))
    world.wait(chance.choice((0.0, 1.0, CLUSTER_DEAD_SECONDS + 1)))
    say(chance.randrange(1, 30))
    heir = chance.choice("bc")
    world.inherit(heir, "a", copy)
    say(chance.randrange(1, 30))
    world.carry(chance.randrange(1, 50))
    say(chance.randrange(1, 30))
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.lossy = 0.0
    world.wait(20)
    if chance.random() < 0.5:
        world.back("a")
        writers["a"] = world.client("a", "w-a")
        world.wait(5)
        number = len(said["a"])
        for extra in range(5):
            payload = b"a %d" % (number + extra)
            world.say(writers["a"], "kept", payload)
            expected.append(payload)
    world.wait(20)
    expected += [payload for name in "bc" for payload, _ in said[name]]
    for home in {"b", "c"}:
        check(world.waiting(home, f"at-{home}"), expected)
    check(world.waiting(heir, "at-a"), expected)


def test_who_is_back_keeps_what_is_kept_for_it_when_its_heir_has_an_heir_itself() -> None:
    """Node d says again whose heir c was, whose it is now: what others keep for a is a's since."""
    world = Dying(names=("a", "b", "c", "d"))
    world.meet()
    world.lasting("a", "old", "kept")
    world.wait(1)
    copy = world.dies("a")
    world.inherit("c", "a", copy)
    world.wait(2)
    back = world.back("a")
    for member in world.members.values():
        member.directory.moves["p"] = lambda client: True
    world.wait(3)
    back.directory.began(world.lasting("a", "new", "kept"), 1)
    world.wait(2)
    copy = world.dies("c")
    world.cut.add("a")  # what b keeps for it is on its way
    world.say(world.client("b", "w"), "kept", b"since")
    world.inherit("d", "c", copy)
    world.carry()
    world.cut.clear()
    world.wait(20)
    assert world.waiting("a", "new") == [b"since"]
    assert world.waiting("d", "old") == [b"since"]
    assert world.member("b").directory.there["a"], "who is there says what lasts there"


@pytest.mark.parametrize("pieces", [0, 1, 3, 8, 20, 1000])
@pytest.mark.parametrize("goes_on", ["the heir", "another one"])
def test_what_has_come_in_part_when_the_heir_dies_is_nobodys(pieces: int, goes_on: str) -> None:
    """Whoever goes on begins from the start: each message once, and queues with their ids."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.lasting("b", "bob", "kept")
    world.lasting("c", "cat", "kept")
    world.member("a").broker.queues.named("jobs")
    world.wait(1)
    world.cut.update("ab")
    writer = world.client("a", "w")
    world.say_many(writer, "kept", 5)
    world.say_many(writer, "$queue/jobs", 3)
    copy = world.dies("a")
    world.cut.clear()
    adoption = world.adoption("b", "a", copy)
    for _ in islice(adoption.pieces(), pieces):
        """Then it is killed."""
    state = world.member("b").broker.state
    assert ("p", "ann") not in state.sessions and "jobs" not in state.queues
    heir = "b"
    if goes_on == "the heir":
        world.restart("b")
    else:
        heir, dead = "c", world.kill("b")
        world.wait(CLUSTER_DEAD_SECONDS + 1)
        world.inherit("c", "b", dead)
    state = world.member(heir).broker.state
    assert ("p", "ann") not in state.sessions and "jobs" not in state.queues
    world.inherit(heir, "a", copy)
    for name in ("ann", "bob"):
        assert world.waiting(heir, name) == [b"%d" % n for n in range(5)], name
    assert list(state.queues["jobs"].messages) == [0, 1, 2]
    assert state.adopting == {}
    world.wait(2)
    assert world.waiting("c", "cat") == [b"%d" % n for n in range(5)]
    rows = world.log(heir).rows
    assert shape(folded(snapshot(folded(rows), rows))) == shape(state)


def test_what_a_dead_node_kept_for_its_heir_is_for_whom_it_had_from_another_one_too() -> None:
    """Node b is the heir of a, and c knows that when it publishes; then c dies."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    world.wait(2)
    world.cut.update("bc")
    world.say(world.client("c", "w"), "kept", b"of c")
    copy = world.dies("c")
    world.cut.clear()
    world.inherit("b", "c", copy)
    assert world.waiting("b", "ann") == [b"of c"]


def test_a_number_that_the_heir_had_and_a_crash_took_from_the_disk_is_not_used_again() -> None:
    """Servers may have what the disk of a node that is killed has not yet."""
    world = Dying()
    world.meet()
    world.lasting("b", "bob", "kept")
    world.wait(1)
    world.cut.update("ab")
    rows = world.log("a")
    before = rows.durable
    world.say(world.client("a", "w"), "kept", b"of the servers alone")
    copy = world.kill("a")
    rows.durable = before
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.cut.clear()
    world.inherit("b", "a", copy)
    world.back("a", rows)
    world.wait(3)
    world.say(world.client("a", "w"), "kept", b"of the next life")
    world.wait(3)
    assert world.waiting("b", "bob") == [b"of the servers alone", b"of the next life"]


def test_what_was_kept_for_two_queues_of_one_name_is_in_the_one_that_is_left() -> None:
    """One of them was at a dead node, bound to something else."""
    world = Dying()
    world.meet()
    queues = world.member("a").broker.queues
    queues.bind(queues.named("jobs"), "of/a")
    world.wait(2)
    copy = world.dies("a")
    queues = world.member("b").broker.queues
    queues.bind(queues.named("jobs"), "of/b")
    world.wait(2)
    writer = world.client("c", "w")
    for topic in ("of/a", "of/b"):
        world.say(writer, topic, topic.encode())
    world.inherit("b", "a", copy)
    world.wait(2)
    heir = world.member("b").broker
    found = [heir.log.read(seq) for seq in heir.state.queues["jobs"].messages.values()]
    assert sorted(one.payload for one in found if one) == [b"of/a", b"of/b"]
    world.say(writer, "of/a", b"later")
    world.wait(2)
    assert len(heir.state.queues["jobs"].messages) == 3


def test_what_a_client_says_where_it_was_taken_over_comes_behind_what_it_said_before() -> None:
    """Through two nodes, while nobody carries anything to who is to have it."""
    world = Dying(names=("a", "b", "c", "d"))
    world.meet()
    world.lasting("d", "dan", "kept")
    world.wait(1)
    world.cut.add("d")
    world.say_many(world.client("a", "w"), "kept", 2)
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    world.say(world.client("b", "w"), "kept", b"2")
    copy = world.dies("b")
    world.inherit("c", "b", copy)
    world.say(world.client("c", "w"), "kept", b"3")
    world.restart("c")
    world.cut.clear()
    world.wait(5)
    assert world.waiting("d", "dan") == [b"0", b"1", b"2", b"3"]
    assert list(world.member("c").estates["d"].before) == []


def test_an_estate_with_nothing_in_it_is_let_go_of_everywhere() -> None:
    world = Dying()
    for member in world.members.values():
        member.directory.moves["p"] = lambda client: True
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    world.inherit("b", "a", world.kill("a"))
    world.say(world.client("c", "w"), "kept", b"1")
    world.wait(2)
    assert world.waiting("b", "ann") == [b"1"]
    heir, other = world.member("b"), world.member("c")
    assert heir.holdings.held == {"b": 0, "a": 1} and "a" in other.estates
    heir.broker.end(heir.broker.sessions["p", "ann"])
    world.wait(2)
    assert heir.holdings.held == {"b": 0, "a": 1}, "something may still be kept for it"
    heir.holdings.keep = 5
    world.wait(8)
    assert heir.holdings.held == {"b": 0} and "a" not in other.estates
    assert not [name for name in heir.broker.state.taken if name.startswith(("$held/", "$took/a"))]
    assert {client for _, client in other.broker.state.sessions} == set()


def test_who_returns_without_copies_lets_go_of_what_its_heir_has(tmp_path: Path) -> None:
    """It hears so from the others: nobody else could tell it."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    rows = world.log("a")
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    back = world.add("a", rows)

    (tmp_path / MARKER).touch()
    journal: Any = SimpleNamespace(directory=SimpleNamespace(path=tmp_path))
    copying(back, journal, Settings(), [Ends(back.broker)], lambda: None)
    world.wait(3)
    assert back.holdings.own == f"a@{AT}"
    assert ("p", "ann") not in back.broker.state.sessions
    assert set(world.member("c").nodes) == {"a", "b"}
    world.say(world.client("a", "w"), "kept", b"of the next life")
    world.wait(2)
    assert world.waiting("b", "ann") == [b"of the next life"]


def test_of_two_nodes_that_say_they_hold_an_estate_the_later_heir_does() -> None:
    world = Dying(names=("a", "b", "c", "d"))
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    member, copy = world.member("d"), world.kill("a")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.inherit("b", "a", copy)
    world.wait(1)
    for generation, holder in ((0, "b"), (1, "b"), (2, "c")):
        member.take(member.nodes["c"], frames.Holds("a", generation))
        assert member.estates["a"].holder is member.nodes[holder]


@pytest.mark.parametrize("generation", [0, 1, 1 << 31])
def test_nobody_holds_the_estate_of_a_node_that_is_there(generation: int) -> None:
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    world.wait(1)
    member = world.member("c")
    member.take(member.nodes["b"], frames.Holds("a", generation))
    whole = frames.Whole(0, 7, [], [], [frames.Holding("a", generation, [], [])])
    member.take(member.nodes["b"], whole)
    assert member.estates["a"].holder is member.nodes["a"]
    world.say(world.client("c", "w"), "kept", b"1")
    world.wait(1)
    assert world.waiting("a", "ann") == [b"1"]


@pytest.mark.parametrize("had", [False, True])
def test_what_is_for_a_member_of_a_group_at_a_dead_node_comes_once(had: bool) -> None:
    """`had`: the dead node had it, and only its answer was lost."""
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "$share/g/jobs", qos=2)
    world.wait(1)
    copy = world.kill("a") if not had else None
    if not had:
        world.wait(CLUSTER_DEAD_SECONDS + 1)
    writer = world.client("b", "w")
    for number in range(3):
        writer.broker.post(Message("jobs", b"%d" % number, 2), writer)
    if copy is None:
        world.tick()
        line = world.lines("b").lines["a"]
        while line:
            world.member("a").hear(line.popleft())
        copy = world.kill("a")
        world.wait(CLUSTER_DEAD_SECONDS + 1)
    assert world.kept("b", "a") == 3
    world.inherit("b", "a", copy)
    world.wait(1)
    assert world.waiting("b", "ann") == [b"0", b"1", b"2"]


def test_a_subscription_of_qos_0_goes_on_in_a_session_that_was_taken_over() -> None:
    world = Dying()
    world.meet()
    ann = world.lasting("a", "ann", "kept")
    ann.broker.subscribe(ann.wish("live", 0))
    world.wait(1)
    copy = world.dies("a")
    world.inherit("b", "a", copy)
    world.wait(2)
    heir = world.member("b").broker.sessions["p", "ann"]
    assert isinstance(heir, Lasting)
    for name in ("c", "b"):
        writer = world.client(name, f"w-{name}")
        for qos in (0, 1, 2):
            writer.broker.post(Message("live", b"%s %d" % (name.encode(), qos), qos), writer)
        world.wait(1)
    assert sorted(heir.live) == [b"b 0", b"b 1", b"b 2", b"c 0", b"c 1", b"c 2"]


def test_a_session_that_began_later_at_the_dead_node_stays() -> None:
    world = Dying()
    world.meet()
    world.cut.add("a")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.lasting("b", "ann", "kept")
    world.wait(3)
    world.lasting("a", "ann", "kept")
    world.say(world.client("a", "w"), "kept", b"later")
    copy = world.dies("a")
    heir = world.member("b")
    adoption = heritage.Adoption(heir, "a", AT, *copy, [Ends(heir.broker)])
    for _ in adoption.pieces():
        """Nobody says anything meanwhile."""
    adoption.run()
    assert world.waiting("b", "ann") == [b"later"]
    assert heir.holdings.members == {("p", "ann"): "a"}


def test_more_estates_than_a_cluster_may_have_are_refused() -> None:
    world = Dying()
    world.meet()
    member = world.member("a")
    for number in range(CLUSTER_NAMES + 5):
        list(member.hearing.said_by(member.nodes["b"], [frames.Holds(f"b@{number + 1}", 1)]))
    assert len(member.estates) == CLUSTER_NAMES
    assert sum(member.hearing.refused.values()) > 0


def test_who_finds_at_its_start_that_it_was_stopped_a_second_time_keeps_for_what_it_had() -> None:
    """Its estate of the second life, whose name its journal says, and not the first one's."""
    world = Dying()
    world.meet()
    copy = world.kill("a")
    world.inherit("b", "a", copy)
    world.back("a")
    world.wait(3)
    world.lasting("a", "ann", "kept")
    world.wait(1)
    rows = world.log("a")
    copy = world.dies("a")
    broker = Broker(world.clock, rows, "all")
    back = Membership(broker, Lines(world, "a"), "0")
    broker.state = folded(rows.rows)
    broker.recover([Lasts(broker), Recall(back.recall)])
    heritage.let_go(broker, back, [Ends(broker)], 2 * AT)
    world.members["a"] = back
    back.begin()
    assert back.holdings.own == f"a@{2 * AT}"
    assert set(back.estates) == {f"a@{AT}"}
    world.say(world.client("a", "w"), "kept", b"meanwhile")
    world.inherit("b", "a", copy, 2 * AT)
    world.wait(3)
    assert world.waiting("b", "ann") == [b"meanwhile"]


@pytest.mark.parametrize("origin", ["c", "nobody", "a@7"])
def test_what_an_origin_of_another_node_kept_is_not_taken(origin: str) -> None:
    """Nor is how far it came noted: such a note stays in the journal, and there are many names."""
    world = Dying()
    world.meet()
    world.lasting("b", "bob", "kept")
    member = world.member("b")
    said = frames.Said(0, "p", b"x", b"kept", b"", 1, False, False, b"!", 1, [], 0, "", False)
    rows = dict(member.broker.state.taken)
    member.take(member.nodes["a"], frames.Kept("b", origin, 1, 0, said))
    world.wait(1)
    assert world.waiting("b", "bob") == [] and member.broker.state.taken == rows
    world.say(world.client("a", "w"), "kept", b"1")
    world.wait(1)
    assert world.waiting("b", "bob") == [b"1"]


def test_only_who_holds_an_estate_can_say_that_nothing_is_left_of_it() -> None:
    """What came of it would be taken once more."""
    world = Dying()
    world.meet()
    world.lasting("b", "bob", "kept")
    world.say(world.client("a", "w"), "kept", b"1")
    world.wait(1)
    member = world.member("b")
    taken = dict(member.broker.state.taken)
    member.take(member.nodes["c"], frames.Released("a"))
    assert member.broker.state.taken == taken and taken["$took/b/a"] > 0


def test_a_hub_whose_log_was_never_copied_lets_go_of_nothing(tmp_path: Path) -> None:
    world = Dying()
    world.meet()
    world.lasting("a", "ann", "kept")
    member = world.member("a")
    journal: Any = SimpleNamespace(directory=SimpleNamespace(path=tmp_path))
    copying(member, journal, Settings(), [Ends(member.broker)], lambda: None)
    member.take(member.nodes["b"], frames.Deposed(AT))
    assert ("p", "ann") in member.broker.state.sessions and member.holdings.own == "a"
