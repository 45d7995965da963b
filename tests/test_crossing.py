"""Every protocol reaches every other, and all of it goes through one door.

The rows are those of the table "what crosses, and how": a publisher of each protocol, a receiver
of each protocol, at every QoS the publisher has.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from examples.protocol_telnet import Telnet
from hubbub.core.broker import Broker
from hubbub.protocols.mqtt import Mqtt, codec
from hubbub.protocols.smq import codec as smq
from hubbub.protocols.switch import Switch
from tests.protocols.smq.device import Hub
from tests.wire import Far

TOPIC = "sensors/door"
POST = "POST {path} HTTP/1.1\r\ncontent-length: {size}\r\n\r\n{body}"


class Everything(Hub):
    """A hub in memory that speaks all protocols, the telnet example included."""

    def __init__(self) -> None:
        super().__init__()
        self.mqtt = Mqtt(self.broker)
        self.switch = Switch(self.broker)
        self.telnet = Telnet(self.broker)

    def mqtt_client(self, name: bytes, *filters: tuple[str, int]) -> Far:
        far = self.dial(self.mqtt)
        far.say(codec.connect(name, True, 60))
        for topic_filter, qos in filters:
            far.say(codec.subscribe(1, [(topic_filter.encode(), qos)]))
        far.hear()
        return far

    def http(self, path: str, body: str) -> bytes:
        """One request on a connection of its own."""
        head = POST.format(path=path, size=len(body), body=body).encode()
        return self.dial(self.switch, head).hear()


# Publishers: (hub, payload) -> nothing.


def publish_mqtt(qos: int) -> Callable[[Everything, str], None]:
    def publish(hub: Everything, text: str) -> None:
        far = hub.mqtt_client(b"publisher")
        far.say(codec.publish(TOPIC.encode(), text.encode(), qos, False, 1))
        if qos == 2:
            far.say(codec.acknowledgement(codec.PUBREL, 1))

    return publish


def publish_mqtt5(qos: int) -> Callable[[Everything, str], None]:
    def publish(hub: Everything, text: str) -> None:
        far = hub.dial(hub.mqtt)
        far.say(codec.connect(b"publisher", True, 60, properties=codec.Properties()))
        packet_id = 1 if qos else 0
        properties = codec.Properties(user=[(b"k", b"v")]).encode()
        packet = codec.publish(
            TOPIC.encode(), text.encode(), qos, False, packet_id, False, properties
        )
        far.say(packet)
        if qos == 2:
            far.say(codec.acknowledgement(codec.PUBREL, 1))

    return publish


def publish_smq(websocket: bool) -> Callable[[Everything, str], None]:
    def publish(hub: Everything, text: str) -> None:
        device = hub.device(b"publisher", websocket)
        device.say(smq.CREATE, rest=TOPIC.encode())
        device.publish(hub.broker.state.topics.numbers[TOPIC], text.encode())

    return publish


def publish_http(qos: int) -> Callable[[Everything, str], None]:
    def publish(hub: Everything, text: str) -> None:
        answer = hub.http(f"/publish/{TOPIC}?qos={qos}", text)
        assert answer.startswith(b"HTTP/1.1 200 OK")

    return publish


def publish_telnet(hub: Everything, text: str) -> None:
    hub.dial(hub.telnet).say(f"hello publisher\r\npub {TOPIC} {text}\r\n".encode())


PUBLISHERS = {
    "mqtt-qos0": publish_mqtt(0),
    "mqtt-qos1": publish_mqtt(1),
    "mqtt-qos2": publish_mqtt(2),
    "mqtt5-qos0": publish_mqtt5(0),
    "mqtt5-qos1": publish_mqtt5(1),
    "mqtt5-qos2": publish_mqtt5(2),
    "smq-raw": publish_smq(False),
    "smq-websocket": publish_smq(True),
    "http-qos0": publish_http(0),
    "http-qos1": publish_http(1),
    "telnet": publish_telnet,
}

# Receivers: hub -> a function that says what arrived since the last time.

Receiver = Callable[[], list[str]]


def receive_mqtt(qos: int) -> Callable[[Everything], Receiver]:
    def subscribe(hub: Everything) -> Receiver:
        far = hub.mqtt_client(b"receiver", ("sensors/+", qos))

        def heard() -> list[str]:
            data = far.hear()
            packets = [
                codec.parse_publish(data[start], data[body:end])
                for start, body, end in codec.packets(data)
                if data[start] >> 4 == codec.PUBLISH
            ]
            assert all(packet.topic == TOPIC.encode() for packet in packets)
            return [packet.payload.decode() for packet in packets]

        return heard

    return subscribe


def receive_mqtt5(qos: int) -> Callable[[Everything], Receiver]:
    def subscribe(hub: Everything) -> Receiver:
        far = hub.dial(hub.mqtt)
        far.say(codec.connect(b"receiver", True, 60, properties=codec.Properties()))
        far.say(codec.subscribe(1, [(b"sensors/+", qos)], b"\2\x0b\7"))
        far.hear()

        def heard() -> list[str]:
            data = far.hear()
            packets = [
                codec.parse_publish(data[start], data[body:end], True)
                for start, body, end in codec.packets(data)
                if data[start] >> 4 == codec.PUBLISH
            ]
            for packet in packets:
                assert packet.properties is not None and packet.properties.subscriptions == [7]
            return [packet.payload.decode() for packet in packets]

        return heard

    return subscribe


def receive_smq(websocket: bool) -> Callable[[Everything], Receiver]:
    def subscribe(hub: Everything) -> Receiver:
        device = hub.device(b"receiver", websocket)
        device.say(smq.SUBSCRIBE, rest=TOPIC.encode())
        device.bodies()
        return lambda: [
            smq.rest_of(body[0], body[1:]).decode()
            for body in device.bodies()
            if body[0] == smq.PUBLISH
        ]

    return subscribe


def receive_switch(hub: Everything) -> Receiver:
    """A queue bound to the topic, read and acknowledged with plain HTTP."""
    hub.http("/bind/inbox", "sensors/#")
    far = hub.dial(hub.switch, b"GET /login/receiver HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
    far.hear()

    def heard() -> list[str]:
        body = '{"timeout":0,"queues":["inbox"]}'
        far.say(POST.format(path="/transfer", size=len(body), body=body).encode())
        answer = json.loads(far.hear().partition(b"\r\n\r\n")[2])
        for (queue, number), _ in answer["messages"]:
            far.say(f"GET /ack/{queue}/{number} HTTP/1.1\r\n\r\n".encode())
        far.hear()
        return [message["payload"] for _, message in reversed(answer["messages"])]

    return heard


def receive_telnet(hub: Everything) -> Receiver:
    far = hub.dial(hub.telnet)
    far.say(b"hello receiver\r\nsub sensors/#\r\n")
    return lambda: [line.split(" ", 1)[1] for line in far.hear().decode().splitlines()]


RECEIVERS = {
    "mqtt-qos0": receive_mqtt(0),
    "mqtt-qos1": receive_mqtt(1),
    "mqtt-qos2": receive_mqtt(2),
    "mqtt5-qos0": receive_mqtt5(0),
    "mqtt5-qos1": receive_mqtt5(1),
    "mqtt5-qos2": receive_mqtt5(2),
    "smq-raw": receive_smq(False),
    "smq-websocket": receive_smq(True),
    "switch-bound-queue": receive_switch,
    "telnet": receive_telnet,
}


@pytest.mark.parametrize("receiver", RECEIVERS)
@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_what_one_publishes_the_other_sees(publisher: str, receiver: str) -> None:
    hub = Everything()
    heard = RECEIVERS[receiver](hub)
    PUBLISHERS[publisher](hub, "open")
    assert heard() == ["open"]
    assert heard() == []


@pytest.mark.pure
@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_there_is_one_door(publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `Broker.publish` bricked up nothing reaches anybody, by whatever protocol."""
    hub = Everything()
    heard = [subscribe(hub) for subscribe in RECEIVERS.values()]
    tried: list[object] = []
    monkeypatch.setattr(Broker, "publish", lambda self, run: tried.append(run))
    PUBLISHERS[publisher](hub, "open")
    assert tried
    assert [receiver() for receiver in heard] == [[] for _ in heard]


