"""A listener with a mount point: its clients have a part of the names, and know of no other."""

from __future__ import annotations

import pytest

from hubbub.core.route import Route
from hubbub.core.session import Session
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from tests.protocols.mqtt.conversation import Device, Stage, restarted
from tests.protocols.mqtt.modern import Modern, told


def connected(
    stage: Stage, client: str, v5: bool, mount: str = "plant/", will: codec.Will | None = None
) -> Device:
    stage.mount = mount
    if v5:
        lasting = told({spec.SESSION_EXPIRY: 100})
        device: Device = Modern(stage, client, False, lasting, will)
    else:
        device = stage.device(client, False, will=will)
    device.hear()
    return device


@pytest.mark.parametrize("v5", [True, False])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_names_are_put_under_it_and_shown_without(v5: bool, qos: int) -> None:
    stage = Stage()
    ann, bob = connected(stage, "ann", v5), connected(stage, "bob", v5)
    outside, modern = connected(stage, "out", False, ""), connected(stage, "new", True, "")
    for one in (ann, outside, modern):
        one.subscribe("#", qos)
        one.hear()
    for payload in (b"1", b"2"):
        bob.publish("a/b", payload, qos, packet_id=int(payload))
    end = [f" q{qos} #{n}" if qos else "" for n in (1, 2)]
    assert ann.hear() == [f"a/b=1{end[0]}", f"a/b=2{end[1]}"]
    assert modern.hear() == [f"plant/a/b=1{end[0]}", f"plant/a/b=2{end[1]}"]
    assert outside.hear()[0] == f"plant/a/b=1{end[0]}"
    outside.publish("a/b", b"not theirs")
    assert not any("theirs" in word for word in ann.hear())


@pytest.mark.parametrize("v5", [True, False])
def test_retained_messages_wills_and_shares(v5: bool) -> None:
    stage = Stage()
    will = codec.Will(b"gone", b"bob", 1, False)
    ann, bob = connected(stage, "ann", v5), connected(stage, "bob", v5, will=will)
    bob.publish("state", b"on", 0, True)
    ann.subscribe("+", 1, "$share/g/work/#", 1)
    assert ann.hear()[1:] == ["state=on retain"]
    assert list(stage.broker.state.retained) == ["plant/state"]
    assert "$share/g/plant/work/#" in stage.broker.groups.by_filter
    bob.publish("work/1", b"do", 1)
    assert ann.hear() == ["work/1=do q1 #1"]
    bob.far.hang_up("lost")
    if v5:
        stage.pass_time(101)
        stage.mqtt.wake(0)
    assert ann.hear() == ["gone=bob q1 #2"]
    ann.say(codec.unsubscribe(6, [b"+", b"never#"], codec.NO_PROPERTIES if v5 else b""))
    assert list(stage.mqtt.sessions["ann"].subscriptions) == ["$share/g/plant/work/#"]


@pytest.mark.parametrize("v5", [True, False])
def test_a_session_finds_what_waited_also_after_a_restart(v5: bool) -> None:
    stage = Stage()
    ann = connected(stage, "ann", v5)
    ann.subscribe("a/#", 1)
    ann.far.hang_up("lost")
    connected(stage, "bob", not v5).publish("a/1", b"meanwhile", 1)
    stage.tick()
    stage = restarted(stage)
    connected(stage, "out", False, "").publish("plant/a/2", b"later", 1)
    stage.mount = "plant/"
    again = Modern(stage, "ann", False, told({spec.SESSION_EXPIRY: 100}))
    assert again.hear()[1:] == ["a/1=meanwhile q1 #1", "a/2=later q1 #2"]


def test_what_is_no_name_stays_none_and_addresses_are_for_all() -> None:
    stage = Stage()
    ann, out = connected(stage, "ann", True), connected(stage, "out", True, "")
    ann.subscribe("$client/self", 0, "$SYS/#", 0, "$queue/+", 0)
    assert ann.hear() == ["SUBACK 5: 0x00 0x00 0x00"], "names like any other below the mount point"
    number = stage.mqtt.sessions["ann"].number
    out.publish(f"$client/{number}", b"for ann")
    assert ann.hear() == [f"$client/{number}=for ann"]
    ann.publish("")
    assert ann.hear() == ["DISCONNECT 0x82"]


def test_aliases_stand_for_the_names_that_the_client_knows() -> None:
    stage = Stage()
    stage.mount = "plant/"
    ann = Modern(stage, "ann", properties=told({spec.TOPIC_ALIAS_MAXIMUM: 5}))
    ann.subscribe("a/#", 0)
    ann.hear()
    bob = connected(stage, "bob", True)
    assert isinstance(bob, Modern)
    for name in ("a/b", ""):
        bob.publish(name, b"x", properties=told({spec.TOPIC_ALIAS: 3}))
    assert ann.hear() == ["a/b=x topic-alias=1", "=x topic-alias=1"]


@pytest.mark.parametrize("first", ["", "plant/"])
@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
@pytest.mark.parametrize("v5", [True, False])
def test_a_session_of_another_mount_point_is_another_one(first: str, again: bool, v5: bool) -> None:
    stage = Stage()
    ann = connected(stage, "ann", v5, first)
    ann.subscribe("safe/#", 1)
    ann.far.hang_up("lost")
    outside = connected(stage, "out", False, "")
    outside.publish(first + "safe/a", b"waits", 1)
    stage.tick()
    if again:
        stage = restarted(stage, from_snapshot=True)
        outside = connected(stage, "out", False, "")
    other = "" if first else "plant/"
    ann = connected(stage, "ann", v5, other)
    outside.publish(first + "safe/a", b"live", 1)
    assert ann.hear() == []
    assert stage.mqtt.sessions["ann"].subscriptions == {}
    assert stage.broker.state.sessions["mqtt", "ann"].mount == other


@pytest.mark.pure
def test_what_is_published_stays_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    ann = connected(stage, "ann", True)
    heard: list[str] = []
    build = stage.broker.routing._build

    def built(sender: Session, name: str) -> Route:
        heard.append(name)
        return build(sender, name)

    monkeypatch.setattr(stage.broker.routing, "_build", built)
    names = ["$share/g/x", "$share/g", "$queue/q", "$delayed/1/x", "$SYS/broker/x"]
    for name in names:
        ann.publish(name)
    assert heard == [f"plant/{name}" for name in names]


@pytest.mark.parametrize("topic_filter", ["#", "$share/g/#"])
def test_the_mount_point_itself_is_outside(topic_filter: str) -> None:
    stage = Stage()
    ann, out = connected(stage, "ann", True), connected(stage, "out", True, "")
    out.publish("plant", b"retained", 0, True)
    ann.subscribe(topic_filter, 0)
    ann.hear()
    for name in ("plant", "plant/", "plant/a/b"):
        out.publish(name, b"x")
    assert ann.hear() == ["=x", "a/b=x"]
    ann.say(codec.unsubscribe(6, [topic_filter.encode()], codec.NO_PROPERTIES))
    assert stage.mqtt.sessions["ann"].subscriptions == {}
