"""QoS 2 toward clients of 3.1 and 3.1.1: one exchange at a time, nothing in between."""

from __future__ import annotations

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.session import EXCLUSIVE_SECONDS
from tests.protocols.mqtt.conversation import Device, Stage


def pair(stage: Stage, clean: bool = True) -> tuple[Device, Device]:
    ann, bob = stage.device("ann", clean), stage.device("bob")
    ann.subscribe("a", 2)
    stage.sync()
    ann.hear()
    bob.hear()
    return ann, bob


def test_one_exchange_to_the_client_at_a_time() -> None:
    stage = Stage()
    ann, bob = pair(stage)
    for packet_id, qos in enumerate((2, 0, 1, 2, 0), 1):
        bob.publish("a", b"%d" % packet_id, qos, packet_id=packet_id)
    assert ann.hear() == ["a=1 q2 #1"]
    ann.answer(codec.PUBREC, 1)
    assert ann.hear() == ["PUBREL 1"]
    ann.answer(codec.PUBCOMP, 1)
    assert ann.hear() == ["a=2", "a=5", "a=3 q1 #2", "a=4 q2 #3"]


def test_nothing_comes_between_a_publish_and_its_pubcomp() -> None:
    stage = Stage()
    ann, bob = pair(stage)
    ann.publish("a", b"own", 2, packet_id=7)
    bob.publish("a", b"0")
    bob.publish("a", b"1", 1)
    assert ann.hear() == ["PUBREC 7"], "its own copy included"
    ann.answer(codec.PUBREL, 7)
    assert ann.hear() == ["PUBCOMP 7", "a=0", "a=own q2 #1"]
    ann.answer(codec.PUBREC, 1)
    ann.answer(codec.PUBCOMP, 1)
    assert ann.hear() == ["PUBREL 1", "a=1 q1 #2"]


def test_what_stood_aside_does_not_overtake_a_held_pubcomp() -> None:
    stage = Stage(prompt=False)
    ann, bob = pair(stage, clean=False)
    ann.publish("a", b"own", 2, packet_id=7)
    bob.publish("a", b"0")
    stage.sync()
    assert ann.hear() == ["PUBREC 7"]
    ann.answer(codec.PUBREL, 7)
    bob.publish("a", b"1")
    assert ann.hear() == [], "PUBCOMP waits for its row"
    stage.sync()
    assert ann.hear() == ["PUBCOMP 7", "a=0", "a=own q2 #1"]


def test_a_stray_pubrel_opens_nothing() -> None:
    stage = Stage()
    ann, bob = pair(stage)
    bob.publish("a", b"1", 2)
    assert ann.hear() == ["a=1 q2 #1"]
    ann.answer(codec.PUBREL, 99)
    bob.publish("a", b"0")
    assert ann.hear() == ["PUBCOMP 99"]


def test_after_5_seconds_the_others_go_on() -> None:
    """Also when the client says nothing at all: nobody but the clock wakes it."""
    stage = Stage()
    ann, bob = pair(stage)
    bob.publish("a", b"1", 2)
    bob.publish("a", b"0")
    stage.pass_time(EXCLUSIVE_SECONDS - 0.1)
    stage.mqtt.wake(stage.still.seconds)
    assert ann.hear() == ["a=1 q2 #1"]
    stage.pass_time(0.1)
    stage.mqtt.wake(stage.still.seconds)
    assert ann.hear() == ["a=0"]
    bob.publish("a", b"2", 1)
    assert ann.hear() == ["a=2 q1 #2"]
    ann.answer(codec.PUBREC, 1)
    ann.answer(codec.PUBCOMP, 1)
    assert ann.hear() == ["PUBREL 1"]


def test_a_new_connection_begins_free() -> None:
    stage = Stage()
    ann, bob = pair(stage, clean=False)
    ann.publish("a", b"own", 2, packet_id=7)
    ann.far.hang_up("lost")
    ann = stage.device("ann", clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=own q2 #1"]


def test_switched_off_the_whole_window_is_used() -> None:
    stage = Stage()
    stage.mqtt.qos2_serial = False
    ann, bob = pair(stage)
    for packet_id, qos in enumerate((2, 0, 2, 1), 1):
        bob.publish("a", b"%d" % packet_id, qos, packet_id=packet_id)
    assert ann.hear() == ["a=1 q2 #1", "a=2", "a=3 q2 #2", "a=4 q1 #3"]
    ann.publish("a", b"own", 2, packet_id=7)
    assert ann.hear() == ["a=own q2 #4", "PUBREC 7"]
