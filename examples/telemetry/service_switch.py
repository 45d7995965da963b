"""A service on a message-switch queue: answers questions about this computer.

A question is the name of an answer below, as text; the answer is JSON. What it does not know is
answered with an `error`, so that no caller waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import psutil

from hubbub.client import connect

QUEUE = "telemetry-service"


def uptime() -> dict[str, Any]:
    return {"seconds": round(time.time() - psutil.boot_time())}


def largest() -> dict[str, Any]:
    """The three processes with the most memory."""
    found = psutil.process_iter(["name", "memory_info"])
    sizes = [(p.info["memory_info"].rss, p.info["name"]) for p in found if p.info["memory_info"]]
    return {"processes": [{"name": n, "bytes": size} for size, n in sorted(sizes)[:-4:-1]]}


def people() -> dict[str, Any]:
    return {"logged_in": len(psutil.users()), "processes": len(psutil.pids())}


ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {
    "uptime": uptime,
    "largest": largest,
    "people": people,
}


async def answer(question: bytes) -> bytes:
    known = ANSWERS.get(question.decode(errors="replace"))
    found = known() if known else {"error": f"ask one of {', '.join(ANSWERS)}"}
    return json.dumps(found).encode()


async def main(url: str) -> None:
    async with connect(url) as hub:
        await hub.serve(QUEUE, answer)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "switch://127.0.0.1:8080"))
