"""What copies cost where the NATS servers are far: durable publishes over a line that takes time.

`python -m benchmarks.far` starts what `benchmarks.copies` does, and between the hub and the servers
a program that hands each piece of bytes on a while later; `python -m benchmarks.far PORT MS` is
that program. One group of rows is on its way to the servers at a time, so this shows what waits.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.brokers import ROOT, banner_port, ended, hubbub
from benchmarks.copies import SETTLE_SECONDS, Column, publish, servers

ROUND_TRIPS: Final = (0, 1, 5, 20)  # milliseconds
WINDOWS: Final = (1, 100, 1000)
SECONDS: Final = 4.0  # of a figure, about


async def pass_on(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, seconds: float
) -> None:
    """Bytes one way, in order, each piece when its time has come."""
    loop = asyncio.get_running_loop()
    while data := await source.read(1 << 20):
        loop.call_later(seconds, target.write, data)
    loop.call_later(seconds, target.close)


async def relay(port: int, milliseconds: float) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection("127.0.0.1", port)
        half = milliseconds / 2000
        await asyncio.gather(pass_on(reader, there[1], half), pass_on(there[0], writer, half))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(f"listening on 127.0.0.1:{server.sockets[0].getsockname()[1]}: a line", flush=True)
    await server.serve_forever()


def measure(milliseconds: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nats, _ = stack.enter_context(servers(folder))
        command = [sys.executable, "-m", "benchmarks.far", str(nats[0].port), str(milliseconds)]
        line = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        stack.enter_context(ended(line))
        url = f"nats://127.0.0.1:{banner_port(line)}"
        copied = stack.enter_context(
            hubbub("copied", folder / "copied", f"cluster.url={url}", "cluster.name=a",
                   "cluster.copies=3")
        )  # fmt: skip
        time.sleep(2 * SETTLE_SECONDS)
        column = Column("copied", copied.port, [copied])
        for window in WINDOWS:
            count = int(SECONDS * min(20_000, window / (0.002 + milliseconds / 1000)))
            waits, cost, _, rate = publish(column, count, window)
            waits.sort()
            p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
            figures = f"{p50:.1f} | {p99:.1f} | {cost:.0f} | {rate:,.0f}"
            print(f"| {milliseconds} | {window} | {figures} |", flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        asyncio.run(relay(int(sys.argv[1]), float(sys.argv[2])))
        return
    print("| round trip, ms | in flight | p50 ms | p99 ms | CPU of the hub, µs | messages/s |")
    print("|---|---|---|---|---|---|")
    for milliseconds in ROUND_TRIPS:
        measure(milliseconds)


if __name__ == "__main__":
    main()
