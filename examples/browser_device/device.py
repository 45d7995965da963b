"""A lamp that speaks SMQ. Its bulb is simulated: it warms up and cools down as a real one does.

    lamp/set     it subscribes: {"on": bool, "level": 0..1}, either or both
    lamp/state   it publishes:  {"on", "level", "watts", "celsius"}, five times a second
    lamp/about   it serves:     who it is, and for how many seconds it has been on

It measures only while somebody watches: the hub tells it how many subscribe to `lamp/state`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Final

from hubbub.client import connect
from hubbub.client.smq import SmqMessage

NAME: Final = "Desk lamp"
WATTS: Final = 40.0  # at full level
ROOM_CELSIUS: Final = 21.0
HOT_CELSIUS: Final = 96.0  # the glass, after a while at full level
SLOWNESS_SECONDS: Final = 6.0  # until two thirds of the way to a new temperature are done
STEP_SECONDS: Final = 0.2


class Lamp:
    """What a lamp is: a switch, a dimmer, and a bulb with a temperature."""

    def __init__(self) -> None:
        self.on = True
        self.level = 0.6
        self.celsius = ROOM_CELSIUS

    @property
    def watts(self) -> float:
        return WATTS * self.level if self.on else 0.0

    def step(self, seconds: float) -> None:
        goal = ROOM_CELSIUS + (HOT_CELSIUS - ROOM_CELSIUS) * self.watts / WATTS
        self.celsius += (goal - self.celsius) * min(1.0, seconds / SLOWNESS_SECONDS)

    def obey(self, message: SmqMessage) -> None:
        """Do what a page wants. Whatever is no wish for a lamp is left alone."""
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            wish = json.loads(message.payload)
            self.level = min(1.0, max(0.0, float(wish.get("level", self.level))))
            self.on = bool(wish.get("on", self.on))

    def state(self) -> bytes:
        said = {"on": self.on, "level": self.level, "watts": self.watts, "celsius": self.celsius}
        return json.dumps({key: round(value, 3) for key, value in said.items()}).encode()


async def main(url: str) -> None:
    lamp = Lamp()
    began = time.monotonic()
    watched = asyncio.Event()

    def count(watchers: int, topic: str | int) -> None:
        watched.set() if watchers else watched.clear()

    def about(message: SmqMessage) -> str:
        return json.dumps({"name": NAME, "seconds": round(time.monotonic() - began)})

    async with connect(url, client_id="desk-lamp") as hub:
        serving = asyncio.create_task(hub.serve("lamp/about", about))
        await hub.subscribe("lamp/set", lamp.obey)
        await hub.observe("lamp/state", count)
        while not serving.done():
            lamp.step(STEP_SECONDS)
            if watched.is_set():
                await hub.publish("lamp/state", lamp.state())
            await asyncio.sleep(STEP_SECONDS)
        await serving


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smq://127.0.0.1:8080"))
