"""What the hub does not offer, by its settings: a highest QoS, no retained messages, few bytes."""

from __future__ import annotations

import msgspec
import pytest

from hubbub.config.settings import Limits, Settings
from hubbub.config.settings import Mqtt as MqttSettings
from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.conversation import Device, Stage
from tests.protocols.mqtt.modern import Modern


def offering(qos: int = 2, retained: int = 100) -> Stage:
    stage = Stage()
    limits = Limits(retained_messages=retained)
    stage.mqtt.apply(Settings(mqtt=MqttSettings(maximum_qos=qos), limits=limits))
    stage.broker.retained.most = retained
    return stage


@pytest.mark.holds(v5="3.2.2-9")
@pytest.mark.parametrize("qos", [0, 1])
def test_a_lower_qos_is_said_and_granted(qos: int) -> None:
    ann = Modern(offering(qos))
    assert ann.hear() == [f"CONNACK 0x00 maximum-QoS={qos}"]
    ann.subscribe("a", 2, "b", 0)
    assert ann.hear() == [f"SUBACK 5: {qos:#04x} 0x00"]


@pytest.mark.parametrize(("most", "qos"), [(0, 1), (0, 2), (1, 2)])
def test_a_publish_above_it_ends_the_connection(most: int, qos: int) -> None:
    stage = offering(most)
    ann = Modern(stage)
    ann.publish("a", qos=qos)
    assert ann.hear()[1:] == ["DISCONNECT 0x9b"]
    assert ann.far.closed
    old = Device(stage)
    old.say(codec.connect(b"old", True, 0))
    old.publish("a", qos=qos)
    assert old.hear() == ["CONNACK 0"]
    assert old.far.closed
    assert stage.broker.metrics.messages_in == 0


@pytest.mark.holds(v5="3.2.2-12")
def test_a_will_above_it_is_refused() -> None:
    ann = Modern(offering(1), will=codec.Will(b"gone", b"x", 2, False))
    assert ann.hear() == ["CONNACK 0x9b"]
    assert ann.far.closed


@pytest.mark.holds(v5="3.2.2-13")
def test_nothing_is_retained_where_no_room_is() -> None:
    stage = offering(retained=0)
    ann = Modern(stage)
    assert ann.hear() == ["CONNACK 0x00 retain-available=0"]
    ann.publish("a", retain=True)
    assert ann.hear() == ["DISCONNECT 0x9a"]
    bob = Modern(stage, "bob", will=codec.Will(b"gone", b"x", 0, True))
    assert bob.hear() == ["CONNACK 0x9a"]
    assert not stage.broker.state.retained


def test_the_next_delivery_waits_while_enough_bytes_are_on_their_way() -> None:
    stage = Stage()
    stage.broker.inflight_bytes = 10
    ann, bob = stage.device(), stage.device("bob")
    ann.subscribe("a", 1)
    for payload in (b"4444", b"55555", b"6", b"large " * 10, b"last"):
        bob.publish("a", payload, 1)
    assert ann.hear()[2:] == ["a=4444 q1 #1", "a=55555 q1 #2", "a=6 q1 #3"]
    ann.answer(codec.PUBACK, 1)
    assert ann.hear() == ["a=" + "large " * 10 + " q1 #4"], (
        "one may be on its way whatever its size"
    )
    ann.answer(codec.PUBACK, 2, 3)
    assert ann.hear() == []
    ann.answer(codec.PUBACK, 4)
    assert ann.hear() == ["a=last q1 #5"]


def narrow(**settings: int | bool) -> Stage:
    stage = Stage()
    stage.mqtt.apply(Settings(mqtt=msgspec.convert(settings, MqttSettings)))
    return stage


