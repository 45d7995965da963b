"""The door: what a subscription may be, what is literal, and what an answer may do."""

from __future__ import annotations

import logging

import pytest

from hubbub import schema
from hubbub.core import client
from hubbub.core.message import Message
from hubbub.core.state import State
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from hubbub.protocols.smq import codec as smq
from hubbub.protocols.switch import Switch
from hubbub.schema import Row
from tests.core.recording import Ear, recording
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern
from tests.protocols.smq.device import Hub
from tests.protocols.switch.journaled import get, post
from tests.rights import ruled

# Literal means literal


def test_a_literal_share_is_a_name() -> None:
    hub = Hub()
    ann, bob = hub.device(b"annika"), hub.device(b"robert")
    tid = ann.subscribe(b"$share/g/#")
    assert tid == bob.create(b"$share/g/#")
    hub.broker.post(Message("anything", b"x"))
    assert ann.hear() == [] and not hub.broker.groups.by_filter
    bob.publish(tid, b"hello")
    assert [one[-1] for one in ann.hear()] == [b"hello"]
    ann.say(smq.UNSUBSCRIBE, tid)
    assert not hub.broker.filters.match("$share/g/#")


def test_a_literal_wildcard_needs_the_right_to_that_name() -> None:
    hub = Hub()
    hub.gate.rights = ruled("read a")
    ann = hub.device(b"annika")
    ann.say(smq.SUBSCRIBE, rest=b"#")
    assert ann.hear() == [("Suback", 1, 0, b"#")]
    assert "#" not in hub.broker.state.topics.numbers, "a refusal makes no number"


# What is offered


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a/+", client.NO_WILDCARDS), ("$share/g/#", client.NO_WILDCARDS), ("a", ""),
        ("$queue/q", ""),
    ],
)
def test_where_no_wildcards_are_offered(name: str, reason: str) -> None:
    broker, _ = recording()
    broker.wildcards = False
    ear = Ear(broker, "ann")
    if reason:
        with pytest.raises(client.Refused) as refusal:
            client.subscribe(broker, ear.wish(name))
        assert refusal.value.reason == reason
    else:
        assert client.subscribe(broker, ear.wish(name))


def test_a_queue_is_not_bound_where_no_wildcards_are_offered() -> None:
    hub = Hub()
    hub.broker.wildcards = False
    far = hub.dial(Switch(hub.broker), get("/login/a"))
    far.say(post("/bind/q", b"a/#") + post("/bind/q", b"a/b"))
    assert far.hear().count(b"HTTP/1.1 403") == 1
    assert list(hub.broker.state.queues["q"].bindings) == ["a/b"]


def test_too_many_subscriptions() -> None:
    broker, _ = recording()
    broker.subscriptions = 2
    ear = Ear(broker, "ann")
    for name in ("a", "b", "a"):
        client.subscribe(broker, ear.wish(name))
    with pytest.raises(client.Refused) as refusal:
        client.subscribe(broker, ear.wish("c"))
    assert refusal.value.reason == client.TOO_MANY


@pytest.mark.parametrize(
    "name", ["$client/77", "$share/g/$queue/q", "$queue/", "$queue/+", "a/#/b"]
)
def test_what_is_nobodys_to_subscribe_to(name: str) -> None:
    broker, _ = recording()
    ear = Ear(broker, "ann")
    with pytest.raises(client.Refused):
        client.subscribe(broker, ear.wish(name))
    assert not ear.subscriptions


# Numbers


@pytest.mark.parametrize("number", [-1, 1 << 32, 1 << 70])
def test_a_number_that_no_client_can_say(number: int) -> None:
    broker, log = recording()
    with pytest.raises(ValueError, match="expected a number from 0 to 4294967295"):
        broker.topic_id("a", broker.itself, number)
    with pytest.raises(ValueError, match="expected a number"):
        broker.subtopic_id("a", broker.itself, number)
    assert log.rows == []
    assert broker.topic_id("a", broker.itself, (1 << 32) - 1) == (1 << 32) - 1


@pytest.mark.parametrize("number", [-1, 0, 1, 1 << 32])
@pytest.mark.parametrize("column", ["topic", "subtopic"])
def test_one_that_is_in_a_journal_is_ignored_with_a_line(
    number: int, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    state = State()
    with caplog.at_level(logging.WARNING, "hubbub.state"):
        state.apply(Row(1, 0, schema.CREATE, number=number)._replace(**{column: b"a"}))  # type: ignore[arg-type]
    assert not state.topics.names and not state.subtopics.names
    assert f"'a' has the number {number}" in caplog.text


# Requests


def worker(stage: Stage) -> Modern:
    made = Modern(stage, "worker")
    made.subscribe("$queue/q", 1)
    made.hear()
    return made


def test_calls_that_others_answered_do_not_count() -> None:
    """A service answers any number of calls, also those that message-switch made."""
    stage = Stage()
    service = worker(stage)
    broker = stage.broker
    broker.queues.named("replies")
    for number in range(100):
        request = Message("$queue/q", b"?%d" % number, 1, reply_to="$queue/replies")
        broker.post(request, Ear(broker, f"caller-{number}"))
        stage.tick()
        [heard] = service.hear()
        assert heard.startswith(f"$queue/q=?{number} q1"), number
        service.answer_one()
        address = heard.partition("response-topic=")[2].partition(" ")[0]
        service.publish(address, b"!")
    assert len(broker.state.queues["replies"].messages) == 100
    assert not broker.state.queues["q"].messages


# Response topics


def asked(stage: Stage, topic: str, **properties: bytes) -> None:
    told = Properties(texts={spec.RESPONSE_TOPIC: properties["to"]})
    Modern(stage, "asker").publish(topic, b"?", properties=told)


@pytest.mark.parametrize(
    ("asker", "reader", "shown"),
    [((), (), False), (("write house/safe",), (), True), ((), ("write house/safe",), True)],
)
def test_a_response_topic_to_which_nobody_may_write_is_left_out(
    asker: tuple[str, ...], reader: tuple[str, ...], shown: bool
) -> None:
    stage = Stage()
    stage.gate.rights = ruled("read public", *reader)
    bob = Modern(stage, "bob")
    bob.subscribe("public", 0)
    bob.hear()
    stage.gate.rights = ruled("write public", *asker)
    asked(stage, "public", to=b"house/safe")
    assert bob.hear() == ["public=?" + " response-topic=house/safe" * shown]


def test_a_response_topic_stays_in_its_mount_point() -> None:
    """Who is below `m/` asks for answers below it, whoever answers."""
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.subscribe("m/t", 0)
    bob.hear()
    stage.mount = "m/"
    asked(stage, "t", to=b"answers")
    assert bob.hear() == ["m/t=? response-topic=m/answers"]
    carol = Modern(stage, "carol")
    carol.subscribe("t", 0)
    carol.hear()
    asked(stage, "t", to=b"answers")
    assert carol.hear() == ["t=? response-topic=answers"]
