"""Which dead nodes are taken over, and when: the servers are the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from hubbub.cluster import estates, frames, wills
from hubbub.cluster.copies import FENCE, LOG, Found, Piece
from hubbub.cluster.membership import Membership
from hubbub.cluster.stops import Numbered, Stop, decisive, is_ours
from hubbub.core.limits import (
    CLUSTER_ADOPT_SECONDS,
    CLUSTER_DEAD_SECONDS,
    CLUSTER_HEIR_SECONDS,
    CLUSTER_RETURN_SECONDS,
)
from hubbub.core.state import State
from hubbub.errors import JournalError
from hubbub.journal.copied import Copy
from hubbub.runtime.heirs import Heirs
from tests.cluster.test_heritage import Dying
from tests.cluster.world import World

COPYING: Any = SimpleNamespace(stream=None)


class Servers:
    """One stream, of node "b", which node "a" has stopped and nobody adopted."""

    def __init__(self) -> None:
        self.read_at: list[int] = []
        self.names = ["a", "b"]

    async def nodes(self) -> list[str]:
        return self.names

    def stream_of(self, node: str) -> str:
        return node

    async def last(self, stream: str) -> Found:
        return Found(1000, Piece(1, 1, FENCE, 0, False, b"a"))

    async def message(self, node: str, at: int) -> Piece | None:
        return (await self.last(node)).last if node == "b" else None

    async def read(self, node: str, upto: int, heads: bool = False) -> list[Numbered]:
        if node != "b":
            return []
        self.read_at.append(upto)
        return [(upto, Piece(1, 1, FENCE, 0, False, b"a"))]


async def test_a_node_that_waits_for_its_heir_takes_over_others() -> None:
    """What the dead one kept for this node's former estate goes there, wherever that is."""
    world, servers = World(names=("a",)), Servers()
    member = world.members["a"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=7, waiting_bytes=0
    )
    heirs = Heirs(member, copying, [], lambda: None)
    heirs._is_dead("b")
    world.clock.seconds += 60
    member.deposed = True
    await heirs._look()
    assert servers.read_at == [1000]
    assert member.inherited["b"] == 1000, "it had nothing, and hears that this is known"


async def test_no_session_begins_that_may_be_at_a_node_which_is_away() -> None:
    """This one was just started; node b is dead, or has an heir that was not heard of yet."""
    world, servers = World(names=("a", "c")), Servers()
    member = world.members["a"]
    copies = SimpleNamespace(ready=False)
    copying: Any = SimpleNamespace(stream=servers, copies=copies, fenced_at=0, lived=True)
    heirs = Heirs(member, copying, [], lambda: None)
    heirs.wake()
    assert "away" in member.broker.unmet
    await heirs._look()
    heirs.wake()
    assert member.broker.unmet
    world.meet()
    servers.names.append("c")
    member.take(member.nodes["c"], frames.Heir("b", 1000))
    member.waiting["c"] = 7, world.clock.now()
    await heirs._look()
    heirs.wake()
    assert member.broker.unmet, "what c had is at its heir, which nobody knows"
    member.waiting.clear()
    await heirs._look()
    heirs.wake()
    assert not member.broker.unmet
    again = Heirs(member, copying, [], lambda: None)
    member.inherited.clear()
    again.wake()
    world.clock.seconds += 61
    again.wake()
    assert member.broker.unmet, "nobody could be asked so far"
    copies.ready, member.excluded = True, "it does not look"
    world.clock.seconds += 61
    again.wake()
    assert not member.broker.unmet, "not for ever"


class Away(Servers):
    """Node b is away; its copy says what it has."""

    async def last(self, stream: str) -> Found:
        return Found(5, Piece(1, 5, LOG, 9, False, b""))

    async def read(self, node: str, upto: int, heads: bool = False) -> list[Numbered]:
        self.read_at.append(upto)
        stop = [(3, Piece(1, 1, FENCE, 0, False, b"c"))] if self.stopped else []
        return [*stop, (5, Piece(1, 5, LOG, 9, False, b""))]

    stopped = False


def just_started(world: Dying, servers: Away) -> tuple[Membership, Heirs]:
    """Node b is dead and its copy is read; a has just begun, and knows nothing."""
    state = world.kill("b")[0]
    del world.members["a"]
    member = world.add("a")
    member.directory.moves["p"] = lambda client: True
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, lived=True, waiting_bytes=0
    )
    heirs = Heirs(member, copying, [], lambda: None)
    heirs._fold = AsyncMock(return_value=Copy(state, {}, 0))  # type: ignore[method-assign]
    return member, heirs


