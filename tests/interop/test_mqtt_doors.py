"""paho, aiomqtt and mosquitto's programs through every door they know, in every version."""

from __future__ import annotations

import json
import queue
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.interop.doors import SCHEMES, Door, open_door
from tests.process import StartHub

pytestmark = pytest.mark.interop
WAIT = 20.0
PAYLOAD = bytes(range(256)) * 300


@pytest.fixture(params=SCHEMES)
def door(request: pytest.FixtureRequest, start_hub: StartHub, tmp_path: Path) -> Door:
    return open_door(start_hub, tmp_path, request.param)


@pytest.fixture(params=["mqtt", "mqtts"])
def stream_door(request: pytest.FixtureRequest, start_hub: StartHub, tmp_path: Path) -> Door:
    """What mosquitto's programs of Debian know: no WebSocket."""
    return open_door(start_hub, tmp_path, request.param)


# paho


def connected(door: Door, name: str, version: int) -> tuple[paho.Client, queue.Queue[Any]]:
    transport: Any = "websockets" if door.scheme.startswith("ws") else "tcp"
    one = paho.Client(
        CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion(version),
        transport=transport,
    )  # fmt: skip
    if transport == "websockets":
        one.ws_set_options("/mqtt")
    if door.secure:
        one.tls_set(str(door.authority))
    heard: queue.Queue[Any] = queue.Queue()
    one.on_connect = lambda client, *_: client.subscribe("a/#", 2)
    one.on_subscribe = lambda *_: heard.put("subscribed")
    one.on_message = lambda c, u, m: heard.put((m.topic, bytes(m.payload), m.qos, m.retain))
    one.connect("localhost", door.hub.port, 30)
    one.loop_start()
    assert heard.get(timeout=WAIT) == "subscribed"
    return one, heard


@pytest.mark.parametrize("version", [3, 4, 5])
def test_paho(door: Door, version: int) -> None:
    one, heard = connected(door, "ann", version)
    try:
        for qos in (0, 1, 2):
            one.publish("a/b", PAYLOAD, qos).wait_for_publish(WAIT)
            assert heard.get(timeout=WAIT) == ("a/b", PAYLOAD, qos, False)
        one.publish("a/r", b"kept", 1, retain=True).wait_for_publish(WAIT)
        assert heard.get(timeout=WAIT) == ("a/r", b"kept", 1, False)
        one.subscribe("a/r", 1)
        seen = {heard.get(timeout=WAIT) for _ in "12"}
        assert seen == {"subscribed", ("a/r", b"kept", 1, True)}
    finally:
        one.disconnect()
        one.loop_stop()


# aiomqtt


@pytest.mark.parametrize("version", ["V31", "V311", "V5"])
async def test_aiomqtt(door: Door, version: str) -> None:
    websocket = door.scheme.startswith("ws")
    context = ssl.create_default_context(cafile=str(door.authority)) if door.secure else None
    will = aiomqtt.Will("a/will", b"gone", 1)
    options: dict[str, Any] = {"transport": "websockets", "websocket_path": "/mqtt"}
    async with aiomqtt.Client(
        "localhost", door.hub.port, identifier="ann", tls_context=context, will=will,
        protocol=aiomqtt.ProtocolVersion[version], **(options if websocket else {}),
    ) as ann:  # fmt: skip
        await ann.subscribe("a/#", qos=2)
        for qos in (0, 1, 2):
            await ann.publish("a/b", PAYLOAD, qos=qos)
        heard = []
        async for message in ann.messages:
            heard.append((str(message.topic), message.payload, message.qos))
            if len(heard) == 3:
                break
        await ann.unsubscribe("a/#")
    assert sorted(heard) == [("a/b", PAYLOAD, qos) for qos in (0, 1, 2)]


# mosquitto_pub, mosquitto_sub, mosquitto_rr

needs_mosquitto = pytest.mark.skipif(
    shutil.which("mosquitto_pub") is None,
    reason="no mosquitto_pub here: apt install mosquitto-clients",
)
VERSIONS = ("mqttv31", "mqttv311", "mqttv5")


def program(door: Door, name: str, *options: str) -> list[str]:
    """A line at a time: it would keep its words for itself when it talks into a pipe."""
    secure = ("--cafile", str(door.authority)) if door.secure else ()
    return ["stdbuf", "-oL", name, "-h", "localhost", "-p", str(door.hub.port), *secure, *options]


def publish(door: Door, *options: str) -> None:
    subprocess.run(program(door, "mosquitto_pub", *options), check=True, timeout=WAIT)


def subscribe(door: Door, *options: str) -> list[str]:
    """Lines of a subscriber that ends by itself."""
    command = program(door, "mosquitto_sub", "-W", "15", *options)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT)
    return done.stdout.splitlines()


