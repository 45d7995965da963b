"""Three hubs that are killed, stopped, rolled and lose their disks in turn, while clients hop.

Who lasts, a shared group and writers come to whichever hub chance takes, again and again. What was
acknowledged is noted outside; at the end each one it was for has it. QoS 2 comes once, and to one
member of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import time
from collections import Counter

import pytest

from tests.cluster.plain import Cut, Plain
from tests.cluster.quorum import has_program
from tests.cluster.test_heirs import know
from tests.cluster.test_jetstream import Hubs, hubs, quorum
from tests.process import RunningHub

__all__ = ["hubs", "quorum"]

NAMES = ("a", "b", "c")
LASTING = {
    "one": ("kept/#", 2), "two": ("kept/#", 1), "three": ("kept/1", 2),
    "m1": ("$share/group/jobs", 2), "m2": ("$share/group/jobs", 2), "m3": ("$share/group/jobs", 1),
}  # fmt: skip
GROUP = ("m1", "m2", "m3")
WRITERS = {"w1": ("kept/1", 2), "w2": ("kept/2", 1), "w3": ("jobs", 2), "w4": ("jobs", 1)}
ROUNDS = 12
DEAD = 9.0  # seconds until somebody has taken over
PATIENCE = 120.0
pytestmark = [
    pytest.mark.soak,
    pytest.mark.interop,
    pytest.mark.timeout(1200),
    has_program,
]


class Chaos:
    """`got`: what each one that lasts was given; `acked`: by topic."""

    def __init__(self, hubs: Hubs, seed: int) -> None:
        self.hubs = hubs
        self.chance = random.Random(seed)
        self.here: dict[str, RunningHub] = {}
        self.got: dict[str, list[tuple[bytes, bool]]] = {name: [] for name in LASTING}
        self.acked: dict[str, set[bytes]] = {topic: set() for topic, _ in WRITERS.values()}
        self.known: set[str] = set()
        self.over = False

    # Hubs

    async def begin(self) -> None:
        for name in NAMES:
            self.here[name] = await asyncio.to_thread(self.hubs.hub, name)
        await self.settled()

    async def settled(self) -> None:
        for name in NAMES:
            await asyncio.to_thread(self.hubs.ready, self.here[name])
            await asyncio.to_thread(know, self.here[name], *(set(NAMES) - {name}))

    async def pause(self, *seconds: float) -> None:
        await asyncio.sleep(self.chance.choice(seconds))

    async def up(self, name: str) -> None:
        self.here[name] = await asyncio.to_thread(self.hubs.hub, name)

    def kill(self, name: str) -> None:
        self.here[name].stop(signal.SIGKILL)

    async def killed(self, name: str) -> None:
        self.kill(name)
        await self.pause(0, 3, DEAD)
        await self.up(name)

    async def killed_together(self, name: str) -> None:
        other = self.chance.choice([one for one in NAMES if one != name])
        self.kill(name)
        await self.pause(0, 6.5, DEAD)
        self.kill(other)
        await self.pause(0, DEAD)
        await self.up(name)
        await self.pause(0, 4)
        await self.up(other)

    async def stopped(self, name: str) -> None:
        self.here[name].process.send_signal(signal.SIGSTOP)
        await self.pause(3, 8, 12)
        self.here[name].process.send_signal(signal.SIGCONT)

    async def rolled(self, name: str) -> None:
        for one in NAMES:
            await asyncio.to_thread(self.here[one].stop)
            await self.up(one)
            await asyncio.to_thread(self.hubs.ready, self.here[one])

    async def wiped(self, name: str) -> None:
        """Its disk is lost, or lost again before its copy was taken over; it may have an heir."""
        for _ in range(self.chance.choice((1, 1, 2))):
            self.kill(name)
            shutil.rmtree(self.hubs.root / name / "data")
            await self.up(name)
            await self.pause(0, 0.2, 0.5, 1, 3)
        if self.chance.random() < 0.3:
            await self.killed(name)

    # Clients

    def port(self) -> int:
        return self.here[self.chance.choice(NAMES)].port

    async def last(self, name: str) -> None:
        """Come, stay for a while, be cut off, come again."""
        while not self.over:
            client = Plain(name, clean=False)
            client.got = self.got[name]
            with contextlib.suppress(Cut):
                present = await client.open(self.port())
                assert present or name not in self.known, f"the session of {name} is lost"
                if not present:
                    await client.subscribe(*LASTING[name])
                    self.known.add(name)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(client.ended.wait(), self.chance.uniform(2, 8))
                client.cut()
            await asyncio.sleep(0.3)

    async def write(self, name: str) -> None:
        topic, qos = WRITERS[name]
        number = 0
        while True:
            client = Plain(name, clean=True)
            with contextlib.suppress(Cut):
                await client.open(self.port())
                until = time.monotonic() + self.chance.uniform(2, 6)
                while time.monotonic() < until:
                    payload, number = b"%s %d" % (name.encode(), number), number + 1
                    await client.publish(topic, payload, qos)
                    self.acked[topic].add(payload)
                    await asyncio.sleep(0.01)
                client.cut()
            await asyncio.sleep(0.2)

    # What holds

    def missing(self) -> dict[str, list[bytes]]:
        have = {name: {payload for payload, _ in got} for name, got in self.got.items()}
        kept = self.acked["kept/1"] | self.acked["kept/2"]
        lacks = {name: kept - have[name] for name in ("one", "two")}
        lacks["three"] = self.acked["kept/1"] - have["three"]
        lacks["group"] = self.acked["jobs"] - set[bytes]().union(*(have[one] for one in GROUP))
        return {name: sorted(found)[:5] for name, found in lacks.items() if found}

    def twice(self) -> list[bytes]:
        """QoS 2 that came anew where it had come: repetitions say that they are."""
        found: list[bytes] = []
        for names, writer in ((("one",), b"w1 "), (("three",), b"w1 "), (("m1", "m2"), b"w3 ")):
            first = Counter(
                payload
                for name in names
                for payload, dup in self.got[name]
                if payload.startswith(writer) and not dup
            )
            found += [payload for payload, count in first.items() if count > 1]
        return found


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_whatever_happens_to_three_hubs_nothing_acknowledged_is_lost_or_comes_twice(
    hubs: Hubs, seed: int
) -> None:
    chaos = Chaos(hubs, seed)
    await chaos.begin()
    readers = [asyncio.create_task(chaos.last(name)) for name in LASTING]
    async with asyncio.timeout(PATIENCE):
        while len(chaos.known) < len(LASTING):
            await asyncio.sleep(0.1)
    await asyncio.sleep(2.0)  # all nodes know who lasts
    writers = [asyncio.create_task(chaos.write(name)) for name in WRITERS]
    events = (
        chaos.killed, chaos.killed, chaos.killed_together, chaos.stopped, chaos.rolled, chaos.wiped,
        chaos.wiped,
    )  # fmt: skip
    for number in range(ROUNDS):
        await asyncio.sleep(chaos.chance.uniform(1, 3))
        event, name = chaos.chance.choice(events), chaos.chance.choice(NAMES)
        acknowledged = sum(map(len, chaos.acked.values()))
        print(f"round {number}: {event.__name__} {name}, {acknowledged} acknowledged", flush=True)
        await event(name)
        failed = [task.exception() for task in readers if task.done()]
        assert not failed, (seed, number, failed)
    await chaos.settled()
    for task in writers:
        task.cancel()
    until = time.monotonic() + PATIENCE
    while chaos.missing() and time.monotonic() < until:
        await asyncio.sleep(1)
    chaos.over = True
    await asyncio.gather(*readers)
    assert not chaos.missing(), (seed, chaos.missing())
    assert not chaos.twice(), (seed, chaos.twice())