@pytest.mark.parametrize("stopped", [False, True])
async def test_what_the_copy_says_of_who_is_away_is_enough_to_begin_others(stopped: bool) -> None:
    world, servers = Dying(names=("a", "b")), Away()
    servers.stopped = stopped
    world.meet()
    world.lasting("b", "ann", "kept")
    world.member("b").broker.queues.named("jobs")
    member, heirs = just_started(world, servers)
    member.joined = member.up_since = world.clock.now()
    await heirs._meet(["b"])
    assert servers.read_at == [], "it may be there, and slow"
    world.clock.seconds += CLUSTER_DEAD_SECONDS
    await heirs._meet(["b"])
    heirs._again = world.clock.now() + 1
    heirs.wake()
    assert bool(member.broker.unmet) == stopped
    if stopped:
        return
    assert member.directory.home("p", "ann") == "b"
    assert member.directory.home("p", "bob") == ""
    assert member.directory.home("queue", "$queue/jobs") == "b"
    world.say(world.client("a", "w"), "kept", b"meanwhile")
    assert world.kept("a", "b") == 1


async def test_what_the_copy_of_who_is_away_says_is_heard_in_turns_until_that_is_back() -> None:
    """A million sessions are many seconds, after which it would be dead itself."""
    world, servers = Dying(names=("a", "b")), Away()
    world.meet()
    for number in range(50):
        world.lasting("b", f"{number}", f"kept/{number}")
    member, heirs = just_started(world, servers)
    turns = []

    def turn(pieces: Iterator[None]) -> bool:
        turns.append(len(list(islice(pieces, 10))))
        if len(turns) == 9:
            world.add("b")
            world.members["b"].beat()
            world.carry()
        return turns[-1] < 10

    heirs._turn = turn  # type: ignore[method-assign]
    await heirs._meet(["b"])
    assert turns == [10] * 9, "it knows better itself"
    assert heirs._unmet_until and not heirs._recalled
    assert len(member.directory.there.get("b", ())) == 0 and not member.estates["b"].wants
    await heirs._meet(["b"])
    assert not heirs._unmet_until


async def test_what_an_heir_has_is_known_before_any_session_begins() -> None:
    """That it is one is heard first, and what there is when it was asked."""
    world, servers = World(names=("a", "c")), Servers()
    world.meet()
    member = world.members["a"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, lived=True
    )
    heirs = Heirs(member, copying, [], lambda: None)
    member.take(member.nodes["c"], frames.Holds("b", 1))
    member.take(member.nodes["c"], frames.Heir("b", 1000))
    await heirs._meet(["b", "c"])
    heirs._again = world.clock.now() + 1
    heirs.wake()
    assert member.broker.unmet
    world.carry()
    await heirs._meet(["b", "c"])
    heirs.wake()
    assert not member.broker.unmet


async def test_the_copy_of_who_is_there_is_not_read() -> None:
    """It is large, and would be once more each second, as long as two versions run beside."""
    world, servers = World(names=("a",)), Away()
    member = world.members["a"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, lived=True
    )
    heirs = Heirs(member, copying, [], lambda: None)
    beat = frames.frame("b", 1, 0, 0, frames.piece(frames.Beat("0", world.clock.stamp())))
    member.hear(beat[:3] + bytes((frames.VERSION + 1,)) + beat[4:])
    await heirs._look()
    assert servers.read_at == []
    world.clock.seconds += 61
    heirs._again = world.clock.now() + 1
    heirs.wake()
    await heirs._look()
    assert servers.read_at == [], "nobody waits for that any more"


async def test_a_hub_that_was_long_without_nats_hears_first_who_is_there() -> None:
    world, servers = World(names=("a",)), Away()
    member = world.members["a"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, lived=True
    )
    heirs = Heirs(member, copying, [], lambda: None)
    heirs._fold = AsyncMock(return_value=None)  # type: ignore[method-assign]
    member.joined = member.up_since = world.clock.now()
    world.lines("a").up = False
    world.wait(wills.UNKNOWN_SECONDS + 1)
    world.lines("a").up = True
    await heirs._meet(["b"])
    assert servers.read_at == []
    world.wait(CLUSTER_DEAD_SECONDS)
    await heirs._meet(["b"])
    assert servers.read_at