@contextmanager
def subscriber(door: Door, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = program(door, "mosquitto_sub", "-W", "15", "-d", *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        try:
            assert any("SUBACK" in line for line in process.stdout), "it was never subscribed"
            yield process
        finally:
            process.kill()


def printed(process: subprocess.Popen[str]) -> list[str]:
    """What it printed until it ended, without its talk about packets."""
    assert process.stdout is not None  # not communicate(): it forgets what was read ahead
    output = process.stdout.read()
    talk = ("Client ", "Subscribed ")
    return [line for line in output.splitlines() if line and not line.startswith(talk)]


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_every_qos(stream_door: Door, version: str) -> None:
    said = ("-V", version)
    with subscriber(stream_door, *said, "-t", "a/+", "-q", "2", "-C", "3", "-F", "%q %t %p") as ann:
        for qos in "012":
            publish(stream_door, *said, "-t", "a/b", "-m", f"m{qos}", "-q", qos)
        assert printed(ann) == ["0 a/b m0", "1 a/b m1", "2 a/b m2"]


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_retained(stream_door: Door, version: str) -> None:
    said = ("-V", version, "-F", "%r %t %p")
    for topic in ("r/1", "r/2"):
        publish(stream_door, "-V", version, "-t", topic, "-m", "kept", "-r", "-q", "1")
    # Without a number of messages it would wait until its time is over.
    assert subscribe(stream_door, *said, "-t", "r/#", "--retained-only", "-C", "2") == [
        "1 r/1 kept", "1 r/2 kept",
    ]  # fmt: skip
    with subscriber(stream_door, *said, "-t", "r/#", "-R", "-C", "1") as fresh:
        publish(stream_door, "-V", version, "-t", "r/1", "-m", "new", "-r", "-q", "1")
        assert printed(fresh) == ["0 r/1 new"]
    # Whatever the broker, it then waits until its time is over.
    subscribe(stream_door, *said, "-t", "r/#", "--remove-retained", "--retained-only", "-W", "1")
    publish(stream_door, "-V", version, "-t", "r/end", "-m", "end", "-r", "-q", "1")
    assert subscribe(stream_door, *said, "-t", "r/#", "-C", "1") == ["1 r/end end"]


@needs_mosquitto
def test_mosquitto_says_all_that_5_0_has(stream_door: Door) -> None:
    properties = {
        "content-type": "text/plain", "response-topic": "answers", "correlation-data": "42",
        "message-expiry-interval": "60", "payload-format-indicator": "1", "topic-alias": "3",
    }  # fmt: skip
    said = [word for key, value in properties.items() for word in ("-D", "publish", key, value)]
    said += ["-D", "publish", "user-property", "k", "v"]
    asked = ("-D", "subscribe", "subscription-identifier", "7", "--retain-as-published")
    with subscriber(
        stream_door, "-V", "5", "-t", "a", "-q", "1", "-C", "1", "-F", "%j", *asked
    ) as ann:
        publish(stream_door, "-V", "5", "-t", "a", "-m", "x", "-q", "1", "-r", *said)
        [line] = printed(ann)
    heard = json.loads(line)
    assert (heard["payload"], heard["qos"], heard["retain"]) == ("x", 1, 1)
    found = heard["properties"]
    assert 0 < found.pop("message-expiry-interval") <= 60
    assert found == {
        "content-type": "text/plain", "response-topic": "answers", "correlation-data": "42",
        "payload-format-indicator": 1, "user-properties": {"k": "v"},
    } | ({"subscription-identifier": 7} if "subscription-identifier" in found else {})  # fmt: skip


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_sessions_and_wills(stream_door: Door, version: str) -> None:
    lasting = ["-V", version, "-i", "ann", "-c", "-q", "1", "-t", "a"]
    lasting += ["-x", "100"] if version == "mqttv5" else []
    assert subscribe(stream_door, *lasting, "-E") == []
    publish(stream_door, "-V", version, "-t", "a", "-m", "meanwhile", "-q", "1")
    assert subscribe(stream_door, *lasting, "-C", "1") == ["meanwhile"]
    will = ("--will-topic", "w", "--will-payload", "gone", "--will-qos", "1", "--will-retain")
    with subscriber(stream_door, "-V", version, "-t", "w", "-C", "1") as watcher:
        with subscriber(stream_door, "-V", version, "-t", "x", *will) as bob:
            bob.kill()
        assert printed(watcher) == ["gone"]
    assert subscribe(stream_door, "-V", version, "-t", "w", "-C", "1") == ["gone"]


@needs_mosquitto
def test_mosquitto_shares(stream_door: Door) -> None:
    shared = ("-V", "5", "-t", "$share/g/a", "-q", "1", "-C", "2")
    with subscriber(stream_door, *shared) as one, subscriber(stream_door, *shared) as two:
        for number in "1234":
            publish(stream_door, "-V", "5", "-t", "a", "-m", number, "-q", "1")
        heard = [printed(one), printed(two)]
    assert sorted(heard) == [["1", "3"], ["2", "4"]]


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
def test_mosquitto_asks_and_is_answered(stream_door: Door, version: str) -> None:
    asking = program(
        stream_door, "mosquitto_rr", "-V", version, "-t", "ask", "-e", "answers", "-m", "?",
        "-W", "15",
    )  # fmt: skip
    with subscriber(stream_door, "-V", version, "-t", "ask", "-C", "1") as service:
        with subprocess.Popen(asking, stdout=subprocess.PIPE, text=True) as caller:
            assert printed(service) == ["?"]
            publish(stream_door, "-V", version, "-t", "answers", "-m", "!", "-q", "1")
            output, _ = caller.communicate(timeout=WAIT)
    assert output.splitlines() == ["!"]
