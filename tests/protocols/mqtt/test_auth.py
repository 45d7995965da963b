"""Enhanced authentication: the AUTH exchange, by a method that counts to three."""

from __future__ import annotations

import pytest

from hubbub.core.gate import Credentials, Exchange, Gate, Step
from hubbub.core.rights import Rights
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.protocols.mqtt.conversation import Stage
from tests.protocols.mqtt.modern import Modern, told
from tests.rights import ruled

METHOD = {spec.AUTH_METHOD: b"count"}


class Counting(Exchange):
    def __init__(self, rights: Rights) -> None:
        self.rights = rights
        self.expected = 1

    def step(self, data: bytes) -> Step:
        if data != b"%d" % self.expected:
            return Step(True, reason="cannot count")
        self.expected += 2
        if self.expected >= 3:
            return Step(True, b"well done", self.rights)
        return Step(False, b"%d" % self.expected)


class Teacher(Gate):
    def exchange(self, method: str, credentials: Credentials) -> Exchange | None:
        if method != "count":
            return None
        exchange = Counting(self.rights)
        exchange.expected = 0 if credentials.client == "slow" else 1
        return exchange


def stage_with_teacher() -> Stage:
    stage = Stage()
    stage.gate = Teacher(stage.broker.open)
    return stage


def auth(code: int, data: bytes) -> bytes:
    return codec.auth(code, told(None, METHOD | {spec.AUTH_DATA: data}).encode())


@pytest.mark.holds(v5="4.12.0-5")
def test_at_once() -> None:
    stage = stage_with_teacher()
    device = Modern(stage, properties=told(None, METHOD | {spec.AUTH_DATA: b"1"}))
    words = "authentication-method=count authentication-data=well done"
    assert device.hear() == [f"CONNACK 0x00 {words}"]
    device.subscribe("a", 0)
    assert device.hear() == ["SUBACK 5: 0x00"]


@pytest.mark.holds(v5="4.12.0-2 4.12.0-3 4.12.0-5")
def test_in_several_steps() -> None:
    stage = stage_with_teacher()
    device = Modern(stage, "slow", properties=told(None, METHOD | {spec.AUTH_DATA: b"0"}))
    words = "authentication-method=count authentication-data="
    assert device.hear() == [f"AUTH 0x18 {words}2"]
    assert stage.broker.clients == {}
    device.say(auth(spec.CONTINUE, b"2"))
    assert device.hear() == [f"CONNACK 0x00 {words}well done"]


@pytest.mark.holds(v5="4.12.0-1 4.12.0-4")
def test_failures() -> None:
    stage = stage_with_teacher()
    device = Modern(stage, properties=told(None, METHOD | {spec.AUTH_DATA: b"7"}))
    assert device.hear() == ["CONNACK 0x87"]
    device = Modern(stage, properties=told(None, {spec.AUTH_METHOD: b"sing"}))
    assert device.hear() == ["CONNACK 0x8c"]
    assert device.far.closed and stage.broker.clients == {}


@pytest.mark.holds(v5="3.1.2-30 4.12.0-3")
@pytest.mark.parametrize(
    "packet",
    [
        codec.PINGREQ_PACKET,
        codec.publish(b"a", b"x", 0, properties=b"\0"),
        codec.auth(spec.CONTINUE),
        codec.auth(spec.CONTINUE, told(None, {spec.AUTH_METHOD: b"other"}).encode()),
        auth(spec.REAUTHENTICATE, b"2"),
        auth(spec.SUCCESS, b"2"),
    ],
)
def test_nothing_else_meanwhile(packet: bytes) -> None:
    stage = stage_with_teacher()
    device = Modern(stage, "slow", properties=told(None, METHOD | {spec.AUTH_DATA: b"0"}))
    device.hear()
    device.say(packet)
    assert device.hear() == ["CONNACK 0x82"]
    assert device.far.closed and stage.broker.clients == {}


@pytest.mark.holds(v5="4.12.1-1 4.12.1-2")
def test_authenticating_again() -> None:
    stage = stage_with_teacher()
    device = Modern(stage, properties=told(None, METHOD | {spec.AUTH_DATA: b"1"}))
    device.hear()
    device.say(auth(spec.REAUTHENTICATE, b"1"))
    words = "authentication-method=count authentication-data=well done"
    assert device.hear() == [f"AUTH 0x00 {words}"]
    device.say(codec.PINGREQ_PACKET)
    assert device.hear() == ["PINGRESP"]
    device.say(auth(spec.REAUTHENTICATE, b"5"))
    assert device.hear() == ["DISCONNECT 0x87"]
    assert device.far.closed


def test_other_rights_after_authenticating_again_hold_for_routes_that_are_known() -> None:
    stage = stage_with_teacher()
    listener = stage.device("listener")
    listener.subscribe("a", 0)
    listener.hear()
    device = Modern(stage, properties=told(None, METHOD | {spec.AUTH_DATA: b"1"}))
    device.publish("a")
    assert listener.hear() == ["a=x"]
    for rights, heard in ((ruled(), []), (stage.broker.open, ["a=x"])):
        stage.gate.rights = rights
        device.say(auth(spec.REAUTHENTICATE, b"1"))
        device.publish("a")
        assert listener.hear() == heard


@pytest.mark.holds(v5="4.12.0-7")
def test_an_auth_without_a_method_or_before_5_0() -> None:
    stage = stage_with_teacher()
    device = Modern(stage)
    device.hear()
    device.say(auth(spec.REAUTHENTICATE, b"1"))
    assert device.hear() == ["DISCONNECT 0x82"]
    old = stage.device("old")
    old.hear()
    old.say(codec.auth(spec.REAUTHENTICATE))
    assert old.far.closed and old.hear() == []
