"""`hubbub bench`: load on an MQTT broker or SMQ hub, ours or another, and how long messages took.

    publishers ──→ broker ──→ one subscriber, in the same process: one clock for both

At most `window` messages are under way, so what is measured is the broker and not a queue before
it; with a rate, what cannot be kept up shows as fewer messages. Python makes some ten thousand a
second; `make bench` compares brokers with a load generator in C.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import typer

from hubbub.cli.options import takes
from hubbub.cli.target import Target
from hubbub.client import run
from hubbub.errors import SettingError

app = typer.Typer(add_completion=False)

STAMP: Final = struct.Struct("<q")  # when it was sent; the rest of a payload is zeros
STEP: Final = 1.02  # from one bucket to the next: a quantile is right within two hundredths
LOST_SECONDS: Final = 2.0  # without a message what is missing is lost
POLL_SECONDS: Final = 0.05
LEAST: Final = 1e-6
BAR: Final = 40  # columns of the longest bar


class Figures:
    """What happened: how many were sent and came, and the latencies in buckets."""

    def __init__(self) -> None:
        self.sent = self.received = self.lost = self.bytes = 0
        self.began = self.ended = 0.0
        self.slowest = 0.0
        self._buckets: Counter[int] = Counter()

    @property
    def open(self) -> int:
        """How many are under way."""
        return self.sent - self.received - self.lost

    def add(self, seconds: float, size: int) -> None:
        self.received += 1
        self.bytes += size
        self.slowest = max(self.slowest, seconds)
        self._buckets[math.ceil(math.log(max(seconds, LEAST) / LEAST, STEP))] += 1

    def quantile(self, part: float) -> float:
        """So many seconds that part of the messages took at most; 0 if none came."""
        wanted, seen = part * self.received, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(LEAST * STEP**bucket, self.slowest)
        return 0.0

    def histogram(self) -> Iterator[tuple[float, int]]:
        """Upper bounds in steps of 1, 2 and 5, and how many were not slower (nor faster)."""
        counts: Counter[float] = Counter()
        for bucket, count in self._buckets.items():
            counts[_rounded_up(LEAST * STEP**bucket)] += count
        bound = min(counts, default=0.0)
        while counts and bound <= max(counts) * 1.01:
            yield bound, counts[bound]
            bound = _rounded_up(bound * 1.01)


def _rounded_up(seconds: float) -> float:
    """The least of 1, 2, 5, 10 … microseconds that is no less."""
    base: float = 10 ** math.floor(math.log10(seconds) + 1e-9)
    return float(f"{next(base * n for n in (1, 2, 5, 10) if base * n >= seconds * 0.9999):.3g}")


@app.command()
@takes(Target)
def bench(
    target: Target,
    seconds: Annotated[
        float, typer.Option("--seconds", "-s", min=0.1, help="How long; Ctrl-C ends it before.")
    ] = 5.0,
    rate: Annotated[
        float, typer.Option(min=0, help="Messages a second of all clients; 0: all that go.")
    ] = 0.0,
    messages: Annotated[
        int, typer.Option("--window", min=1, help="Messages under way at a time.")
    ] = 100,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2, help="MQTT: 0, 1 or 2.")] = 0,
    size: Annotated[
        str, typer.Option(metavar="N or N-M", help="Bytes of a payload; N-M: any between.")
    ] = "64",
    topics: Annotated[int, typer.Option(min=1, max=10_000, help="So many topics, in turn.")] = 1,
    clients: Annotated[int, typer.Option(min=1, max=1_000, help="Publishing clients.")] = 1,
) -> None:
    if target.smq and qos:
        raise SettingError("SMQ has no QoS: leave --qos out")
    figures, sizes = Figures(), _sizes(size)
    prefix = f"bench/{secrets.token_hex(4)}"
    names = [f"{prefix}/{number}" for number in range(topics)]

    def payload() -> bytes:
        return STAMP.pack(time.perf_counter_ns()) + bytes(random.randint(*sizes) - STAMP.size)

    load = _Load(figures, payload, names, messages, rate, qos)
    try:
        run(load.run(target, clients, seconds))
    except KeyboardInterrupt:
        figures.ended = figures.ended or time.perf_counter()
    print(table(figures))


def _sizes(text: str) -> tuple[int, int]:
    least, dash, most = text.partition("-")
    if not (least.isdecimal() and (most.isdecimal() if dash else True)):
        raise SettingError(f"--size: expected a number of bytes, or two as 64-1024, got {text!r}")
    found = int(least), int(most or least)
    if not STAMP.size <= found[0] <= found[1] <= 1 << 26:
        raise SettingError(f"--size: expected {STAMP.size} bytes to 64 MiB, got {text!r}")
    return found


class _Load:
    """One run: who publishes, who receives, and how much may be under way."""

    def __init__(
        self, figures: Figures, payload: Callable[[], bytes], names: list[str], window: int,
        rate: float, qos: int,
    ) -> None:  # fmt: skip
        self._figures = figures
        self._payload = payload
        self._names = names
        self._window = window
        self._rate = rate
        self._options: dict[str, Any] = {"qos": qos} if qos else {}
        self._room = asyncio.Event()

    async def run(self, target: Target, clients: int, seconds: float) -> None:
        figures = self._figures
        async with AsyncExitStack() as stack:
            taker = await stack.enter_async_context(target._replace(client_id="").connect())
            for name in self._names:
                await taker.subscribe(name, callback=self._took, **self._options)
            one = target._replace(client_id="")
            givers = [await stack.enter_async_context(one.connect()) for _ in range(clients)]
            workers = max(self._window // clients, 1) if self._options else 1
            figures.began = time.perf_counter()
            end = figures.began + seconds
            tasks = [asyncio.create_task(self._give(g, end)) for g in givers * workers]
            try:
                await asyncio.gather(*tasks)
                await self._rest()
            finally:
                figures.ended = time.perf_counter()
                for task in tasks:
                    task.cancel()

    def _took(self, message: Any) -> None:
        sent = STAMP.unpack_from(message.payload)[0]
        self._figures.add((time.perf_counter_ns() - sent) / 1e9, len(message.payload))
        self._room.set()

    async def _give(self, client: Any, end: float) -> None:
        figures = self._figures
        while time.perf_counter() < end:
            if self._rate and (early := self._early()) > 0:
                await asyncio.sleep(min(early, POLL_SECONDS))
                continue
            if figures.open >= self._window:
                await self._make_room()
                continue
            name = self._names[figures.sent % len(self._names)]
            figures.sent += 1
            await client.publish(name, self._payload(), **self._options)

    def _early(self) -> float:
        """Seconds until the next one is due."""
        figures = self._figures
        return figures.began + figures.sent / self._rate - time.perf_counter()

    async def _make_room(self) -> None:
        """Wait for a message to come; if none does, those under way are lost."""
        self._room.clear()
        try:
            async with asyncio.timeout(LOST_SECONDS):
                await self._room.wait()
        except TimeoutError:
            self._figures.lost += self._figures.open

    async def _rest(self) -> None:
        """What is still under way."""
        while self._figures.open > 0:
            await self._make_room()


def table(figures: Figures) -> str:
    """What is printed at the end, also of a run that was broken off."""
    seconds = max((figures.ended or figures.began) - figures.began, 1e-9)
    lines = [
        f"{figures.sent:,} sent, {figures.received:,} received, {figures.lost:,} lost in "
        f"{seconds:.1f} s",
        f"{figures.received / seconds:,.0f} messages/s, {figures.bytes / seconds / 1e6:,.2f} MB/s",
    ]
    if figures.received:
        parts = (("half", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999))
        said = [f"{name} {_time(figures.quantile(part))}" for name, part in parts]
        lines.append(f"latency: {', '.join(said)}, slowest {_time(figures.slowest)}")
        most = max(count for _, count in figures.histogram())
        for bound, count in figures.histogram():
            bar = "#" * math.ceil(BAR * count / most)
            lines.append(f"{'<= ' + _time(bound):>12} {count:>10,} {bar}".rstrip())
    return "\n".join(lines)


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
