"""Several processes of a machine as nodes of a cluster over NATS: real server, hubs and clients."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from hubbub import connect
from tests.clients import mqtt
from tests.cluster.roaming import Place, Roaming
from tests.cluster.test_nats import PROGRAM, Nodes, Server, nodes, server
from tests.cluster.test_queues import switch
from tests.ports import free_port
from tests.process import RunningHub
from tests.test_processes import (
    MANY,
    TWO,
    comes_in,
    impatient,
    killed_in_turn,
    publish,
    status,
)

__all__ = ["nodes", "server"]
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]


async def machines(nodes: Nodes) -> tuple[RunningHub, RunningHub]:
    """One of two processes, and one of one process, which know one another."""
    a = await asyncio.to_thread(nodes.hub, "a", *TWO)
    b = await asyncio.to_thread(nodes.hub, "b")
    await nodes.know(b, "a-1", "a-2")
    return a, b


async def test_clients_of_all_protocols_are_those_of_one_hub(nodes: Nodes) -> None:
    a, b = await machines(nodes)
    here: Any = Place(a.address)
    there: Any = Place(b.address)
    async with AsyncExitStack() as stack:
        panels = [await stack.enter_async_context(mqtt(here, f"here-{n}")) for n in range(MANY)]
        panels.append(await stack.enter_async_context(mqtt(there, "there")))
        for one in panels:
            await one.subscribe("news/#")
        devices = []
        for n in range(MANY):
            device = await stack.enter_async_context(
                connect(f"smq://{a.address}", client_id=f"device-{n}", reconnect=False)
            )
            await device.subscribe("news")
            devices.append(device)
        await asyncio.sleep(0.5)
        for teller in (panels[0], panels[-1]):
            assert await teller.publish("news", b"told") == 0
            for one in panels:
                assert await one.message() == ("news", b"told")
            for device in devices:
                async with asyncio.timeout(10):
                    assert (await anext(aiter(device.messages()))).payload == b"told"
        worker = await stack.enter_async_context(switch(there, "worker"))
        assert await worker.get("/persistent/jobs") == "jobs"
        await asyncio.sleep(0.5)
        for one in panels:
            assert await one.publish("$queue/jobs", b"work") == 0
        assert len(await worker.take("jobs")) == len(panels)
        found = await asyncio.to_thread(listed, a, "ls/clients?search=here")
        assert found["count"] == MANY
        assert {one["process"] for one in found["clients"]} == {1, 2}
        assert len(found["processes"]) == 2, "the other machine is another hub"


def listed(hub: RunningHub, what: str) -> dict[str, Any]:
    return dict(httpx.get(f"{hub.url('http')}/api/v1/{what}", timeout=10).json())


async def test_sessions_of_all_processes_are_there_after_a_start(nodes: Nodes) -> None:
    a, b = await machines(nodes)
    for n in range(MANY):
        one = Roaming(Place(a.address), f"away-{n}")
        assert await one.open() == 0
        assert await one.want("jobs", 1) == 1
        await one.close()
    await asyncio.sleep(0.5)
    assert await asyncio.to_thread(a.stop) == 0
    again = await asyncio.to_thread(nodes.hub, "a", *TWO)
    for n in range(MANY):
        one = Roaming(Place(again.address), f"away-{n}")
        assert await one.open() == 0
        assert one.present, f"away-{n}"
        await one.close()


SLOW = """
import time
from hubbub.runtime.node import Node
recover = Node._recover
Node._recover = lambda self: (time.sleep(4.0 * self.settings.data.endswith("/2")), recover(self))
"""


async def test_a_process_hears_nobody_before_it_knows_what_is_at_home_at_a_slower_one(
    server: Server, tmp_path: Path
) -> None:
    program, port = impatient(tmp_path, SLOW), free_port()
    start = partial(
        RunningHub, tmp_path / "data", *TWO, "--cluster", server.url, "--cluster-name", "a",
        "--listen", f"127.0.0.1:{port}", program=program,
    )  # fmt: skip
    hub = await asyncio.to_thread(start)
    place = Place(f"127.0.0.1:{port}")
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        assert await one.open() == 0
        await one.close()
    assert await asyncio.to_thread(hub.stop) == 0
    starting = asyncio.create_task(asyncio.to_thread(start))
    for n in range(MANY):
        one = Roaming(place, f"away-{n}")
        await comes_in(one)
        assert one.present, f"away-{n}"
        await one.close()
    assert await asyncio.to_thread((await starting).stop) == 0


@pytest.mark.slow
async def test_a_process_is_killed_under_traffic_and_nothing_acknowledged_is_lost(
    nodes: Nodes,
) -> None:
    a, b = await machines(nodes)
    here, there = Place(a.address), Place(b.address)
    for n in range(MANY):
        one = Roaming(here, f"away-{n}")
        assert await one.open() == 0
        assert await one.want("jobs", 1) == 1
        await one.close()
    await asyncio.sleep(0.5)
    acknowledged: list[bytes] = []
    over = asyncio.Event()
    publishing = asyncio.create_task(publish(there, acknowledged, over))
    await killed_in_turn(a, acknowledged, 1, 2)
    over.set()
    await publishing
    for n in range(MANY):
        one = Roaming(here, f"away-{n}")
        await comes_in(one)
        assert one.present, f"away-{n}"
        missing = set(acknowledged)
        async with asyncio.timeout(30):
            while missing:
                missing.discard((await one.message())[1])
        await one.close()
    assert await asyncio.to_thread(a.stop) == 0


async def test_what_needs_attention_at_one_process_is_seen_at_the_other(nodes: Nodes) -> None:
    """Debian's server gives no copies: each process says so of each."""
    a = await asyncio.to_thread(nodes.hub, "a", *TWO, "--set", "cluster.copies=auto")
    async with asyncio.timeout(30):
        while True:
            found = (await asyncio.to_thread(status, a))["processes"]
            if all(one["up"] and "copies: " in str(one["attention"]) for one in found):
                return
            await asyncio.sleep(0.2)