async def test_a_stream_that_nobody_leads_does_not_hide_others() -> None:
    class Leaderless(Servers):
        async def last(self, stream: str) -> Found:
            if stream == "aa":
                raise TimeoutError
            return await super().last(stream)

    world, servers = World(names=("a",)), Leaderless()
    servers.names = ["a", "aa", "b"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, waiting_bytes=0
    )
    heirs = Heirs(world.members["a"], copying, [], lambda: None)
    await heirs._look()
    world.clock.seconds += 60
    await heirs._look()
    assert world.members["a"].inherited["b"] == 1000


@pytest.mark.parametrize("how", ["clock", "version"])
def test_who_is_shut_out_is_not_dead(how: str) -> None:
    """Or one machine with a wrong clock, to which all others are strange, stops them all."""
    world = World(names=("a", "b"))
    world.meet()
    heirs, b = Heirs(world.members["a"], COPYING, [], lambda: None), world.members["b"]
    assert not heirs._is_dead("b")

    def strange_beat() -> None:
        ahead = 3600 * 1_000_000 if how == "clock" else 0
        beat = frames.Beat("0", world.clock.stamp() + ahead, stopped=0)
        frame = frames.frame("b", b.boot, 0, 0, frames.piece(beat))
        if how == "version":
            frame = frame[:3] + bytes((frames.VERSION + 1,)) + frame[4:]
        world.members["a"].hear(frame)

    world.cut.add("b")
    for _ in range(60):
        strange_beat()
        world.wait(1)
        assert not heirs._is_dead("b")
    assert "b" not in world.members["a"].nodes
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    heirs._is_dead("b")
    world.wait(CLUSTER_HEIR_SECONDS)
    assert heirs._is_dead("b")


@pytest.mark.parametrize("how", ["silence", "in order"])
def test_who_stopped_in_order_has_time_to_come_back(how: str) -> None:
    """A restart is shorter than that; who fell silent was killed."""
    world = World(names=("a", "b"))
    world.meet()
    heirs = Heirs(world.members["a"], COPYING, [], lambda: None)
    assert not heirs._is_dead("b")
    if how == "in order":
        world.members["b"].goodbye()
        world.carry()
    world.cut.add("b")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    assert not heirs.membership.hearing.lives("b") and not heirs._is_dead("b")
    least = CLUSTER_RETURN_SECONDS if how == "in order" else CLUSTER_HEIR_SECONDS
    world.clock.seconds += least - 0.5
    assert not heirs._is_dead("b")
    world.clock.seconds += 0.5
    assert heirs._is_dead("b")


def test_one_node_answers_for_a_stop_whoever_is_back() -> None:
    """Node b stopped a, died, was stopped by c at 2000 and adopted by it; and all are back."""
    stop = Stop(1000, "b")
    assert is_ours("b", {"b"}, "a", stop), "it lives, and put it"
    assert not is_ours("b", {"b@2000"}, "a", stop), "that was before it let go"
    assert is_ours("c", {"c", "b"}, "a", stop)
    assert not is_ours("a", {"a@1000"}, "a", stop)
    later = Stop(3000, "b@2000")
    assert is_ours("b", {"b@2000"}, "a", later), "it lives again, and put this one then"
    assert not is_ours("c", {"c", "b"}, "a", later)


def test_what_a_node_stopped_itself_for_is_for_who_answers_for_the_next_stop() -> None:
    """Its disk was lost, and lost again before it had its copy; or another one stopped it then."""
    own = [Stop(1000, "a@1000"), Stop(2000, "a@2000")]
    assert decisive("a", own) == own[1], "it goes on with all"
    assert is_ours("a", {"a@2000"}, "a", own[1])
    of_c = Stop(3000, "c")
    assert decisive("a", [*own, of_c, Stop(4000, "b")]) == of_c
    assert decisive("a", [of_c, Stop(4000, "a@4000")]) == of_c


def test_of_two_that_stopped_one_another_one_goes_on() -> None:
    of_a, of_b = Stop(1000, "b"), Stop(500, "a")
    ours = [
        (name, dead)
        for name, dead, stop, own, held in (
            ("a", "b", of_b, of_a, {"a@1000"}),
            ("b", "a", of_a, of_b, {"b@500"}),
        )
        if is_ours(name, held, dead, stop, [own])
    ]
    assert ours == [("a", "b")]
    assert is_ours("a", {"a@1000", "b"}, "a", of_a), "and then for itself"


