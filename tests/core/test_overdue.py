"""What ends by itself in queues: expiry, leases, dead letters; and the bounds of one queue."""

from __future__ import annotations

from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import LogCaptureFixture

from hubbub import schema
from hubbub.core.broker import Broker
from hubbub.core.client import acknowledge, take_more
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.overdue import GIVEN_BACK
from hubbub.core.queue import Queue, QueueSettings, Reader
from hubbub.core.session import Silent, Subscription
from hubbub.core.state import State
from tests.core.recording import (
    Ear,
    Hasty,
    Recording,
    StillClock,
    folded,
    recording,
    settle,
    shape,
    snapshot,
)


class Single(Ear):
    """Takes one at a time of all its queues."""

    def ready(self) -> bool:
        return super().ready() and not self.leases

    def relieved(self) -> None:
        take_more(self.broker, self)

    def __init__(self, broker: Broker, client: str) -> None:
        self.broker = broker
        super().__init__(broker, client)


def queue_with(broker: Broker, **asked: object) -> Queue:
    queue = broker.queues.named("q")
    broker.queues.configure(queue, QueueSettings(**asked))  # type: ignore[arg-type]
    return queue


def later(broker: Broker, seconds: float) -> None:
    cast(StillClock, broker.clock).seconds += seconds
    broker.queues.overdue.wake()


def send(broker: Broker, *payloads: bytes, name: str = "q", expires: int = 0) -> None:
    for payload in payloads:
        broker.post(Message(f"$queue/{name}", payload, expires=expires))


def reader(broker: Broker, token: str = "ann") -> Silent:
    session = Silent("http", token, broker.open)
    broker.connect(session, broker.own("test", session.client))
    return session


def took(broker: Broker, queue: Queue, session: Silent) -> int:
    taken = broker.queues.take(queue, session)
    return taken[0] if taken is not None else -1


def agrees(broker: Broker, log: Recording) -> None:
    """The fold of the rows, and of a snapshot of it, is the state that the broker has."""
    for state in (folded(log.rows), folded(snapshot(folded(log.rows), log.rows))):
        assert shape(state) == shape(broker.state)
        assert details(state) == details(broker.state)


def details(state: State) -> dict[str, object]:
    return {
        queue.name: (
            queue.settings, queue.read, queue.bytes, queue.delivered, [*queue.above(-1)],
            sorted(entry for entry in queue.expiring if entry[1] in queue.messages),
        )
        for queue in state.queues.values()
    }  # fmt: skip


# Bounds


def test_the_bounds_of_a_queue() -> None:
    broker, log = recording()
    queue = queue_with(broker, max_messages=2)
    send(broker, b"0", b"1", b"2")
    assert list(queue.messages) == [0, 1] and broker.queues.room(queue, broker.itself) == 0
    broker.queues.acknowledge(queue, 0, broker.itself)
    assert broker.queues.room(queue, broker.itself) == 1
    broker.queues.configure(queue, QueueSettings(max_bytes=10))
    send(broker, b"123456", b"7890", b"x")
    assert queue.bytes == 11 and broker.queues.room(queue, broker.itself) == 0
    assert broker.metrics.dropped == {"queue full": 2}
    agrees(broker, log)


def test_the_hubs_bounds_hold_for_all_queues() -> None:
    broker, _ = recording()
    broker.queues.max_messages, broker.queues.max_bytes = 3, 5
    queue = queue_with(broker, max_messages=100, max_bytes=100)
    send(broker, b"123", b"456", b"7")
    assert list(queue.messages) == [0, 1]
    broker.queues.max_bytes = 100
    send(broker, b"8", b"9")
    assert len(queue.messages) == 3


def test_the_bytes_of_what_comes_through_a_binding_count() -> None:
    broker, log = recording()
    queue = queue_with(broker, max_bytes=4)
    broker.queues.bind(queue, "a/#")
    for _ in range(3):
        broker.post(Message("a/b", b"1234"))
    assert list(queue.messages) == [0]
    agrees(broker, log)
    broker.queues.acknowledge(queue, 0, broker.itself)
    assert queue.bytes == 0


