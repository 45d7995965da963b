"""Copies on machines of their own whose network parts: who has a quorum goes on, others wait.

Each machine has a nats-server of the three and a hub. What is acknowledged is noted outside; each
payload is published once, so it may come once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hubbub import connect
from hubbub.errors import HubbubError
from tests.cluster import namespaces
from tests.cluster.namespaces import Apart, Machines
from tests.cluster.quorum import program
from tests.cluster.test_partitions import LASTING, all_know, cluster

PATIENCE = 90.0
IDLE = 8.0  # without a message: all there was has come
WHY_NOT = namespaces.missing() or ("" if program() else "no nats-server of this age")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with namespaces.machines(tmp_path, program()) as found:
        yield found


@pytest.fixture
async def hubs(machines: Machines) -> dict[str, Apart]:
    copies = ("--set", "cluster.copies=3")
    begins = [asyncio.to_thread(machines.begin, name, *copies) for name in namespaces.NAMES]
    found = dict(zip(namespaces.NAMES, await asyncio.gather(*begins), strict=True))
    await settled(found)
    return found


async def settled(hubs: dict[str, Apart]) -> None:
    """All know one another, and the log of each is copied."""
    await all_know(hubs)
    async with asyncio.timeout(PATIENCE):
        for hub in hubs.values():
            while True:
                copies = (await asyncio.to_thread(cluster, hub))["copies"]
                if copies["ready"] and not copies["trouble"]:
                    break
                await asyncio.sleep(0.2)


class Writer:
    """Publishes at one hub with QoS 2, each payload once, whatever becomes of the connection."""

    def __init__(self, hub: Apart, name: str) -> None:
        self.hub = hub
        self.name = name
        self.acked: set[bytes] = set()
        self.task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        number = 0
        while True:
            with contextlib.suppress(HubbubError, OSError):
                async with connect(
                    self.hub.url("mqtt"), client_id=self.name, reconnect=False
                ) as client:
                    while True:
                        payload, number = b"%s %d" % (self.name.encode(), number), number + 1
                        await client.publish("kept/x", payload, qos=2)
                        self.acked.add(payload)
                        await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)

    async def more(self, count: int = 20) -> None:
        before = len(self.acked)
        async with asyncio.timeout(PATIENCE):
            while len(self.acked) < before + count:
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def lasting(hub: Apart) -> None:
    async with connect(hub.url("mqtt"), client_id="keeper", **LASTING) as client:
        await client.subscribe("kept/#", qos=2)


async def read(hub: Apart) -> Counter[bytes]:
    """All that waits for the session, from whatever node it is at."""
    found: Counter[bytes] = Counter()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            async with connect(
                hub.url("mqtt"), client_id="keeper", reconnect=False, **LASTING
            ) as client:
                messages: Any = aiter(client.messages())
                while True:
                    async with asyncio.timeout(IDLE):
                        found[(await anext(messages)).payload] += 1
        except TimeoutError:
            return found
        except HubbubError:
            assert time.monotonic() < until
            await asyncio.sleep(0.5)


def heirs(machines: Machines, dead: str) -> list[str]:
    return [
        name
        for name in namespaces.NAMES
        if f"heir of node '{dead}'" in (machines.root / name / "hub.log").read_text()
    ]


def whole(got: Counter[bytes], writers: list[Writer]) -> None:
    """Nothing acknowledged is missing, and nothing came twice."""
    acked = set[bytes]().union(*(writer.acked for writer in writers))
    assert not acked - got.keys(), sorted(acked - got.keys())[:10]
    assert got.most_common(1)[0][1] == 1, got.most_common(5)


@pytest.mark.slow
async def test_a_machine_that_is_cut_off_promises_nothing_and_has_one_heir(
    machines: Machines, hubs: dict[str, Apart]
) -> None:
    await lasting(hubs["a"])
    await asyncio.sleep(2.0)  # others know who lasts there
    writers = [Writer(hubs[name], f"writer-{name}") for name in "ab"]
    for writer in writers:
        await writer.more()
    machines.cut("a")
    await asyncio.sleep(1.0)
    frozen = len(writers[0].acked)
    async with asyncio.timeout(PATIENCE):
        while not heirs(machines, "a"):
            await asyncio.sleep(0.2)
    await writers[1].more()
    assert len(writers[0].acked) == frozen, "promised without a quorum"
    machines.heal("a")
    await settled(hubs)
    for writer in writers:
        await writer.more()
        await writer.end()
    assert len(heirs(machines, "a")) == 1
    assert "has taken over" in (machines.root / "a" / "hub.log").read_text()
    whole(await read(hubs["c"]), writers)


async def rounds(machines: Machines, hubs: dict[str, Apart], count: int, seed: int) -> None:
    chance = random.Random(seed)
    await lasting(hubs["a"])
    await asyncio.sleep(2.0)
    writers = [Writer(hubs[name], f"writer-{name}") for name in namespaces.NAMES]
    for number in range(count):
        for writer in writers:
            await writer.more()
        victims = chance.sample(namespaces.NAMES, chance.choice((1, 1, 1, 2)))
        for victim in victims:
            machines.cut(victim)
        await asyncio.sleep(chance.choice((0.5, 3, 8, 15)))
        for victim in victims:
            machines.heal(victim)
        await settled(hubs)
        found = {name: len(heirs(machines, name)) for name in namespaces.NAMES}
        print(f"round {number}: {victims} were cut off; had heirs: {found}", flush=True)
    for writer in writers:
        await writer.more()
        await writer.end()
    whole(await read(hubs[chance.choice(namespaces.NAMES)]), writers)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [3, 4, 5])
async def test_cables_are_pulled_from_machines_with_copies(
    machines: Machines, hubs: dict[str, Apart], seed: int
) -> None:
    await rounds(machines, hubs, 5, seed)
