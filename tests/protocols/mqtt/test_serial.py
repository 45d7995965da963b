"""QoS 2 toward clients that accept nothing else in between: one exchange at a time."""

from __future__ import annotations

import pytest

from hubbub.core.limits import LINK_CHOKED
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.serial import CLIENTS, EXCLUSIVE_SECONDS
from tests.protocols.mqtt.conversation import Device, Stage

ANN = CLIENTS + "-ann"


def pair(stage: Stage, clean: bool = True) -> tuple[Device, Device]:
    ann, bob = stage.device(ANN, clean), stage.device("bob")
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


@pytest.mark.parametrize("clean", [True, False])
def test_every_answer_of_the_hub_waits_for_the_end_of_a_delivery(clean: bool) -> None:
    """The PUBREC for the client's own next PUBLISH too: it reads a PUBREL there, or is lost."""
    stage = Stage(prompt=False)
    ann, bob = pair(stage, clean)
    bob.publish("a", b"1", 2)
    stage.sync()
    assert ann.hear() == ["a=1 q2 #1"]
    ann.publish("b", b"x", 2, packet_id=7)
    ann.publish("b", b"y", 1, packet_id=8)
    ann.say(codec.PINGREQ_PACKET)
    ann.subscribe("c", 1)
    stage.sync()
    assert ann.hear() == []
    ann.answer(codec.PUBREC, 1)
    stage.sync()
    assert ann.hear() == ["PUBREL 1"]
    ann.answer(codec.PUBCOMP, 1)
    stage.sync()
    assert ann.hear() == ["PUBREC 7"], "now the client's own exchange is open"
    ann.answer(codec.PUBREL, 7)
    stage.sync()
    first, *others = ann.hear()
    assert first == "PUBCOMP 7"
    assert sorted(others) == ["PINGRESP", "PUBACK 8", "SUBACK 5: 1"]


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
    assert ann.hear() == ["PUBCOMP 7", "a=0", "a=own q2 #1"], "and its exchange is open now"


def test_what_stood_aside_and_waits_for_its_row_still_does() -> None:
    stage = Stage(prompt=False)
    ann, bob = pair(stage, clean=False)
    bob.publish("a", b"1", 2)
    stage.sync()
    ann.answer(codec.PUBREC, 1)
    stage.sync()
    assert ann.hear() == ["a=1 q2 #1", "PUBREL 1"]
    ann.publish("b", b"x", 1, packet_id=8)
    ann.subscribe("c", 1)
    ann.answer(codec.PUBCOMP, 1)
    bob.publish("a", b"2")
    assert ann.hear() == [], "behind the SUBACK, which is held"
    stage.sync()
    assert ann.hear() == ["PUBACK 8", "SUBACK 5: 1", "a=2"]


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
    ann.publish("b", b"x", 2, packet_id=7)
    stage.pass_time(EXCLUSIVE_SECONDS - 0.1)
    stage.mqtt.wake(stage.still.seconds)
    assert ann.hear() == ["a=1 q2 #1"]
    stage.pass_time(0.1)
    stage.mqtt.wake(stage.still.seconds)
    assert ann.hear() == ["PUBREC 7", "a=0"]
    bob.publish("a", b"2", 1)
    assert ann.hear() == ["a=2 q1 #2"]
    ann.answer(codec.PUBREC, 1)
    ann.answer(codec.PUBCOMP, 1)
    ann.answer(codec.PUBREL, 7)
    assert ann.hear() == ["PUBREL 1", "PUBCOMP 7"]
    assert not stage.mqtt.exchanging


def test_the_seconds_count_from_the_first_open_exchange() -> None:
    """A client that always has a publish of QoS 2 open still gets what waits for it."""
    stage = Stage()
    ann, bob = pair(stage)
    bob_said, heard = 0, []
    for turn in range(40):
        ann.publish("b", b"x", 2, packet_id=1 + turn)
        if turn:
            ann.answer(codec.PUBREL, turn)
        bob.publish("a", b"%d" % turn, turn % 2)
        bob_said += 1
        stage.pass_time(0.5)
        stage.mqtt.wake(stage.still.seconds)
        heard += [word for word in ann.hear() if word.startswith("a=")]
        ann.answer(codec.PUBACK, *range(1, turn + 2))
    assert len(heard) >= bob_said - 10, "all but what came in the last five seconds"
    ann.answer(codec.PUBREL, 40)
    heard += [word for word in ann.hear() if word.startswith("a=")]
    assert len(heard) == bob_said


def test_what_waits_is_never_dropped() -> None:
    stage = Stage()
    ann, bob = pair(stage)
    ann.publish("b", b"x", 2, packet_id=7)
    assert ann.hear() == ["PUBREC 7"]
    for _ in range(400):
        bob.publish("a", bytes(LINK_CHOKED // 100))
    ann.answer(codec.PUBREL, 7)
    heard = ann.hear()
    assert heard[0] == "PUBCOMP 7"
    assert len(heard) == 401
    assert not stage.broker.metrics.dropped


def test_a_new_connection_begins_free() -> None:
    stage = Stage()
    ann, bob = pair(stage, clean=False)
    ann.publish("a", b"own", 2, packet_id=7)
    ann.far.hang_up("lost")
    assert not stage.mqtt.exchanging
    ann = stage.device(ANN, clean=False)
    assert ann.hear() == ["CONNACK 0 present", "a=own q2 #1"]


@pytest.mark.parametrize("serial", [True, False])
def test_others_use_the_whole_window_unless_the_setting_says_otherwise(serial: bool) -> None:
    stage = Stage()
    stage.mqtt.qos2_serial = serial
    cid, bob = stage.device("cid"), stage.device("bob")
    cid.subscribe("a", 2)
    cid.hear()
    for packet_id, qos in enumerate((2, 0, 2, 1), 1):
        bob.publish("a", b"%d" % packet_id, qos, packet_id=packet_id)
    if serial:
        assert cid.hear() == ["a=1 q2 #1"]
        return
    assert cid.hear() == ["a=1 q2 #1", "a=2", "a=3 q2 #2", "a=4 q1 #3"]
    cid.publish("a", b"own", 2, packet_id=7)
    assert cid.hear() == ["PUBREC 7", "a=own q2 #4"]