# Expiry


def test_a_message_expires_at_the_queues_time_or_its_own() -> None:
    broker, log = recording()
    queue = queue_with(broker, expires=10.0)
    soon = broker.clock.stamp() + 2_000_000
    send(broker, b"queue's")
    send(broker, b"its own", expires=soon)
    send(broker, b"too late", expires=soon * 2)
    later(broker, 3)
    assert list(queue.messages) == [0, 2]
    agrees(broker, log)
    later(broker, 7)
    assert not queue.messages and not queue.expiring
    assert broker.metrics.dropped == {"expired": 3}
    assert queue not in broker.queues.overdue.queues
    agrees(broker, log)


def test_a_message_expires_in_a_queue_that_asked_for_nothing() -> None:
    broker, _ = recording()
    send(broker, b"x", expires=broker.clock.stamp() + 1)
    assert len(broker.queues.named("q").messages) == 1
    later(broker, 1)
    assert not broker.queues.named("q").messages


def test_who_comes_too_late_gets_nothing_that_has_expired() -> None:
    broker, _ = recording()
    queue = queue_with(broker, expires=10.0)
    send(broker, b"old")
    cast(StillClock, broker.clock).seconds += 5
    send(broker, b"new")
    cast(StillClock, broker.clock).seconds += 6
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q"))
    broker.queues.dispatch(queue)
    assert [payload for _, payload, _ in ann.hear()] == [b"new"]


def test_what_somebody_has_does_not_expire_under_him() -> None:
    broker, _ = recording()
    queue = queue_with(broker, expires=10.0, lease=60.0)
    send(broker, b"x")
    assert took(broker, queue, reader(broker)) == 0
    later(broker, 30)
    assert list(queue.messages) == [0]
    later(broker, 31)
    assert not queue.messages


# Leases


def test_readers_compete_and_a_lease_ends() -> None:
    broker, log = recording()
    queue = queue_with(broker, lease=30.0)
    ann, bob = reader(broker, "ann"), reader(broker, "bob")
    send(broker, b"0", b"1", b"2")
    assert [took(broker, queue, one) for one in (ann, bob, ann, bob)] == [0, 1, 2, -1]
    broker.queues.acknowledge(queue, 1, bob)
    later(broker, 29)
    assert took(broker, queue, bob) == -1
    later(broker, 1)
    assert list(queue.waiting) == [0, 2] and not ann.leases
    assert took(broker, queue, bob) == 0
    assert queue.delivered == {0: 2, 2: 1}
    deliver = [row for row in log.rows if row.kind == b"deliver"][-1]
    assert (deliver.client, deliver.number) == (b"bob", 0)
    assert deliver.expires == broker.clock.stamp() + 30_000_000


def test_a_reader_that_leaves_gives_back() -> None:
    broker, _ = recording()
    queue = queue_with(broker, lease=30.0)
    ann, bob = reader(broker, "ann"), reader(broker, "bob")
    send(broker, b"0", b"1")
    assert [took(broker, queue, ann), took(broker, queue, ann)] == [0, 1]
    broker.disconnect(ann, "")
    assert not queue.ends
    assert [took(broker, queue, bob), took(broker, queue, bob)] == [0, 1]


def test_a_second_lease_is_not_ended_by_the_first_ones_time() -> None:
    broker, _ = recording()
    queue = queue_with(broker, lease=30.0)
    ann, bob = reader(broker, "ann"), reader(broker, "bob")
    send(broker, b"0")
    took(broker, queue, ann)
    later(broker, 20)
    broker.disconnect(ann, "")
    assert took(broker, queue, bob) == 0
    later(broker, 20)
    assert queue.leased == {0: bob}
    later(broker, 10)
    assert queue.leased == {}