@pytest.mark.parametrize("publisher", ["mqtt-qos1", "smq-raw"])
def test_publishing_to_a_queue_enqueues(publisher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Everything()
    monkeypatch.setattr("tests.test_crossing.TOPIC", "$queue/work")
    PUBLISHERS[publisher](hub, "dig")
    queue = hub.broker.state.queues["work"]
    [message] = [hub.broker.log.read(seq) for seq in queue.messages.values()]
    assert message is not None and message.payload == b"dig"


def test_a_consumer_over_mqtt_takes_from_a_queue_and_its_puback_acknowledges() -> None:
    hub = Everything()
    consumer = hub.mqtt_client(b"worker", ("$queue/work", 1))
    hub.broker.queues.named("work")
    login = b"GET /login/boss HTTP/1.1\r\n\r\n"
    boss = hub.dial(hub.switch, login)
    boss.say(POST.format(path="/request/work/replies", size=3, body="dig").encode())
    packet = consumer.hear()
    assert b"$queue/work" in packet and packet.endswith(b"dig")
    assert hub.broker.state.queues["work"].messages
    consumer.say(codec.acknowledgement(codec.PUBACK, 1))
    assert not hub.broker.state.queues["work"].messages


def test_consumers_compete_and_what_a_lost_one_held_goes_to_another() -> None:
    hub = Everything()
    first = hub.mqtt_client(b"worker-1", ("$queue/work", 1))
    second = hub.mqtt_client(b"worker-2", ("$queue/work", 1))
    publish = hub.mqtt_client(b"boss")
    for number in (b"1", b"2"):
        publish.say(codec.publish(b"$queue/work", number, 1, False, 1))
    got = first.hear()[-1:], second.hear()[-1:]
    assert sorted(got) == [b"1", b"2"]
    first.hang_up("cable cut")
    assert second.hear()[-1:] == got[0]
