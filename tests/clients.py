"""Real clients of every protocol for tests of a hub in this process, and what they all need."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from hubbub import Hub, connect
from hubbub.client.smq import SmqClient

PATIENCE = 10.0


def smq(hub: Hub, uid: str = "device-1", **options: Any) -> Any:
    """A client that does not come back by itself unless it is told to."""
    options = {"reconnect": False, **options}
    return connect(f"smq://{hub.addresses[0]}", client_id=uid, **options)


async def message(client: SmqClient) -> Any:
    async with asyncio.timeout(PATIENCE):
        return await anext(aiter(client.messages()))


class Mqtt:
    """paho in its own thread; what it hears comes to the test's loop."""

    def __init__(self, hub: Hub, client: str, user: str = "", password: str = "") -> None:
        self.loop = asyncio.get_running_loop()
        self.heard: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        self.codes: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        version = MQTTProtocolVersion.MQTTv5
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, client, protocol=version)
        if user:
            self.paho.username_pw_set(user, password)
        self.paho.on_message = lambda c, u, m: self._tell(self.heard, (m.topic, m.payload))
        self.paho.on_connect = lambda c, u, f, code, p: self._say("connect", code)
        self.paho.on_subscribe = lambda c, u, n, codes, p: self._say("subscribe", codes[0])
        self.paho.on_publish = lambda c, u, n, code, p: self._say("publish", code)
        self.paho.on_disconnect = lambda c, u, f, code, p: self._say("disconnect", code)
        host, _, port = hub.addresses[0].rpartition(":")
        self._dial = functools.partial(self.paho.connect, host, int(port))

    def _tell(self, queue: asyncio.Queue[Any], item: Any) -> None:
        self.loop.call_soon_threadsafe(queue.put_nowait, item)

    def _say(self, what: str, code: Any) -> None:
        self._tell(self.codes, (what, code.value))

    async def open(self) -> int:
        """The reason code of CONNACK."""
        await asyncio.to_thread(self._dial)
        self.paho.loop_start()
        return await self.code("connect")

    async def code(self, what: str) -> int:
        async with asyncio.timeout(PATIENCE):
            while True:
                said, code = await self.codes.get()
                if said == what:
                    return int(code)

    async def subscribe(self, topic: str) -> int:
        self.paho.subscribe(topic, 1)
        return await self.code("subscribe")

    async def publish(self, topic: str, payload: bytes, **more: Any) -> int:
        self.paho.publish(topic, payload, 1, **more)
        return await self.code("publish")

    async def message(self) -> tuple[str, bytes]:
        async with asyncio.timeout(PATIENCE):
            return await self.heard.get()

    async def close(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@asynccontextmanager
async def mqtt(hub: Hub, client: str = "panel-1", **options: Any) -> AsyncIterator[Mqtt]:
    """A connected paho, of MQTT 5."""
    found = Mqtt(hub, client, **options)
    try:
        assert await found.open() == 0
        yield found
    finally:
        await found.close()


def user_property(name: str, value: str) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = (name, value)
    return properties


def http(hub: Hub) -> httpx.AsyncClient:
    """One connection, as message-switch wants it: who logs in stays logged in."""
    limits = httpx.Limits(max_connections=1)
    return httpx.AsyncClient(base_url=f"http://{hub.addresses[0]}", limits=limits, timeout=PATIENCE)


class Heard:
    """A function for the hub to call; remembers what it was called with."""

    def __init__(self, answer: Any = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = answer
        self.threads: set[int] = set()
        self._event = asyncio.Event()

    def __call__(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        self.threads.add(threading.get_ident())
        self._event.set()
        return self.answer(*arguments) if callable(self.answer) else self.answer

    async def until(self, count: int = 1) -> list[tuple[Any, ...]]:
        """Wait for so many calls, and give them."""
        async with asyncio.timeout(PATIENCE):
            while len(self.calls) < count:
                self._event.clear()
                await self._event.wait()
        return self.calls
