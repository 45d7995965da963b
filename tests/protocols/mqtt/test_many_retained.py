"""A wildcard subscription among 100,000 retained messages: in slices, never too much at once."""

from __future__ import annotations

import pytest

from hubbub.core.limits import LINK_CHOKED
from hubbub.core.message import Message
from hubbub.core.retained import MESSAGE, SLICE
from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.conversation import Device, Stage

pytestmark = pytest.mark.slow  # to fill it

COUNT = 100_000
PAYLOAD = b"x" * 64
MOST = SLICE // MESSAGE  # of a turn


@pytest.fixture(scope="module")
def stage() -> Stage:
    stage = Stage("none")
    for number in range(COUNT):
        stage.broker.post(Message(f"many/{number}", PAYLOAD, 1, retain=True))
    return stage


def subscribe(stage: Stage, client: str, qos: int) -> Device:
    """What comes from now on is what a single tick wrote: nothing follows by itself."""
    device = stage.device(client)
    device.hear()
    device.far.connection.feed(codec.subscribe(5, [(b"#", qos)]))
    return device


def heard(device: Device) -> bytes:
    """What one tick of the hub wrote."""
    device.stage._tick()
    pieces, device.far.transport.pieces = device.far.transport.pieces, []
    return b"".join(pieces)


def test_qos_0_comes_in_slices_and_others_are_served_between_them(stage: Stage) -> None:
    ann, bob = subscribe(stage, "ann", 0), stage.silent()
    bob.far.connection.feed(codec.connect(b"bob", True, 0) + codec.subscribe(5, [(b"b", 0)]))
    stage._tick()
    bob.far.transport.pieces.clear()
    found, turns = 0, 0
    while stage.broker.retained.feeding or not turns:
        data = heard(ann)
        found += data.count(PAYLOAD)
        assert len(data) < LINK_CHOKED + MOST * 100
        bob.far.connection.feed(codec.publish(b"b", b"at once", 0))
        assert heard(bob).endswith(b"at once"), "in the same turn"
        stage.broker.retained.feed_on()
        turns += 1
    found += heard(ann).count(PAYLOAD)
    assert (found, turns >= COUNT // MOST) == (COUNT, True)
    assert stage.broker.metrics.dropped == {}
    ann.far.hang_up()
    bob.far.hang_up()


@pytest.mark.parametrize("qos", [0, 1])
def test_who_does_not_read_gets_no_more_than_the_bound(
    stage: Stage, qos: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = subscribe(stage, "ann", qos)
    socket = ann.far.transport

    def waiting() -> int:
        return sum(map(len, socket.pieces))

    monkeypatch.setattr(socket, "get_write_buffer_size", waiting)
    for _ in range(2 * COUNT // MOST):
        stage._tick()
        stage.broker.retained.feed_on()
    session = stage.mqtt.sessions["ann"]
    assert 1_000 < waiting() <= LINK_CHOKED + MOST * 100
    assert len(session.backlog.entries) <= session.window
    assert stage.broker.metrics.dropped == {}
    ann.far.hang_up()


def test_qos_1_comes_as_it_is_acknowledged(stage: Stage) -> None:
    ann = subscribe(stage, "ann", 1)
    session = stage.mqtt.sessions["ann"]
    while not (found := heard(ann).count(PAYLOAD)):
        stage.broker.retained.feed_on()  # looks at names first
    first = 1
    while found < 2_000:
        ann.far.connection.feed(
            b"".join(codec.acknowledgement(codec.PUBACK, first + n) for n in range(20))
        )
        first += 20
        stage.broker.retained.feed_on()
        found += heard(ann).count(PAYLOAD)
        assert len(session.backlog.entries) <= session.window
    assert session.feeds
    ann.far.hang_up()
