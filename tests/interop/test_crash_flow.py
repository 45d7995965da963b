"""`kill -9` between the packets of each QoS flow, in both directions.

    in    bob  PUBLISH ─> PUBREC ─> PUBREL ─> PUBCOMP     then ann, who was away, gets it
    out   ann  PUBLISH ─> PUBREC ─> PUBREL ─> PUBCOMP     and then the next message
                     0         1         2          3     killed after this packet

QoS 1 has the packets 0 and 1. Bob and ann keep to the standard: after a crash each goes on where
it was. QoS 2 must arrive exactly once, QoS 1 at least once. `make soak` kills twice, at every pair
of places; the tests kill once.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from itertools import product

import pytest

from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.protocols.mqtt.codec import Properties
from tests.process import RunningHub, StartHub

pytestmark = [pytest.mark.interop, pytest.mark.slow]

PACKETS = {1: 2, 2: 4}
Kill = Callable[[int], None]


class Killed(Exception):
    """The hub was killed after this packet."""


class Client:
    """A client with a lasting session, as the standard wants it, over many connections.

    `got` are the messages that it took for new, `unreleased` the packet ids of those that were
    not released. Of what it publishes: `tried` once it was said, `recorded` since its PUBREC,
    `done` at the end.
    """

    def __init__(self, name: str, version: int) -> None:
        self.name, self.v5 = name.encode(), version == 5
        self.got: list[bytes] = []
        self.unreleased: set[int] = set()
        self.recorded = False
        self.tried = False
        self.done = False
        self.properties = codec.NO_PROPERTIES if self.v5 else b""

    def connect(self, hub: RunningHub) -> None:
        self.sock = socket.create_connection(("127.0.0.1", hub.port), 20)
        self._rest = b""
        lasting = Properties({spec.SESSION_EXPIRY: 3600}) if self.v5 else None
        self.say(codec.connect(self.name, False, 0, properties=lasting))
        assert self.hear()[0] == codec.CONNACK << 4

    def say(self, packet: bytes) -> None:
        self.sock.sendall(packet)

    def hear(self) -> tuple[int, bytes]:
        """The next packet: its first byte and its body."""
        while True:
            for start, body, end in codec.packets(self._rest):
                head, packet = self._rest[start], self._rest[body:end]
                self._rest = self._rest[end:]
                return head, packet
            data = self.sock.recv(65536)
            assert data, "the hub closed the connection"
            self._rest += data

    def expect(self, kind: int) -> bytes:
        head, body = self.hear()
        assert head >> 4 == kind, codec.NAMES[head >> 4]
        return body

    def subscribe(self, qos: int) -> None:
        self.say(codec.subscribe(5, [(b"a", qos)], self.properties))
        self.expect(codec.SUBACK)

    # The two flows

    def publish(self, payload: bytes, qos: int, kill: Kill) -> None:
        """Publish it, or go on with it, until it is `done`. `kill(n)` is called after packet n."""
        if not self.recorded:
            dup, self.tried = self.tried, True
            self.say(codec.publish(b"a", payload, qos, False, 7, dup, self.properties))
            kill(0)
            self.tried = False
            self.expect(codec.PUBACK if qos == 1 else codec.PUBREC)
            self.recorded, self.done = qos == 2, qos == 1
            kill(1)
        if qos == 2:
            self.say(codec.acknowledgement(codec.PUBREL, 7))
            kill(2)
            self.expect(codec.PUBCOMP)
            self.recorded, self.done = False, True
            kill(3)

    def receive(self, last: bytes, kill: Kill) -> None:
        """Take what comes, until the last message and what belongs to it is done."""
        while last not in self.got or self.unreleased:
            head, body = self.hear()
            if head >> 4 == codec.PUBLISH:
                self._take(codec.parse_publish(head, body, self.v5), kill)
            else:
                assert head == 0x62, codec.NAMES[head >> 4]
                kill(2)
                packet_id = int.from_bytes(body[:2], "big")
                self.unreleased.discard(packet_id)
                self.say(codec.acknowledgement(codec.PUBCOMP, packet_id))
                kill(3)

    def _take(self, packet: codec.Publish, kill: Kill) -> None:
        kill(0)
        if packet.packet_id not in self.unreleased:
            self.got.append(packet.payload)
        if packet.qos == 2:
            self.unreleased.add(packet.packet_id)
        kind = codec.PUBACK if packet.qos == 1 else codec.PUBREC
        self.say(codec.acknowledgement(kind, packet.packet_id))
        kill(1)


def never(_: int) -> None:
    """A flow that is not disturbed."""


def at(place: int) -> Kill:
    def kill(packet: int) -> None:
        if packet == place:
            raise Killed

    return kill


class Stage:
    """A hub that is killed now and then, and its clients."""

    def __init__(self, start_hub: StartHub, version: int) -> None:
        self._start = start_hub
        self.ann, self.bob = Client("ann", version), Client("bob", version)
        self.hub = start_hub()

    def meet(self) -> None:
        for client in (self.ann, self.bob):
            client.connect(self.hub)

    def crash(self) -> None:
        self.hub.stop(signal.SIGKILL)
        for client in (self.ann, self.bob):
            client.sock.close()
        self.hub = self._start()


def inwards(stage: Stage, qos: int, places: tuple[int, ...]) -> None:
    """Bob publishes and the hub is killed on the way; ann is here from the end on."""
    stage.meet()
    stage.ann.subscribe(2)
    stage.ann.sock.close()
    for place in [at(one) for one in places] + [never]:
        if not stage.bob.done:
            try:
                stage.bob.publish(b"first", qos, place)
            except Killed:
                stage.crash()
                stage.bob.connect(stage.hub)
    stage.bob.done = False
    stage.bob.publish(b"last", 2, never)
    stage.ann.connect(stage.hub)
    stage.ann.receive(b"last", never)


def outwards(stage: Stage, qos: int, places: tuple[int, ...]) -> None:
    """Bob's message is safe; the hub is killed while ann gets it."""
    stage.meet()
    stage.ann.subscribe(qos)
    stage.bob.publish(b"first", 2, never)
    for place in places:
        try:
            stage.ann.receive(b"first", at(place))
        except Killed:
            stage.crash()
            stage.meet()
    stage.bob.publish(b"last", 2, never)
    stage.ann.receive(b"last", never)