def test_a_shorter_lease_is_not_kept_waiting_by_longer_ones() -> None:
    """They ended in the order in which they began: a message was nobody's for hours."""
    broker, _ = recording()
    queue, ann = queue_with(broker, lease=3600.0), reader(broker)
    send(broker, b"0", b"1", b"2")
    assert took(broker, queue, ann) == 0
    broker.queues.configure(queue, QueueSettings(lease=10.0))
    later(broker, 5)
    assert took(broker, queue, ann) == 1
    later(broker, 6)
    assert list(queue.waiting) == [0, 2]
    broker.queues.configure(queue, QueueSettings(lease=3600.0))
    later(broker, 5)
    assert list(queue.waiting) == [1, 0, 2] and not queue.ends


class Told(Reader):
    """How often something came."""

    count = 0

    def arrived(self, queue: Queue) -> None:
        self.count += 1


def leased_everywhere(count: int) -> tuple[Broker, Silent, Told]:
    """One reader has a message of each of so many queues, and another one waits there."""
    clock = Hasty()
    broker = Broker(clock, Log(clock), "none")
    ann, told = reader(broker), Told()
    for number in range(count):
        queue = broker.queues.named(f"q{number}")
        broker.queues.configure(queue, QueueSettings(lease=1000.0))
        send(broker, b"x", name=queue.name)
        assert took(broker, queue, ann) == 0
        broker.queues.wait_at(queue.name, told)
    return broker, ann, told


def test_who_leaves_gives_back_in_turns() -> None:
    """One who had something of 10,000 queues kept all others waiting for 5 s."""
    broker, ann, told = leased_everywhere(500)
    broker.disconnect(ann, "")
    assert told.count < 100 and not ann.leases
    assert not any(queue.leased for queue in broker.state.queues.values())
    assert settle(broker) > 5
    assert told.count == 500


def test_who_leaves_with_very_much_gives_it_back_in_turns_and_in_order() -> None:
    clock = Hasty()
    broker = Broker(clock, Log(clock), "none")
    queue, ann = broker.queues.named("q"), reader(broker)
    count = 3 * GIVEN_BACK + 10
    send(broker, *[b"%d" % number for number in range(count + 1)])
    while took(broker, queue, ann) < count - 1:
        pass
    clock.seconds += 1  # the turn has had its time: each piece has one of its own
    broker.clock.turned = clock.seconds - 10
    broker.disconnect(ann, "")
    assert len(queue.leased) == count - GIVEN_BACK
    settle(broker)
    assert list(queue.waiting) == list(range(count + 1)) and not queue.leased


def test_a_queue_that_ends_lets_go_of_very_many_leases_in_turns() -> None:
    clock = Hasty()
    broker = Broker(clock, Log(clock), "none")
    queue, ann = broker.queues.named("q"), reader(broker)
    count = 3 * GIVEN_BACK
    send(broker, *[b"%d" % number for number in range(count)])
    while took(broker, queue, ann) < count - 1:
        pass
    broker.clock.turned = clock.seconds - 10
    broker.queues.destroy("q")
    assert len(ann.leases) == count - GIVEN_BACK
    send(broker, b"new")
    assert took(broker, broker.queues.named("q"), ann) == count
    settle(broker)
    assert list(ann.leases.values()) == [(broker.queues.named("q"), count)]
    assert not (queue.leased or queue.messages)


def test_leases_of_very_many_queues_that_end_together_do_so_in_turns() -> None:
    broker, ann, told = leased_everywhere(500)
    later(broker, 2000)
    assert told.count < 100
    later(broker, 1)  # a look while the last one goes on is none
    settle(broker)
    assert told.count == 500 and not ann.leases and not broker.queues.overdue.queues


def test_a_consumer_that_outlives_its_lease_loses_the_message() -> None:
    broker, _ = recording()
    queue = queue_with(broker, lease=30.0)
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(ann.wish("$queue/q"))
    send(broker, b"x")
    assert queue.leased == {0: ann}
    ann.room = False
    broker.subscribe(bob.wish("$queue/q"))
    later(broker, 30)
    assert queue.leased == {0: bob} and not ann.leases
    assert [payload for _, payload, _ in bob.hear()] == [b"x"]


# Dead letters


