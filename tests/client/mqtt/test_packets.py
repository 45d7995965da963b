"""Packets in every version: what is written is what is read, whatever the properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubbub.client.mqtt import packets
from hubbub.client.mqtt.message import Limits, Message
from hubbub.client.mqtt.packets import Options
from hubbub.errors import ProtocolError
from hubbub.protocols.mqtt import codec
from tests.protocols.mqtt.whole import parse_subscribe

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
head = (text.filter(bool), st.binary(max_size=50), st.integers(0, 2), st.booleans())
plain = st.tuples(*head).map(lambda fields: Message(*fields))
rich = st.tuples(
    *head,
    text,
    text,
    st.binary(max_size=20),
    st.none() | st.integers(0, 0xFFFF_FFFF),
    st.lists(st.tuples(text, text), max_size=3).map(tuple),
    st.booleans(),
).map(lambda fields: Message(*fields))


def body_of(packet: bytes) -> bytes:
    ((_, body, end),) = codec.packets(packet)
    return packet[body:end]


@given(st.sampled_from([3, 4, 5]), plain, st.integers(1, 65_535), st.booleans())
def test_a_plain_message_in_every_version(
    level: int, message: Message, packet_id: int, dup: bool
) -> None:
    packet = packets.publish(level, message, packet_id, dup and message.qos > 0)
    read = packets.parse_publish(level, packet[0], body_of(packet))
    assert read == (message, packet_id if message.qos else 0, 0)


@given(rich, st.integers(1, 65_535), st.integers(0, 65_535))
def test_a_message_with_everything(message: Message, packet_id: int, alias: int) -> None:
    packet = packets.publish(5, message, packet_id, alias=alias)
    read = packets.parse_publish(5, packet[0], body_of(packet))
    assert read == (message, packet_id if message.qos else 0, alias)


@given(st.binary(max_size=60), st.sampled_from([4, 5]))
def test_garbage_is_a_protocol_error_and_nothing_else(body: bytes, level: int) -> None:
    readers = (
        lambda: packets.parse_connack(level, body),
        lambda: packets.parse_publish(level, 0x32, body),
        lambda: packets.parse_answer(level, codec.SUBACK, body),
        lambda: packets.parse_answer(level, codec.PUBACK, body),
        lambda: packets.parse_disconnect(body),
        lambda: packets.parse_auth(body),
    )
    for read in readers:
        try:
            read()
        except ProtocolError:
            pass


def test_limits_that_the_broker_does_not_name_are_those_of_the_standard() -> None:
    assert packets.parse_connack(5, b"\1\0\0") == (True, 0, Limits())
    assert packets.parse_connack(5, b"\0\1") == (False, 1, Limits())
    _, _, limits = packets.parse_connack(5, b"\0\0\x06\x24\1\x25\0\x2a\0")
    assert limits == Limits(
        maximum_qos=1, retain_available=False, shared_subscription_available=False
    )


@pytest.mark.parametrize("level", [4, 5])
def test_subscriptions(level: int) -> None:
    filters = [("a/#", Options(1)), ("b", Options(2, True, True, 2))]
    sent = packets.subscribe(level, 7, filters, 9)
    read = parse_subscribe(body_of(sent), level == 5)
    assert read.packet_id == 7
    assert read.wanted == [(b"a/#", 1), (b"b", 2 | 4 | 8 | 32 if level == 5 else 2)]
    if level == 5:
        assert read.properties is not None and read.properties.subscriptions == [9]
