"""Every protocol reaches every other one at another node, at each QoS of both sides.

Two real hubs, each at another one of three nats-servers, so that all of it goes by a route between
servers. What happens inside of one hub is in `tests.test_crossing`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.cluster.quorum import Quorum, has_program
from tests.cluster.test_jetstream import quorum
from tests.cluster.test_nats import PATIENCE, Client, Nodes, stack
from tests.process import StartHub

__all__ = ["quorum", "stack"]

PUBLISHED = [("mqtt", 0), ("mqtt", 1), ("mqtt", 2), ("smq", 0), *(("switch", n) for n in range(3))]
EACH = 10
pytestmark = [pytest.mark.interop, has_program]


def in_order(got: list[bytes]) -> None:
    """All that was published, each once, in the order of its publisher."""
    series: dict[str, list[int]] = {}
    for payload in got:
        sender, _, number = payload.decode().rpartition(" ")
        series.setdefault(sender, []).append(int(number))
    assert series == {f"{name} {qos}": list(range(EACH)) for name, qos in PUBLISHED}


async def of_each_qos(reader: Client) -> None:
    """What comes has the lower one of its publisher's QoS and of that of its subscription."""
    got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    messages = aiter(reader.client.messages())
    async with asyncio.timeout(PATIENCE):
        for _ in range(3 * EACH * len(PUBLISHED)):
            message = await anext(messages)
            wanted, published = int(message.topic[-1]), int(message.payload.split()[1])
            assert message.qos == min(published, wanted), message
            got[wanted].append(message.payload)
    for wanted in got:
        in_order(got[wanted])


async def test_every_protocol_reaches_every_other_at_another_node(
    start_hub: StartHub, quorum: Quorum, tmp_path: Path, stack: AsyncExitStack
) -> None:
    here, there = (Nodes(start_hub, tmp_path, url) for url in quorum.urls[:2])
    a = await asyncio.to_thread(here.hub, "a")
    b = await asyncio.to_thread(there.hub, "b")
    mqtt, smq, switch = (Client(b, name, f"reader-{name}") for name in ("mqtt", "smq", "switch"))
    for reader in (mqtt, smq, switch):
        await stack.enter_async_context(reader)
    for qos in range(3):
        await mqtt.subscribe(f"to/mqtt/{qos}", qos)
    await smq.subscribe("to/smq")
    await switch.subscribe("to/switch")
    await here.filters(a, "b", 5)
    for nodes, name in ((here, "a"), (there, "b")):
        assert f"connected to NATS at {nodes.urls[0]}," in nodes.log(name)
    for name in ("mqtt", "smq", "switch"):
        async with Client(a, name, f"writer-{name}") as writer:
            for qos in (qos for one, qos in PUBLISHED if one == name):
                for topic in ("to/mqtt/0", "to/mqtt/1", "to/mqtt/2", "to/smq", "to/switch"):
                    for n in range(EACH):
                        await writer.publish(topic, f"{name} {qos} {n}".encode(), qos)
    await of_each_qos(mqtt)
    for reader in (smq, switch):
        in_order(await reader.read(EACH * len(PUBLISHED)))