def test_after_so_many_leases_a_message_is_given_up() -> None:
    broker, log = recording()
    queue = queue_with(broker, lease=1.0, max_deliveries=2, dead_letter="dead")
    ann = reader(broker)
    send(broker, b"poison", b"good")
    assert [took(broker, queue, ann), took(broker, queue, ann)] == [0, 1]
    broker.queues.acknowledge(queue, 1, ann)
    later(broker, 1)
    assert took(broker, queue, ann) == 0
    agrees(broker, log)
    later(broker, 1)
    assert not queue.messages and not queue.delivered
    dead = broker.queues.named("dead")
    message = broker.log.read(dead.messages[0])
    assert message is not None
    assert message.payload == b"poison"
    assert message.properties == {"dead": {"queue": "q", "id": 0, "reason": "given up"}}
    agrees(broker, log)


def test_a_restart_does_not_forget_how_often() -> None:
    broker, log = recording()
    queue = queue_with(broker, lease=1.0, max_deliveries=1, dead_letter="dead")
    send(broker, b"ends the hub")
    took(broker, queue, reader(broker))
    for state in (folded(log.rows), folded(snapshot(folded(log.rows), log.rows))):
        assert state.queues["q"].delivered == {0: 1}
    again = Broker(broker.clock, log, "all")
    again.state = folded(log.rows)
    again.recover([])
    assert took(again, again.state.queues["q"], reader(again)) == -1
    assert list(again.queues.named("dead").messages) == [0]


def test_dead_letters_without_room_are_counted() -> None:
    broker, _ = recording()
    queue_with(broker, expires=1.0, dead_letter="dead")
    broker.queues.configure(broker.queues.named("dead"), QueueSettings(max_messages=1))
    send(broker, b"0", b"1")
    later(broker, 1)
    assert len(broker.queues.named("dead").messages) == 1 and not broker.queues.named("q").messages
    assert broker.metrics.dropped == {"queue full": 1}


def test_a_dead_letter_can_be_answered() -> None:
    broker, _ = recording()
    queue_with(broker, expires=1.0, dead_letter="dead")
    broker.post(Message("$queue/q", b"?", reply_to="replies", correlation=b"c"))
    later(broker, 1)
    message = broker.log.read(broker.queues.named("dead").messages[0])
    assert message is not None
    assert (message.reply_to, message.correlation, message.client) == ("replies", b"c", "hub")


# All of it

STEPS = ("send", "short", "take", "ack", "later", "leave", "bind", "set", "destroy")


@given(st.lists(st.sampled_from(STEPS), max_size=40))
@settings(deadline=None)
def test_the_fold_agrees_whatever_happens(steps: list[str]) -> None:
    broker, log = recording()
    ann = reader(broker)
    queue_with(broker, lease=2.0, max_deliveries=2, dead_letter="dead", expires=9.0)
    for step in steps:
        queue = broker.queues.named("q")
        if step == "send":
            send(broker, b"abc")
        elif step == "short":
            send(broker, b"a", expires=broker.clock.stamp() + 1_500_000)
        elif step == "take":
            broker.queues.take(queue, ann)
        elif step == "ack":
            for number in list(queue.messages)[:1]:
                broker.queues.acknowledge(queue, number, ann)
        elif step == "later":
            later(broker, 1)
        elif step == "leave":
            broker.disconnect(ann, "")
            broker.connect(ann, broker.own("test", ann.client))
        elif step == "bind":
            broker.queues.bind(queue, "t")
            broker.post(Message("t", b"bound"))
        elif step == "set":
            broker.queues.configure(queue, queue.settings._replace(max_messages=5))
        else:
            broker.queues.destroy("q")
            queue_with(broker, lease=3.0, max_deliveries=3)
        for queue in broker.state.queues.values():
            waits = [number for number in queue.waiting if number in queue.messages]
            assert sorted([*waits, *queue.leased]) == list(queue.messages)
            assert set(queue.ends) == set(queue.leased)
    agrees(broker, log)


