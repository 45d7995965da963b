"""Hubs that are restarted one after the other while clients of all protocols go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from hubbub import connect
from hubbub.errors import HubbubError
from tests.cluster.test_nats import (
    PATIENCE,
    PROGRAM,
    Client,
    Nodes,
    nodes,
    server,
    stack,
)
from tests.ports import free_port
from tests.process import RunningHub

__all__ = ["nodes", "server", "stack"]
SOON = (0.05, 0.2)  # seconds between attempts to come back
LASTING: dict[str, Any] = {"clean": False, "session_expiry": 3600, "backoff": SOON}
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]


class Rolling:
    """Two hubs, each also at a port that it has again when it comes back."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.ports = {name: free_port() for name in "ab"}
        self.hubs: dict[str, RunningHub] = {}
        self.over = asyncio.Event()

    async def start(self, name: str) -> None:
        options = (
            "--set", f"cluster.place={name}.example.org:1883",
            "--listen", f"127.0.0.1:{self.ports[name]}",
        )  # fmt: skip
        self.hubs[name] = await asyncio.to_thread(self.nodes.hub, name, *options)

    def url(self, name: str, scheme: str) -> str:
        """Where it is in each of its lives."""
        return f"{scheme}://127.0.0.1:{self.ports[name]}"

    async def writes(self, acknowledged: list[bytes]) -> None:
        """QoS 1 at node a, on a new connection each time; what was cut off is said again."""
        while not self.over.is_set():
            with contextlib.suppress(HubbubError, OSError):
                async with Client(self.hubs["a"], "mqtt", "writer") as writer:
                    await self._say(acknowledged, b"", lambda said: writer.publish("work", said, 1))
            await asyncio.sleep(0.05)

    async def writes_once(self, acknowledged: list[bytes]) -> None:
        """QoS 2 at node a, through whatever happens."""
        async with connect(self.url("a", "mqtt"), client_id="exact", **LASTING) as writer:
            await self._say(acknowledged, b"", lambda said: writer.publish("exact", said, qos=2))

    async def sends(self, acknowledged: list[bytes]) -> None:
        """Into the queue by way of node b; what nobody answered for is sent again."""
        async with connect(self.url("b", "switch"), token="teller") as teller:
            while not self.over.is_set():
                with contextlib.suppress(HubbubError, OSError):
                    await self._say(acknowledged, b"s", lambda said: teller.send("jobs", said))
                await asyncio.sleep(0.05)

    async def _say(
        self, acknowledged: list[bytes], mark: bytes, say: Callable[[bytes], Awaitable[object]]
    ) -> None:
        while not self.over.is_set():
            said = mark + b"%d" % len(acknowledged)
            await say(said)
            acknowledged.append(said)
            await asyncio.sleep(0.001)

    async def roll(self, stack: AsyncExitStack) -> None:
        """Only clients of the node that stops are disconnected; they are told where else to go."""
        for name, other in (("b", "a"), ("a", "b")):
            passing = Client(self.hubs[name], "mqtt", "passing")
            await passing.client.__aenter__()
            stays = await stack.enter_async_context(Client(self.hubs[other], "mqtt", f"at-{other}"))
            assert await asyncio.to_thread(self.hubs[name].stop) == 0
            with pytest.raises(HubbubError, match=f"use another server.*{other}.example.org:1883"):
                await passing.read(1)
            await asyncio.sleep(0.5)  # the others go on meanwhile
            await self.start(name)
            await self.nodes.know(self.hubs[name], other)
            await stays.publish("still/here", b"", 1)


async def test_a_rolling_restart_loses_nothing_that_was_acknowledged(
    nodes: Nodes, stack: AsyncExitStack
) -> None:
    """A session at b and a queue at a have all of it; clients of each protocol come back."""
    rolling = Rolling(nodes)
    for name in "ab":
        await rolling.start(name)
    await nodes.know(rolling.hubs["a"], "b")
    async with connect(rolling.url("b", "mqtt"), client_id="reader", **LASTING) as reader:
        await reader.subscribe("work", qos=1)
        await reader.subscribe("exact", qos=2)
    async with connect(rolling.url("a", "switch"), token="maker") as maker:
        await maker.create("jobs")
        await maker.bind("jobs", "exact")
    await nodes.filters(rolling.hubs["a"], "b", 2)
    devices = {}
    for name in "ab":
        device = connect(rolling.url(name, "smq"), client_id=f"device-{name}", backoff=SOON)
        devices[name] = await stack.enter_async_context(device)
        await devices[name].subscribe("live")
    worker = await stack.enter_async_context(connect(rolling.url("b", "switch"), token="worker"))
    worked: list[bytes] = []

    def work(job: bytes) -> bytes:
        worked.append(job)
        return b""

    serving = asyncio.create_task(worker.serve("jobs", work))
    once: list[bytes] = []
    twice: list[bytes] = []
    sent: list[bytes] = []
    writing = asyncio.gather(rolling.writes(once), rolling.writes_once(twice), rolling.sends(sent))
    await rolling.roll(stack)
    before = len(once), len(twice), len(sent)
    async with asyncio.timeout(PATIENCE):
        while min(len(once) - before[0], len(twice) - before[1], len(sent) - before[2]) < 10:
            await asyncio.sleep(0.05)
    rolling.over.set()
    await writing
    await nodes.until(rolling.hubs["a"], lambda c: not c["kept"])
    heard: dict[str, list[bytes]] = {"work": [], "exact": []}
    async with connect(rolling.url("b", "mqtt"), client_id="reader", **LASTING) as reader:
        messages = aiter(reader.messages())
        async with asyncio.timeout(PATIENCE):
            while heard["work"][-1:] != once[-1:] or heard["exact"][-1:] != twice[-1:]:
                message = await anext(messages)
                heard[message.topic].append(message.payload)
    assert min(before) > 20, before  # that nobody stood still meanwhile; a busy machine says few
    assert list(dict.fromkeys(heard["work"])) == once  # a writer that was cut off says it again
    assert heard["exact"] == twice
    async with asyncio.timeout(PATIENCE):
        while not {*twice, *sent} <= set(worked):
            await asyncio.sleep(0.05)
    serving.cancel()
    found = list(dict.fromkeys(worked))  # what was not acknowledged is taken again
    assert [one for one in found if one[:1] != b"s"] == twice
    assert [one for one in found if one[:1] == b"s"] == sent
    for name, other in ("ab", "ba"):
        await comes_through(devices[name], devices[other])


async def comes_through(sender: Any, receiver: Any) -> None:
    """Both are back, by themselves, with what they had subscribed to."""
    arrives = asyncio.ensure_future(anext(aiter(receiver.messages())))
    async with asyncio.timeout(PATIENCE):
        while not arrives.done():
            await sender.publish("live", b"x")
            await asyncio.wait([arrives], timeout=0.1)
    assert arrives.result().topic == "live"
