"""A large payload is one piece, which all its receivers share: it is not copied for each."""

from __future__ import annotations

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.numbering import APART
from hubbub.runtime.framing import WebSocketFraming
from hubbub.wire.websocket import Frames
from tests.protocols.mqtt.conversation import Device, Stage
from tests.protocols.mqtt.modern import Modern, told

IMAGE = b"i" * (APART + 1)


def devices(stage: Stage, qos: int) -> list[Device]:
    """Of 3.1.1 and 5.0, which want the topic `ota` with all that puts bytes before a payload."""
    aliases = told({spec.TOPIC_ALIAS_MAXIMUM: 5})
    both: list[Device] = [stage.device("a"), stage.device("b", clean=False)]
    both += [Modern(stage, "c"), Modern(stage, "d", properties=aliases)]
    for device in both:
        device.subscribe("ota", qos)
    named = Modern(stage, "e")
    named.subscribe("ota", qos, identifier=7)
    both.append(named)
    for device in both:
        device.far.hear()
    return both


def large(device: Device) -> list[bytes]:
    """The pieces that it got; what they say must be the message, whole."""
    pieces = device.far.pieces()
    data = b"".join(pieces)
    [(start, body, end)] = codec.packets(data)
    packet = codec.parse_publish(data[start], data[body:end], isinstance(device, Modern))
    assert (packet.topic, packet.payload, end) == (b"ota", IMAGE, len(data))
    assert packet.packet_id == 1
    return [piece for piece in pieces if len(piece) >= APART]


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_live_is_shared(qos: int, prompt: bool) -> None:
    stage = Stage(prompt=prompt)
    bob = stage.device("bob")
    stage.sync()
    readers = devices(stage, qos)
    stage.sync()
    for device in readers:
        device.far.hear()
    bob.publish("ota", IMAGE, qos)
    stage.sync()
    if qos == 2:
        bob.answer(codec.PUBREL, 1)
        stage.sync()
    found = [piece for device in readers for piece in large(device)]
    assert len(found) == len(readers)
    assert all(piece is found[0] for piece in found)


def test_what_was_retained_is_shared() -> None:
    stage = Stage()
    stage.device("bob").publish("ota", IMAGE, 1, retain=True)
    found = []
    for qos in 1, 2:
        for device in stage.device(f"x{qos}"), Modern(stage, f"y{qos}"):
            device.far.hear()
            device.subscribe("ota", qos)
            answer, *pieces = device.far.pieces()
            assert answer[0] >> 4 == codec.SUBACK
            device.far.transport.pieces += pieces
            found += large(device)
    assert len(found) == 4
    assert all(piece is found[0] for piece in found)


def test_who_takes_no_packet_so_large_gets_none_of_it() -> None:
    stage = Stage()
    ann = Modern(stage, "ann", properties=told({spec.MAXIMUM_PACKET: APART}))
    ann.subscribe("ota", 1)
    stage.device("bob").publish("ota", IMAGE, 1, retain=True)
    ann.subscribe("ota", 1)
    assert not [word for word in ann.hear() if "ota=" in word]


def test_properties_before_a_large_payload_arrive() -> None:
    stage = Stage()
    ann = Modern(stage, "ann")
    ann.subscribe("ota", 1)
    ann.hear()
    said = told({}, {spec.CONTENT_TYPE: b"firmware"}, part="1")
    Modern(stage, "bob").publish("ota", IMAGE, 1, properties=said)
    assert ann.hear() == [f"ota={IMAGE.decode()} q1 #1 content-type=firmware part:1"]


def test_a_websocket_shares_it_too() -> None:
    """A frame of a stream begins with its length, and the pieces follow as they are."""
    framing = WebSocketFraming(True, Frames(10 * APART, masked=False))
    pieces = framing.frame([b"head", IMAGE])
    assert pieces[-1] is IMAGE
    assert list(Frames(10 * APART, masked=False).feed(b"".join(pieces))) == [b"head" + IMAGE]
