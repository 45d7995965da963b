"""A session reached from every node, over real nats-servers, by paho, with hubs that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import pytest

from hubbub.protocols.mqtt import specification as spec
from tests.cluster.roaming import Place, Roaming, roaming
from tests.cluster.test_nats import PROGRAM, Nodes, nodes, server
from tests.process import RunningHub

__all__ = ["nodes", "server"]
PATIENCE = 60.0
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]


def place(hub: RunningHub) -> Place:
    return Place(hub.url("mqtt").removeprefix("mqtt://"))


async def arrives(device: Roaming, hub: RunningHub) -> None:
    """It comes as soon as its session can be reached from there."""
    async with asyncio.timeout(PATIENCE):
        while (code := await device.move(place(hub), cut=True)) != 0:
            assert code == spec.UNREACHABLE
            await asyncio.sleep(0.2)


@pytest.mark.parametrize("qos", [1, 2])
async def test_the_home_is_killed_while_its_client_is_elsewhere(nodes: Nodes, qos: int) -> None:
    """Nothing acknowledged is lost, and of QoS 2 nothing comes twice, nor out of its order."""
    a, b = await nodes.pair()
    c = await asyncio.to_thread(nodes.hub, "c")
    await nodes.know(c, "a", "b")
    acknowledged: list[int] = []

    async with roaming(place(a)) as device, roaming(place(c), "w", expiry=0, clean=True) as writer:
        assert await device.want("news", qos) == qos
        assert await device.move(place(b)) == 0
        assert device.present

        async def write() -> None:
            for number in range(400):
                writer.paho.publish("news", b"%d" % number, qos)
                await writer.code("publish")
                acknowledged.append(number)
                await asyncio.sleep(0.005)

        task = asyncio.create_task(write())
        await asyncio.sleep(0.5)
        a.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(a.process.wait, 10)
        # Its connection is ended with a word, and no other session begins meanwhile.
        assert await device.code("disconnect") in (spec.UNSPECIFIED, 7)
        assert await device.move(place(b), cut=True) == spec.UNREACHABLE
        assert await device.move(place(c), cut=True) == spec.UNREACHABLE
        await asyncio.to_thread(nodes.hub, "a")
        await arrives(device, b)
        assert device.present
        await asyncio.sleep(0.3)
        await arrives(device, c)
        await task
        got: list[int] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while len(set(got)) < len(acknowledged):
                    got += map(int, await device.take(1))
        assert sorted(set(got)) == acknowledged
        if qos == 2:
            assert got == acknowledged


async def test_no_session_begins_anew_at_the_first_that_is_back_after_all_were_killed(
    nodes: Nodes,
) -> None:
    """A loss of power: the client comes to a node that has not met its session's home so far."""
    a, b = await nodes.pair()
    async with roaming(place(a)) as device, roaming(place(a), "w", expiry=0, clean=True) as writer:
        assert await device.want("news", 1) == 1
        assert await device.move(place(b)) == 0 and device.present
        await device.drop()
        await asyncio.sleep(0.3)
        writer.paho.publish("news", b"kept", 1)
        await writer.code("publish")
        for hub in (a, b):
            hub.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(hub.process.wait, 10)
        b = await asyncio.to_thread(nodes.hub, "b")
        assert await device.move(place(b), cut=True) == spec.UNREACHABLE
        await asyncio.to_thread(nodes.hub, "a")
        await arrives(device, b)
        assert device.present
        assert await device.take(1) == [b"kept"]
