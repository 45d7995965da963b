"""SUBSCRIBE and UNSUBSCRIBE, retained messages, and the address of a client."""

from __future__ import annotations

import pytest

from hubbub.core.gate import Gate
from hubbub.core.limits import CONNECT_PROPERTIES, NAME_LEVELS, USER_PROPERTIES
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.codec import Properties
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern
from tests.rights import ruled


@pytest.mark.holds(
    v5="3.3.1-5 3.3.1-9 3.8.4-1 3.8.4-2 3.8.4-5 3.8.4-6 3.8.4-7 3.9.3-1",
    v3=(
        "2.3.1-7 3.3.1-5 3.3.1-6 3.3.1-7 3.3.1-8 3.3.1-9 3.8.4-1 3.8.4-2 3.8.4-3 3.8.4-4 "
        "3.8.4-5 3.9.3-1"
    ),
)
def test_suback_comes_before_retained() -> None:
    stage = Stage()
    bob = stage.device("bob")
    bob.publish("a/b", b"1", 1, retain=True)
    bob.publish("a/c", b"2", 0, retain=True)
    ann = stage.device("ann")
    ann.subscribe("a/#", 1, "a/b", 0, "b", 2)
    assert ann.hear() == [
        "CONNACK 0", "SUBACK 5: 1 0 2", "a/b=1 q1 #1 retain", "a/c=2 retain", "a/b=1 retain",
    ]  # fmt: skip
    bob.publish("a/b", b"3", 1, retain=True)
    assert ann.hear() == ["a/b=3 q1 #2"], "retain is told only because of a new subscription"
    ann.subscribe("a/b", 0)
    assert ann.hear() == ["SUBACK 5: 0", "a/b=3 retain"], "and when it is made again (3.8.4)"


@pytest.mark.holds(v5="3.3.1-6 3.3.1-7", v3="3.3.1-10 3.3.1-11")
def test_an_empty_retained_message_clears_and_is_delivered() -> None:
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("a", 0)
    bob.publish("a", b"1", retain=True)
    bob.publish("a", b"", retain=True)
    assert ann.hear()[2:] == ["a=1", "a="]
    late = stage.device("late")
    late.subscribe("#", 0)
    assert late.hear() == ["CONNACK 0", "SUBACK 5: 0"]


def test_a_lasting_session_hears_nothing_before_its_held_suback() -> None:
    stage = Stage(prompt=False)
    bob, ann = stage.device("bob"), stage.device("ann", clean=False)
    bob.publish("a", b"1", retain=True)
    stage.sync()
    assert ann.hear() == ["CONNACK 0"]
    ann.subscribe("a", 1)
    bob.publish("a", b"2")
    assert ann.hear() == []
    stage.sync()
    assert ann.hear() == ["SUBACK 5: 1", "a=1 retain", "a=2"]


def test_retained_messages_of_a_lasting_session_survive_its_connection() -> None:
    stage = Stage()
    bob, ann = stage.device("bob"), stage.device("ann", clean=False)
    bob.publish("a", b"1", 1, retain=True)
    ann.subscribe("a", 1)
    assert ann.hear()[2:] == ["a=1 q1 #1 retain"]
    ann.far.hang_up("lost")
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=1 q1 #1 dup retain"]


@pytest.mark.holds(v3="3.9.3-2")
@pytest.mark.parametrize(
    "name",
    ["$client/77", "$client/+", "$share/group/$queue/a", "$share/a", "$queue/+", "$queue/#"],
)
def test_what_nobody_may_subscribe_to(name: str) -> None:
    stage = Stage()
    ann = stage.device()
    ann.subscribe("a", 1, name, 1)
    assert ann.hear() == ["CONNACK 0", "SUBACK 5: 1 128"]
    assert list(stage.mqtt.sessions["ann"].subscriptions) == ["a"]


@pytest.mark.holds(v3="3.3.5-2 3.8.4-5")
def test_rights_refuse_a_filter_and_drop_a_publish() -> None:
    stage = Stage()
    stage.gate = Gate(ruled("readwrite mine/#", "deny yours/#"))
    ann = stage.device()
    ann.subscribe("mine/#", 1, "yours/#", 1)
    ann.publish("mine/a", qos=1)
    ann.publish("yours/a", qos=1, packet_id=2)
    assert ann.hear() == ["CONNACK 0", "SUBACK 5: 1 128", "mine/a=x q1 #1", "PUBACK 1", "PUBACK 2"]
    assert stage.broker.metrics.dropped == {"not allowed": 1}


