"""The eight calls, and the blocking clients below them."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubbub.client import blocking, simple
from hubbub.client.simple import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE, MQTT_3_1
from hubbub.errors import HubbubError, Refused, SettingError
from tests.client import mosquitto
from tests.process import RunningHub

pytestmark = pytest.mark.interop
WAIT = 20


@pytest.fixture(params=["hub", pytest.param("mosquitto", marks=mosquitto.MISSING)])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "hub":
        yield request.getfixturevalue("hub").port
        return
    for broker in mosquitto.running(tmp_path):
        yield broker.port


def test_receive_returns_what_the_callback_returns(port: int) -> None:
    connection = simple.open("127.0.0.1", port)
    assert connection.subscribe("a/#", AT_LEAST_ONCE, lambda topic, data: (topic, data)) == 1
    connection.publish("a/1", b"one", AT_LEAST_ONCE)
    connection.publish("a/2", b"", EXACTLY_ONCE, retain=True)
    assert connection.receive() == ("a/2", b""), "publish handed out the first"
    connection.ping()
    connection.unsubscribe("a/#")
    connection.close()
    assert connection.receive() is None


def test_waiting_messages_are_handed_out_first(port: int) -> None:
    heard: list[bytes] = []
    connection = simple.open("127.0.0.1", port, version=MQTT_3_1)
    other = simple.open("127.0.0.1", port)

    def wait(count: int) -> None:
        deadline = time.monotonic() + WAIT
        while not connection.ready() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert connection.ready() and len(heard) == count

    connection.subscribe("a", AT_MOST_ONCE, lambda topic, payload: heard.append(payload))
    for count, call in enumerate(
        (
            lambda: connection.subscribe("b", AT_MOST_ONCE, print),
            lambda: connection.publish("c"),
            lambda: connection.unsubscribe("b"),
            connection.ping,
        )
    ):
        other.publish("a", b"%d" % count, AT_LEAST_ONCE)
        wait(count)
        call()
    assert heard == [b"0", b"1", b"2", b"3"]
    connection.close()
    other.close()


def test_the_will_needs_topic_and_message(hub: RunningHub) -> None:
    for half in ({"topic": "gone"}, {"message": b"x"}):
        with pytest.raises(SettingError, match="both"):
            simple.open("127.0.0.1", hub.port, **half)
    simple.open("127.0.0.1", hub.port, topic="gone", message=b"", qos=1).close()


def test_the_end_of_the_connection_is_none(hub: RunningHub) -> None:
    connection = simple.open("127.0.0.1", hub.port)
    connection.subscribe("a", AT_LEAST_ONCE, print)
    threading.Timer(0.1, hub.stop).start()
    assert connection.receive() is None
    assert connection.receive() is None
    with pytest.raises((ConnectionError, Refused)):
        connection.publish("a", b"", AT_LEAST_ONCE)
    connection.close()
    with pytest.raises(OSError):
        simple.open("127.0.0.1", hub.port)


def test_every_client_blocks_if_one_likes(hub: RunningHub, tmp_path: Path) -> None:
    heard: list[bytes] = []
    with blocking.connect(hub.url("mqtt")) as client, blocking.connect(hub.url("smq")) as device:

        def answer(message: object) -> None:
            heard.append(message.payload)  # type: ignore[attr-defined]
            client.publish("b", b"from a callback", 1)

        assert client.subscribe("a", 1, answer) == 1
        client.subscribe("b", 1)
        device.publish("a", b"from SMQ")
        message = next(client.messages())
        assert (message.topic, message.payload) == ("b", b"from a callback")
        assert heard == [b"from SMQ"] and client.client_id.startswith("hubbub-")
    with pytest.raises(ConnectionError):
        client.publish("a", b"", 1)
    with pytest.raises(OSError), blocking.connect("mqtt://127.0.0.1:1"):
        pass
    with blocking.connect(hub.url("switch")) as switch:
        assert switch.list() == []


def test_callbacks_that_are_objects_may_call_the_client_too(hub: RunningHub) -> None:
    def answer(client: blocking.BlockingMqtt, message: object) -> None:
        client.publish("b", b"from a callback", 1)

    with blocking.mqtt(hub.url("mqtt")) as client:
        client.subscribe("a", 1, functools.partial(answer, client))
        client.subscribe("b", 1)
        client.publish("a", b"", 1)
        assert next(client.messages()).payload == b"from a callback"


def test_a_callback_that_wants_to_end_the_program_ends_no_client(
    hub: RunningHub, caplog: pytest.LogCaptureFixture
) -> None:
    with blocking.mqtt(hub.url("mqtt")) as client, blocking.smq(hub.url("smq")) as other:
        client.subscribe("a", 1, lambda message: sys.exit(3))
        client.subscribe("b", 1)
        client.publish("a", b"", 1)
        other.publish("b", b"still here")
        assert next(client.messages()).payload == b"still here"
    assert "SystemExit(3) in a callback ends nothing but the callback" in caplog.text


def test_a_process_that_was_forked_has_clients_of_its_own(hub: RunningHub) -> None:
    with blocking.mqtt(hub.url("mqtt")) as client:
        client.subscribe("a", 1)
        child = os.fork()
        if not child:  # it may only tell by what it publishes
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT)
            try:
                with blocking.mqtt(hub.url("mqtt")) as own:
                    try:
                        client.ping()
                    except HubbubError as error:
                        own.publish("a", str(error), 1)
                client.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert next(client.messages()).payload.endswith(b"connect here")
        client.ping()
