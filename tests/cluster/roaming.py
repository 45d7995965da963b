"""A client whose session lasts, that comes to any node: paho, of MQTT 5 or 3.1.1."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.clients import Mqtt


class Place:
    """A hub that is another process, as `Mqtt` knows one of this process."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses


class Roaming(Mqtt):
    """`present`: the node had the session. It never connects again by itself."""

    def __init__(
        self, hub: Any, client: str = "device-1", expiry: int = 3600, clean: bool = False,
        v5: bool = True, user: str = "", password: str = "", keepalive: int = 60,
        will: tuple[str, bytes] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(hub, client, user, password)
        if not v5:
            old = self.paho
            self.paho = paho.Client(
                CallbackAPIVersion.VERSION2, client, clean_session=clean,
                protocol=MQTTProtocolVersion.MQTTv311,
            )  # fmt: skip
            if user:
                self.paho.username_pw_set(user, password)
            for name in ("message", "subscribe", "publish", "disconnect"):
                setattr(self.paho, f"on_{name}", getattr(old, f"on_{name}"))
        if will is not None:
            self.paho.will_set(*will, qos=1)
        self.paho._reconnect_on_failure = False
        self.present: bool | None = None
        self.reason = ""
        self.paho.on_connect = self._connected
        self._more: dict[str, Any] = {"keepalive": keepalive}
        if v5:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = expiry
            self._more |= {"clean_start": clean, "properties": properties}
        self._aim(hub)

    def _aim(self, hub: Any) -> None:
        host, _, port = hub.addresses[0].rpartition(":")
        self._dial = functools.partial(self.paho.connect, host, int(port), **self._more)

    async def move(self, hub: Any, cut: bool = False) -> int:
        """To another node, with all that it knows of its session."""
        await (self.drop() if cut else self.close())
        while not self.codes.empty():
            self.codes.get_nowait()
        self._aim(hub)
        return await self.open()

    async def want(self, topic: str, qos: int) -> int:
        self.paho.subscribe(topic, qos)
        return await self.code("subscribe")

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, said: Any) -> None:
        self.present = flags.session_present
        self.reason = getattr(said, "ReasonString", "") if said is not None else ""
        self._say("connect", code)

    def send(self, topic: str, payload: bytes, qos: int = 1) -> None:
        self.paho.publish(topic, payload, qos)

    async def take(self, count: int) -> list[bytes]:
        return [(await self.message())[1] for _ in range(count)]

    async def drop(self) -> None:
        """Without a word, as when the line is cut."""

        def cut() -> None:
            self.paho.loop_stop()
            sock = self.paho.socket()
            if sock is not None:
                sock.close()

        await asyncio.to_thread(cut)


@asynccontextmanager
async def roaming(hub: Any, client: str = "device-1", **options: Any) -> AsyncIterator[Roaming]:
    found = Roaming(hub, client, **options)
    try:
        assert await found.open() == 0, found.reason
        yield found
    finally:
        await found.close()
