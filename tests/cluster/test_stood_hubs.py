"""Real hubs that stand still for less time than after which others take them for dead, and the
wills of clients that go elsewhere meanwhile, or nowhere.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest

from hubbub.protocols.mqtt import codec as mqtt
from tests.cluster.test_nats import PROGRAM, Client, Nodes, Server, nodes, said_to, server, stack

__all__ = ["nodes", "server", "stack"]
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)"),
]

SECONDS = 2.0


@pytest.mark.slow
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("elsewhere", [True, False])
async def test_a_hub_that_stood_still_for_two_seconds(
    nodes: Nodes, server: Server, stack: AsyncExitStack, elsewhere: bool, lasts: bool
) -> None:
    """That its clients were lost is what it sees first when it goes on. Those who went to the other
    hub were welcomed there before, and begin anew there.
    """
    a, b = await nodes.pair()
    watcher = await stack.enter_async_context(Client(a, "mqtt", "watcher"))
    await watcher.subscribe("state/+")
    names = [b"ann", b"bob", b"cem"]
    wills = {name: mqtt.Will(b"state/" + name, b"offline", 1, True) for name in names}
    lost = [said_to(a, mqtt.connect(name, not lasts, 600, wills[name])) for name in names]
    there = []
    a.process.send_signal(signal.SIGSTOP)
    try:
        for sock in lost:
            sock.close()
        for name in names if elsewhere else ():
            online = mqtt.publish(b"state/" + name, b"online", 0, True)
            there.append(said_to(b, mqtt.connect(name, True, 600), online))
            stack.callback(there[-1].close)
        await asyncio.sleep(SECONDS)
    finally:
        a.process.send_signal(signal.SIGCONT)
    said = b"online" if elsewhere else b"offline"
    assert await watcher.read(len(names)) == [said] * len(names)
    await watcher.client.publish("state/end", b"end", 1)
    assert await watcher.read(1) == [b"end"], "nothing is said twice, nor both"
    for hub in (a, b):
        late = await stack.enter_async_context(Client(hub, "mqtt", f"late-{hub is a}"))
        await late.subscribe("state/+")
        assert await late.read(len(names)) == [said] * len(names)
    assert "stood still" not in nodes.log("a")
