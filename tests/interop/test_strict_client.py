"""A client that reads exactly the packet it waits for, against a hub in a process of its own.

After its PUBREC the next packet has to be the PUBREL, after its PUBREL the PUBCOMP. While it waits
for anything else it takes messages, each to its end. It is made after the habits of the MQTT
library of Sagittarius Scheme, which loses count as soon as something comes in between.
"""

from __future__ import annotations

import socket
from itertools import product

import pytest

from hubbub.protocols.mqtt import codec
from tests.process import RunningHub

pytestmark = pytest.mark.interop
TIMES = 50


class Strict:
    """`heard`: the payloads of the messages it took."""

    def __init__(self, port: int, name: str, clean: bool = True) -> None:
        self.heard: list[bytes] = []
        self._sock = socket.create_connection(("127.0.0.1", port), 20)
        self._file = self._sock.makefile("rb")
        self._id = 0
        self._say(codec.connect(f"Sagittarius-MQTT-{name}".encode(), clean, 60))
        self._expect(codec.CONNACK)

    def _say(self, packet: bytes) -> None:
        self._sock.sendall(packet)

    def _packet(self) -> tuple[int, bytes]:
        head, size, shift = self._file.read(1)[0], 0, 0
        while True:
            byte = self._file.read(1)[0]
            size |= (byte & 127) << shift
            if byte < 128:
                return head, self._file.read(size)
            shift += 7

    def _expect(self, kind: int) -> bytes:
        """The very next packet."""
        head, body = self._packet()
        name = codec.NAMES[head >> 4]
        assert head >> 4 == kind, f"{name} where {codec.NAMES[kind]} had to come"
        return body

    def _until(self, kind: int) -> bytes:
        """Messages are taken meanwhile."""
        while True:
            head, body = self._packet()
            if head >> 4 == kind:
                return body
            assert head >> 4 == codec.PUBLISH, f"{codec.NAMES[head >> 4]}: nobody waits for it"
            self._take(head, body)

    def _take(self, head: int, body: bytes) -> None:
        packet = codec.parse_publish(head, body)
        if packet.qos == 1:
            self._say(codec.acknowledgement(codec.PUBACK, packet.packet_id))
        elif packet.qos == 2:
            self._say(codec.acknowledgement(codec.PUBREC, packet.packet_id))
            assert self._expect(codec.PUBREL) == codec.IDS[2 * packet.packet_id :][:2]
            self._say(codec.acknowledgement(codec.PUBCOMP, packet.packet_id))
        self.heard.append(packet.payload)

    def subscribe(self, topic: bytes, qos: int) -> None:
        self._say(codec.subscribe(1, [(topic, qos)]))
        assert self._until(codec.SUBACK)[2] == qos

    def publish(self, topic: bytes, payload: bytes, qos: int) -> None:
        self._id += 1
        self._say(codec.publish(topic, payload, qos, packet_id=self._id))
        if qos == 1:
            self._until(codec.PUBACK)
        elif qos == 2:
            self._until(codec.PUBREC)
            self._say(codec.acknowledgement(codec.PUBREL, self._id))
            self._expect(codec.PUBCOMP)

    def hear(self, count: int) -> None:
        while len(self.heard) < count:
            head, body = self._packet()
            assert head >> 4 == codec.PUBLISH, codec.NAMES[head >> 4]
            self._take(head, body)

    def close(self) -> None:
        self._say(codec.DISCONNECT_PACKET)
        self._file.close()
        self._sock.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "lasting"])
@pytest.mark.parametrize("own", [True, False], ids=["own", "another's"])
def test_every_combination_many_times(hub: RunningHub, own: bool, clean: bool) -> None:
    """Of publish QoS, subscribe QoS and who publishes: all in a row, nothing lost or doubled."""
    receiver = Strict(hub.port, "one", clean)
    sender = receiver if own else Strict(hub.port, "other", clean)
    for sent, subscribed in product((0, 1, 2), (0, 1, 2)):
        topic = b"%d/%d" % (sent, subscribed)
        receiver.subscribe(topic, subscribed)
        receiver.heard.clear()
        for number in range(TIMES):
            sender.publish(topic, b"%d" % number, sent)
        receiver.hear(TIMES)
        expected = [b"%d" % number for number in range(TIMES)]
        # QoS 1 and 2 wait for their turn, what is QoS 0 in the end may not have to.
        assert receiver.heard == expected, topic
    receiver.close()
    if not own:
        sender.close()


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "lasting"])
def test_its_own_and_another_s_at_once(hub: RunningHub, clean: bool) -> None:
    """Both publish, both hear both, whatever QoS the other takes."""
    one, other = Strict(hub.port, "one", clean), Strict(hub.port, "other", clean)
    one.subscribe(b"all/#", 2)
    other.subscribe(b"all/#", 2)
    for number in range(2 * TIMES):
        one.publish(b"all/one", b"a%d" % number, number % 3)
        other.publish(b"all/other", b"b%d" % number, (number + 1) % 3)
    for client in (one, other):
        client.hear(4 * TIMES)
        for letter in (b"a", b"b"):
            expected = [letter + b"%d" % number for number in range(2 * TIMES)]
            assert sorted(one for one in client.heard if one[:1] == letter) == sorted(expected)
        client.close()
