"""A device that speaks SMQ: what the processors of this computer do, once a second.

Publishes JSON to `telemetry/cpu`: load of each core in percent, load averages, and temperatures
in degrees Celsius where the machine tells them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

import psutil

from hubbub.client import connect


def sample() -> dict[str, Any]:
    minute, five, fifteen = os.getloadavg()
    found: dict[str, Any] = {
        "percent": psutil.cpu_percent(percpu=True),
        "load": {"1min": minute, "5min": five, "15min": fifteen},
    }
    if temperatures := celsius():
        found["celsius"] = temperatures
    return found


def celsius() -> dict[str, float]:
    """The first sensor of each chip; empty where there is none, as in most virtual machines."""
    if not hasattr(psutil, "sensors_temperatures"):
        return {}
    sensors = psutil.sensors_temperatures()
    return {chip: entries[0].current for chip, entries in sensors.items() if entries}


async def main(url: str) -> None:
    psutil.cpu_percent(percpu=True)  # the first call has nothing to compare with
    async with connect(url) as hub:
        while True:
            await asyncio.sleep(1)
            await hub.publish("telemetry/cpu", json.dumps(sample()).encode())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smq://127.0.0.1:1883"))
