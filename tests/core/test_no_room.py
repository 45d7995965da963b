"""A disk with little room: what would stay is refused at each door, and all else goes on."""

from __future__ import annotations

import pytest

from hubbub.core.limits import LINK_CHOKED
from hubbub.core.message import Message
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.switch import Switch
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told
from tests.protocols.smq.device import Hub
from tests.protocols.switch.journaled import get, post

WHY = "the disk has 1 MB left, and 40 MB are kept free"


def away(stage: Stage, topic: str) -> None:
    """A lasting session that wants the topic and is not there."""
    ann = stage.device("ann", clean=False)
    ann.subscribe(topic, 1)
    ann.far.hang_up("lost")


@pytest.mark.parametrize("topic", ["$queue/q", "$delayed/5/a", "away", "bound"])
def test_what_would_stay_is_refused_with_the_code_for_it(topic: str) -> None:
    stage = Stage()
    away(stage, "away")
    stage.broker.queues.bind(stage.broker.queues.named("b"), "bound")
    bob, old = Modern(stage, "bob"), stage.device("old")
    stage.broker.keep_room(WHY)
    bob.publish(topic, qos=1)
    old.publish(topic, qos=1)
    assert bob.hear()[1:] == ["PUBACK 1 0x97"]
    assert old.far.closed, "before 5.0 nothing can refuse: the client says it again later"
    stage.broker.keep_room("")
    bob.publish(topic, qos=1, packet_id=2)
    heard = bob.hear()
    assert len(heard) == 1 and heard[0].startswith("PUBACK 2") and "0x97" not in heard[0]


def test_what_is_retained_does_not_grow() -> None:
    """A thousand small ones, each replaced by one of 64 MiB, are a disk full."""
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("old", b"12345", 1, retain=True)
    stage.broker.keep_room(WHY)
    for number, payload in enumerate((b"123456", b"1234", b"12345", b""), 2):
        bob.publish("old", payload, 1, retain=True, packet_id=number)
    codes = ["0x97" in word for word in bob.hear() if word.startswith("PUBACK")]
    assert codes == [False, True, False, True, False]


def test_nothing_that_lasts_begins() -> None:
    """Neither sessions nor their subscriptions; who does not last comes in as ever."""
    stage = Stage()
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 1000}))
    ann.subscribe("a", 1)
    stage.broker.keep_room(WHY)
    ann.hear()
    ann.subscribe("a", 1, "b", 1)
    assert ann.hear() == ["SUBACK 5: 0x01 0x97"]
    new = Modern(stage, "new", False, told({spec.SESSION_EXPIRY: 1000}))
    assert "0x97" in new.hear()[0]
    brief = Modern(stage, "brief")
    brief.subscribe("c", 1)
    assert len(brief.hear()) == 2
    assert set(stage.broker.state.sessions) == {("mqtt", "ann")}


def test_a_new_retained_name_is_refused_and_one_that_is_there_changes() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("old", b"1", 1, retain=True)
    stage.broker.keep_room(WHY)
    bob.publish("old", b"2", 1, retain=True, packet_id=2)
    bob.publish("new", b"1", 1, retain=True, packet_id=3)
    bob.publish("old", b"", 1, retain=True, packet_id=4)
    codes = [word for word in bob.hear() if "0x97" in word]
    assert codes == ["PUBACK 3 0x97"]
    assert not stage.broker.state.retained


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_who_is_there_gets_what_is_published(qos: int) -> None:
    stage = Stage()
    ann = stage.device("ann", clean=False)
    ann.subscribe("a", qos)
    stage.broker.keep_room(WHY)
    bob = Modern(stage, "bob")
    ann.hear()
    bob.publish("a", b"1", qos)
    assert any(word.startswith("a=1") for word in ann.hear())
    assert not any("0x97" in word for word in bob.hear())


