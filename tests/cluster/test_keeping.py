"""What is kept for sessions at another node arrives there, once, in order, whatever happens."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from hubbub.cluster import frames
from hubbub.cluster.keeping import PROTOCOL, Recall
from hubbub.cluster.membership import Membership
from hubbub.cluster.nats import Nats
from hubbub.config.cluster import Cluster as Settings
from hubbub.core.broker import Broker
from hubbub.core.gate import Admission, Gate, Opening
from hubbub.core.limits import CLUSTER_DEAD_SECONDS, CLUSTER_PIECE, CLUSTER_WINDOW
from hubbub.core.message import PUBLISHER, SPELLED, Message, Run
from hubbub.core.session import Revival, Session, SessionState, Subscription, row_about
from hubbub.runtime.cluster import recalls
from hubbub.schema import WILL, Row, name_of
from tests.cluster.world import Lines, Reader, World
from tests.core.recording import Recording, folded, seqs, snapshot

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
    def __init__(self, broker: Broker) -> None:
        self.name = "p"
        self.broker = broker

    def publish_will(self, will: Row) -> None:
        self.broker.post(Message(name_of(will.topic), will.payload, 1))

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
            broker.recover([Lasts(broker), Recall(member.recall)])
        self.members[name] = member
        member.begin()
        return member

    def tick(self) -> None:
        """What waits for the journal leaves when that is safe, sooner or later."""
        super().tick()
        for member in self.members.values():
            unsettled, member.broker.unsettled = member.broker.unsettled, []
            for session in unsettled:
                session.settle()
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

    def apart(self) -> None:
        """None of the first two hears of the other one, for so long that it is gone."""
        self.cut.update("ab")
        self.wait(CLUSTER_DEAD_SECONDS + 1)

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

    def say_many(self, writer: Reader, topic: str, count: int) -> None:
        for number in range(count):
            self.say(writer, topic, b"%d" % number)

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
    world.say_many(writer, "x", 3)
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
    [away] = world.members["a"].status()["away"]
    assert (away["name"], away["waiting"]) == ("b", 2 * CLUSTER_WINDOW + 7)
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


def test_a_number_that_a_crash_took_was_told_to_nobody(world: Keepers) -> None:
    """It is the next message's then, which the other node would take for one that it has."""
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.wait(1)
    world.log("a").sync()
    world.log("a").prompt = False
    world.say(writer, "x", b"nobody was promised that")
    world.carry()
    world.restart("a")
    world.log("a").prompt = True
    world.wait(2)
    world.say(world.client("a", "writer"), "x", b"acknowledged")
    world.wait(2)
    assert world.waiting("b", "device") == [b"acknowledged"]


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
                    world.say(writer, f"x/{said % 3}", b"%d" % said, chance.random() < 0.2)
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
    world.say_many(writer, "x", 50)
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
    world.say_many(writer, "x", 50)
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
    world.apart()
    world.say(writer, "x", b"1")
    world.clock.seconds += KEEP
    world.members["a"].wake(world.clock.now())
    assert world.kept("a", "b") == 0 and "b" not in world.members["a"].estates
    assert [one for one in caplog.messages if "for too long" in one]
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
    assert not world.members["a"].estates["b"].wants


