"""A device that speaks MQTT: memory, disks and network of this computer, once a second.

Publishes JSON with QoS 1, so each message is on the hub's disk before `publish` returns, to
`telemetry/memory`, `telemetry/disk` and `telemetry/network`. Sizes are bytes, rates a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import psutil

from hubbub.client import connect


def memory() -> dict[str, Any]:
    ram, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {"total": ram.total, "used": ram.used, "percent": ram.percent, "swap": swap.used}


def disk_totals() -> dict[str, int]:
    count = psutil.disk_io_counters()
    return {"read": count.read_bytes, "written": count.write_bytes} if count else {}


def network_totals() -> dict[str, int]:
    count = psutil.net_io_counters()
    return {"sent": count.bytes_sent, "received": count.bytes_recv}


def rates(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in after if name in before}


async def main(url: str) -> None:
    async with connect(url) as hub:
        disk, network = disk_totals(), network_totals()
        while True:
            await asyncio.sleep(1)
            now_disk, now_network = disk_totals(), network_totals()
            usage = psutil.disk_usage("/")
            samples = {
                "memory": memory(),
                "disk": {"used": usage.used, "percent": usage.percent, **rates(disk, now_disk)},
                "network": rates(network, now_network),
            }
            disk, network = now_disk, now_network
            for name, sample in samples.items():
                await hub.publish(f"telemetry/{name}", json.dumps(sample).encode(), qos=1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "mqtt://127.0.0.1:1883"))