@pytest.mark.parametrize("front", ["", "$share/g/"])
def test_a_filter_too_deep_is_refused_by_itself(front: str) -> None:
    stage = Stage()
    deep, deeper = "/" * (NAME_LEVELS - 1), "/" * NAME_LEVELS
    ann = stage.device()
    ann.subscribe(front + deep, 0, front + deeper, 0, "a", 1)
    ann.say(codec.unsubscribe(6, [(front + deeper).encode()]))
    assert ann.hear()[1:] == ["SUBACK 5: 0 128 1", "UNSUBACK 6"]
    ann.publish(deep)
    ann.publish(deeper)
    assert ann.hear() == [f"{deep}=x"]
    bob = Modern(stage)
    bob.hear()
    bob.subscribe(front + deeper, 0, "a", 1)
    assert bob.hear() == ["SUBACK 5: 0x8f 0x01"]


@pytest.mark.holds(v5="2.2.1-6", v3="2.3.1-7")
@pytest.mark.parametrize("clean", [True, False])
def test_answers_name_the_packet_id_of_what_they_answer(clean: bool) -> None:
    stage = Stage(prompt=clean)
    ann = stage.device("ann", clean)
    for packet_id in (1, 300, 5, 65_535):
        then = packet_id % 65_535 + 1
        ann.say(codec.subscribe(packet_id, [(b"a", 0)]), codec.unsubscribe(then, [b"a"]))
    stage.sync()
    assert ann.hear() == [
        "CONNACK 0",
        "SUBACK 1: 0", "UNSUBACK 2", "SUBACK 300: 0", "UNSUBACK 301",
        "SUBACK 5: 0", "UNSUBACK 6", "SUBACK 65535: 0", "UNSUBACK 1",
    ]  # fmt: skip


@pytest.mark.holds(
    v5="3.10.4-1 3.10.4-2 3.10.4-4 3.10.4-5 3.10.4-6",
    v3="3.10.4-1 3.10.4-2 3.10.4-4 3.10.4-5 3.10.4-6",
)
@pytest.mark.parametrize("clean", [True, False])
def test_unsubscribe(clean: bool) -> None:
    stage = Stage()
    ann = stage.device("ann", clean)
    ann.subscribe("a", 1, "b/#", 1)
    ann.say(codec.unsubscribe(6, [b"a", b"b/+", b"never"]))
    assert ann.hear()[2:] == ["UNSUBACK 6"]
    ann.publish("a")
    ann.publish("b/c")
    assert ann.hear() == ["b/c=x"]
    ann.say(codec.unsubscribe(7, [b"b/#"]))
    ann.publish("b/c")
    assert ann.hear() == ["UNSUBACK 7"]
    assert stage.mqtt.sessions["ann"].subscriptions == {}


@pytest.mark.holds(v5="3.10.4-3", v3="3.10.4-3")
def test_what_is_in_flight_when_it_unsubscribes_can_still_be_acknowledged() -> None:
    stage = Stage()
    ann = stage.device()
    ann.subscribe("a", 1)
    ann.publish("a", qos=1)
    ann.say(codec.unsubscribe(6, [b"a"]))
    ann.answer(codec.PUBACK, 1)
    assert stage.mqtt.sessions["ann"].backlog.in_flight() == 0


@pytest.mark.holds(v5="4.7.2-1", v3="4.7.2-1")
def test_names_with_a_dollar_match_no_leading_wildcard() -> None:
    stage = Stage()
    ann = stage.device()
    ann.subscribe("#", 0, "+/x", 0)
    ann.publish("$other/x", retain=True)
    assert ann.hear()[2:] == []
    ann.subscribe("$other/#", 0)
    assert ann.hear() == ["SUBACK 5: 0", "$other/x=x retain"]
    ann.publish("$other/x")
    assert ann.hear() == ["$other/x=x"]


def test_names_that_look_escaped_are_names_like_others() -> None:
    stage = Stage()
    ann = stage.device()
    ann.subscribe("a%41", 0)
    for topic in ("a%41", "a%2541", "aA"):
        ann.publish(topic)
        ann.publish(topic)
    assert ann.hear()[2:] == ["a%41=x", "a%41=x"]