def test_a_message_that_others_read_too_stays_as_it_was(
    world: Keepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log in memory gives everybody the same object."""
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    log = world.log("a")
    monkeypatch.setattr(log, "read", functools.cache(log.read))
    world.apart()
    for payload in (b"old", b"new"):
        world.say(writer, "x", payload, retain=True)
    world.cut.clear()
    world.meet()
    old = log.read(log.kinds().index("publish") + 1)
    assert old is not None and (old.payload, old.retain) == (b"old", True)
    assert world.waiting("b", "device") == [b"old", b"new"]


@pytest.mark.parametrize("away", [False, True])
def test_retained_messages_come_once_too(world: Keepers, away: bool) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    if away:
        world.apart()
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
    assert sum(world.members["b"].hearing.refused.values()) == 1


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


def test_what_was_said_while_nats_was_away_for_a_moment_needs_no_other_message(
    world: Keepers,
) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.lines("a").up = False
    world.say(writer, "x", b"1")
    world.carry()
    world.lines("a").up = True
    world.wait(1)
    assert world.waiting("b", "device") == [b"1"]


def test_very_many_that_expired_are_let_go_in_pieces(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.apart()
    expires = world.clock.stamp() + 1_000_000
    for _ in range(3 * CLUSTER_PIECE):
        writer.broker.post(Message("x", b"late", 1, expires=expires), writer)
    world.say(writer, "x", b"in time")
    world.wait(2)
    world.cut.clear()
    world.members["a"].hear(beat_of(world.members["b"]))
    assert world.kept("a", "b") == 2 * CLUSTER_PIECE + 1
    world.meet()
    assert world.waiting("b", "device") == [b"in time"]
    assert world.kept("a", "b") == 0


def beat_of(member: Membership) -> bytes:
    beat = frames.piece(frames.Beat("0", member.broker.clock.stamp()))
    return frames.frame(member.name, member.boot, 0, 0, beat)


def test_after_a_start_what_is_retained_here_is_no_news(world: Keepers) -> None:
    """The other node tells it with a later stamp than the journal here remembers."""
    writer = world.client("a", "writer")
    for name in "ab":
        world.lasting(name, "device", "x/#")
    for number in range(20):
        world.say(writer, f"x/{number}", b"%d" % number, retain=True)
        world.clock.seconds += 0.01
    world.carry()
    for name in "ab":
        world.restart(name)
        world.wait(3)
    for name in "ab":
        assert world.waiting(name, "device") == [b"%d" % number for number in range(20)]


def test_what_is_retained_is_later_than_what_a_crash_took_though_the_clock_went_back(
    world: Keepers,
) -> None:
    """The other node knows the lost one, and its stamp."""
    world.publish(world.client("a", "writer"), "x", b"1", retain=True)
    world.carry()
    world.log("a").prompt = False
    world.clock.seconds += 3
    world.publish(world.client("a", "other"), "x", b"lost", retain=True)
    world.carry()
    assert world.retained("b") == {"x": b"lost"}
    world.clock.seconds -= 3
    world.restart("a")
    world.log("a").prompt = True
    world.publish(world.client("a", "writer"), "x", b"acknowledged", retain=True)
    world.wait(5)
    for name in "ab":
        assert world.retained(name) == {"x": b"acknowledged"}


def test_after_a_start_what_is_retained_is_later_than_what_it_replaces(world: Keepers) -> None:
    """That came from a node whose clock is ahead, and the journal alone knows its stamp."""
    world.hears_of_one_ahead()
    world.restart("a")
    world.publish(world.client("a", "writer"), "x", b"later", retain=True)
    world.wait(5)
    for name in "ab":
        assert world.retained(name) == {"x": b"later"}


def test_no_stamp_is_told_before_the_next_life_would_know_it(world: Keepers) -> None:
    world.log("a").prompt = False
    world.publish(world.client("a", "writer"), "x", b"1", retain=True)
    world.wait(1)
    assert world.retained("b") == {}
    world.log("a").sync()
    world.wait(1)
    assert world.retained("b") == {"x": b"1"}


def test_a_third_node_tells_no_session_that_lasts_what_is_kept_for_it() -> None:
    world = Keepers(names=("a", "b", "c"))
    world.meet()
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.cut.add("b")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    for number in range(5):
        world.say(writer, "x", b"%d" % number, retain=True)
        world.carry()
    world.cut = {"a"}
    world.wait(CLUSTER_DEAD_SECONDS + 3)
    assert world.retained("b") == {"x": b"4"}
    world.cut.clear()
    world.wait(5)
    assert world.waiting("b", "device") == [b"0", b"1", b"2", b"3", b"4"]


def test_what_was_cleared_stays_so_over_a_start(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.say(writer, "x", b"v1", retain=True)
    world.carry()
    world.apart()
    world.say(writer, "x", b"", retain=True)
    world.restart("a")
    world.cut.clear()
    world.wait(5)
    assert world.retained("a") == {} == world.retained("b")
    assert world.waiting("b", "device") == [b"v1", b""]


def test_a_node_without_room_takes_nothing_it_would_lose(world: Keepers) -> None:
    writer = world.client("a", "writer")
    device = world.lasting("b", "device", "x")
    world.members["b"].broker.disconnect(device, "")
    world.members["b"].broker.keep_room("little is left of the disk")
    world.say_many(writer, "x", 5)
    world.wait(2)
    assert world.kept("a", "b") == 5 and world.waiting("b", "device") == []
    world.members["b"].broker.keep_room("")
    world.wait(2)
    assert world.waiting("b", "device") == [b"%d" % number for number in range(5)]
    assert world.kept("a", "b") == 0


def test_a_node_is_more_than_one_session(world: Keepers) -> None:
    """What bounds the backlog of one client does not bound that of all of a node."""
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.apart()
    broker = world.members["a"].broker
    broker.backlog_messages, broker.backlog_bytes = 10, 100
    for number in range(100):
        world.say(writer, "x", b"%100d" % number)
    world.cut.clear()
    world.meet()
    assert len(world.waiting("b", "device")) == 100


def test_a_number_of_the_future_is_refused(world: Keepers) -> None:
    """It would make all that comes before it something that was taken."""
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    member = world.members["b"]
    said = frames.Said(0, "p", b"x", b"x", b"", 1, False, False, b"!", 1, [], 0, "", False)
    list(member.hearing.said_by(member.nodes["a"], [frames.Kept("b", "a", 2**62 - 1, 0, said)]))
    assert sum(member.hearing.refused.values()) == 1
    world.say(writer, "x", b"1")
    world.carry()
    assert world.waiting("b", "device") == [b"1"]


def test_clocks_that_were_all_ahead_and_are_set_back_stop_nothing(world: Keepers) -> None:
    """Two hours later there would be room for the numbers, but nobody would say them again."""
    world.clock.seconds += 7200
    world.wait(1)
    world.lasting("b", "device", "x")
    world.say(world.client("a", "writer"), "x", b"1")
    world.wait(2)
    world.clock.seconds -= 7200
    world.restart("a")
    world.restart("b")
    world.meet()
    world.say(world.client("a", "writer"), "x", b"2")
    world.wait(2)
    assert world.waiting("b", "device") == [b"1", b"2"]
    assert not world.members["b"].hearing.refused


def test_nor_do_they_if_nothing_had_been_said_before(world: Keepers) -> None:
    """Then no number that was taken said how far they are."""
    world.clock.seconds += 7200
    world.wait(1)
    world.lasting("b", "device", "x")
    world.wait(2)
    world.clock.seconds -= 7200
    for name in "ab":
        newest = max(row.time for row in world.log(name).rows)
        member = world.restart(name)
        recalls(member, member.broker, newest)
    world.restart("b")
    world.meet()
    world.say(world.client("a", "writer"), "x", b"1")
    world.wait(2)
    assert world.waiting("b", "device") == [b"1"]
    assert not world.members["b"].hearing.refused


def test_who_lost_its_journal_knows_nothing_of_who_is_away(world: Keepers) -> None:
    """Without copies nobody can say what the other one wants; once that is back, all is kept."""
    world.lasting("b", "device", "x")
    world.carry()
    world.apart()
    world.restart("a", lost=True)
    writer = world.client("a", "writer")
    world.say(writer, "x", b"while it was away")
    world.cut.clear()
    world.meet()
    world.say(writer, "x", b"after")
    world.carry()
    assert world.waiting("b", "device") == [b"after"]


@pytest.mark.parametrize("lasts", [True, False])
def test_what_expires_on_its_way_is_given_to_nobody(world: Keepers, lasts: bool) -> None:
    """A line may hold what was said for as long as a cable is pulled."""
    writer, reader = world.client("a", "writer"), world.client("b", "reader")
    if lasts:
        world.lasting("b", "device", "x")
    else:
        reader.wish("x")
        world.carry()
    for payload, seconds in ((b"short", 1), (b"long", 60)):
        expires = world.clock.stamp() + seconds * 1_000_000
        writer.broker.post(Message("x", payload, qos=1, expires=expires), writer)
    world.tick()
    world.clock.seconds += 2
    world.carry()
    world.carry()
    got = world.waiting("b", "device") if lasts else [payload for _, payload in reader.got]
    assert got == [b"long"]
    assert world.members["b"].broker.metrics.dropped["expired"] == 1


def test_a_retained_one_that_expired_on_its_way_takes_the_place_of_what_was_there(
    world: Keepers,
) -> None:
    """And is given to nobody: who reads it later gets neither."""
    writer, reader = world.client("a", "writer"), world.client("b", "reader")
    reader.wish("x")
    world.carry()
    writer.broker.post(Message("x", b"before", qos=1, retain=True), writer)
    world.carry()
    expires = world.clock.stamp() + 1_000_000
    writer.broker.post(Message("x", b"short", qos=1, retain=True, expires=expires), writer)
    world.tick()
    world.clock.seconds += 2
    world.carry()
    world.carry()
    assert [payload for _, payload in reader.got] == [b"before"]
    there = world.members["b"].broker
    there.retained.wake()
    assert there.retained.look("x") is None and "x" not in there.state.retained


def test_a_hub_that_is_alone_now_lets_go_of_it_in_time(
    world: Keepers, caplog: pytest.LogCaptureFixture
) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    world.apart()
    world.say(writer, "x", b"1")
    broker = world.members["a"].broker
    assert recalls(None, broker) == [] and world.kept("a", "b") == 1
    assert "1 messages wait for the node 'b'" in caplog.text
    world.clock.seconds += KEEP
    recalls(None, broker)
    assert (PROTOCOL, "b") not in broker.state.sessions


def test_who_may_write_is_asked_at_the_publishers_node_only(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x")
    properties = {PUBLISHER: ["alice", ""], "user": [["k", "v"]]}
    for qos in (0, 1):
        message = Message(f"x/{qos}", b"1", qos, True, properties=dict(properties))
        writer.broker.post(message, writer)
    world.carry()
    broker = world.members["b"].broker
    for seq in seqs(broker.state).values():
        message = broker.log.read(seq)  # type: ignore[assignment]
        assert message.properties is not None and PUBLISHER not in message.properties
        assert message.properties["user"] == [["k", "v"]]


def test_a_will_of_before_the_start_is_kept_too(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "gone")
    row = row_about(writer, WILL, "gone")
    world.members["a"].broker.change(row._replace(payload=b"lost", qos=1))
    world.restart("a")
    world.wait(2)
    assert world.waiting("b", "device") == [b"lost"]


def test_what_is_kept_for_one_has_the_qos_that_others_there_want(world: Keepers) -> None:
    writer = world.client("a", "writer")
    world.lasting("b", "device", "x", qos=1)
    reader = Heard(world.members["b"].broker, "reader")
    world.carry()
    writer.broker.post(Message("x", b"1", 2), writer)
    world.carry()
    assert reader.qos == [2]


class Heard(Session):
    """A client that does not last, and takes QoS 2."""

    def __init__(self, broker: Broker, client: str) -> None:
        super().__init__("p", client, broker.open)
        self.qos: list[int] = []
        opening = Opening(Gate(broker.open), "127.0.0.1")
        broker.connect(self, Admission("p", client, "", broker.open, opening))
        broker.subscribe(Subscription(self, "x", 2, (SPELLED, SPELLED, SPELLED)))

    def deliver(self, run: Run, subscription: Subscription) -> None:
        self.qos.append(run.qos)


def test_one_call_gives_nats_a_message_of_any_size() -> None:
    """What it takes no more is noticed before the next one."""
    engine = Nats(Settings(name="a"))
    assert not engine.send("b", [b"x"])
    engine.up = True
    assert engine.send("b", [bytes(1 << 18)] * 256)
    assert engine.waiting() == 64 << 20 and not engine.send("b", [b"x"])
