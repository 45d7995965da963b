"""What is kept for sessions at another node arrives there, once, in order, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hubbub.cluster.keeping import PROTOCOL
from hubbub.cluster.membership import Membership
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_WINDOW
from hubbub.core.message import SPELLED, Message, Run
from hubbub.core.session import Revival, Session, SessionState, Subscription
from tests.cluster.world import Lines, Reader, World
from tests.core.recording import Recording, folded, snapshot

KEEP = 3600  # seconds


class Lasting(Session):
    """A session that stays; what comes for it waits in its backlog."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__("p", client, broker.open)
        self.broker = broker
        self.lasting = True
        self.live: list[bytes] = []

    def wish(self, topic: str, qos: int = 1) -> Subscription:
        return Subscription(self, topic, qos, (SPELLED, SPELLED, SPELLED))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        if not min(run.qos, subscription.qos):
            self.live += [message.payload for message in run.messages()]


class Lasts(Revival):
    name = "p"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def revive(self, state: SessionState) -> Session:
        session = Lasting(self.broker, state.client)
        session.subscriptions = {
            name: session.wish(name, qos) for name, (qos, _) in state.subscriptions.items()
        }
        return session


class Keepers(World):
    """Nodes whose journals can be read again by the next process of that name.

    `slow`: what is not durable at once will be, some ticks later.
    """

    slow = False

    def add(self, name: str, rows: Recording | None = None) -> Membership:
        broker = Broker(self.clock, rows or Recording(self.clock), "all")
        member = Membership(broker, Lines(self, name), "0", keep=KEEP)
        if rows is not None:
            rows.rows = [row for row in rows.rows if row.seq <= rows.durable]
            rows.position = rows.durable
            broker.state = folded(snapshot(folded(rows.rows), rows.rows))
            broker.recover([Lasts(broker)])
        self.members[name] = member
        member.begin()
        return member

    def tick(self) -> None:
        """What waits for the journal leaves when that is safe, sooner or later."""
        super().tick()
        for member in self.members.values():
            log, outgoing = member.broker.log, member.broker.outgoing
            assert isinstance(log, Recording)
            if self.slow and self.chance.random() < 0.5:
                log.sync()
            outgoing.holding = [link for link in outgoing.holding if not link.release()]
        super().tick()

    def restart(self, name: str, lost: bool = False) -> Membership:
        """kill -9: what was on the lines of the old one is gone, and all that was not durable."""
        log = self.members.pop(name).broker.log
        assert isinstance(log, Recording)
        for member in self.members.values():
            engine = member.engine
            assert isinstance(engine, Lines)
            engine.lines.pop(name, None)
        self.clock.seconds += 1
        return self.add(name, None if lost else log)

    def log(self, name: str) -> Recording:
        log = self.members[name].broker.log
        assert isinstance(log, Recording)
        return log

    def lasting(self, name: str, client: str, *topics: str, qos: int = 1) -> Lasting:
        broker = self.members[name].broker
        session = Lasting(broker, client)
        opening = Opening(Gate(broker.open), "127.0.0.1")
        broker.connect(session, Admission("p", client, "", broker.open, opening))
        for topic in topics:
            broker.subscribe(session.wish(topic, qos))
        self.carry()
        return session

    def say(self, writer: Reader, topic: str, payload: bytes, retain: bool = False) -> None:
        writer.broker.post(Message(topic, payload, 1, retain=retain), writer)

    def waiting(self, name: str, client: str) -> list[bytes]:
        """What that session has to be sent, in order."""
        broker = self.members[name].broker
        backlog = broker.state.sessions["p", client].backlog
        found = [broker.log.read(entry >> 35) for entry in backlog.entries if entry]
        return [message.payload for message in found if message is not None]

    def kept(self, name: str, other: str) -> int:
        """How many messages wait at a node for another one."""
        state = self.members[name].broker.state.sessions.get((PROTOCOL, other))
        return sum(map(bool, state.backlog.entries)) if state is not None else 0


@pytest.fixture
def world() -> Iterator[Keepers]:
    world = Keepers(names=("a", "b"))
    world.meet()
    yield world


def test_what_is_for_a_session_there_is_in_both_journals(world: Keepers) -> None:
    writer = world.client("a", "writer")
    device = world.lasting("b", "device", "x", "y")
    live = world.client("b", "live")
    live.wish("x")
    world.carry()
    for number in range(3):
        world.say(writer, "x", b"%d" % number)
    world.publish(writer, "x", b"of QoS 0")
    world.say(writer, "z", b"for nobody")
    assert world.kept("a", "b") == 3
    world.carry()
    assert world.waiting("b", "device") == [b"0", b"1", b"2"]
    assert device.live == [b"of QoS 0"]
    assert sorted(payload for _, payload in live.got) == [b"0", b"1", b"2", b"of QoS 0"]
    assert world.kept("a", "b") == 0


