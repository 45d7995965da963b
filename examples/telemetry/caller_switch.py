"""A caller on message-switch: asks the service one question every two seconds."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys

from hubbub.client import connect
from hubbub.errors import CallTimeout

QUEUE = "telemetry-service"
QUESTIONS = ("uptime", "largest", "people")


async def main(url: str) -> None:
    async with connect(url) as hub:
        for question in itertools.cycle(QUESTIONS):
            try:
                await hub.call(QUEUE, question.encode(), timeout=10)
            except CallTimeout:
                print(f"nobody answered {question} within 10 s", file=sys.stderr)
            await asyncio.sleep(2)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "switch://127.0.0.1:8080"))
