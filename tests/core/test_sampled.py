"""Rates of topics: exact where there is little traffic, estimated where there is much."""

from __future__ import annotations

from random import Random

import pytest

from hubbub.core.hooks import Hooks
from hubbub.core.limits import SAMPLED_NAME, SENDERS_SAMPLED, TOPICS_SAMPLED
from hubbub.core.message import Message, Run
from hubbub.core.sampled import LOOKS, ROLL_SECONDS
from hubbub.core.session import Silent
from hubbub.runtime.trace import Trace
from tests.protocols.mqtt.conversation import Stage


class Traffic:
    """Publishes into a hub as fast as it can; `turn` is a quarter of a second."""

    def __init__(self) -> None:
        self.stage = Stage("none")
        self.broker = self.stage.broker
        self.sampled = self.broker.sampled
        self.sampled.wake()

    def publish(self, name: str) -> None:
        self.broker.post(Message(name, b"x"))

    def turn(self) -> None:
        self.stage.pass_time(0.25)
        self.sampled.wake()


class Program(Hooks):
    """An inspector of somebody else; takes nothing below `no/`."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def passes(self, run: Run) -> bool:
        self.seen.append(run.route.name)
        return not run.route.name.startswith("no/")


def test_little_traffic_is_counted_and_not_guessed() -> None:
    stage = Stage()
    ann = stage.device("ann")
    stage.broker.sampled.wake()
    for _ in range(30):
        ann.publish("a/1", b"x", 0)
    ann.publish("a/2", b"x", 0)
    stage.pass_time(ROLL_SECONDS)
    stage.broker.sampled.wake()
    topics = stage.broker.sampled.topics
    assert {name: seen.messages for name, seen in topics.items()} == {"a/1": 30, "a/2": 1}
    assert topics["a/1"].rate == 30 / ROLL_SECONDS
    for _ in range(20):
        stage.pass_time(ROLL_SECONDS)
        stage.broker.sampled.wake()
    assert topics["a/1"].rate == 0 and topics["a/1"].messages == 30


def test_much_traffic_is_looked_at_seldom_and_shares_are_right() -> None:
    traffic, random = Traffic(), Random(1)
    for _ in range(60):
        for _ in range(2_000):
            traffic.publish("half" if random.random() < 0.5 else f"rest/{random.randrange(5)}")
            if traffic.broker.inspector is None:
                break
        else:
            raise AssertionError("it looks at everything")
        traffic.broker.metrics.messages_in += 2_000 - LOOKS  # that nobody looked at
        traffic.turn()
    topics, all_of_them = traffic.sampled.topics, traffic.broker.metrics.messages_in
    assert all_of_them == 60 * 2_000 and traffic.sampled.part == LOOKS / 2_000
    assert round(sum(seen.messages for seen in topics.values())) == all_of_them
    assert 0.9 < topics["half"].messages / (all_of_them / 2) < 1.1
    assert 0.9 < topics["half"].rate / 4_000 < 1.1
    for number in range(5):
        assert 0.75 < topics[f"rest/{number}"].messages / (all_of_them / 10) < 1.25


def test_after_a_flood_every_message_is_counted_again() -> None:
    traffic = Traffic()
    for _ in range(4 * LOOKS):
        traffic.publish("flood")
    traffic.turn()
    assert traffic.sampled.part == 0.25
    for _ in range(3):
        traffic.publish("slow")
    traffic.turn()
    assert traffic.sampled.part == 1 and traffic.sampled.topics["slow"].messages == 3


def test_topics_are_bounded_and_who_is_quiet_goes() -> None:
    traffic = Traffic()
    for number in range(TOPICS_SAMPLED + 100):
        traffic.sampled._count(f"t/{number}", 1)
        traffic.sampled._count("steady", 1)
    topics = traffic.sampled.topics
    assert len(topics) <= TOPICS_SAMPLED and "steady" in topics and "t/0" not in topics
    traffic.publish("$client/77")
    traffic.turn()
    assert "$client/77" not in topics


def test_very_long_names_are_counted_by_how_they_begin() -> None:
    traffic, begin = Traffic(), "n" * SAMPLED_NAME
    for number in range(5):
        traffic.publish(f"{begin}{number}")
    traffic.publish(begin)
    traffic.turn()
    counted = {name: seen.messages for name, seen in traffic.sampled.topics.items()}
    assert counted == {begin[:-1] + "…": 5, begin: 1}


def test_another_inspector_is_asked_as_before() -> None:
    """In and out of the window; one that comes in the middle of it and goes again too."""
    traffic, program = Traffic(), Program()
    traffic.sampled._rest()
    traffic.broker.inspector = program
    ear = traffic.stage.device("ear")
    ear.subscribe("#", 0)
    for _ in range(2):
        traffic.turn()
        for name in ("a", "no/b"):
            for _ in range(LOOKS):
                traffic.publish(name)
        assert traffic.broker.inspector is program
    assert program.seen == 2 * (["a"] * LOOKS + ["no/b"] * LOOKS)
    traffic.turn()
    trace = Trace(traffic.broker)
    trace.switch(True)
    for _ in range(2 * LOOKS):
        traffic.publish("a")
    assert isinstance(traffic.broker.inspector, Trace)
    traffic.turn()
    trace.switch(False)
    for _ in range(LOOKS):
        traffic.publish("c")
    assert traffic.broker.inspector is program
    traffic.turn()
    assert traffic.sampled.topics["c"].messages == LOOKS


# Who sends


def test_who_floods_is_the_first() -> None:
    stage = Stage("none")
    calm, flood, heavy = (stage.device(name) for name in ("calm", "flood", "heavy"))
    sampled = stage.broker.sampled
    for _ in range(40):
        sampled.wake()
        calm.publish("a/calm", b"x", 0)
        for _ in range(20):
            flood.publish("a/flood", b"x", 0)
        for _ in range(3):
            heavy.publish("a/heavy", b"x" * 300_000, 0)
        stage.pass_time(0.25)
    sampled.wake()
    found = {one.client: one for one in sampled.busiest()}
    assert list(found) == ["heavy", "flood", "calm"]
    rates = {name: round(one.rate) for name, one in found.items()}
    assert rates == {"heavy": 12, "flood": 80, "calm": 4}
    assert found["heavy"].bytes > 3_500_000 and found["flood"].topic == "a/flood"
    for _ in range(41):
        stage.pass_time(0.25)
        sampled.wake()
    assert not sampled.busiest(), "who has stopped is nobody of now"


def test_of_who_has_just_begun_it_is_known() -> None:
    stage = Stage("none")
    flood = stage.device("flood")
    stage.broker.sampled.wake()
    for _ in range(100):
        flood.publish("a", b"x", 0)
    stage.pass_time(0.25)
    stage.broker.sampled.wake()
    for _ in range(2):
        (one,) = stage.broker.sampled.busiest()
        assert one.rate == 100


def test_senders_are_bounded_and_the_hub_is_none() -> None:
    stage = Stage("none")
    broker = stage.broker
    steady = Silent("mqtt", "steady", broker.itself.rights)
    for number in range(SENDERS_SAMPLED // 2 + 100):
        long = Silent("mqtt", f"{number}" + "c" * SAMPLED_NAME * 2, broker.itself.rights)
        for session in (Silent("mqtt", f"c{number}", broker.itself.rights), long, steady):
            broker.post(Message("t", b"x"), session)
        broker.post(Message("t", b"x"))
        broker.sampled.wake()
    found = broker.sampled.busiest()
    assert len(found) == SENDERS_SAMPLED and {one.protocol for one in found} == {"mqtt"}
    names = {one.client for one in found}
    assert "steady" in names and "c0" not in names
    assert max(map(len, names)) == SAMPLED_NAME


@pytest.mark.parametrize("long", ["user", "client"])
def test_who_has_a_very_long_name_is_not_forgotten_each_time(long: str) -> None:
    """It began anew with each look: who flooded was at the end of the list."""
    stage = Stage("none")
    broker = stage.broker
    floods = [Silent("mqtt", "flood", broker.itself.rights) for _ in range(1 + (long == "client"))]
    for number, flood in enumerate(floods):
        if long == "user":
            flood.user = "u" * 2 * SAMPLED_NAME
        else:
            flood.client, flood.address = "c" * 2 * SAMPLED_NAME + str(number), f"192.0.2.{number}"
    broker.sampled.wake()
    for _ in range(8):
        for flood in floods:
            for _ in range(100):
                broker.post(Message("t", b"x"), flood)
        stage.pass_time(0.25)
        broker.sampled.wake()
    (one,) = broker.sampled.busiest()
    assert one.rate == 400 * len(floods)