@pytest.mark.parametrize(
    ("setting", "said", "name", "code"),
    [
        ("wildcard_subscriptions", "wildcard-subscription-available=0", "a/#", 0xA2),
        ("shared_subscriptions", "shared-subscription-available=0", "$share/g/a", 0x9E),
    ],
)
def test_subscriptions_that_are_not_offered(
    setting: str, said: str, name: str, code: int
) -> None:
    stage = narrow(**{setting: False})
    ann = Modern(stage)
    assert ann.hear() == [f"CONNACK 0x00 {said}"]
    ann.subscribe("a", 1, "b", 2)
    assert ann.hear() == ["SUBACK 5: 0x01 0x02"]
    ann.subscribe(name, 1)
    assert ann.hear() == [f"DISCONNECT {code:#04x}"]
    assert ann.far.closed
    old = stage.device("old")
    old.subscribe("a", 1)
    old.subscribe(name, 1)
    assert old.hear() == ["CONNACK 0", "SUBACK 5: 1", "SUBACK 5: 128"]
    assert not old.far.closed


def test_clients_that_come_too_fast_are_told_to_try_again() -> None:
    stage = narrow(connect_rate=2)
    assert Modern(stage, "a").hear() == ["CONNACK 0x00"]
    assert stage.device("b").hear() == ["CONNACK 0"]
    late = Modern(stage, "c")
    assert (late.hear(), late.far.closed) == (["CONNACK 0x9f"], True)
    assert stage.device("d").hear() == ["CONNACK 3"]
    stage.pass_time(1)
    assert Modern(stage, "c").hear() == ["CONNACK 0x00"]


@pytest.mark.parametrize(("asked", "code"), [(0, 0), (60, 0), (61, 2)])
def test_a_longer_keep_alive_is_refused_before_5_0_where_the_setting_says_so(
    asked: int, code: int
) -> None:
    stage = Stage()
    stage.mqtt.apply(Settings(mqtt=MqttSettings(max_keepalive=60, refuse_keepalive=True)))
    assert stage.device(keep_alive=asked).hear() == [f"CONNACK {code}"]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_large_payload_is_acknowledged_and_dropped(qos: int) -> None:
    """Clients of 5.0 are told; one after the other, and in a run."""
    stage = Stage()
    stage.mqtt.apply(Settings(mqtt=MqttSettings(payload_bytes=50)))
    ann, old, new = stage.device("ann"), stage.device("old"), Modern(stage, "new")
    ann.subscribe("a", 0)
    for device in (ann, old, new):
        device.hear()
    for size in (51, 50, 200):
        old.publish("a", bytes(size), qos, packet_id=size)
        new.publish("a", bytes(size), qos, packet_id=size)
    assert len(ann.hear()) == 2
    answers = ["", "PUBACK", "PUBREC"]
    if qos:
        assert old.hear() == [f"{answers[qos]} {size}" for size in (51, 50, 200)]
        assert [word.split()[2:] for word in new.hear()] == [["0x97"], [], ["0x97"]]
    assert stage.broker.metrics.dropped["quota exceeded"] == 4
    told = [one.text for one in stage.broker.audit.refusals.last(None, None)]
    assert len(told) == 4
    assert "(client 'old') may not publish 'a': refused by mqtt.payload_bytes = 50 (51" in str(told)
    bad = stage.silent()
    bad.say(codec.connect(b"bad", True, 0, codec.Will(b"w", bytes(51), 0, False)))
    assert bad.hear() == ["CONNACK 5"]
    assert bad.far.closed


@pytest.mark.parametrize("size", [20, 60, 300])
def test_packets_are_counted_with_their_header(size: int) -> None:
    """Also those of less than 128 bytes."""
    stage = Stage()
    stage.mqtt.apply(Settings(limits=Limits(message_bytes=size)))
    for more in (0, 1):
        ann = stage.device("ann")
        empty = len(codec.publish(b"a", bytes(size - 10), 0)) - (size - 10)
        packet = codec.publish(b"a", bytes(size - empty + more), 0)
        assert len(packet) == size + more
        ann.say(packet)
        assert ann.far.closed is bool(more)