@given(st.lists(st.booleans(), max_size=200), st.integers(-1, 200))
def test_a_cursor_finds_its_place(kept: list[bool], cursor: int) -> None:
    queue = Queue("q", 0, "")
    for number in range(len(kept)):
        queue.add(number, 10 + 2 * number, number)
    for number, keep in enumerate(kept):
        if not keep:
            assert queue.remove(number) == 10 + 2 * number
    alive = [number for number, keep in enumerate(kept) if keep]
    found = list(queue.above(cursor))
    assert [entry[1] for entry in found] == [number for number in alive if number > cursor]
    assert list(queue.accepted_after(10 + 2 * cursor)) == found
    assert queue.bytes == sum(alive)
    assert queue.newest(3) == alive[::-1][:3]
    for number in range(len(kept)):
        assert queue.number_of(10 + 2 * number) == (number if kept[number] else -1)


def test_what_is_gone_takes_no_room() -> None:
    """The oldest message stays for ever, millions pass behind it."""
    queue = Queue("q", 0, "")
    for number in range(10_000):
        queue.add(number, number + 1, 1)
        if number:
            queue.remove(number)
    assert len(queue._ids) < 5_000
    assert [entry[1] for entry in queue.above(-1)] == [0]


def test_very_many_that_expire_together_go_in_turns_and_are_given_to_nobody() -> None:
    """200,000 took a second of everybody."""
    clock = Hasty()
    broker = Broker(clock, Recording(clock))
    queue = broker.queues.named("q")
    broker.queues.configure(queue, QueueSettings(expires=5.0))
    for number in range(300):
        broker.post(Message("$queue/q", b"%d" % number))
    clock.seconds += 10
    broker.queues.configure(queue, QueueSettings())
    broker.post(Message("$queue/q", b"new"))
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q", 1))
    broker.queues.begin("q")
    assert 200 < len(queue.messages) < 301 and ann.heard == []
    assert broker.queues.take(queue, Ear(broker, "bob")) is None
    assert settle(broker) > 5
    assert [payload for _, payload, _ in ann.heard] == [b"new"]
    assert list(queue.messages) == [300] and broker.metrics.dropped["expired"] == 300


def test_what_expires_and_goes_nowhere_is_not_read() -> None:
    """40,000 of 5 KB were 200 MB from files, for nothing."""
    broker, log = recording()
    queue = broker.queues.named("q")
    broker.queues.configure(queue, QueueSettings(expires=5.0))
    broker.post(Message("$queue/q", b"x"))
    broker.clock.seconds += 10  # type: ignore[attr-defined]
    log.unreadable = True
    broker.queues.overdue.wake()
    assert queue.messages == {} and broker.metrics.dropped == {"expired": 1}


def test_what_expires_together_is_read_as_it_lies() -> None:
    """Large ones whose times interleave were read with all that lies around them, each anew."""
    broker, log = recording()
    queue = queue_with(broker, dead_letter="dead")
    now = broker.clock.stamp()
    for number in range(6):
        send(broker, b"%d" % number, expires=now + (number % 3 + 1) * 1_000_000)
    later(broker, 10)
    dead = broker.queues.named("dead")
    payloads = [message.payload for seq in dead.messages.values() if (message := log.read(seq))]
    assert queue.messages == {} and payloads == [b"%d" % number for number in range(6)]


def test_what_expires_and_cannot_be_read_is_looked_at_again() -> None:
    """It goes in turns, and nobody takes from there: between two of them it looked as if nothing in
    that queue ever ended, and it stayed for good. What was written meanwhile said so, too.
    """
    clock = Hasty()
    log = Recording(clock)
    broker = Broker(clock, log)
    queue = queue_with(broker, dead_letter="dead")
    expires = clock.stamp() + 5_000_000
    send(broker, *(b"%d" % number for number in range(300)), expires=expires)
    clock.seconds += 10
    broker.queues.overdue.wake()
    assert 0 < len(queue.messages) < 300 and queue.expiring == []
    rows = snapshot(broker.state, log.rows)
    waits = [row for row in rows if row.kind == schema.QUEUED and row.client == b"$queue/q"]
    assert waits and all(row.expires == expires for row in waits)
    log.unreadable = True
    settle(broker)
    log.unreadable = False
    assert 0 < len(queue.messages) < 300 and len(queue.expiring) == len(queue.messages)
    broker.queues.overdue.wake()
    settle(broker)
    assert queue.messages == queue.held == {}
    assert len(broker.queues.named("dead").messages) == 300