def test_a_node_that_was_away_gets_all_of_it_once_and_in_order(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x/#")
    world.cut.update("ab")
    world.say(writer, "x/early", b"0")  # it is not known yet that nobody hears
    world.carry()
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    assert not world.members["a"].nodes
    for number in range(1, 2 * CLUSTER_WINDOW + 7):
        world.say(writer, f"x/{number % 7}", b"%d" % number)
    assert world.kept("a", "b") == 2 * CLUSTER_WINDOW + 7
    assert world.members["a"].status()["away"] == [{"name": "b", "waiting": 2 * CLUSTER_WINDOW + 7}]
    world.cut.clear()
    world.meet()
    assert world.waiting("b", "device") == [b"%d" % one for one in range(2 * CLUSTER_WINDOW + 7)]
    assert world.kept("a", "b") == 0


@pytest.mark.parametrize("prompt", [True, False])
def test_the_answer_waits_until_it_is_safe_there(world: Keepers, prompt: bool) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.log("b").prompt = prompt
    world.say(writer, "x", b"1")
    world.carry()
    assert world.waiting("b", "device") == [b"1"]
    assert world.kept("a", "b") == (0 if prompt else 1)
    if not prompt:
        world.restart("b")  # nothing of it was durable
        world.slow = True
        world.wait(4)
    assert world.waiting("b", "device") == [b"1"]
    assert world.kept("a", "b") == 0


@pytest.mark.parametrize("seed", range(30))
def test_lines_that_lose_and_repeat_and_processes_that_die(seed: int) -> None:
    """Each message that was taken at `a` is in the backlog at `b` once, in the order said."""
    world = Keepers(seed, ("a", "b"))
    world.meet()
    world.lasting("b", "device", "x/#", qos=2)
    world.slow = True
    chance, said = world.chance, 0
    writer = world.client("a", "writer")
    for _ in range(60):
        world.lossy = chance.choice((0.0, 0.1, 0.5))
        match chance.randrange(10):
            case 0:
                world.cut.symmetric_difference_update("ab")
                world.wait(chance.choice((1, CLUSTER_DEAD_SECONDS + 1)))
            case 1:
                world.restart("b")
                world.log("b").prompt = False
            case 2:
                world.restart("a")
                writer = world.client("a", "writer")
            case 3:
                world.wait(1)
            case _:
                for _ in range(chance.randrange(1, 30)):
                    world.say(writer, f"x/{said % 3}", b"%d" % said)
                    said += 1
                world.carry(chance.randrange(9))
    world.cut.clear()
    world.lossy = 0.0
    world.wait(CLUSTER_DEAD_SECONDS + 4)
    assert world.waiting("b", "device") == [b"%d" % one for one in range(said)]
    assert world.kept("a", "b") == 0


def test_a_node_that_lost_its_journal_is_not_taken_for_the_old_one(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    for number in range(50):
        world.say(writer, "x", b"%d" % number)
    world.carry()
    world.restart("a", lost=True)
    world.meet()
    world.say(world.client("a", "writer"), "x", b"new")
    world.carry()
    assert world.waiting("b", "device")[-2:] == [b"49", b"new"]


def test_the_other_one_lost_its_journal(world: Keepers) -> None:
    """What it had is gone; what comes from now on is for who subscribes anew."""
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    for number in range(50):
        world.say(writer, "x", b"%d" % number)
    world.carry()
    world.restart("b", lost=True)
    world.meet()
    world.say(writer, "x", b"for nobody")
    world.lasting("b", "device", "x")
    world.say(writer, "x", b"new")
    world.carry()
    assert world.waiting("b", "device") == [b"new"]
    assert world.kept("a", "b") == 0


def test_nothing_is_kept_for_ever(world: Keepers, caplog: pytest.LogCaptureFixture) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.cut.update("ab")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.say(writer, "x", b"1")
    world.clock.seconds += KEEP
    world.members["a"].wake(world.clock.now())
    assert world.kept("a", "b") == 0 and not world.members["a"].away
    assert [one for one in caplog.messages if "away for too long" in one]
    world.say(writer, "x", b"2")
    world.cut.clear()
    world.meet()
    world.say(writer, "x", b"3")
    world.carry()
    assert world.waiting("b", "device") == [b"3"]


def test_who_does_not_want_it_any_more_gets_none(world: Keepers) -> None:
    writer = world.client("a", "writer")
    device = world.lasting("b", "device", "x", "y")
    world.members["b"].broker.unsubscribe(device, "x")
    world.carry()
    world.say(writer, "x", b"1")
    assert world.kept("a", "b") == 0
    world.members["b"].broker.subscribe(device.wish("y", 0))
    world.carry()
    world.say(writer, "y", b"2")
    world.carry()
    assert world.waiting("b", "device") == [] and device.live == [b"2"]
    broker = world.members["a"].broker
    assert broker.state.sessions[PROTOCOL, "b"].subscriptions == {}
    world.members["b"].broker.end(device)
    world.carry()
    assert not world.members["a"].nodes["b"].wants


@pytest.mark.parametrize("away", [False, True])
def test_retained_messages_come_once_too(world: Keepers, away: bool) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    if away:
        world.cut.update("ab")
        world.wait(CLUSTER_DEAD_SECONDS + 1)
    for number in range(3):
        world.say(writer, "x", b"%d" % number, retain=True)
        world.carry()
    world.cut.clear()
    world.meet()
    world.wait(2)
    assert world.waiting("b", "device") == [b"0", b"1", b"2"]
    assert world.retained("b") == {"x": b"2"} == world.retained("a")
    world.say(writer, "x", b"", retain=True)
    world.carry()
    assert world.retained("b") == {} == world.retained("a")


def test_a_message_that_is_refused_there_stops_no_other(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x/#")
    world.members["b"].broker.controls["x/no"] = lambda run: None
    for topic in ("x/1", "x/no", "x/2"):
        world.say(writer, topic, topic.encode())
    world.carry()
    assert world.waiting("b", "device") == [b"x/1", b"x/2"]
    assert world.kept("a", "b") == 0
    assert sum(world.members["b"].refused.values()) == 1


def test_what_cannot_be_read_now_is_sent_later(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.log("a").unreadable = True
    world.say(writer, "x", b"1")
    world.carry()
    assert world.kept("a", "b") == 1
    world.log("a").unreadable = False
    for call in world.members["a"].broker.to_try_again():
        call()
    world.carry()
    assert world.waiting("b", "device") == [b"1"]
