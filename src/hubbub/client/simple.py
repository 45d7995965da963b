"""MQTT in eight calls, for scripts: as in the Scheme library (net mq mqtt) of Sagittarius.

    connection = open("127.0.0.1", 1883)
    connection.subscribe("sensors/#", AT_LEAST_ONCE, lambda topic, payload: len(payload))
    connection.publish("sensors/1", b"21.5", AT_LEAST_ONCE)
    print(connection.receive())                       # what the callback returned: 4
    connection.close()

Callbacks run where `receive` is called, and only there and in the calls that first hand out what
waits. Pings go by themselves. There is no reconnection: the end of the connection is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from hubbub.client import blocking
from hubbub.client.mqtt.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    Message,
    Will,
)
from hubbub.client.mqtt.subscriptions import matches
from hubbub.errors import Refused, SettingError

__all__ = [
    "AT_LEAST_ONCE", "AT_MOST_ONCE", "EXACTLY_ONCE", "MQTT_3_1", "MQTT_3_1_1", "MQTT_5",
    "SimpleConnection", "open",
]  # fmt: skip

MQTT_3_1: Final = "3.1"
MQTT_3_1_1: Final = "3.1.1"
MQTT_5: Final = "5"

Callback = Callable[[str, bytes], Any]


def open(
    host: str = "127.0.0.1",
    port: int = 1883,
    *,
    client_id: str = "",
    username: str | None = None,
    password: str | None = None,
    topic: str = "",
    message: bytes | None = None,
    qos: int = AT_MOST_ONCE,
    retain: bool = False,
    keep_alive: int = 60,
    version: str = MQTT_3_1_1,
) -> SimpleConnection:
    """Connect. `topic` and `message`, with `qos` and `retain`, are the will: both or neither.

    OSError if nobody answers, Refused if the broker says no.
    """
    if bool(topic) != (message is not None):
        raise SettingError("a will needs both: topic=… says where, message=… what")
    will = Will(topic, message, qos, retain) if message is not None else None
    client = blocking.connect(
        f"mqtt://{f'[{host}]' if ':' in host else host}:{port}", client_id=client_id, will=will,
        keep_alive=keep_alive, version=version, username=username, password=password,
        reconnect=False,
    )  # fmt: skip
    return SimpleConnection(client.__enter__())


class SimpleConnection:
    """A connection that does nothing behind your back but answer pings."""

    def __init__(self, client: blocking.Blocking) -> None:
        self._client = client
        self._messages: Iterator[Message] = client.messages()
        self._callbacks: dict[str, Callback] = {}

    def subscribe(self, topic_filter: str, qos: int, callback: Callback) -> int:
        """Have `callback(topic, payload)` called for what matches; returns the QoS granted."""
        self._hand_out()
        granted: int = self._client.subscribe(topic_filter, qos)
        self._callbacks[topic_filter] = callback
        return granted

    def unsubscribe(self, topic_filter: str) -> None:
        self._hand_out()
        self._client.unsubscribe(topic_filter)
        self._callbacks.pop(topic_filter, None)

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = AT_MOST_ONCE, retain: bool = False
    ) -> None:
        """Publish; with QoS 1 and 2 the broker has it when this returns."""
        self._hand_out()
        self._client.publish(topic, payload, qos, retain)

    def ping(self) -> None:
        """Return when the broker has answered."""
        self._hand_out()
        self._client.ping()

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        return bool(self._client.waiting)

    def receive(self) -> Any:
        """Wait for a message; what its callback returns. None at the end of the connection."""
        try:
            message = next(self._messages, None)
        except (ConnectionError, Refused):
            return None
        return self._call_back(message) if message is not None else None

    def close(self) -> None:
        """Say goodbye, so that no will is published. `receive` then returns None."""
        self._client.close()

    def _hand_out(self) -> None:
        while self._client.waiting:
            self.receive()

    def _call_back(self, message: Message) -> Any:
        """The value of the last callback whose filter matches; it is called once for each."""
        value = None
        for topic_filter, callback in list(self._callbacks.items()):
            if matches(topic_filter, message.topic):
                value = callback(message.topic, message.payload)
        return value
