"""Relayed connections over lines that lose, repeat and delay frames, and nodes that are cut off.

What one end hears is always the beginning of what the other said, in order; and when the faults are
over no end is left without the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hubbub.cluster import frames
from hubbub.cluster.relays import Far, Near, Relays
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Admission, Carrier, Gate, Opening
from hubbub.core.homes import Home
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_WAY_BYTES, LINK_PAUSED
from hubbub.core.link import Link
from tests.cluster.world import World


class Talk(Connection):
    """At home: hears bytes, and says what the test wants."""

    def __init__(self, broker: object, link: Link, opening: Opening) -> None:
        super().__init__(broker, link, opening)  # type: ignore[arg-type]
        self.heard = b""
        self.ended: list[str] = []

    def feed(self, data: bytes) -> None:
        self.heard += data

    def lost(self, reason: str) -> None:
        self.ended.append(reason)


class Talks(Protocol):
    name = "p"
    moves = True

    def connect(self, link: Link, opening: Opening) -> Connection:
        return Talk(self.broker, link, opening)


class Sink:
    """The socket of the client. `full`: it takes nothing more."""

    def __init__(self) -> None:
        self.got = b""
        self.kept = b""
        self.full = False

    def write(self, data: bytes) -> None:
        self.kept += data
        self.read()

    def writelines(self, data: list[bytes]) -> None:
        self.write(b"".join(data))

    def read(self) -> None:
        if not self.full:
            self.got, self.kept = self.got + self.kept, b""

    def close(self) -> None:
        """Nothing here waits for it."""

    abort = close

    def get_write_buffer_size(self) -> int:
        return len(self.kept)


class Noting(Carrier):
    """Says when its client is heard no more, and again."""

    def __init__(self, listens: list[bool]) -> None:
        self._listens = listens

    def listens(self, listens: bool) -> None:
        self._listens.append(listens)


class Caller:
    """A client at one node whose session is at home at another one."""

    def __init__(self, world: Relaying, where: str, home: str) -> None:
        self.broker = broker = world.members[where].broker
        self.sink = Sink()
        self.link = Link(broker.outgoing, self.sink)
        self.ended = ""
        self.listens: list[bool] = []
        opening = Opening(Gate(broker.open), "192.0.2.7", 1234)
        opening.carrier = Noting(self.listens)
        admission = Admission("p", "dev", "ada", broker.open, opening)
        world.members[home].directory.here["p", "dev"] = 0
        way = broker.homes.relay(
            Home(home, "", home), self.link, admission, b"hello ", b"", self._stranded
        )
        assert isinstance(way, Near)
        self.way = way
        self.said = b"hello "

    def _stranded(self, reason: str) -> None:
        self.ended = reason
        self.link.close(reason)

    def say(self, data: bytes) -> None:
        if not self.link.closing:
            self.said += data
            self.way.feed(data)


class Relaying(World):
    def add(self, name: str):  # type: ignore[no-untyped-def]
        member = super().add(name)
        member.relays.serve([Talks(member.broker)])
        return member

    def tick(self) -> None:
        for member in self.members.values():
            unsettled, member.broker.unsettled = member.broker.unsettled, []
            for session in unsettled:
                session.settle()
        super().tick()
        super().tick()  # what a link wrote in the first is on the node's own now

    def relays(self, name: str) -> Relays:
        return self.members[name].relays

    def far(self, name: str) -> Far:
        (found,) = self.relays(name).far.values()
        return found


@pytest.fixture
def world() -> Iterator[Relaying]:
    world = Relaying()
    world.meet()
    yield world


def talk(far: Far) -> Talk:
    assert isinstance(far.connection, Talk)
    return far.connection


def test_the_home_has_a_connection_of_the_clients_own(world: Relaying) -> None:
    caller = Caller(world, "b", "a")
    world.carry()
    far = world.far("a")
    opening = far.opening
    assert (opening.address, opening.port, opening.via) == ("192.0.2.7", 1234, "b")
    caller.say(b"there")
    far.link.write(b"welcome")
    world.carry()
    assert talk(far).heard == b"hello there" and caller.sink.got == b"welcome"
    assert caller.way.answered and caller.way.whole
    caller.way.lost("the line was cut")
    world.carry()
    assert talk(far).ended == ["the line was cut"]
    assert not world.relays("a").far and not world.relays("b").near


def test_what_the_home_says_last_is_heard_before_the_end(world: Relaying) -> None:
    caller = Caller(world, "b", "a")
    world.carry()
    far = world.far("a")
    last = bytes(3 * CLUSTER_WAY_BYTES)
    far.link.write(last)
    far.link.close("that was all")
    world.carry()
    assert caller.sink.got == last and caller.link.reason == "that was all"
    assert talk(far).ended == ["that was all"]


def test_a_client_that_reads_nothing_is_kept_little_of(world: Relaying) -> None:
    caller = Caller(world, "b", "a")
    world.carry()
    far = world.far("a")
    caller.sink.full = True
    for _ in range(100):
        far.link.write(bytes(50_000))
        world.carry()
    assert len(caller.sink.kept) <= CLUSTER_WAY_BYTES and far.link.choked
    assert far.link.size > LINK_PAUSED
    caller.say(b"nobody hears that now")  # of who does not read the answers nothing more is heard
    world.carry()
    assert talk(far).heard == b"hello "
    caller.sink.full = False
    caller.sink.read()
    caller.way.drained()
    world.carry()
    assert len(caller.sink.got) == 5_000_000 and not far.link.choked
    assert talk(far).heard == caller.said


def test_a_home_that_hears_nothing_stops_the_socket(world: Relaying) -> None:
    caller = Caller(world, "b", "a")
    world.carry()
    far = world.far("a")
    go_on = far.opening.carrier.hold()
    assert go_on is not None
    caller.say(bytes(2 * CLUSTER_WAY_BYTES))
    world.carry()
    assert sum(map(len, far.heard)) == CLUSTER_WAY_BYTES and caller.listens == [False]
    assert caller.way.waiting() == CLUSTER_WAY_BYTES
    go_on()
    world.carry()
    assert talk(far).heard == caller.said and caller.listens == [False, True]


def test_more_than_there_is_room_for_is_refused(world: Relaying) -> None:
    caller = Caller(world, "b", "a")
    world.carry()
    far = world.far("a")
    far.opening.carrier.listens(False)
    caller.way.sending.room = 10 * CLUSTER_WAY_BYTES
    caller.say(bytes(2 * CLUSTER_WAY_BYTES))
    world.carry()
    assert sum(map(len, far.heard)) <= CLUSTER_WAY_BYTES
    assert any("no room" in reason for reason in world.members["a"].hearing.refused)
    assert not world.relays("a").far  # bytes are missing in it now
    world.wait(1)
    assert caller.ended or caller.link.closing


def test_a_protocol_that_the_home_does_not_speak_ends_it(world: Relaying) -> None:
    world.relays("a").protocols.clear()
    caller = Caller(world, "b", "a")
    world.carry()
    assert "does not speak 'p'" in caller.link.reason


def test_records_of_connections_that_are_none_do_nothing(world: Relaying) -> None:
    node = world.members["b"].nodes["a"]
    for home in (True, False):
        node.tell(frames.Carried(77, home, True, b"x"))
        node.tell(frames.Room(77, home, 5, 0))
        node.tell(frames.Closed(77, home, ""))
    world.carry()
    assert not world.members["a"].hearing.refused


@pytest.mark.parametrize("seed", range(100))
def test_any_schedule(seed: int) -> None:
    """Whatever is lost, repeated or cut: no byte is missing, added or moved, or both ends end."""
    world = Relaying(seed)
    world.meet()
    chance = world.chance
    world.lossy = chance.choice((0.0, 0.02, 0.2))
    callers: list[Caller] = []
    answers: dict[tuple[str, int], bytes] = {}
    talks: dict[tuple[str, int], Talk] = {}
    for _ in range(150):
        action = chance.random()
        free = set(world.members["b"].nodes) & set("ac")
        if action < 0.05 and free:
            callers.append(Caller(world, "b", chance.choice(sorted(free))))
        elif action < 0.45 and callers:
            chance.choice(callers).say(bytes(chance.choices(range(256), k=chance.randint(1, 900))))
        elif action < 0.75:
            for name in ("a", "c"):
                for number, far in world.relays(name).far.items():
                    if not far.link.closing:
                        said = bytes(chance.choices(range(256), k=chance.randint(1, 900)))
                        key = name, number[1]
                        answers[key] = answers.get(key, b"") + said
                        far.link.write(said)
        elif action < 0.78 and callers:
            caller = chance.choice(callers)
            caller.link.close("the client left")
            caller.way.lost("the client left")
        elif action < 0.8:
            world.cut = set(chance.choice(("", "ab", "bc")))
            world.wait(chance.choice((0.5, CLUSTER_DEAD_SECONDS + 1)))
            world.cut = set()
        else:
            world.carry(chance.randint(1, 6))
        for name in ("a", "c"):
            for number, far in world.relays(name).far.items():
                talks[name, number[1]] = talk(far)
    world.lossy = 0.0
    world.wait(3)
    for name in ("a", "c"):
        for number, far in world.relays(name).far.items():
            talks[name, number[1]] = talk(far)
    for caller in callers:
        key = caller.way.node.name, caller.way.number
        heard = talks[key].heard if key in talks else b""
        assert caller.said.startswith(heard)
        assert answers.get(key, b"").startswith(caller.sink.got)
        alive = caller.way.number in world.relays("b").near
        assert alive == any(
            number == ("b", caller.way.number) for number in world.relays(key[0]).far
        )
        if alive:
            assert caller.said == heard and answers.get(key, b"") == caller.sink.got
        else:
            assert caller.link.closing


def test_a_connection_that_is_relayed_has_no_number_of_a_life_before() -> None:
    """What its home still says to the client of that one would be this one's."""
    world = World(names=("a",))
    first = world.members["a"].relays._last
    world.clock.seconds += 2
    assert abs(world.add("a").relays._last - first) > 1_000_000
