"""What cannot be read now is not given up: it comes when it can be read again."""

from __future__ import annotations

import gc

from hubbub.core.broker import Broker
from hubbub.core.message import Message
from hubbub.core.queue import Queue, QueueSettings
from tests.core.recording import Ear, StillClock, recording
from tests.core.test_queue import leases, send
from tests.protocols.mqtt.conversation import Stage


def again(broker: Broker) -> None:
    """What a sweep of the hub does."""
    for call in broker.to_try_again():
        call()


def test_a_consumer_gets_what_waits_in_a_queue_later() -> None:
    broker, log = recording()
    send(broker, "q", b"0", b"1")
    log.unreadable = True
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("$queue/q", 1))
    broker.queues.dispatch(broker.queues.named("q"))
    again(broker)
    assert ear.hear() == [] and list(broker.queues.named("q").messages) == [0, 1]
    log.unreadable = False
    again(broker)
    assert [payload for _, payload, _ in ear.hear()] == [b"0", b"1"]
    assert leases(ear) == [0, 1] and "memory full" not in broker.metrics.dropped


def test_what_expires_is_buried_later() -> None:
    broker, log = recording()
    assert isinstance(broker.clock, StillClock)
    wanted = QueueSettings(expires=5, dead_letter="dead")
    broker.queues.configure(broker.queues.named("q"), wanted)
    send(broker, "q", b"x")
    broker.clock.seconds += 6
    log.unreadable = True
    broker.queues.overdue.wake()
    assert list(broker.queues.named("q").messages) == [0]
    log.unreadable = False
    broker.queues.overdue.wake()
    assert list(broker.queues.named("q").messages) == []
    assert list(broker.queues.named("dead").messages) == [0]


def test_a_delayed_message_comes_later() -> None:
    broker, log = recording()
    assert isinstance(broker.clock, StillClock)
    ear = Ear(broker, "ann")
    broker.subscribe(ear.wish("a"))
    broker.post(Message("$delayed/5/a", b"x", 1))
    broker.clock.seconds += 5
    log.unreadable = True
    broker.delays.wake()
    broker.delays.wake()
    assert ear.hear() == [] and broker.state.delayed
    log.unreadable = False
    broker.delays.wake()
    assert ear.hear() == [("a", b"x", 0)] and not broker.state.delayed


def test_what_is_retained_is_offered_later_if_it_is_still_wanted() -> None:
    broker, log = recording()
    broker.post(Message("a/b", b"x", retain=True))
    log.unreadable = True
    ann, bob = Ear(broker, "ann"), Ear(broker, "bob")
    for ear, wish in ((ann, "a/+"), (bob, "a/b")):
        subscription = ear.wish(wish)
        broker.subscribe(subscription)
        broker.offer_retained(subscription)
    broker.unsubscribe(bob, "a/b")
    log.unreadable = False
    again(broker)
    assert ann.hear() == [("a/b", b"x", 0)] and bob.hear() == []


def test_a_session_that_comes_back_gets_its_messages_later() -> None:
    stage = Stage()
    device = stage.device(clean=False)
    device.subscribe("a", 1)
    device.far.hang_up()
    other = stage.device("bob")
    for number in range(3):
        other.publish("a", b"%d" % number, 1, packet_id=number + 1)
    stage.log.unreadable = True
    back = stage.device(clean=False)
    assert back.hear() == ["CONNACK 0 present"]
    again(stage.broker)
    stage.tick()
    assert back.hear() == []
    stage.log.unreadable = False
    again(stage.broker)
    stage.tick()
    assert back.hear() == ["a=0 q1 #1", "a=1 q1 #2", "a=2 q1 #3"]


def test_routes_do_not_keep_queues_that_are_destroyed() -> None:
    broker, _ = recording()
    for number in range(200):
        send(broker, f"reply-{number}", b"x")
        broker.queues.destroy(f"reply-{number}")
    gc.collect()
    left = sum(isinstance(one, Queue) and one.name.startswith("reply-") for one in gc.get_objects())
    assert left == 0 and not any(key.startswith(b"$queue/") for key in broker.itself.rights.routes)