def test_who_ended_the_life_in_which_a_stop_was_put_answers_for_it() -> None:
    """Node b was stopped by c, came back, stopped c, and was stopped by d, which has that life."""
    of_c, of_b = Stop(900, "b@1000"), [Stop(1000, "c"), Stop(2000, "d")]
    assert not is_ours("a", {"a@1000"}, "d", Stop(1000, "a"), [Stop(1000, "d@1000")])
    assert is_ours("d", {"d", "b@1000"}, "c", of_c)
    assert not is_ours("b", {"b@2000"}, "c", of_c, of_b)


async def test_an_heir_of_very_much_is_not_dead_while_it_takes_it_over() -> None:
    """What goes live does so in one turn of its loop; the others are told so before."""
    world = World(names=("a", "b"))
    world.meet()
    heir, other = world.members["a"], world.members["b"]
    copying: Any = SimpleNamespace(stream=Servers(), copies=None, fenced_at=0, waiting_bytes=0)
    heirs = Heirs(heir, copying, [], lambda: None)
    seconds = 10
    adoption: Any = SimpleNamespace(rest=lambda: int(seconds / CLUSTER_ADOPT_SECONDS))
    await heirs._ask_for_patience(adoption.rest())
    world.carry()
    world.clock.seconds += seconds + CLUSTER_DEAD_SECONDS - 1
    other.wake(world.clock.now())
    assert "a" in other.nodes
    await heirs._adopt(heirs._adoption("c", 1000, None))
    heir.wake(world.clock.now())
    assert "b" in heir.nodes, "it has not heard that one for as long"
    world.wait(2)
    assert other.nodes["a"].busy == 0
    world.clock.seconds += CLUSTER_DEAD_SECONDS + 1
    other.wake(world.clock.now())
    assert "a" not in other.nodes


class Streams(Servers):
    """What is in the stream of each node, and which of them nobody leads."""

    def __init__(self, **streams: list[Numbered]) -> None:
        super().__init__()
        self.streams = streams
        self.names = list(streams)
        self.leaderless: set[str] = set()
        self.read_of: list[str] = []

    async def last(self, stream: str) -> Found:
        at, piece = self.streams[stream][-1]
        return Found(at, piece)

    async def message(self, node: str, at: int) -> Piece | None:
        return dict(self.streams[node])[at]

    async def read(self, node: str, upto: int, heads: bool = False) -> list[Numbered]:
        if node in self.leaderless:
            raise TimeoutError
        if not heads:
            self.read_of.append(node)
        if not heads and node == "b":
            self.read_at.append(upto)
        return self.streams[node]


def put(at: int, by: str = "") -> Numbered:
    """A stop by that estate, or a piece of a life."""
    return at, Piece(at, 1, FENCE if by else LOG, 0, False, by.encode())


def at_a(world: World, servers: Streams) -> Heirs:
    """Node a looks; copies say nothing."""
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_at=0, waiting_bytes=0
    )
    heirs = Heirs(world.members["a"], copying, [], lambda: None)
    heirs._fold = AsyncMock(side_effect=lambda pieces: Copy(State(), {}, 0))  # type: ignore[method-assign]
    return heirs


async def test_a_stream_that_nobody_leads_keeps_nobody_from_answering_for_another_one() -> None:
    """Where the first stop of b leads cannot be said; that it is for this node now can."""
    world = World(names=("a",))
    servers = Streams(a=[put(1)], b=[put(1000, "c"), put(1500)], d=[put(1)])
    servers.leaderless.add("d")
    heirs, member = at_a(world, servers), world.members["a"]
    for _ in range(4 * int(CLUSTER_RETURN_SECONDS)):
        await heirs._safely("b", heirs._look_at("b"))
        world.clock.seconds += 1
    assert 0 < len(servers.read_at) <= 4, "all of it is read now and then, not each second"
    member.holdings.held["c"] = 1
    for _ in range(int(CLUSTER_RETURN_SECONDS) + 1):
        await heirs._safely("b", heirs._look_at("b"))
        world.clock.seconds += 1
    assert member.inherited["b"] == 1000


@pytest.mark.parametrize("whole", [True, False])
async def test_what_a_life_had_that_was_not_whole_is_not_that_of_the_one_before(
    whole: bool,
) -> None:
    """Nodes aa and b stopped one another, so aa goes on; b was back and is stopped by this node. Of
    its last life no checkpoint is there: what is says which estates it had before.
    """
    world = World(names=("a",))
    servers = Streams(
        a=[put(1)], aa=[put(1000, "b")], b=[put(1000, "aa"), put(1500), put(2000, "a")]
    )
    heirs, member = at_a(world, servers), world.members["a"]
    copy = Copy(State(), {}, 0)
    if whole:
        copy.state.apply(estates.taken_row(estates.STOPPED, 1000))
    heirs._fold = AsyncMock(  # type: ignore[method-assign]
        side_effect=lambda pieces: copy if len(pieces) == 3 else Copy(State(), {}, 0)
    )
    own = [Stop(1000, "b")]
    assert is_ours("aa", {"aa@1000"}, "b", Stop(1000, "aa"), own), "it is for that one"
    for _ in range(4):
        await heirs._safely("b", heirs._answer("b", 2000))
    assert "b" not in member.inherited


