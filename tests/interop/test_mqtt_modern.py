"""MQTT 5.0 with paho and mosquitto's programs, and across a crash, against a hub of its own."""

from __future__ import annotations

import queue
import shutil
import signal
import subprocess
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.process import RunningHub, StartHub

pytestmark = pytest.mark.interop
WAIT = 20.0


def said(packet: int, **values: object) -> Properties:
    properties = Properties(packet)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


class Client:
    """paho speaking 5.0, with queues instead of callbacks."""

    def __init__(self, name: str) -> None:
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.welcome: queue.Queue[tuple[bool, Any]] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.ended: queue.Queue[int] = queue.Queue()
        version = MQTTProtocolVersion.MQTTv5
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, name, protocol=version)
        self.paho.on_connect = lambda c, u, flags, code, found: self.welcome.put(
            (flags.session_present, found)
        )
        self.paho.on_message = lambda c, u, message: self.messages.put(message)
        self.paho.on_subscribe = lambda c, u, mid, codes, found: self.granted.put(
            [code.value for code in codes]
        )
        self.paho.on_disconnect = lambda c, u, flags, code, found: self.ended.put(code.value)

    def connect(self, hub: RunningHub, clean: bool = True, **values: object) -> tuple[bool, Any]:
        properties = said(PacketTypes.CONNECT, **values)
        self.paho.connect("127.0.0.1", hub.port, 120, clean_start=clean, properties=properties)
        self.paho.loop_start()
        return self.welcome.get(timeout=WAIT)

    def subscribe(self, topic: str, identifier: int, **options: Any) -> list[int]:
        properties = said(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier)
        self.paho.subscribe(topic, options=SubscribeOptions(**options), properties=properties)
        return self.granted.get(timeout=WAIT)

    def publish(self, topic: str, payload: bytes, qos: int, **values: object) -> None:
        properties = said(PacketTypes.PUBLISH, **values)
        self.paho.publish(topic, payload, qos, properties=properties).wait_for_publish(WAIT)

    def hear(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT)

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


def test_paho_sees_properties_identifiers_and_aliases(hub: RunningHub) -> None:
    ann, bob = Client("ann"), Client("bob")
    present, found = ann.connect(hub, TopicAliasMaximum=5, RequestResponseInformation=1)
    assert not present and found.ServerKeepAlive == 60
    assert found.ResponseInformation.startswith("$client/")
    assert ann.subscribe("t/#", 7, qos=2) == [2]
    bob.connect(hub)
    topics = []
    for qos in (0, 1, 2):
        bob.publish("t/1", b"x", qos, UserProperty=[("k", "1"), ("k", "2")], ResponseTopic="r")
        message = ann.hear()
        topics.append(message.topic)
        properties: Any = message.properties
        assert (message.payload, message.qos) == (b"x", qos)
        assert properties.UserProperty == [("k", "1"), ("k", "2")]
        assert (properties.ResponseTopic, properties.TopicAlias) == ("r", 1)
        assert properties.SubscriptionIdentifier == [7]
    assert topics == ["t/1", "", ""]
    ann.close()
    bob.close()


def test_a_session_and_what_it_missed_survive_a_crash(start_hub: StartHub) -> None:
    hub = start_hub()
    ann, bob = Client("ann"), Client("bob")
    ann.connect(hub, SessionExpiryInterval=600)
    ann.subscribe("t/#", 7, qos=1)
    ann.close()
    bob.connect(hub)
    bob.publish("t/1", b"missed", 1, ContentType="text/plain", MessageExpiryInterval=600)
    bob.paho.loop_stop()
    hub.stop(signal.SIGKILL)
    hub = start_hub()
    ann = Client("ann")
    assert ann.connect(hub, False, SessionExpiryInterval=600)[0]
    message = ann.hear()
    properties: Any = message.properties
    assert (message.payload, properties.ContentType) == (b"missed", "text/plain")
    assert 500 < properties.MessageExpiryInterval <= 600
    assert properties.SubscriptionIdentifier == [7]
    ann.close()


def test_the_hub_says_why_it_goes(hub: RunningHub) -> None:
    ann = Client("ann")
    ann.connect(hub)
    assert hub.stop() == 0
    assert ann.ended.get(timeout=WAIT) == 0x8B
    ann.paho.loop_stop()


@pytest.mark.skipif(
    shutil.which("mosquitto_rr") is None,
    reason="no mosquitto_rr here: apt install mosquitto-clients",
)
def test_mosquitto_rr_asks_and_is_answered(hub: RunningHub) -> None:
    bob = Client("bob")
    bob.connect(hub)
    bob.subscribe("ask", 1, qos=1)
    command = ("mosquitto_rr", "-V", "5", "-p", str(hub.port), "-t", "ask", "-e", "answer", "-m")
    with subprocess.Popen([*command, "2+2"], stdout=subprocess.PIPE, text=True) as asker:
        request = bob.hear()
        properties: Any = request.properties
        assert request.payload == b"2+2"
        bob.publish(properties.ResponseTopic, b"4", 1)
        output, _ = asker.communicate(timeout=WAIT)
    assert output == "4\n"
    bob.close()
