"""How long messages and calls take: what is timed, and what is not."""

from __future__ import annotations

from hubbub.core.limits import CALLS_TIMED
from hubbub.core.message import Message
from hubbub.core.metrics import Histogram
from tests.protocols.mqtt.conversation import Stage


def timed(histogram: Histogram) -> tuple[int, float]:
    return sum(histogram.counts), round(histogram.seconds, 6)


def test_one_message_of_a_window_is_timed_until_its_receiver_has_it() -> None:
    stage = Stage()
    sampled = stage.broker.sampled
    transit = sampled.transit
    ann, bob = stage.device("ann"), stage.device("bob")
    bob.subscribe("t", 0)
    sampled.wake()
    ann.publish("nobody/hears/this")
    assert not transit.on_its_way
    ann.publish("t")
    assert transit.on_its_way
    stage.pass_time(0.03)
    transit.look()
    ann.publish("t")
    assert not transit.on_its_way, "one of each window"
    assert timed(transit.seconds) == (1, 0.03)
    sampled.wake()
    ann.publish("t")
    assert transit.on_its_way


def test_what_is_held_for_the_disk_is_not_there_before() -> None:
    stage = Stage(prompt=False)
    transit = stage.broker.sampled.transit
    ann, bob = stage.device("ann"), stage.device("bob")
    stage.sync()
    bob.subscribe("t", 2)
    stage.sync()
    stage.broker.sampled.wake()
    ann.publish("t", qos=2)
    transit.look()
    stage.pass_time(0.2)
    transit.look()
    assert transit.on_its_way
    stage.sync()
    transit.look()
    assert timed(transit.seconds) == (1, 0.2)
    assert any("t=x" in word for word in bob.hear())


def test_who_hears_itself_or_has_gone_is_not_timed() -> None:
    stage = Stage()
    sampled = stage.broker.sampled
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("t", 0)
    sampled.wake()
    ann.publish("t")
    assert not sampled.transit.on_its_way
    bob.publish("t")
    assert sampled.transit.on_its_way
    ann.far.link.close("gone")
    sampled.transit.look()
    assert timed(sampled.transit.seconds) == (0, 0) and not sampled.transit.on_its_way


def test_a_request_in_a_queue_is_timed_until_its_answer() -> None:
    stage = Stage()
    broker = stage.broker
    calls = broker.queues.calls
    broker.post(Message("$queue/work", b"?", reply_to="$queue/mine"))
    broker.post(Message("$queue/work", b"no request"))
    stage.pass_time(1.5)
    broker.queues.named("mine")
    broker.post(Message("$queue/mine", b"!", properties={"answers": ["work", 0]}))
    broker.post(Message("$queue/mine", b"once more", properties={"answers": ["work", 0]}))
    broker.post(Message("$queue/mine", b"!", properties={"answers": ["work", 1]}))
    assert timed(calls.seconds) == (1, 1.5)


def test_no_more_are_remembered_than_the_bound() -> None:
    calls = Stage().broker.queues.calls
    for seq in range(1, CALLS_TIMED + 3):
        calls.asked(seq)
    calls.answered(1)
    calls.answered(2)
    assert timed(calls.seconds) == (0, 0)
    calls.answered(3)
    assert timed(calls.seconds)[0] == 1
