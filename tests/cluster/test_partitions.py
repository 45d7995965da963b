"""Hubs on machines of their own whose network parts: what holds on each side, and afterwards.

Packets just do not arrive; nobody closes a connection. So each side finds out by silence.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from hubbub.errors import HubbubError
from tests.cluster import namespaces
from tests.cluster.namespaces import Apart, Machines
from tests.process import RunningHub

PATIENCE = 60.0
WHY_NOT = namespaces.missing()
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT),
]

LASTING: dict[str, Any] = {"clean": False, "session_expiry": 3600}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with namespaces.machines(tmp_path) as found:
        yield found


@pytest.fixture
async def hubs(machines: Machines) -> dict[str, Apart]:
    found = {name: await asyncio.to_thread(machines.begin, name) for name in namespaces.NAMES}
    await all_know(found)
    return found


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def cluster(hub: RunningHub) -> dict[str, Any]:
    answer = httpx.get(hub.url("http") + "/api/v1/status", timeout=PATIENCE, trust_env=False)
    return dict(answer.json()["cluster"])


async def knows(hub: RunningHub, *names: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while {one["name"] for one in (await asyncio.to_thread(cluster, hub))["nodes"]} != set(
            names
        ):
            await asyncio.sleep(0.1)


async def all_know(hubs: dict[str, Apart]) -> None:
    for name, hub in hubs.items():
        await knows(hub, *(other for other in hubs if other != name))


async def wants(hub: RunningHub, node: str, filters: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            nodes = (await asyncio.to_thread(cluster, hub))["nodes"]
            if [one["filters"] for one in nodes if one["name"] == node] == [filters]:
                return
            await asyncio.sleep(0.1)


async def heard(messages: AsyncIterator[Any], count: int) -> list[bytes]:
    async with asyncio.timeout(PATIENCE):
        return [(await anext(messages)).payload for _ in range(count)]


async def keeps(hub: RunningHub, topic: str, payload: bytes) -> None:
    """Wait until that is what is retained there: it is told after all that was kept."""
    async with connect(hub.url("mqtt"), client_id="looks") as client:
        await client.subscribe(topic)
        messages = aiter(client.messages())
        found = b""
        while found != payload:
            (found,) = await heard(messages, 1)


@pytest.mark.slow
async def test_each_side_goes_on_and_both_agree_afterwards(
    machines: Machines, hubs: dict[str, Apart], stack: AsyncExitStack
) -> None:
    """One machine is cut off, with NATS of its own, for longer than the silence that is death."""

    async def client(name: str, at: str, scheme: str = "mqtt", **more: Any) -> Any:
        made = connect(hubs[at].url(scheme), client_id=name, **more)
        return await stack.enter_async_context(made)

    keeper, near = await client("keeper", "c", **LASTING), await client("near", "a")
    device = await client("device", "a", "smq")
    await keeper.subscribe("kept/#", qos=2)
    await near.subscribe("live/a")
    at_keeper, at_near = aiter(keeper.messages()), aiter(near.messages())
    await wants(hubs["a"], "c", 1)
    machines.cut("a")
    await knows(hubs["a"])
    await knows(hubs["b"], "c")
    await knows(hubs["c"], "b")

    left, right = await client("left", "a"), await client("right", "b")
    for number in range(50):
        await left.publish("kept/left", b"left %d" % number, qos=1 + number % 2)
        await right.publish("kept/right", b"right %d" % number, qos=1)
    assert await heard(at_keeper, 50) == [b"right %d" % n for n in range(50)]
    await left.publish("live/a", b"of its own")
    await device.publish("live/a", b"of its own, too")
    assert await heard(at_near, 2) == [b"of its own", b"of its own, too"]
    await left.publish("state/1", b"a, first", retain=True, qos=1)
    await right.publish("state/1", b"b, later", retain=True, qos=1)
    await right.publish("state/2", b"b, first", retain=True, qos=1)
    await left.publish("state/2", b"a, later", retain=True, qos=1)
    await near.subscribe("live/new")
    twin = await client("twin", "b", reconnect=False)
    await client("twin", "a", reconnect=False)  # later, so that it stays

    machines.heal("a")
    await all_know(hubs)
    got = await heard(at_keeper, 50)
    for qos in (1, 2):  # each has an order of its own
        expected = [b"left %d" % n for n in range(qos - 1, 50, 2)]
        assert [one for one in got if one in expected] == expected, got
    assert len(got) == 50, got
    for hub in hubs.values():
        await keeps(hub, "state/1", b"b, later")
        await keeps(hub, "state/2", b"a, later")
    await wants(hubs["b"], "a", 2)
    await right.publish("live/new", b"across again")
    assert await heard(at_near, 1) == [b"across again"]
    with pytest.raises(HubbubError):
        await heard(aiter(twin.messages()), 1)


@pytest.mark.soak
async def test_each_alone(machines: Machines, hubs: dict[str, Apart]) -> None:
    """All three are cut off from one another, and meet again."""
    for name in "ab":
        machines.cut(name)
    for hub in hubs.values():
        await knows(hub)
        async with connect(hub.url("mqtt"), client_id="alone") as client:
            await client.subscribe("own")
            await client.publish("own", b"heard", qos=1)
            assert await heard(aiter(client.messages()), 1) == [b"heard"]
    for name in "ab":
        machines.heal(name)
    await all_know(hubs)


async def rounds(machines: Machines, hubs: dict[str, Apart], count: int, seed: int) -> None:
    """Cables are pulled: nothing acknowledged is lost, repeated or out of order."""
    chance = random.Random(seed)
    async with connect(hubs["c"].url("mqtt"), client_id="keeper", **LASTING) as keeper:
        await keeper.subscribe("kept/#", qos=2)
        for name in "ab":
            await wants(hubs[name], "c", 1)
        got: dict[str, list[int]] = {"kept/a": [], "kept/b": []}
        said = dict.fromkeys(got, 0)
        over = asyncio.Event()

        async def write(name: str) -> None:
            topic = f"kept/{name}"
            async with connect(hubs[name].url("mqtt"), client_id=f"writer-{name}") as writer:
                while not over.is_set():
                    await writer.publish(topic, b"%d" % said[topic], qos=2)
                    said[topic] += 1
                    await asyncio.sleep(0.01)

        async def read() -> None:
            async for message in keeper.messages():
                got[message.topic].append(int(message.payload))

        writers = [asyncio.create_task(write(name)) for name in "ab"]
        reading = asyncio.create_task(read())
        for _ in range(count):
            victim = chance.choice("abc")
            machines.cut(victim)
            await asyncio.sleep(chance.choice((0.2, 1, 3, 7)))
            machines.heal(victim)
            await asyncio.sleep(chance.choice((0.1, 1, 3)))
        over.set()
        await asyncio.gather(*writers)
        await all_know(hubs)
        until = time.monotonic() + PATIENCE
        while any(len(got[topic]) < said[topic] for topic in got) and time.monotonic() < until:
            await asyncio.sleep(0.1)
        reading.cancel()
    for topic, count in said.items():
        assert count > 10 and got[topic] == list(range(count)), (topic, count, got[topic][-5:])


@pytest.mark.soak
async def test_cables_are_pulled(machines: Machines, hubs: dict[str, Apart]) -> None:
    await rounds(machines, hubs, 4, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_cables_are_pulled_a_hundred_times(
    machines: Machines, hubs: dict[str, Apart]
) -> None:
    await rounds(machines, hubs, 100, seed=2)
