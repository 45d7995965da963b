"""MQTT 5.0, feature by feature: what 3.1.1 does not have."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hubbub.config.settings import Mqtt as MqttSettings
from hubbub.config.settings import Settings
from hubbub.core.gate import Credentials, Gate
from hubbub.core.rights import TOO_BUSY, Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.core.recording import Hasty, StillClock
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern, in_words, told


def pair(stage: Stage, options: int = 0, identifier: int = 0) -> tuple[Modern, Modern]:
    """Bob publishes, ann listens to a/#."""
    ann, bob = Modern(stage, "ann"), Modern(stage, "bob")
    ann.subscribe("a/#", options, identifier=identifier)
    assert ann.hear() == ["CONNACK 0x00", f"SUBACK 5: {options & 3:#04x}"]
    assert bob.hear() == ["CONNACK 0x00"]
    return ann, bob


# Connecting


@pytest.mark.holds(v5="3.1.3-6 3.1.3-7 3.2.2-16")
def test_a_client_without_id_is_told_its_own() -> None:
    stage = Stage()
    device = Modern(stage, "", clean=False)
    [word] = device.hear()
    [name] = stage.mqtt.sessions
    assert word == f"CONNACK 0x00 assigned-client-identifier={name}"


@pytest.mark.holds(v5="3.1.2-22 3.2.2-22")
@pytest.mark.parametrize(("asked", "told_", "patience"), [(30, -1, 45), (0, 60, 90), (120, 60, 90)])
def test_keep_alive(asked: int, told_: int, patience: float) -> None:
    stage = Stage()
    device = Modern(stage, keep_alive=asked)
    word = f" server-keep-alive={told_}" if told_ >= 0 else ""
    assert device.hear() == ["CONNACK 0x00" + word]
    stage.pass_time(patience - 0.1)
    device.wake()
    assert not device.far.closed
    stage.pass_time(0.2)
    device.wake()
    assert device.hear() == ["DISCONNECT 0x8d"]
    assert device.far.closed


def test_limits_are_announced() -> None:
    stage = Stage()
    device = Modern(stage)
    data = device.far.hear()
    numbers = codec.parse_answer(codec.CONNACK, data[2:]).properties.numbers
    assert numbers == {
        spec.RECEIVE_MAXIMUM: 1000,
        spec.MAXIMUM_PACKET: 64 * 1024 * 1024,
        spec.TOPIC_ALIAS_MAXIMUM: 100,
    }


def test_settings_are_taken_while_it_runs() -> None:
    stage = Stage()
    settings = MqttSettings(max_keepalive=10, receive_maximum=5, topic_alias_maximum=0)
    stage.mqtt.apply(Settings(mqtt=settings))
    device = Modern(stage)
    numbers = codec.parse_answer(codec.CONNACK, device.far.hear()[2:]).properties.numbers
    assert numbers[spec.SERVER_KEEP_ALIVE] == 10
    assert numbers[spec.RECEIVE_MAXIMUM] == 5
    assert numbers[spec.TOPIC_ALIAS_MAXIMUM] == 0


def test_who_is_ended_for_a_shorter_keep_alive_than_it_asked_for_is_told_by_what() -> None:
    """Paho Python 2.1 and Paho C++ 1.2 heed no Server Keep Alive: who runs the hub finds out."""
    stage = Stage()
    device = Modern(stage, keep_alive=600)
    device.far.connection.wake(stage.clock.now() + 91)
    assert "nothing for 91.0 s; it was told 60 s, mqtt.max_keepalive" in device.far.link.reason


@pytest.mark.holds(v5="3.1.2-28")
def test_response_information_is_the_own_address() -> None:
    stage = Stage()
    device = Modern(stage, properties=told({spec.REQUEST_RESPONSE: 1}))
    number = stage.mqtt.sessions["ann"].number
    assert device.hear() == [f"CONNACK 0x00 response-information=$client/{number}"]
    device.subscribe(f"$client/{number}", 1)
    bob = Modern(stage, "bob")
    bob.publish(f"$client/{number}", b"hi", 1)
    assert device.hear() == ["SUBACK 5: 0x01", f"$client/{number}=hi q1 #1"]


@pytest.mark.holds(v5="3.1.4-3")
def test_takeover_says_why() -> None:
    stage = Stage()
    first = Modern(stage)
    first.hear()
    Modern(stage)
    assert first.hear() == ["DISCONNECT 0x8e"]
    assert first.far.closed


def test_shutdown_says_why_and_where_to_go() -> None:
    stage = Stage()
    first, second = Modern(stage, "ann"), Modern(stage, "bob")
    first.hear(), second.hear()
    first.far.connection.goodbye()
    assert first.hear() == ["DISCONNECT 0x8b"]
    stage.mqtt.server_reference = "other:1883"
    second.far.connection.goodbye()
    assert second.hear() == ["DISCONNECT 0x9c server-reference=other:1883"]


def test_who_has_nothing_here_may_go_to_another_node() -> None:
    stage = Stage()
    stage.broker.elsewhere = lambda: ["one:1883", "two:1883"]
    passing = Modern(stage, "ann")
    lasting = Modern(stage, "bob", properties=told({spec.SESSION_EXPIRY: 60}))
    passing.hear(), lasting.hear()
    passing.far.connection.goodbye()
    lasting.far.connection.goodbye()
    (said,) = passing.hear()
    places = said.removeprefix("DISCONNECT 0x9c server-reference=").split()
    assert sorted(places) == ["one:1883", "two:1883"]
    assert lasting.hear() == ["DISCONNECT 0x8b"]


