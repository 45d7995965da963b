"""Trouble of the hub's own, and clients that never read: one connection ends, the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hubbub.config.settings import Settings
from hubbub.core import limits
from hubbub.core.message import Run
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from tests.protocols.mqtt.conversation import in_words

pytestmark = pytest.mark.interop


class Peer:
    """One connection to a hub in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._rest = b""

    async def say(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))
        await self.writer.drain()

    async def hear(self, count: int) -> list[str]:
        """At least so many packets, or fewer if the hub closes."""
        words: list[str] = []
        async with asyncio.timeout(20):
            while len(words) < count and (data := await self.reader.read(1 << 16)):
                more, self._rest = in_words(self._rest + data)
                words += more
        return words


@asynccontextmanager
async def dialled(hub: Node, client: str) -> AsyncIterator[Peer]:
    host, _, port = str(hub.listeners[0].address).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = Peer(reader, writer)
    try:
        await peer.say(codec.connect(client.encode(), True, 0))
        assert await peer.hear(1) == ["CONNACK 0"]
        yield peer
    finally:
        writer.close()


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(Settings(listen=("127.0.0.1:0",), data=str(tmp_path / "data"))) as node:
        yield node


@pytest.mark.holds(v3="4.8.0-2")
async def test_a_fault_of_the_hub_ends_the_connection_that_met_it(
    hub: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = hub.broker.publish

    def faulty(run: Run) -> None:
        if run.route.name == "bad":
            raise RuntimeError("a fault that this test made")
        publish(run)

    monkeypatch.setattr(hub.broker, "publish", faulty)
    async with dialled(hub, "ann") as ann, dialled(hub, "bob") as bob:
        await ann.say(codec.publish(b"bad", b"x", 1, packet_id=1))
        assert await ann.hear(1) == [], "closed, and nothing promised"
        await bob.say(codec.publish(b"good", b"x", 1, packet_id=1))
        assert await bob.hear(1) == ["PUBACK 1"]


async def test_a_client_that_never_reads_is_bounded(hub: Node) -> None:
    """QoS 0 is dropped and counted, QoS 1 waits in its backlog, and the hub's buffer is small."""
    hub.broker.backlog_messages = 50
    async with dialled(hub, "deaf") as deaf, dialled(hub, "bob") as bob:
        await deaf.say(codec.subscribe(5, [(b"#", 1)]))
        assert await deaf.hear(1) == ["SUBACK 5: 1"]
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        payload = bytes(100_000)
        for number in range(1, 201):
            await bob.say(codec.publish(b"a", payload, number % 2, packet_id=number))
        assert len(await bob.hear(100)) == 100
        session = next(one for one in hub.broker.clients.values() if one.client == "deaf")
        link = session.link  # type: ignore[attr-defined]
        assert link.size < 2 * limits.LINK_CHOKED + len(payload)
        assert set(session.dropped) == {"slow consumer", "backlog full"}
        assert session.unacknowledged() <= 50
