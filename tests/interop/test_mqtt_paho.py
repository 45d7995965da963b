"""The MQTT client most Python programs use, against a hub in a process of its own."""

from __future__ import annotations

import queue
import signal
from collections.abc import Callable, Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop
WAIT = 20.0

Heard = tuple[str, bytes, int, bool]


class Client:
    """paho with queues instead of callbacks."""

    def __init__(
        self, name: str, clean: bool = True, version: int = 4, websocket: bool = False
    ) -> None:
        self.messages: queue.Queue[Heard] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.present: queue.Queue[bool] = queue.Queue()
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            name,
            clean,
            protocol=MQTTProtocolVersion(version),
            transport="websockets" if websocket else "tcp",
        )
        self.paho.on_connect = self._connected
        self.paho.on_message = self._heard
        self.paho.on_subscribe = self._subscribed

    def _connected(
        self, client: object, data: object, flags: paho.ConnectFlags, *rest: object
    ) -> None:
        self.present.put(flags.session_present)

    def _heard(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        self.messages.put((message.topic, bytes(message.payload), message.qos, message.retain))

    def _subscribed(
        self, client: object, data: object, mid: int, codes: list[Any], *rest: object
    ) -> None:
        self.granted.put([code.value for code in codes])

    def connect(self, hub: RunningHub, keep_alive: int = 60) -> bool:
        self.paho.connect("127.0.0.1", hub.port, keep_alive)
        self.paho.loop_start()
        return self.present.get(timeout=WAIT)

    def subscribe(self, *wishes: tuple[str, int]) -> list[int]:
        self.paho.subscribe(list(wishes))
        return self.granted.get(timeout=WAIT)

    def publish(self, topic: str, payload: bytes, qos: int, retain: bool = False) -> None:
        self.paho.publish(topic, payload, qos, retain).wait_for_publish(WAIT)

    def hear(self, count: int = 1) -> list[Heard]:
        return [self.messages.get(timeout=WAIT) for _ in range(count)]

    def vanish(self) -> None:
        """The socket goes without a DISCONNECT."""
        sock = self.paho.socket()
        assert sock is not None
        self.paho.loop_stop()
        sock.close()

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


MakeClient = Callable[..., Client]


@pytest.fixture
def client() -> Iterator[MakeClient]:
    made: list[Client] = []

    def make(name: str, **options: Any) -> Client:
        made.append(Client(name, **options))
        return made[-1]

    yield make
    for one in made:
        one.leave()


@pytest.mark.holds(v5="4.2.0-1 7.1.1-1", v3="7.1.1-1")
@pytest.mark.parametrize("version", [3, 4])
def test_every_qos_arrives_in_order(hub: RunningHub, client: MakeClient, version: int) -> None:
    ann, bob = client("ann", version=version), client("bob", version=version)
    assert not ann.connect(hub)
    assert not bob.connect(hub)
    assert ann.subscribe(("a/+", 2), ("b", 0)) == [2, 0]
    for qos in (0, 1, 2):
        for number in range(10):
            bob.publish("a/b", b"%d" % number, qos)
        assert ann.hear(10) == [("a/b", b"%d" % number, qos, False) for number in range(10)]
    bob.publish("b", b"x", 2)
    assert ann.hear() == [("b", b"x", 0, False)]


def test_over_a_websocket(hub: RunningHub, client: MakeClient) -> None:
    ann, bob = client("ann", websocket=True), client("bob")
    ann.connect(hub)
    bob.connect(hub)
    ann.subscribe(("#", 2))
    bob.subscribe(("#", 0))
    payload = bytes(range(256)) * 1000
    for qos in (0, 1, 2):
        ann.publish("a", payload, qos)
        bob.publish("b", b"x", qos)
    heard = ann.hear(6)
    assert sorted(one for one in heard if one[0] == "a") == [
        ("a", payload, n, False) for n in range(3)
    ]
    assert sorted(one for one in heard if one[0] == "b") == [
        ("b", b"x", n, False) for n in range(3)
    ]
    assert sorted(bob.hear(6)) == [("a", payload, 0, False)] * 3 + [("b", b"x", 0, False)] * 3


def test_many_qos_2_both_ways_at_once(hub: RunningHub, client: MakeClient) -> None:
    ann = client("ann")
    ann.connect(hub)
    ann.subscribe(("#", 2))
    sent = [ann.paho.publish("a", b"%d" % number, 2) for number in range(200)]
    assert [payload for _, payload, _, _ in ann.hear(200)] == [b"%d" % n for n in range(200)]
    for one in sent:
        one.wait_for_publish(WAIT)


def test_a_large_payload_comes_back_whole(hub: RunningHub, client: MakeClient) -> None:
    ann = client("ann")
    ann.connect(hub)
    ann.subscribe(("a", 1))
    payload = bytes(range(256)) * 20_000
    ann.publish("a", payload, 1)
    assert ann.hear() == [("a", payload, 1, False)]


def test_retained_and_the_will(hub: RunningHub, client: MakeClient) -> None:
    ann, bob = client("ann"), client("bob")
    ann.paho.will_set("status/ann", b"gone", 1, retain=True)
    ann.connect(hub)
    ann.publish("status/ann", b"here", 1, retain=True)
    bob.connect(hub)
    bob.subscribe(("status/#", 1))
    assert bob.hear() == [("status/ann", b"here", 1, True)]
    ann.vanish()
    assert bob.hear() == [("status/ann", b"gone", 1, False)]


def test_a_lasting_session_survives_kill_9(start_hub: StartHub, client: MakeClient) -> None:
    hub = start_hub()
    ann, bob = client("ann", clean=False), client("bob")
    assert not ann.connect(hub)
    ann.subscribe(("a/#", 2))
    ann.leave()
    bob.connect(hub)
    for qos in (0, 1, 2):
        bob.publish("a/b", b"%d" % qos, qos)
    bob.publish("kept", b"x", 1, retain=True)
    hub.stop(signal.SIGKILL)
    bob.leave()

    hub = start_hub()
    ann = client("ann", clean=False)
    assert ann.connect(hub)
    assert ann.hear(2) == [("a/b", b"1", 1, False), ("a/b", b"2", 2, False)]
    ann.subscribe(("kept", 0))
    assert ann.hear() == [("kept", b"x", 0, True)]
    ann.leave()
    hub.stop(signal.SIGKILL)

    ann = client("ann", clean=False)
    hub = start_hub()
    assert ann.connect(hub)
    ann.subscribe(("end", 0))
    ann.publish("end", b"", 0)
    assert ann.hear()[0][0] == "end", "what was acknowledged does not come again"