def test_who_is_ended_by_the_program_is_told() -> None:
    stage = Stage()
    ann = Modern(stage, "ann")
    ann.hear()
    stage.mqtt.sessions["ann"].goodbye("enough")
    assert (ann.hear(), ann.far.closed) == (["DISCONNECT 0x98"], True)


class Busy(Gate):
    def authenticate(
        self, credentials: Credentials, done: Callable[[Rights | None, str], None]
    ) -> None:
        done(None, TOO_BUSY)


def test_who_finds_the_gate_too_busy_is_told() -> None:
    stage = Stage()
    stage.gate = Busy(stage.broker.open)
    assert Modern(stage, "ann").hear() == ["CONNACK 0x89"]
    assert stage.device("bob").hear() == ["CONNACK 3"]


@pytest.mark.parametrize(("moved", "code"), [(False, "0x9c"), (True, "0x9d")])
def test_redirection(moved: bool, code: str) -> None:
    stage = Stage()
    stage.mqtt.server_reference, stage.mqtt.server_moved = "other", moved
    device = Modern(stage)
    assert device.hear() == [f"CONNACK {code} server-reference=other"]
    assert device.far.closed
    assert stage.device().hear() == ["CONNACK 3"]


@pytest.mark.holds(v5="3.1.2-29")
def test_reason_strings_only_if_they_are_wanted() -> None:
    stage = Stage()
    for wanted in (0, 1):
        device = Modern(stage, properties=told({spec.REQUEST_PROBLEM: wanted}))
        device.hear()
        device.say(codec.connect(b"ann", True, 0, properties=codec.Properties()))
        data = device.far.hear()
        ending = codec.parse_ending(codec.DISCONNECT, data[2:])
        assert ending.code == spec.PROTOCOL
        assert (spec.REASON_STRING in ending.properties.texts) == bool(wanted)


# Sessions


@pytest.mark.holds(v5="3.1.2-5 3.1.2-6 3.1.2-23 3.2.2-3")
def test_a_session_ends_with_its_connection_unless_it_says_how_long_it_lasts() -> None:
    stage = Stage()
    for expiry, present in ((0, ""), (10, " present")):
        device = Modern(stage, properties=told({spec.SESSION_EXPIRY: expiry}))
        device.hear()
        device.far.hang_up("cable cut")
        stage.pass_time(9)
        stage.mqtt.wake(0)
        again = Modern(stage, clean=False)
        assert again.hear() == ["CONNACK 0x00" + present]
        again.disconnect()
        assert stage.mqtt.sessions == {} and stage.broker.state.sessions == {}


@pytest.mark.holds(v5="3.1.2-23 4.1.0-2")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_session_expires(crash: bool, snapshot: bool) -> None:
    stage = Stage()
    device = Modern(stage, properties=told({spec.SESSION_EXPIRY: 10}))
    device.subscribe("a", 1)
    device.far.hang_up("cable cut")
    if crash:
        seconds = stage.still.seconds
        stage = restarted(stage, snapshot)
        stage.still.seconds = seconds
    stage.pass_time(9.9)
    stage.mqtt.wake(0)
    assert list(stage.mqtt.sessions) == ["ann"]
    stage.pass_time(0.2)
    stage.mqtt.wake(0)
    assert stage.mqtt.sessions == {} and stage.broker.state.sessions == {}
    assert stage.broker.filters.match("a") == []