def check(stage: Stage, qos: int) -> None:
    copies = stage.ann.got.count(b"first")
    assert copies == 1 if qos == 2 else copies >= 1
    assert stage.ann.got[-1] == b"last"


FLOWS = [inwards, outwards]
ONE = [(qos, place) for qos, count in PACKETS.items() for place in range(count)]


@pytest.mark.holds(
    v5="3.1.2-23 4.1.0-1 4.3.2-3 4.3.3-3 4.3.3-5 4.3.3-10 4.4.0-1",
    v3="4.1.0-1 4.3.2-1 4.3.2-2 4.3.3-1 4.3.3-2 4.4.0-1",
)
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize(("qos", "place"), ONE)
def test_killed_once(
    start_hub: StartHub, flow: Callable[[Stage, int, tuple[int, ...]], None], qos: int, place: int
) -> None:
    """3.1.1 and 5.0 take turns: the flow is the same."""
    stage = Stage(start_hub, 5 - place % 2)
    flow(stage, qos, (place,))
    check(stage, qos)


@pytest.mark.soak
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", PACKETS)
@pytest.mark.timeout(600)
def test_killed_twice_at_every_pair(
    start_hub: StartHub, flow: Callable[[Stage, int, tuple[int, ...]], None], qos: int, version: int
) -> None:
    for number, places in enumerate(product(range(PACKETS[qos]), repeat=2)):
        stage = Stage(start_hub, version)
        for client in (stage.ann, stage.bob):
            client.name += b" %d" % number
        flow(stage, qos, places)
        check(stage, qos)
        stage.hub.stop(signal.SIGKILL)