# Direct messages


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_direct_messages(clean: bool, qos: int) -> None:
    stage = Stage()
    ann, bob = stage.device("ann", clean), stage.device("bob")
    address = f"$client/{stage.mqtt.sessions['ann'].number}"
    bob.publish(address, qos=qos)
    assert ann.hear() == ["CONNACK 0"], "only once it asked for them"
    ann.subscribe("$client/self", 2)
    bob.publish(address, qos=qos, packet_id=2)
    assert ann.hear() == ["SUBACK 5: 2", f"{address}=x" + f" q{qos} #1" * (qos > 0)]
    bob.publish("$client/self")
    assert (ann.hear(), bob.far.hear()[-4:]) != ([f"{address}=x"], b"")
    ann.answer(codec.PUBREC, 1)
    ann.answer(codec.PUBCOMP, 1)
    ann.say(codec.unsubscribe(6, [b"$client/self"]))
    ann.hear()
    bob.publish(address, qos=qos, packet_id=3)
    assert ann.hear() == []


def test_direct_messages_over_takeover_and_reconnect() -> None:
    stage = Stage()
    bob, ann = stage.device("bob"), stage.device("ann", clean=False)
    ann.subscribe("$client/self", 1)
    old = f"$client/{stage.mqtt.sessions['ann'].number}"
    bob.publish(old, qos=1)
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", f"{old}=x q1 #1 dup"]
    bob.publish(old)
    assert ann.hear() == [f"{old}=x"], "a takeover keeps the address"
    ann.far.hang_up("lost")
    bob.publish(old, qos=1)
    ann = stage.device("ann", clean=False)
    new = f"$client/{stage.mqtt.sessions['ann'].number}"
    bob.publish(old)
    bob.publish(new)
    assert ann.hear() == ["CONNACK 0 present", f"{old}=x q1 #1 dup", f"{new}=x"]


def test_nobody_publishes_to_all_by_subscribing_to_itself() -> None:
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.subscribe("$client/self", 0)
    ann.hear()
    bob.publish("$client/self")
    assert ann.hear() == []


def test_nothing_overtakes_the_answer_to_very_many_filters() -> None:
    """They are subscribed in turns, and between those others publish."""
    stage = Stage()
    ann, bob = stage.device("ann"), stage.device("bob")
    ann.hear()
    bob.hear()
    ann.far.connection.feed(codec.subscribe(5, [(b"a/%d" % n, 1) for n in range(300)]))
    assert ann.far.connection.working
    bob.far.connection.feed(codec.publish(b"a/3", b"x", 1, packet_id=1))
    ann.far.connection.feed(codec.PINGREQ_PACKET)
    stage.tick()
    words = ann.hear()
    assert words[0] == "SUBACK 5: " + " ".join("1" * 300)
    assert sorted(words[1:]) == ["PINGRESP", "a/3=x q1 #1"]


@pytest.mark.parametrize("broken", [b"\0\2a/", b"\0\1\xff\1"])
def test_a_packet_that_is_wrong_at_its_end_is_told_so(broken: bytes) -> None:
    stage = Stage()
    ann = Modern(stage)
    ann.hear()
    whole = codec.subscribe(5, [(b"a/%d" % n, 1) for n in range(900)], b"\0")
    body = whole[3:] + broken
    ann.far.connection.feed(codec.packet(codec.SUBSCRIBE, body))
    stage.tick()
    assert ann.hear() == ["DISCONNECT 0x81"] or ann.far.closed


def test_who_leaves_in_the_middle_of_very_many_filters_leaves_nothing() -> None:
    stage = Stage()
    ann = stage.device("ann")
    ann.far.connection.feed(codec.subscribe(5, [(b"a/%d" % n, 1) for n in range(500)]))
    ann.far.hang_up("lost")
    stage.tick()
    assert not stage.broker.matching("a/3") and not stage.broker.matching("a/499")


def test_so_many_user_properties_are_too_many() -> None:
    stage = Stage()
    ann = Modern(stage)
    ann.hear()
    few = Properties(user=[(b"k", b"v")] * USER_PROPERTIES)
    ann.publish("a", qos=1, properties=few)
    assert ann.hear() == ["PUBACK 1 0x10"]
    ann.publish("a", qos=1, properties=Properties(user=[*few.user, (b"k", b"v")]))
    assert ann.hear()[0].startswith("DISCONNECT 0x95")


@pytest.mark.parametrize(("count", "size"), [(USER_PROPERTIES + 1, 0), (2, CONNECT_PROPERTIES)])
def test_a_connect_with_too_much_is_told_so(count: int, size: int) -> None:
    """It is not malformed: what is too much here may not be elsewhere."""
    properties = Properties(user=[(b"", bytes(size // 2).replace(b"\0", b"v"))] * count)
    ann = Modern(Stage(), properties=properties)
    assert ann.hear() == ["CONNACK 0x95"] and ann.far.closed