def test_very_many_sessions_end_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one network end in the same second: 5,000 with a will took 100 ms, in one turn."""
    stage = Stage()
    ann, _ = pair(stage)
    for number in range(500):
        will = codec.Will(b"a/w", b"gone", 0, False, told({spec.WILL_DELAY: 10}))
        device = Modern(stage, f"d{number}", False, told({spec.SESSION_EXPIRY: 10}), will)
        device.far.hang_up("cable cut")
    monkeypatch.setattr(StillClock, "now", Hasty.now)
    monkeypatch.setattr(StillClock, "spent", Hasty.spent)
    stage.pass_time(10)
    stage.mqtt.wake(0)
    left = len(stage.broker.state.sessions)
    assert 400 < left < 500
    stage.mqtt.wake(0)
    assert len(stage.broker.state.sessions) == left  # that goes on already
    stage.tick()
    assert stage.broker.state.sessions == {} and ann.hear() == ["a/w=gone"] * 500


@pytest.mark.holds(v5="4.1.0-2")
@pytest.mark.parametrize("undecided", [False, True])
def test_a_session_whose_time_ended_while_the_hub_was_down_is_not_resumed_behind_the_start(
    undecided: bool,
) -> None:
    """Its client is there before sessions are looked at: at once, or while a node does not know yet
    who is connected elsewhere.
    """
    stage = Stage()
    device = Modern(stage, properties=told({spec.SESSION_EXPIRY: 10}))
    device.subscribe("a", 1)
    device.far.hang_up("cable cut")
    seconds = stage.still.seconds
    stage = restarted(stage, False)
    stage.still.seconds = seconds
    stage.broker.undecided = undecided
    stage.pass_time(10.1)
    if undecided:
        stage.mqtt.wake(0)
    back = Modern(stage, properties=told({spec.SESSION_EXPIRY: 10}), clean=False)
    assert back.hear() == ["CONNACK 0x00"]
    assert stage.broker.filters.match("a") == []


def test_the_time_of_a_session_runs_from_the_crash_on() -> None:
    stage = Stage()
    Modern(stage, properties=told({spec.SESSION_EXPIRY: 10}))
    state = stage.broker.state.sessions["mqtt", "ann"]
    stage.pass_time(100)
    stage.broker.recover([stage.mqtt])
    assert state.expires == (1100 + 10) * 1_000_000


def test_disconnect_may_change_the_expiry_but_not_from_nothing() -> None:
    stage = Stage()
    device = Modern(stage, properties=told({spec.SESSION_EXPIRY: 10}))
    device.disconnect(0, told({spec.SESSION_EXPIRY: 0}))
    assert stage.broker.state.sessions == {}
    device = Modern(stage)
    device.hear()
    device.say(codec.disconnect(0, told({spec.SESSION_EXPIRY: 5}).encode()))
    assert device.hear() == ["DISCONNECT 0x82"]


def test_a_session_that_never_ends_and_one_that_the_hub_shortens() -> None:
    stage = Stage()
    month = Modern(stage, "cat", properties=told({spec.SESSION_EXPIRY: spec.NEVER}))
    assert month.hear() == ["CONNACK 0x00 session-expiry-interval=2419200"]
    stage.mqtt.max_session_expiry = spec.NEVER
    Modern(stage, properties=told({spec.SESSION_EXPIRY: spec.NEVER})).far.hang_up("lost")
    assert stage.broker.state.sessions["mqtt", "ann"].expires == 0
    stage.mqtt.max_session_expiry = 60
    device = Modern(stage, "bob", properties=told({spec.SESSION_EXPIRY: spec.NEVER}))
    assert device.hear() == ["CONNACK 0x00 session-expiry-interval=60"]


def test_a_session_changes_its_version() -> None:
    stage = Stage()
    old = stage.device("ann", clean=False)
    old.subscribe("a", 1)
    old.far.hang_up("lost")
    bob = Modern(stage, "bob")
    bob.publish("a", b"1", 1, properties=told(None, {spec.CONTENT_TYPE: b"text/plain"}))
    new = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    assert new.hear() == ["CONNACK 0x00 present", "a=1 q1 #1 content-type=text/plain"]
    bob.publish("a", b"2")
    assert new.hear() == ["a=2"]
    new.far.hang_up("lost")
    old = stage.device("ann", clean=False)
    bob.publish("a", b"3")
    assert old.hear() == ["CONNACK 0 present", "a=1 q1 #1 dup", "a=3"]


# Wills


def test_a_will_with_properties_and_expiry() -> None:
    stage = Stage()
    ann, _ = pair(stage)
    properties = told({spec.MESSAGE_EXPIRY: 7}, {spec.CONTENT_TYPE: b"t"}, k="v")
    will = codec.Will(b"a/w", b"gone", 0, False, properties)
    Modern(stage, "cy", will=will).far.hang_up("lost")
    assert ann.hear() == ["a/w=gone message-expiry-interval=7 content-type=t k:v"]


@pytest.mark.holds(v5="3.1.2-8 3.1.2-10 3.14.4-3")
def test_disconnect_with_will() -> None:
    stage = Stage()
    ann, _ = pair(stage)
    for code, heard in ((spec.SUCCESS, []), (spec.WITH_WILL, ["a/w=gone"])):
        Modern(stage, "cy", will=codec.Will(b"a/w", b"gone", 0, False)).disconnect(code)
        assert ann.hear() == heard


def delayed(stage: Stage, delay: int, expiry: int) -> Modern:
    will = codec.Will(b"a/w", b"gone", 1, False, told({spec.WILL_DELAY: delay}))
    return Modern(stage, "cy", False, told({spec.SESSION_EXPIRY: expiry}), will)


@pytest.mark.holds(v5="3.1.2-8")
@pytest.mark.parametrize(("delay", "expiry", "due"), [(5, 10, 5), (10, 5, 5), (5, 0, 0), (0, 9, 0)])
def test_a_will_is_published_after_its_delay_or_at_the_end_of_the_session(
    delay: int, expiry: int, due: int
) -> None:
    stage = Stage()
    ann, _ = pair(stage)
    delayed(stage, delay, expiry).far.hang_up("lost")
    if due:
        stage.pass_time(due - 0.1)
        stage.mqtt.wake(0)
        assert ann.hear() == []
        stage.pass_time(0.2)
        stage.mqtt.wake(0)
    assert ann.hear() == ["a/w=gone"]
    stage.pass_time(20)
    stage.mqtt.wake(0)
    assert ann.hear() == []


@pytest.mark.holds(v5="3.1.3-9")
def test_who_comes_back_in_time_cancels_its_will() -> None:
    stage = Stage()
    ann, _ = pair(stage)
    delayed(stage, 5, 10).far.hang_up("lost")
    stage.pass_time(4)
    Modern(stage, "cy", False, told({spec.SESSION_EXPIRY: 10})).disconnect()
    stage.pass_time(4)
    stage.mqtt.wake(0)
    assert ann.hear() == []
    delayed(stage, 5, 10).far.hang_up("lost")
    Modern(stage, "cy", True)
    assert ann.hear() == ["a/w=gone"], "a clean start ends the session, and with it the delay"


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("lost_before", [False, True])
def test_a_delayed_will_survives_a_crash(snapshot: bool, lost_before: bool) -> None:
    before = Stage()
    device = delayed(before, 5, 10)
    if lost_before:
        device.far.hang_up("lost")
    stage = restarted(before, snapshot)
    ann, _ = pair(stage)
    stage.pass_time(4.9)
    stage.mqtt.wake(0)
    assert ann.hear() == []
    stage.pass_time(0.2)
    stage.mqtt.wake(0)
    assert ann.hear() == ["a/w=gone"]
    again = restarted(stage, snapshot)
    ann, _ = pair(again)
    again.pass_time(4)
    again.mqtt.wake(0)
    assert ann.hear() == []


# Messages


@pytest.mark.holds(v5="3.3.2-4 3.3.2-15 3.3.2-16 3.3.2-17 3.3.2-18 3.3.2-20")
def test_properties_pass_and_user_properties_keep_their_order() -> None:
    stage = Stage()
    ann, bob = pair(stage)
    properties = told(
        {spec.MESSAGE_EXPIRY: 9, spec.PAYLOAD_FORMAT: 1},
        {spec.CONTENT_TYPE: b"text/plain", spec.RESPONSE_TOPIC: b"r/1", spec.CORRELATION: b"c"},
    )
    properties.user = [(b"b", b"1"), (b"a", b"2"), (b"b", b"3")]
    old = stage.device("old")
    old.subscribe("a/#", 0)
    old.hear()
    for qos in (0, 1, 2):
        bob.publish("a/b", b"x", qos, properties=properties)
        assert ann.hear() == ["a/b=x" + in_words(properties)]
        assert old.hear() == ["a/b=x"]


@pytest.mark.parametrize("qos", [1, 2])
def test_properties_pass_through_the_journal(qos: int) -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    ann.subscribe("a/#", qos)
    ann.far.hang_up("lost")
    bob = Modern(stage, "bob")
    properties = told({spec.PAYLOAD_FORMAT: 1}, {spec.RESPONSE_TOPIC: b"r"}, k="v")
    bob.publish("a/b", b"x", qos, properties=properties)
    again = restarted(stage)
    ann = Modern(again, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    assert ann.hear()[1:] == [f"a/b=x q{qos} #1" + in_words(properties)]


@pytest.mark.holds(v5="3.3.2-5 3.3.2-6")
def test_a_message_expires_and_says_what_is_left() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    ann.subscribe("a", 1)
    ann.far.hang_up("lost")
    bob = Modern(stage, "bob")
    for expiry in (3, 10):
        bob.publish("a", b"%d" % expiry, 1, properties=told({spec.MESSAGE_EXPIRY: expiry}))
    bob.publish("r", b"kept", 0, True, properties=told({spec.MESSAGE_EXPIRY: 5}))
    stage.pass_time(4)
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    assert ann.hear()[1:] == ["a=10 q1 #2 message-expiry-interval=6"]
    assert stage.broker.metrics.dropped == {"expired": 1}
    bob.hear()
    bob.subscribe("r", 0)
    assert bob.hear() == ["SUBACK 5: 0x00", "r=kept retain message-expiry-interval=1"]
    stage.pass_time(4)
    bob.subscribe("r", 0)
    assert bob.hear() == ["SUBACK 5: 0x00"]


@pytest.mark.holds(v5="3.4.2-1 3.5.2-1 3.7.2-1 3.11.3-2")
def test_reason_codes_of_acknowledgements() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("nobody", qos=1, packet_id=3)
    bob.publish("nobody", qos=2, packet_id=4)
    bob.answer(codec.PUBREL, 4)
    bob.answer(codec.PUBREL, 9)
    bob.publish("nobody", b"\xff", 1, packet_id=5, properties=told({spec.PAYLOAD_FORMAT: 1}))
    bob.publish("nobody", b"\xff", 2, packet_id=6, properties=told({spec.PAYLOAD_FORMAT: 1}))
    bob.unsubscribe("a")
    assert bob.hear() == [
        "CONNACK 0x00", "PUBACK 3 0x10", "PUBREC 4 0x10", "PUBCOMP 4", "PUBCOMP 9 0x92",
        "PUBACK 5 0x99", "PUBREC 6 0x99", "UNSUBACK 6: 0x11",
    ]  # fmt: skip
    bob.publish("nobody", b"\xff", 0, properties=told({spec.PAYLOAD_FORMAT: 1}))
    assert bob.hear() == ["DISCONNECT 0x99"]


@pytest.mark.holds(v5="4.4.0-2")
def test_a_receiver_may_refuse() -> None:
    stage = Stage()
    ann, bob = pair(stage, 2)
    bob.publish("a/b", b"1", 1)
    bob.publish("a/b", b"2", 2, packet_id=2)
    assert ann.hear() == ["a/b=1 q1 #1", "a/b=2 q2 #2"]
    ann.say(codec.acknowledgement(codec.PUBACK, 1, spec.QUOTA))
    ann.say(codec.acknowledgement(codec.PUBREC, 2, spec.QUOTA))
    assert ann.hear() == [], "no PUBREL: the exchange is over"
    assert stage.mqtt.sessions["ann"].backlog.in_flight() == 0
    ann.answer(codec.PUBREC, 77)
    assert ann.hear() == ["PUBREL 77 0x92"]


# Flow


@pytest.mark.holds(v5="3.3.4-9 4.9.0-1 4.9.0-2")
def test_the_window_is_the_smaller_receive_maximum() -> None:
    stage = Stage()
    ann = Modern(stage, properties=told({spec.RECEIVE_MAXIMUM: 2}))
    ann.subscribe("a", 2)
    bob = Modern(stage, "bob")
    for number in range(4):
        bob.publish("a", b"%d" % number, 1 + number % 2, packet_id=number + 1)
    assert ann.hear()[2:] == ["a=0 q1 #1", "a=1 q2 #2"]
    ann.answer(codec.PUBACK, 1)
    ann.answer(codec.PUBREC, 2)
    assert ann.hear() == ["a=2 q1 #3", "PUBREL 2"]
    ann.answer(codec.PUBCOMP, 2)
    assert ann.hear() == ["a=3 q2 #4"]


@pytest.mark.holds(v5="3.3.4-7")
@pytest.mark.parametrize("qos", [1, 2])
def test_a_publisher_that_does_not_keep_to_the_receive_maximum(qos: int) -> None:
    stage = Stage(prompt=False)
    stage.mqtt.receive_maximum = 10
    bob = Modern(stage, "bob")
    stage.sync()
    for number in range(1, 11):
        bob.publish("a", b"x", qos, packet_id=number)
    assert not bob.far.closed
    stage.sync()
    for number in range(1, 11):
        if qos == 2:
            bob.answer(codec.PUBREL, number)
        bob.publish("a", b"x", qos, packet_id=number)
        stage.sync()
    assert not bob.far.link.closing
    bob.hear()
    for number in range(11, 23):
        bob.publish("a", b"x", qos, packet_id=number)
    stage.sync()
    assert bob.hear()[-1] == "DISCONNECT 0x93"
    assert bob.far.closed


@pytest.mark.holds(v5="3.3.2-12")
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_topic_aliases_of_the_publisher(qos: int) -> None:
    stage = Stage()
    ann, bob = pair(stage)
    alias = told({spec.TOPIC_ALIAS: 3})
    bob.publish("a/b", b"1", qos, packet_id=1, properties=alias)
    bob.publish("", b"2", qos, packet_id=2, properties=alias)
    bob.publish("a/c", b"3", qos, packet_id=3, properties=alias)
    bob.publish("", b"4", qos, packet_id=4, properties=alias)
    assert ann.hear() == ["a/b=1", "a/b=2", "a/c=3", "a/c=4"]


@pytest.mark.holds(v5="3.3.2-8")
@pytest.mark.parametrize(
    ("topic", "alias", "code"), [("", 5, "0x82"), ("a", 0, "0x94"), ("a", 101, "0x94")]
)
def test_topic_aliases_that_are_not(topic: str, alias: int, code: str) -> None:
    stage = Stage()
    _, bob = pair(stage)
    bob.publish(topic, properties=told({spec.TOPIC_ALIAS: alias}))
    assert bob.hear() == [f"DISCONNECT {code}"]


@pytest.mark.holds(v5="3.1.2-26 3.3.2-11")
def test_the_hub_uses_topic_aliases() -> None:
    stage = Stage()
    ann = Modern(stage, properties=told({spec.TOPIC_ALIAS_MAXIMUM: 1}))
    ann.subscribe("a/#", 2)
    bob = Modern(stage, "bob")
    ann.hear()
    bob.publish("a/2", b"x", 2)
    for qos in (0, 1, 2):
        bob.publish("a/b", b"%d" % qos, qos, packet_id=qos + 1)
    bob.publish("a/c")
    assert ann.hear() == [
        "a/2=x q2 #1", "a/b=0 topic-alias=1", "=1 q1 #2 topic-alias=1", "=2 q2 #3 topic-alias=1",
        "a/c=x",
    ]  # fmt: skip


def test_a_setting_says_how_many_topic_aliases_the_hub_uses() -> None:
    """There are clients that announce some and keep none: with 0 they are told every topic."""
    stage = Stage()
    stage.mqtt.topic_aliases_sent = 1
    ann = Modern(stage, properties=told({spec.TOPIC_ALIAS_MAXIMUM: 10}))
    stage.mqtt.topic_aliases_sent = 0
    low = Modern(stage, "low", properties=told({spec.TOPIC_ALIAS_MAXIMUM: 10}))
    for one in (ann, low):
        one.subscribe("a/#", 0)
        one.hear()
    bob = Modern(stage, "bob")
    for topic in ("a/b", "a/b", "a/c"):
        bob.publish(topic)
    assert ann.hear() == ["a/b=x topic-alias=1", "=x topic-alias=1", "a/c=x"]
    assert low.hear() == ["a/b=x", "a/b=x", "a/c=x"]


@pytest.mark.holds(v5="3.1.2-24 3.1.2-25")
@pytest.mark.parametrize("qos", [0, 1])
def test_what_is_too_large_for_a_client_is_never_sent(qos: int) -> None:
    stage = Stage()
    ann = Modern(stage, properties=told({spec.MAXIMUM_PACKET: 30}))
    ann.subscribe("a", qos)
    bob = Modern(stage, "bob")
    ann.hear()
    for packet_id, payload in enumerate((b"1", bytes(40), b"3"), 1):
        bob.publish("a", payload, qos, packet_id=packet_id)
    heard = [word.split(" ")[0] for word in ann.hear()]
    assert heard == ["a=1", "a=3"]
    assert stage.mqtt.sessions["ann"].dropped == {"packet too large for the client": 1}


def test_a_packet_that_is_too_large_for_the_hub() -> None:
    stage = Stage()
    stage.mqtt.message_bytes = 1000
    bob = Modern(stage, "bob")
    bob.hear()
    bob.publish("a", bytes(1000))
    assert bob.hear() == ["DISCONNECT 0x95"]


def test_runs_without_properties_are_one_run() -> None:
    stage = Stage()
    ann, bob = pair(stage, 1)
    packets = [
        codec.publish(b"a/b", b"%d" % n, qos, False, n + 1, False, said)
        for n, (qos, said) in enumerate(
            [(1, b"\0")] * 3 + [(1, told({spec.TOPIC_ALIAS: 1}).encode())] + [(0, b"\0")] * 3
        )
    ]
    bob.say(*packets)
    assert bob.hear() == ["PUBACK 1", "PUBACK 2", "PUBACK 3", "PUBACK 4"]
    assert ann.hear() == [
        "a/b=0 q1 #1", "a/b=1 q1 #2", "a/b=2 q1 #3", "a/b=3 q1 #4", "a/b=4", "a/b=5", "a/b=6",
    ]  # fmt: skip


def test_a_run_ends_where_properties_begin() -> None:
    """The packets are equally long and begin alike, but the second has a property."""
    stage = Stage()
    ann, bob = pair(stage, 1)
    said = told({spec.PAYLOAD_FORMAT: 1}).encode()
    bob.say(
        codec.publish(b"a/b", b"xxx", 1, False, 1, False, b"\0"),
        codec.publish(b"a/b", b"y", 1, False, 2, False, said),
        codec.publish(b"a/b", b"zzz", 1, False, 3, False, b"\0"),
    )
    assert ann.hear() == [
        "a/b=xxx q1 #1", "a/b=y q1 #2 payload-format-indicator=1", "a/b=zzz q1 #3",
    ]  # fmt: skip


# Subscriptions


@pytest.mark.holds(v5="3.3.4-3 3.3.4-4")
def test_one_message_carries_all_identifiers_that_match() -> None:
    stage = Stage()
    ann, bob = pair(stage, 1, identifier=7)
    ann.subscribe("a/b", 2, identifier=9)
    ann.subscribe("a/+", 0)
    assert len(ann.hear()) == 2
    for qos in (0, 1, 2):
        bob.publish("a/b", b"x", qos, packet_id=qos + 1)
    assert ann.hear() == [
        "a/b=x id=7 id=9", "a/b=x q1 #1 id=7 id=9", "a/b=x q2 #2 id=7 id=9",
    ]  # fmt: skip
    bob.publish("a/c")
    assert ann.hear() == ["a/c=x id=7"]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_retained_message_carries_what_the_subscription_asked_that_it_comes_for(
    lasting: bool,
) -> None:
    stage = Stage()
    Modern(stage, "bob").publish("a/b", b"kept", 1, True)
    expiry = told({spec.SESSION_EXPIRY: 100 * lasting})
    ann = Modern(stage, "ann", False, expiry)
    for number, (name, identifier) in enumerate([("a/b", 7), ("a/+", 9), ("#", 0)], 1):
        ann.subscribe(name, 1, identifier=identifier)
        said = f" id={identifier}" if identifier else ""
        assert ann.hear()[-1] == f"a/b=kept q1 #{number} retain{said}"
    if lasting:
        ann.far.hang_up("lost")
        ann = Modern(stage, "ann", False, expiry)
        assert [word.split("dup ")[1] for word in ann.hear()[1:]] == [
            "retain id=7", "retain id=9", "retain",
        ]  # fmt: skip
    ann.answer(codec.PUBACK, 1, 2, 3)
    Modern(stage, "bob").publish("a/b", b"live", 1)
    assert ann.hear() == ["a/b=live q1 #4 id=7 id=9"]
    assert not stage.mqtt.sessions["ann"]._offered


def test_identifiers_of_what_waited_in_the_journal() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    ann.subscribe("a/#", 1 | codec.AS_PUBLISHED, identifier=7)
    ann.subscribe("a/b", 1, identifier=9)
    ann.far.hang_up("lost")
    Modern(stage, "bob").publish("a/b", b"x", 1, True)
    again = restarted(stage)
    ann = Modern(again, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    assert ann.hear()[1:] == ["a/b=x q1 #1 retain id=7 id=9"]


LASTING = told({spec.SESSION_EXPIRY: 100})


def test_a_repeated_publish_is_the_one_that_was_sent() -> None:
    """With the flag and the identifiers of then, whatever was subscribed to since."""
    stage = Stage()
    ann, bob = Modern(stage, "ann", False, LASTING), Modern(stage, "bob")
    ann.subscribe("a/#", 2 | codec.AS_PUBLISHED, identifier=7)
    bob.publish("a/b", b"1", 1, True)
    bob.publish("a/b", b"2", 2, packet_id=2)
    ann.subscribe("a/#", 2, identifier=8)
    ann.subscribe("a/b", 2 | 2 << codec.HANDLING_SHIFT, identifier=9)
    bob.publish("a/b", b"3", 1, True)
    ann.unsubscribe("a/#")
    bob.publish("a/b", b"4", 1)
    sent = ["a/b=1 q1 #1{} retain id=7", "a/b=2 q2 #2{} id=7", "a/b=3 q1 #4{} id=8 id=9",
            "a/b=4 q1 #5{} id=9"]  # fmt: skip
    heard = [word for word in ann.hear() if word.startswith("a/b=") and "#3" not in word]
    assert heard == [word.format("") for word in sent]
    for _ in range(2):
        ann.far.hang_up("lost")
        ann = Modern(stage, "ann", False, LASTING)
        words = [word for word in ann.hear()[1:] if "#3" not in word]
        assert words == [word.format(" dup") for word in sent]
    ann.answer(codec.PUBACK, 1, 3, 4, 5)
    ann.answer(codec.PUBREC, 2)
    ann.answer(codec.PUBCOMP, 2)
    ann.subscribe("a/b", 2 | 2 << codec.HANDLING_SHIFT, identifier=10)
    session = stage.mqtt.sessions["ann"]
    assert not session.backlog.entries and session._wishes is not None
    assert not session._wishes._eras


def test_what_waited_carries_the_identifiers_of_its_arrival() -> None:
    """It waits for room in the window, and the client thinks anew meanwhile."""
    stage = Stage()
    ann = Modern(stage, "ann", properties=told({spec.RECEIVE_MAXIMUM: 1}))
    bob = Modern(stage, "bob")
    ann.subscribe("a", 1, identifier=7)
    for payload in (b"1", b"2"):
        bob.publish("a", payload, 1)
    ann.subscribe("a", 1, identifier=8)
    bob.publish("a", b"3", 1)
    ann.unsubscribe("a")
    for number in (1, 2):
        ann.answer(codec.PUBACK, number)
    heard = [word for word in ann.hear() if word.startswith("a=")]
    assert heard == ["a=1 q1 #1 id=7", "a=2 q1 #2 id=7", "a=3 q1 #3 id=8"]


def test_its_own_message_has_no_identifier_of_a_subscription_that_leaves_it_out() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", False, LASTING)
    ann.subscribe("a", 1, identifier=7)
    ann.subscribe("+", 1 | codec.NO_LOCAL, identifier=9)
    ann.publish("a", b"own", 1)
    Modern(stage, "bob").publish("a", b"other", 1)
    heard = ["a=own q1 #1{} id=7", "a=other q1 #2{} id=7 id=9"]
    assert [word for word in ann.hear() if "=" in word] == [word.format("") for word in heard]
    ann.far.hang_up("lost")
    ann = Modern(stage, "ann", False, LASTING)
    assert ann.hear()[1:] == [word.format(" dup") for word in heard]


@pytest.mark.pure
def test_changes_while_something_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.protocols.mqtt.wishes.SUBSCRIPTIONS", 10)
    stage = Stage()
    ann, bob = Modern(stage, "ann"), Modern(stage, "bob")
    ann.subscribe("a", 1, identifier=7)
    for number in range(1, 16):
        bob.publish("a", qos=1, packet_id=number)
        for name in ("a", "b"):
            ann.subscribe(name, 1, identifier=number)
    wishes = stage.mqtt.sessions["ann"]._wishes
    assert wishes is not None
    assert wishes._count == sum(len(changes) for _, changes in wishes._eras) == 10


@pytest.mark.holds(v5="3.3.4-6")
def test_a_client_does_not_publish_with_an_identifier() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.hear()
    bob.publish("a", properties=codec.Properties(subscriptions=[1]))
    assert bob.hear() == ["DISCONNECT 0x82"]


@pytest.mark.holds(v5="3.8.3-3")
@pytest.mark.parametrize("lasting", [False, True])
def test_no_local(lasting: bool) -> None:
    stage = Stage()
    ann = Modern(stage, "ann", True, told({spec.SESSION_EXPIRY: 100 * lasting}))
    bob = Modern(stage, "bob")
    ann.subscribe("a/#", 1 | codec.NO_LOCAL)
    ann.hear()
    ann.publish("a/b", b"own", 1)
    bob.publish("a/b", b"bob's", 1)
    assert ann.hear() == ["PUBACK 1 0x10", "a/b=bob's q1 #1"]
    ann.subscribe("a/+", 0)
    ann.publish("a/b", b"own", 1)
    assert ann.hear() == ["SUBACK 5: 0x00", "a/b=own", "PUBACK 1"]
    ann.unsubscribe("a/#")
    ann.publish("a/b", b"own", 0)
    assert ann.hear() == ["UNSUBACK 6: 0x00", "a/b=own"]


@pytest.mark.holds(v5="3.8.3-3")
@pytest.mark.parametrize("name", ["a/b", "a/#"])
@pytest.mark.parametrize("restart", [False, True])
def test_no_local_holds_for_what_is_retained(name: str, restart: bool) -> None:
    stage = Stage()
    Modern(stage, "ann").publish("a/b", b"own", 0, True)
    Modern(stage, "bob").publish("a/c", b"bob's", 0, True)
    if restart:
        stage = restarted(stage)
    ann = Modern(stage, "ann")
    ann.subscribe(name, codec.NO_LOCAL)
    assert "a/b=own retain" not in ann.hear()
    ann.subscribe("a/+", 0)
    assert ann.hear() == ["SUBACK 5: 0x00", "a/b=own retain", "a/c=bob's retain"]


@pytest.mark.holds(v5="3.3.1-12 3.3.1-13")
def test_retain_as_published() -> None:
    stage = Stage()
    ann, bob = pair(stage, codec.AS_PUBLISHED | 1)
    cy = Modern(stage, "cy")
    cy.subscribe("a/#", 1)
    cy.hear()
    bob.publish("a/b", b"0", 0, True)
    bob.publish("a/b", b"1", 1, True)
    bob.publish("a/b", b"2", 1)
    assert ann.hear() == ["a/b=0 retain", "a/b=1 q1 #1 retain", "a/b=2 q1 #2"]
    assert cy.hear() == ["a/b=0", "a/b=1 q1 #1", "a/b=2 q1 #2"]


@pytest.mark.holds(v5="3.3.1-9 3.3.1-10 3.3.1-11 3.8.4-3 3.8.4-4")
def test_retain_handling() -> None:
    stage = Stage()
    bob = Modern(stage, "bob")
    bob.publish("a", b"kept", 0, True)
    ann = Modern(stage, "ann")
    ann.hear()
    for handling, heard in ((2, 0), (1, 0), (0, 1), (1, 0), (0, 1)):
        ann.subscribe("a", handling << codec.HANDLING_SHIFT)
        assert len(ann.hear()) == 1 + heard
    ann.unsubscribe("a")
    ann.subscribe("a", 1 << codec.HANDLING_SHIFT)
    assert ann.hear() == ["UNSUBACK 6: 0x00", "SUBACK 5: 0x00", "a=kept retain"]


@pytest.mark.holds(v5="3.8.4-7 3.9.3-2 4.8.2-1 4.8.2-2")
@pytest.mark.parametrize(
    ("name", "code"),
    [("$share/g", 0x8F), ("$share//a", 0x8F), ("$client/7", 0x87), ("$queue/+", 0x8F)],
)
def test_what_nobody_may_subscribe_to(name: str, code: int) -> None:
    stage = Stage()
    ann = Modern(stage)
    ann.subscribe("a", 1, name, 1)
    assert ann.hear() == ["CONNACK 0x00", f"SUBACK 5: 0x01 {code:#04x}"]


# What the standard does not allow

CONNECT = codec.connect(b"ann", True, 30, properties=codec.Properties())


@pytest.mark.holds(
    v5=(
        "2.1.3-1 3.1.0-2 3.3.1-4 3.3.2-2 3.3.2-14 3.8.3-2 3.8.3-4 3.8.3-5 3.10.3-2 4.7.0-1 "
        "4.7.1-1 4.7.3-1 4.12.0-7 4.13.1-1 4.13.2-1"
    ),
)
@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (CONNECT, "0x82"),
        (b"\x00\x00", "0x81"),
        (b"\x20\x03\x00\x00\x00", "0x82"),
        (b"\xc1\x00", "0x81"),
        (b"\x30\x00", "0x81"),
        (b"\x30\x04\x00\x02a#\x00"[:6] + b"\x00", "0x81"),
        (codec.publish(b"a/#", b"x", 0, properties=b"\0"), "0x90"),
        (codec.publish(b"a", b"x", 1, properties=b"\0"), "0x82"),
        (codec.publish(b"", b"x", 0, properties=b"\0"), "0x82"),
        (codec.publish(b"a", b"x", 0, properties=b"\x02\x7f\x00"), "0x81"),
        (codec.publish(b"a", b"x", 0, properties=b"\x02\x24\x00"), "0x81"),
        (codec.publish(b"a", b"x", 0, properties=b"\x04\x01\x00\x01\x00"), "0x82"),
        (codec.publish(b"a", b"x", 0, properties=b"\x02\x01\x02"), "0x82"),
        (codec.publish(b"a", b"x", 0, properties=b"\x05\x01"), "0x81"),
        (codec.publish(b"a", b"x", 0, properties=told(None, {8: b"a/#"}).encode()), "0x82"),
        (codec.publish(b"a", b"x", 3, properties=b"\0"), "0x81"),
        (codec.subscribe(1, [], b"\0"), "0x82"),
        (codec.subscribe(1, [(b"a", 3)], b"\0"), "0x82"),
        (codec.subscribe(1, [(b"a", 0x30)], b"\0"), "0x82"),
        (codec.subscribe(1, [(b"a", 0x40)], b"\0"), "0x81"),
        (codec.subscribe(1, [(b"a#", 0)], b"\0"), "0x8f"),
        (codec.subscribe(1, [(b"a", 0)], b"\x02\x0b\x00"), "0x82"),
        (codec.subscribe(1, [(b"a", 0)], b"\x04\x0b\x01\x0b\x02"), "0x82"),
        (codec.subscribe(1, [(b"$share/g/a", 4)], b"\0"), "0x82"),
        (codec.unsubscribe(1, [], b"\0"), "0x82"),
        (codec.publish(b"a\0", b"x", 0, properties=b"\0"), "0x81"),
        (b"\x30\x84\x00\x00\x01a\x00", "0x81"),
        (codec.acknowledgement(codec.PUBACK, 1, 0x42), "0x82"),
        (codec.acknowledgement(codec.PUBACK, 0), "0x82"),
        (codec.disconnect(0x8B + 0x50), "0x82"),
        (codec.auth(spec.REAUTHENTICATE), "0x82"),
    ],
    ids=lambda value: value.hex()[:40] if isinstance(value, bytes) else value,
)
def test_what_a_client_may_not_say(packet: bytes, code: str) -> None:
    stage = Stage()
    device = Modern(stage)
    device.hear()
    device.say(packet)
    assert device.hear() == [f"DISCONNECT {code}"]
    assert device.far.closed


@pytest.mark.holds(v5="3.1.4-1 3.1.4-2 3.2.2-7 4.13.1-1")
@pytest.mark.parametrize(
    ("packet", "code"),
    [
        (codec.connect(b"a", True, 0, properties=told({spec.RECEIVE_MAXIMUM: 0})), ""),
        (codec.connect(b"a", True, 0, properties=told({spec.MAXIMUM_PACKET: 0})), ""),
        (codec.connect(b"a", True, 0, properties=told({spec.REQUEST_PROBLEM: 2})), ""),
        (codec.connect(b"a", True, 0, properties=told({spec.TOPIC_ALIAS: 2})), ""),
        (codec.connect(b"a", True, 0, properties=told(None, {spec.AUTH_DATA: b"x"})), ""),
        (codec.connect(b"a", True, 0, properties=told(None, {spec.AUTH_METHOD: b"x"})), "0x8c"),
        (CONNECT[:-1] + b"\xff", ""),
        (
            codec.connect(
                b"a", True, 0, codec.Will(b"w/+", b"", 0, False), properties=told()
            ),
            "",
        ),
        (
            codec.connect(
                b"a", True, 0, codec.Will(b"w", b"\xff", 0, False, told({1: 1})), properties=told()
            ),
            "",
        ),
    ],
)  # fmt: skip
def test_what_a_connect_may_not_say(packet: bytes, code: str) -> None:
    """Where mosquitto has no answer there is none: what is no CONNECT is no client's."""
    stage = Stage()
    device = Modern.__new__(Modern)
    Device.__init__(device, stage)
    device.say(packet)
    assert device.hear() == ([f"CONNACK {code}"] if code else [])
    assert device.far.closed