def test_a_message_that_nobody_can_refuse_does_not_wait_for_who_is_away() -> None:
    """A will, or what the hub itself publishes."""
    stage = Stage()
    away(stage, "a")
    stage.broker.keep_room(WHY)
    will = codec.Will(b"a", b"gone", 1, False)
    stage.device("bob", will=will).far.hang_up("lost")
    state = stage.broker.state.sessions["mqtt", "ann"]
    assert len(state.backlog.entries) == 0
    assert stage.broker.metrics.dropped["backlog full"] == 1


def test_a_message_to_a_queue_over_http_is_507_and_says_why() -> None:
    hub = Hub()
    far = hub.dial(Switch(hub.broker), get("/login/a") + get("/persistent/q"))
    assert far.hear().count(b"200 OK") == 2
    hub.broker.keep_room(WHY)
    far.say(post("/request/q/r", b"2"))
    heard = far.hear()
    assert b"HTTP/1.1 507" in heard and WHY.encode() in heard


def test_a_message_to_a_topic_over_http_is_507_where_it_would_stay() -> None:
    """It was said to be taken, and what it was for had nothing of it. So is an answer."""
    hub = Hub()
    hub.broker.queues.bind(hub.broker.queues.named("b"), "bound")
    hub.broker.post(Message("$queue/q", b"?", 1, reply_to="bound"))
    far = hub.dial(Switch(hub.broker), get("/login/a") + get("/persistent/q"))
    far.hear()
    hub.broker.keep_room(WHY)
    doors = ("/publish/bound?qos=1", "/publish/t?retain=1", "/response/reply~0/q/0")
    for door in doors:
        far.say(post(door, b"x"))
        assert b"HTTP/1.1 507" in far.hear()
    far.say(post("/publish/other?qos=1", b"x"))
    assert b"HTTP/1.1 200" in far.hear()
    assert not hub.broker.state.queues["b"].messages
    hub.broker.keep_room("")
    for door in doors:
        far.say(post(door, b"x"))
        assert b"HTTP/1.1 200" in far.hear()
    assert len(hub.broker.state.queues["b"].messages) == 2


def test_a_group_whose_members_are_away_takes_nothing() -> None:
    stage = Stage()
    away(stage, "$share/g/a")
    stage.broker.keep_room(WHY)
    bob = Modern(stage, "bob")
    bob.publish("a", b"1", 1)
    assert bob.hear()[-1] == "PUBACK 1 0x97"
    here = stage.device("cy")
    here.subscribe("$share/g/a", 1)
    here.hear()
    bob.publish("a", b"2", 1, packet_id=2)
    assert bob.hear() == ["PUBACK 2"] and here.hear() == ["a=2 q1 #1"]


def test_a_session_that_is_here_and_does_not_read_takes_no_more() -> None:
    """It is not away, and pins as much: one MiB waits, and the rest is refused."""
    stage = Stage()
    stage.broker.inflight = 1
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 1000}))
    ann.subscribe("a", 1)
    bob = Modern(stage, "bob")
    bob.hear()
    stage.broker.keep_room(WHY)
    size, codes = 100_000, []
    for number in range(1, 31):
        bob.publish("a", b"x" * size, 1, packet_id=number)
        codes += bob.hear()
    taken = sum("0x97" not in code for code in codes)
    assert LINK_CHOKED <= taken * size <= LINK_CHOKED + 2 * size and len(codes) == 30
    assert codes[-1] == "PUBACK 30 0x97"
    assert stage.broker.state.sessions["mqtt", "ann"].backlog.bytes == taken * size


def test_a_queue_of_ones_own_is_no_way_round() -> None:
    hub = Hub()
    far = hub.dial(Switch(hub.broker), get("/login/a") + get("/transient/mine"))
    assert far.hear().count(b"200 OK") == 2
    hub.broker.keep_room(WHY)
    far.say(post("/request/mine/r", b"1"))
    assert b"HTTP/1.1 507" in far.hear()
    assert not hub.broker.state.queues["mine"].messages
