"""A stranger that opens connections and never says who it is. `python -m tests.runtime.flood …`

    KIND PORT COUNT SECONDS     keeps COUNT connections open, and opens what was closed again

Prints how many it opened, were closed by the other end, could not be opened, and were answered.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections import Counter
from typing import Final, cast

from hubbub.protocols.mqtt import codec

# What is said at once on each connection, and nothing more.
SAID: Final = {
    "silent": b"",
    "tls": b"\x16",
    "half-handshake": bytes.fromhex("16 0301 0002 01 00"),
    "one-liner": b"GET /login/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "page": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "half-head": b"POST /publish/x HTTP/1.1\r\nHost: loc",
    "half-body": b"POST /api/v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
    "half-connect": b"\x10\x20\x00\x04MQTT",
    "wrong-login": codec.connect(b"flood", True, 60, None, b"ann", b"wrong"),
    "one-liner-again": b"GET /login/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "page-again": b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\n\r\n",
}
AGAIN: Final = "-again"  # kinds that say it once more with each answer


class Idle(asyncio.Protocol):
    """One connection; `said` is what it says, `gone` whom it tells that it was closed."""

    def __init__(self, flood: Flood) -> None:
        self.flood = flood
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.flood.counts["opened"] += 1
        self.transport = cast(asyncio.Transport, transport)
        if self.flood.said:
            self.transport.write(self.flood.said)

    def data_received(self, data: bytes) -> None:
        self.flood.counts["answers"] += 1
        if self.flood.again and self.transport is not None:
            self.transport.write(self.flood.said)

    def connection_lost(self, error: Exception | None) -> None:
        self.flood.counts["closed"] += 1
        self.flood.missing.set_result(None) if not self.flood.missing.done() else None
        self.flood.wanted += 1


class Flood:
    def __init__(self, kind: str, port: int, count: int) -> None:
        self.again = kind.endswith(AGAIN)
        self.said, self.port, self.wanted = SAID[kind], port, count
        self.counts: Counter[str] = Counter(opened=0, closed=0, refused=0, answers=0)
        self.missing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, seconds: float) -> None:
        with_time = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < with_time:
            batch, self.wanted = min(self.wanted, 50), max(0, self.wanted - 50)
            results = await asyncio.gather(*(self._open() for _ in range(batch)))
            self.wanted += results.count(False)
            await asyncio.sleep(0.001 if batch else 0.01)

    async def _open(self) -> bool:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5):
                await loop.create_connection(lambda: Idle(self), "127.0.0.1", self.port)
        except (OSError, TimeoutError):
            self.counts["refused"] += 1
            return False
        return True


async def main(kind: str, port: str, count: str, seconds: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flood = Flood(kind, int(port), int(count))
    await flood.run(float(seconds))
    print(*(f"{name} {number}" for name, number in flood.counts.items()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