def test_what_somebody_has_when_it_expires_is_not_looked_at_again_until_that_is_over() -> None:
    """Each look at the queue went through all of it."""
    broker, log = recording()
    queue = broker.queues.named("q")
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q", 1))
    broker.queues.configure(queue, QueueSettings(expires=5.0))
    for number in range(5):
        broker.post(Message("$queue/q", b"%d" % number))
    broker.clock.seconds += 10  # type: ignore[attr-defined]
    broker.queues.overdue.wake()
    assert queue.expiring == [] and len(queue.held) == len(queue.messages) == 5
    assert snapshot(broker.state, log.rows)[-1].expires > 0, "which the next start goes by"
    broker.queues.acknowledge(queue, 0, ann)
    assert len(queue.messages) == 4
    broker.disconnect(ann, "")
    broker.queues.overdue.wake()
    assert queue.messages == {} and queue.held == {} and queue.expiring == []
    assert broker.metrics.dropped["expired"] == 4


def test_very_many_that_nobody_can_handle_go_in_turns() -> None:
    clock = Hasty()
    broker = Broker(clock, Recording(clock))
    queue, ann = broker.queues.named("q"), Ear(broker, "ann")
    broker.queues.configure(queue, QueueSettings(lease=5.0, max_deliveries=1))
    for number in range(300):
        broker.post(Message("$queue/q", b"%d" % number))
    for _ in range(300):
        assert broker.queues.take(queue, ann) is not None
    clock.seconds += 10
    broker.queues.overdue.wake()
    assert 200 < len(queue.messages) < 300
    assert broker.queues.take(queue, ann) is None
    settle(broker)
    assert queue.messages == {} and broker.metrics.dropped["given up"] == 300


