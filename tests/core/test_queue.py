"""Named queues: ids, the order of what comes back, competing consumers, readers."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.core import client
from hubbub.core.broker import Broker
from hubbub.core.client import take_more
from hubbub.core.context import LAGGING
from hubbub.core.foremost import LOOKED, foremost
from hubbub.core.limits import GROUP_ROWS, PREFETCH
from hubbub.core.log import Log
from hubbub.core.message import Message
from hubbub.core.queue import SPARSE, Queue, QueueSettings, Reader
from hubbub.core.queues import HANDED
from hubbub.core.session import Session
from tests.core.recording import Ear, Hasty, StillClock, folded, recording, settle, shape, snapshot


def send(broker: Broker, name: str, *payloads: bytes) -> None:
    for payload in payloads:
        broker.post(Message(f"$queue/{name}", payload))


def leases(session: Session) -> list[int]:
    return [number for _, number in session.leases.values()]


def test_ids_are_never_used_again() -> None:
    broker, log = recording()
    send(broker, "q", b"0", b"1")
    broker.queues.acknowledge(broker.queues.named("q"), 1, broker.itself)
    broker.queues.acknowledge(broker.queues.named("q"), 0, broker.itself)
    send(broker, "q", b"2")
    assert list(broker.queues.named("q").messages) == [2]
    broker.queues.destroy("q")
    broker.queues.destroy("q")
    send(broker, "q", b"3")
    assert list(broker.queues.named("q").messages) == [3]
    broker.queues.destroy("q")
    again = folded(snapshot(folded(log.rows), log.rows))
    assert again.ended_queues == {"q": 4}


@given(st.lists(st.sampled_from(["send", "take", "destroy", "snapshot"]), max_size=30))
def test_ids_only_grow(steps: list[str]) -> None:
    broker, log = recording()
    seen = -1
    for step in steps:
        if step == "send":
            send(broker, "q", b"x")
            newest = max(broker.queues.named("q").messages)
            assert newest > seen
            seen = newest
        elif step == "take" and "q" in broker.state.queues:
            queue = broker.queues.named("q")
            for number in list(queue.messages)[:1]:
                broker.queues.acknowledge(queue, number, broker.itself)
        elif step == "destroy":
            broker.queues.destroy("q")
        else:
            state = folded(snapshot(folded(log.rows), log.rows))
            assert shape(state) == shape(broker.state)


def test_consumers_compete_in_turn() -> None:
    broker, _ = recording()
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(ann.wish("$queue/q"))
    broker.subscribe(bob.wish("$queue/q"))
    send(broker, "q", b"0", b"1", b"2", b"3")
    assert [payload for _, payload, _ in ann.hear()] == [b"0", b"2"]
    assert [payload for _, payload, _ in bob.hear()] == [b"1", b"3"]
    bob.room = False
    send(broker, "q", b"4", b"5")
    assert [payload for _, payload, _ in ann.hear()] == [b"4", b"5"]
    assert bob.hear() == []


def test_what_waits_goes_to_who_comes() -> None:
    broker, _ = recording()
    send(broker, "q", b"0", b"1")
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q"))
    assert ann.hear() == [], "the answer to the subscription has to be written first"
    broker.queues.dispatch(broker.queues.named("q"))
    assert ann.hear() == [("$queue/q", b"0", 0), ("$queue/q", b"1", 0)]


def test_what_a_consumer_held_comes_back_in_order_before_everything_else() -> None:
    broker, _ = recording()
    queue = broker.queues.named("q")
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(ann.wish("$queue/q"))
    send(broker, "q", b"0", b"1", b"2")
    ann.room = False
    send(broker, "q", b"3")
    bob.room = False
    broker.subscribe(bob.wish("$queue/q"))
    assert leases(ann) == [0, 1, 2]
    broker.disconnect(ann, "gone")
    assert list(queue.waiting) == [0, 1, 2, 3]
    assert queue.leased == {}
    assert ann.leases == {}
    bob.room = True
    broker.queues.dispatch(queue)
    assert [payload for _, payload, _ in bob.hear()] == [b"0", b"1", b"2", b"3"]


def test_a_consumer_that_unsubscribes_gives_back() -> None:
    broker, _ = recording()
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    broker.subscribe(ann.wish("$queue/q"))
    send(broker, "q", b"0")
    broker.subscribe(bob.wish("$queue/q"))
    broker.unsubscribe(ann, "$queue/q")
    assert leases(ann) == []
    assert leases(bob) == [0]


def test_the_first_acknowledgement_wins() -> None:
    broker, log = recording()
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q"))
    send(broker, "q", b"0")
    queue = broker.queues.named("q")
    assert broker.queues.acknowledge(queue, 0, broker.itself)
    assert leases(ann) == []
    assert not broker.queues.acknowledge(queue, 0, ann)
    assert log.kinds().count("ack") == 1


class Listening(Reader):
    def __init__(self, queue: Queue) -> None:
        self.told: list[str] = []
        queue.readers[self] = None

    def arrived(self, queue: Queue) -> None:
        self.told.append(queue.name)


def test_readers_see_all_above_their_cursor() -> None:
    broker, _ = recording()
    queue = broker.queues.named("q")
    reader = Listening(queue)
    send(broker, "q", b"0", b"1", b"2")
    assert reader.told == ["q", "q", "q"]
    assert [entry[1] for entry in queue.above(-1)] == [0, 1, 2]
    assert [entry[1] for entry in queue.above(1)] == [2]
    broker.queues.acknowledge(queue, 1, broker.itself)
    assert [entry[1] for entry in queue.above(-1)] == [0, 2]
    assert queue.newest(5) == [2, 0]
    broker.queues.destroy("q")
    send(broker, "q", b"3")
    assert len(reader.told) == 4, "who waits at a queue waits at the next one of that name"


def test_a_queue_with_readers_only_does_not_grow() -> None:
    """Nobody competes for its messages, so nobody takes their numbers from `waiting`."""
    broker, _ = recording()
    queue = broker.queues.named("q")
    for number in range(100):
        send(broker, "q", b"x")
        broker.queues.acknowledge(queue, number, broker.itself)
    assert len(queue.waiting) <= 1


def test_a_full_queue_drops_and_counts() -> None:
    broker, _ = recording()
    broker.queues.max_messages = 2
    send(broker, "q", b"0", b"1", b"2")
    assert list(broker.queues.named("q").messages) == [0, 1]
    assert broker.metrics.dropped == {"queue full": 1}
    assert broker.metrics.refused == {"room in a queue": 1}
    ann = Ear(broker, "ann")
    route = broker.route(ann, "$queue/q")
    assert broker.lacks_room(ann, route, 1, False, again=True)
    assert broker.lacks_room(ann, route, 1, False)
    assert broker.metrics.refused == {"room in a queue": 2}, "who asks again asks once more"
    [told] = broker.audit.refusals.last(None, None)
    assert "$queue/q holds 2 messages with 2 bytes" in told.text


def test_a_queue_takes_what_matches_its_bindings() -> None:
    broker, log = recording()
    queue = broker.queues.named("q")
    broker.queues.bind(queue, "a/+")
    broker.queues.bind(queue, "a/+")
    broker.post(Message("a/b", b"x"))
    broker.post(Message("b", b"y"))
    assert list(queue.messages) == [0]
    message = log.read(queue.messages[0])
    assert message is not None
    assert (message.topic, message.payload) == ("a/b", b"x")
    broker.queues.unbind(queue, "a/+")
    broker.queues.unbind(queue, "a/+")
    broker.post(Message("a/b", b"z"))
    assert list(queue.messages) == [0]
    assert shape(folded(log.rows)) == shape(broker.state)


def test_overlapping_bindings_take_a_message_once() -> None:
    broker, _ = recording()
    queue = broker.queues.named("q")
    broker.queues.bind(queue, "a/+")
    broker.queues.bind(queue, "#")
    broker.post(Message("a/b", b"x"))
    assert len(queue.messages) == 1


def test_a_destroyed_queue_takes_nothing_more() -> None:
    broker, log = recording()
    queue = broker.queues.named("q")
    broker.queues.bind(queue, "a/+")
    broker.post(Message("a/b", b"x"))
    broker.queues.destroy("q")
    broker.post(Message("a/b", b"y"))
    assert "q" not in broker.state.queues
    assert shape(folded(log.rows)) == shape(broker.state)


@pytest.mark.pure
def test_where_ended_queues_stood_is_bounded_and_still_no_id_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hubbub.core.queues.ENDED_QUEUES", 3)
    broker, log = recording()
    for index in range(10):
        name = f"reply-{index}"
        queue = broker.queues.named(name)
        for _ in range(index):
            broker.post(Message(f"$queue/{name}", b"x"))
        assert queue.next >= index
        broker.queues.destroy(name)
    assert len(broker.state.ended_queues) <= 3
    assert broker.queues.named("reply-9").next >= 9
    live = shape(broker.state)
    assert shape(folded(log.rows)) == live
    assert shape(folded(snapshot(broker.state, log.rows))) == live


def shown(broker: Broker, most: int) -> list[str]:
    found: list[Queue] = []
    for _ in foremost(broker.queues, most, found):
        pass
    return [queue.name for queue in found]


def test_the_look_at_very_many_queues_stops_now_and_then() -> None:
    broker, _ = recording()
    for number in range(2 * LOOKED + 1):
        broker.queues.named(f"q{number}")
    send(broker, f"q{2 * LOOKED}", b"the last one holds something")
    found: list[Queue] = []
    assert sum(1 for _ in foremost(broker.queues, 2, found)) == 2
    assert [queue.name for queue in found] == [f"q{2 * LOOKED}", "q0"]


def test_what_people_are_shown() -> None:
    """Of many queues those that hold something; for how long; and since when nobody reads."""
    broker, log = recording()
    clock = log.clock
    assert isinstance(clock, StillClock)
    for name in "abc":
        broker.queues.named(name)
    send(broker, "c", b"old")
    clock.seconds += 10
    send(broker, "c", b"new")
    assert shown(broker, 2) == ["c", "a"]
    assert shown(broker, 3) == ["c", "a", "b"]
    a, c = broker.queues.named("a"), broker.queues.named("c")
    assert (broker.queues.waits(a), broker.queues.waits(c)) == (0, 10)
    assert broker.queues.away(c) == -1
    broker.queues.polled(c, clock.now() + 5)
    assert broker.queues.away(c) == 0
    clock.seconds += 25
    assert broker.queues.away(c) == 20
    broker.queues.wait_at("c", Reader())
    assert broker.queues.away(c) == 0


def test_who_looks_sees_first_what_needs_it() -> None:
    """Among thousands that hold something nobody saw which one is full."""
    broker, _ = recording()
    for name in ("empty", "read", "unread", "full"):
        broker.queues.named(name)
    for name in ("read", "unread", "full"):
        send(broker, name, b"x")
    broker.queues.wait_at("read", Reader())
    broker.queues.named("full").settings = QueueSettings(max_bytes=1)
    assert shown(broker, 4) == ["full", "unread", "read", "empty"]
    assert shown(broker, 1) == ["full"]


def test_what_waits_goes_out_in_turns() -> None:
    """200 consumers without acknowledgements came to 100,000 messages: all waited for seconds."""
    broker = Broker(clock := StillClock(), Log(clock), "none")
    ann = Ear(broker, "ann")
    names = [f"q{number}" for number in range(40)]
    for name in names:
        send(broker, name, *[b"%d" % number for number in range(30)])
        broker.subscribe(ann.wish(f"$queue/{name}", 1))
    broker.queues.begin("q0")
    assert leases(ann) == list(range(PREFETCH))
    for name in names[1:]:
        broker.queues.begin(name)
    assert len(ann.leases) == HANDED
    settle(broker)
    assert len(ann.leases) == 1_200
    of_one = [number for queue, number in ann.leases.values() if queue.name == "q7"]
    assert of_one == list(range(30))


class One(Ear):
    """Has one message at a time, and comes back for the next one when it is done with it."""

    def ready(self) -> bool:
        return super().ready() and not self.leases

    def done(self) -> tuple[str, bytes]:
        (topic, payload, _), (queue, number) = self.hear()[-1], next(iter(self.leases.values()))
        self.broker.queues.acknowledge(queue, number, self)
        take_more(self.broker, self)
        return topic, payload

    def __init__(self, broker: Broker, client: str) -> None:
        self.broker = broker
        super().__init__(broker, client)


def test_who_has_room_again_looks_where_there_was_none_and_each_queue_has_its_turn() -> None:
    """All queues of a consumer were looked at with each acknowledgement: with a thousand that took
    0.4 ms. And the first one was always the first.
    """
    broker, _ = recording()
    ann = One(broker, "ann")
    for number in range(300):
        broker.subscribe(ann.wish(f"$queue/q{number}", 1))
    for name in ("q7", "q5", "q9"):
        send(broker, name, b"0", b"1")
    assert list(ann.turned_away) == ["q7", "q5", "q9"]
    order = [ann.done()[0].removeprefix("$queue/") for _ in range(6)]
    assert order == ["q7", "q7", "q5", "q9", "q5", "q9"]
    assert not ann.turned_away and not ann.leases


def test_a_consumer_remembers_no_queue_that_it_left() -> None:
    broker, _ = recording()
    ann = One(broker, "ann")
    ann.room = False
    for number in range(3):
        broker.subscribe(ann.wish(f"$queue/q{number}", 1))
        send(broker, f"q{number}", b"x")
        broker.unsubscribe(ann, f"$queue/q{number}")
    assert not ann.turned_away


def test_very_many_queues_that_hold_nothing_any_more_are_looked_at_in_turns() -> None:
    broker, _ = recording()
    ann, bob = One(broker, "ann"), Ear(broker, "bob")
    ann.room = bob.room = False
    names = [f"q{number}" for number in range(3 * client.LOOKED)]
    for name in names:
        broker.subscribe(ann.wish(f"$queue/{name}", 1))
        send(broker, name, b"x")
    assert list(ann.turned_away) == names
    for name in names[:-1]:
        broker.queues.acknowledge(broker.queues.named(name), 0, broker.itself)
    ann.room = True
    take_more(broker, ann)
    assert len(ann.turned_away) == 2 * client.LOOKED and not ann.leases
    settle(broker)
    assert leases(ann) == [0] and not ann.turned_away


def test_nothing_goes_out_while_many_rows_wait_for_the_disk() -> None:
    """They became more than publishers may have waiting, so publishers waited for consumers."""
    broker, log = recording()
    send(broker, "q", b"0")
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q", 1))
    log.handed = log.position - LAGGING - 1
    broker.queues.begin("q")
    settle(broker)
    assert leases(ann) == []
    for call in broker.to_try_again():  # in a moment: nobody looks all the time
        call()
    assert leases(ann) == [] and settle(broker) == 0
    log.handed = log.position
    for call in broker.written():
        call()
    settle(broker)
    assert leases(ann) == [0]


def test_a_part_goes_out_with_each_group_while_others_publish_as_much_as_the_disk_takes() -> None:
    """Whoever did that kept all consumers from what waited in queues."""
    broker, log = recording()
    send(broker, "q", *[b"%d" % number for number in range(5_000)])
    ann = Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q", 1))
    had: list[int] = []
    for _ in range(6):
        log.handed = log.position - LAGGING - 1
        if not had:
            broker.queues.begin("q")
            settle(broker)
        for call in broker.written():
            call()
        assert settle(broker) == 0
        had.append(len(ann.leases))
    assert 0 < had[0] and had == sorted(had) and had[-1] == 5_000
    assert all(after - before < GROUP_ROWS for before, after in pairwise([0, *had]))


def test_entries_of_what_is_gone_are_dropped_now_and_then() -> None:
    """Where each second one was gone all were moved at each acknowledgement."""
    broker, packed = Broker(clock := StillClock(), Log(clock), "none"), 0
    queue = broker.queues.named("q")
    count, behind = 2_000, SPARSE
    for number in range(2 * count + behind + 1):
        queue.add(number, number + 1, 1, 0)
    for number in [*range(1, 2 * count, 2), *range(2 * count, 2 * count + behind)]:
        queue.remove(number)
    for number in range(0, 2 * count, 2):
        entries = len(queue._ids)
        queue.remove(number)
        packed += len(queue._ids) < entries
    assert packed < 10
    assert list(queue.messages) == [2 * count + behind]


def test_a_queue_that_was_large_is_small_again() -> None:
    broker = Broker(clock := StillClock(), Log(clock), "none")
    queue = broker.queues.named("q")
    for number in range(50_000):
        queue.add(number, number + 1, 1, 0)
    large = sys.getsizeof(queue.messages)
    for number in range(49_990):
        queue.remove(number)
    assert list(queue.messages) == list(range(49_990, 50_000))
    assert sys.getsizeof(queue.messages) < large / 20


def test_a_large_queue_ends_in_turns() -> None:
    """200,000 messages kept everybody waiting for 60 ms."""
    clock = Hasty()
    broker = Broker(clock, Log(clock), "none")
    send(broker, "q", *[b"%d" % number for number in range(1_000)])
    queue, ann = broker.queues.named("q"), Ear(broker, "ann")
    broker.subscribe(ann.wish("$queue/q", 1))
    broker.queues.begin("q")
    settle(broker)
    assert len(ann.leases) == 1_000
    broker.queues.destroy("q")
    assert broker.state.queues == {} and ann.leases == {}
    assert 900 < len(queue.messages) < 1_000
    send(broker, "q", b"new")
    assert settle(broker) > 10
    assert ann.hear()[-1][1] == b"new"
    assert queue.messages == {} and list(broker.queues.named("q").messages) == [1_000]
    assert broker.log.read(broker.queues.named("q").messages[1_000]) is not None