DAMAGED = 77


def ring() -> Streams:
    """Nodes b and c stopped one another in turn, and neither took over; b was back, and is stopped
    by this node. What d had ends with one piece more.
    """
    return Streams(
        a=[put(1)], c=[put(500), put(1000, "b@1000")], d=[put(1), put(DAMAGED)],
        b=[put(1), put(1000, "c"), put(1500), put(2000, "a")],
    )  # fmt: skip


def folds(heirs: Heirs, damaged: int) -> None:
    """What is folded says nothing, or cannot be read where that piece is in it."""

    def fold(pieces: list[Numbered]) -> Copy:
        if any(at == damaged for at, _ in pieces):
            raise JournalError("byte 0 of what was copied is no frame of rows")
        return Copy(State(), {}, 0)

    heirs._fold = AsyncMock(side_effect=fold)  # type: ignore[method-assign]


@pytest.mark.parametrize("damaged", [0, DAMAGED, 1500])
async def test_what_cannot_be_read_for_good_may_say_that_somebody_has_it(damaged: int) -> None:
    """Of d, which is dead: it may be the heir. Or of an earlier life of b: it may have taken over
    itself. Who is back says so; a node that is sure of nothing takes nothing twice.
    """
    world, servers = World(names=("a",)), ring()
    if damaged == 1500:  # b lost its disk later, and was stopped once more
        servers.streams["b"][3:] = [put(1600, "b@1600"), put(1700), put(2000, "a")]
        servers.streams["c"][1:] = [put(1000, "b@1600")]
    heirs, member = at_a(world, servers), world.members["a"]
    folds(heirs, damaged)
    if damaged == 1500:
        heirs._fold.side_effect = lambda pieces: (  # type: ignore[attr-defined]
            Copy(State(), {}, 0) if len(pieces) != 3 else _unreadable()
        )
    for _ in range(3 * int(CLUSTER_RETURN_SECONDS)):
        await heirs._safely("b", heirs._look_at("b"))
        world.clock.seconds += 1
    assert member.inherited.get("b", 0) == (0 if damaged else 2000)


def _unreadable() -> Copy:
    raise JournalError("byte 0 of what was copied is no frame of rows")


async def test_a_copy_that_has_not_changed_is_not_read_again() -> None:
    world, servers = World(names=("a",)), ring()
    servers.streams["b"][-1] = put(2000, "e")  # which is for somebody else
    heirs = at_a(world, servers)
    for _ in range(6 * int(CLUSTER_RETURN_SECONDS)):
        await heirs._safely("b", heirs._look_at("b"))
        world.clock.seconds += 1
    assert len(servers.read_at) >= 3
    assert servers.read_of.count("d") == servers.read_of.count("c") == 1
    servers.streams["d"].append(put(DAMAGED + 1))
    for _ in range(2 * int(CLUSTER_RETURN_SECONDS)):
        await heirs._safely("b", heirs._look_at("b"))
        world.clock.seconds += 1
    assert servers.read_of.count("d") == 2 and servers.read_of.count("c") == 1


async def test_where_stops_lead_is_read_once_from_each_stream() -> None:
    """From b to c, to d and to e, one after the other; f is somebody else's."""
    world = World(names=("a",))
    chain = {
        "f": [put(1), put(1000, "x")], "e": [put(1), put(1000, "d")], "d": [put(1), put(1000, "c")],
        "c": [put(1), put(1000, "b@1000")],
    }  # fmt: skip
    servers = Streams(a=[put(1)], b=[put(1), put(1000, "e"), put(1500)], **chain)
    heirs = at_a(world, servers)
    assert await heirs._leads_to({"b@1000"}, "b", Stop(1000, "e"))
    assert servers.read_of.count("f") == 1
    assert all(servers.read_of.count(name) <= 2 for name in "cde")
    assert not await heirs._leads_to({"b@1000"}, "b", Stop(1000, "nobody"))