def one_with_two_queues(broker: Broker) -> tuple[Single, Ear]:
    """Who takes one at a time has one of q; one of r waits for it. Somebody else takes of q."""
    queue_with(broker, lease=30.0)
    ann, bob = Single(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(ann.wish("$queue/q"))
    broker.subscribe(ann.wish("$queue/r"))
    send(broker, b"1")
    send(broker, b"2", name="r")
    assert [payload for _, payload, _ in ann.hear()] == [b"1"]
    broker.subscribe(bob.wish("$queue/q"))
    return ann, bob


def test_who_loses_a_lease_has_room_for_what_waits_elsewhere() -> None:
    """It was told of nothing: it slept until something else came."""
    broker, _ = recording()
    ann, bob = one_with_two_queues(broker)
    broker.queues.named("q").consumers.rotate()  # it is bob's turn
    later(broker, 30)
    assert [payload for _, payload, _ in bob.hear()] == [b"1"]
    assert [payload for _, payload, _ in ann.hear()] == [b"2"]


def test_who_had_something_of_a_queue_that_ends_has_room_for_what_waits_elsewhere() -> None:
    broker, _ = recording()
    ann, _ = one_with_two_queues(broker)
    broker.queues.destroy("q")
    assert [payload for _, payload, _ in ann.hear()] == [b"2"]


def test_whose_message_another_acknowledges_has_room_for_what_waits_elsewhere() -> None:
    broker, _ = recording()
    ann, _ = one_with_two_queues(broker)
    assert broker.queues.acknowledge(broker.queues.named("q"), 0, broker.itself)
    settle(broker)
    assert [payload for _, payload, _ in ann.hear()] == [b"2"]


def test_who_leaves_a_queue_has_room_for_what_waits_elsewhere() -> None:
    broker, _ = recording()
    ann, bob = one_with_two_queues(broker)
    broker.unsubscribe(ann, "$queue/q")
    assert [payload for _, payload, _ in bob.hear()] == [b"1"]
    assert [payload for _, payload, _ in ann.hear()] == [b"2"]


class Broken(Ear):
    """Taking anything of a queue breaks the hub's own code."""

    def offer(self, message: Message, subscription: Subscription, retained: bool) -> None:
        raise RuntimeError("broken")


def two_queues_of_a_broken_one(broker: Broker) -> tuple[Ear, Ear]:
    """ann has one of q, then of r; the consumers in line there are one that breaks, and bob."""
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    for name, other in (("q", Broken(broker, "broken")), ("r", bob)):
        queue = broker.queues.named(name)
        broker.queues.configure(queue, QueueSettings(lease=30.0))
        broker.subscribe(ann.wish(f"$queue/{name}", 1))
        send(broker, b"1", name=name)
        broker.subscribe(other.wish(f"$queue/{name}", 1))
        if queue.consumers[-1].session is not ann:
            queue.consumers.rotate()
    return ann, bob


def test_a_queue_at_which_the_code_breaks_keeps_none_behind_it_waiting(
    caplog: LogCaptureFixture,
) -> None:
    """No lease of those behind it ever ended."""
    broker, _ = recording()
    _, bob = two_queues_of_a_broken_one(broker)
    later(broker, 31)
    assert [payload for _, payload, _ in bob.hear()] == [b"1"]
    said = [one.getMessage() for one in caplog.records if one.exc_info]
    assert said == ["$queue/q: what ends by itself there broke the hub's own code"]
    later(broker, 31)
    assert len([one for one in caplog.records if one.exc_info]) == 1, "it is said once"


def test_who_leaves_gives_back_behind_a_queue_at_which_the_code_breaks() -> None:
    broker, _ = recording()
    ann, bob = two_queues_of_a_broken_one(broker)
    broker.disconnect(ann, "")
    assert [payload for _, payload, _ in bob.hear()] == [b"1"]


class Unwell(Single):
    """To have room again breaks the hub's own code."""

    def relieved(self) -> None:
        raise RuntimeError("unwell")


def test_a_client_at_which_the_code_breaks_keeps_none_behind_it_waiting(
    caplog: LogCaptureFixture,
) -> None:
    """Those who had lost a lease behind it slept until something else came."""
    broker, _ = recording()
    queue_with(broker, lease=30.0)
    ann, bob = Unwell(broker, "ann"), Single(broker, "bob")
    for one, other in ((ann, "r"), (bob, "s")):
        broker.subscribe(one.wish("$queue/q"))
        broker.subscribe(one.wish(f"$queue/{other}"))
        send(broker, b"1")
        send(broker, b"2", name=other)
    assert [payload for _, payload, _ in bob.hear()] == [b"1"]
    broker.queues.destroy("q")
    assert [payload for _, payload, _ in bob.hear()] == [b"2"]
    assert ["ann" in one.getMessage() for one in caplog.records if one.exc_info] == [True]


def test_nothing_of_a_queue_that_ended_is_given_to_its_consumers() -> None:
    """Who was done with one of it while it was emptied, in turns, got the next one: with a lease
    that never ended.
    """
    clock = Hasty()
    broker = Broker(clock, Log(clock), "none")
    queue, ann, bob = broker.queues.named("q"), reader(broker), Single(broker, "bob")
    broker.subscribe(bob.wish("$queue/q", 1))
    bob.room = False
    count = 3 * GIVEN_BACK
    send(broker, *[b"%d" % number for number in range(count + 5)])
    while took(broker, queue, ann) < count - 1:
        pass
    broker.clock.turned = clock.seconds - 10
    broker.queues.destroy("q")
    bob.room = True
    seq, (of, number) = next(iter(ann.leases.items()))
    assert of is queue and number in queue.leased and queue.waiting
    acknowledge(broker, ann, seq)
    broker.queues.offer(queue)
    settle(broker)
    assert not (bob.heard or bob.leases or ann.leases or queue.leased or queue.messages)
