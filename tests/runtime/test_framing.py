"""Frames of a WebSocket: however many one read brings, a turn hears as many as it has time for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Settings
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.node import Node
from hubbub.wire.websocket import CLOSE, PING, Frames, masked_frame
from tests import security
from tests.runtime.turns import serving, watched

UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{more}\r\n"
)
MOST = 0.2  # seconds of one callback, the client's too; the hub's are below 0.01
COUNT = 60_000  # took 0.4 to 1.1 seconds


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.frames = Frames(1 << 20, masked=False)

    @classmethod
    async def dial(cls, hub: Node, path: str, more: str = "") -> Peer:
        address = hub.listeners[0].address
        peer = cls(*await asyncio.open_connection(address.host, address.port))
        peer.writer.write(UPGRADE.format(path=path, more=more).encode())
        assert b" 101 " in await peer.reader.readuntil(b"\r\n\r\n")
        return peer

    async def hear(self, size: int) -> bytes:
        """The content of frames, until there are so many bytes."""
        heard = b""
        async with asyncio.timeout(60):
            while len(heard) < size:
                data = await self.reader.read(1 << 20)
                assert data, "the hub closed"
                heard += b"".join(self.frames.feed(data))
        return heard


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    async with serving(tmp_path / "data") as hub:
        yield hub


async def mqtt(hub: Node) -> Peer:
    peer = await Peer.dial(hub, "/mqtt", "Sec-WebSocket-Protocol: mqtt\r\n")
    peer.writer.write(masked_frame(codec.connect(b"framed", True, 60)))
    assert await peer.hear(4) == b"\x20\x02\0\0"
    return peer


async def test_thousands_of_packets_each_in_a_frame_take_many_turns(
    hub: Node, record_property: security.Note
) -> None:
    peer = await mqtt(hub)
    asked = [codec.subscribe(1 + n % 60_000, [(b"a/%d" % (n % 900), 1)]) for n in range(COUNT)]
    said = b"".join(map(masked_frame, asked))
    with watched() as turns:
        peer.writer.write(said)
        heard = await peer.hear(5 * COUNT)
    found = [heard[at : at + 5] for at in range(0, len(heard), 5)]
    assert found == [codec.suback(1 + n % 60_000, [1]) for n in range(COUNT)], "in order"
    assert turns.longest < MOST
    record_property(security.COUNTED, COUNT)


async def test_thousands_of_messages_of_smq(hub: Node, record_property: security.Note) -> None:
    peer = await Peer.dial(hub, "/smq.lsp")
    await peer.hear(1)
    peer.writer.write(masked_frame(smq.build_connect(b"creates", b"")))
    await peer.hear(6)
    asked = [smq.message(smq.CREATE, rest=b"x/%05d" % number) for number in range(COUNT)]
    said = b"".join(map(masked_frame, asked))
    with watched() as turns:
        peer.writer.write(said)
        heard = await peer.hear(COUNT * 13)
    names = [heard[at + 6 : at + 13] for at in range(0, len(heard), 13)]
    assert names == [b"x/%05d" % number for number in range(COUNT)]
    assert turns.longest < MOST
    record_property(security.COUNTED, COUNT)


async def test_thousands_of_pings(hub: Node, record_property: security.Note) -> None:
    peer = await mqtt(hub)
    said = masked_frame(b"", PING) * COUNT + masked_frame(codec.PINGREQ_PACKET)
    with watched() as turns:
        peer.writer.write(said)
        assert await peer.hear(2) == codec.PINGRESP_PACKET
    assert turns.longest < MOST
    record_property(security.COUNTED, COUNT)


async def test_what_follows_a_long_subscribe_waits_for_its_answer(hub: Node) -> None:
    """Another packet in a frame of its own took the place of the one under way, which was lost."""
    peer = await mqtt(hub)
    many = codec.subscribe(1, [(b"a/%d" % n, 1) for n in range(500)])
    asked = (many, codec.subscribe(2, [(b"b", 1)]), codec.PINGREQ_PACKET)
    peer.writer.write(b"".join(map(masked_frame, asked)))
    answers = codec.suback(1, [1] * 500), codec.suback(2, [1]), codec.PINGRESP_PACKET
    assert await peer.hear(sum(map(len, answers))) == b"".join(answers)


async def test_so_it_does_where_all_came_before_the_login_was_answered(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ann", b"secret")
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"), password_file=str(tmp_path / "users")
    )
    async with Node(settings) as hub:
        address = hub.listeners[0].address
        reader, writer = await asyncio.open_connection(address.host, address.port)
        for said in (
            codec.connect(b"early", True, 60, user=b"ann", password=b"secret"),
            codec.subscribe(1, [(b"a/%d" % n, 1) for n in range(500)]),
            codec.subscribe(2, [(b"b", 1)]),
        ):
            writer.write(said)
            await asyncio.sleep(0.005)
        answers = b"\x20\x02\0\0", codec.suback(1, [1] * 500), codec.suback(2, [1])
        size = sum(map(len, answers))
        assert await asyncio.wait_for(reader.readexactly(size), 30) == b"".join(answers)
        writer.close()


@pytest.mark.parametrize(
    "last", [masked_frame(b"\x03\xe8", CLOSE), b"\xff" * 10], ids=["closes", "nonsense"]
)
async def test_what_was_said_before_the_end_is_heard(hub: Node, last: bytes) -> None:
    """Messages to a queue are heard in turns: with a close frame, or nonsense, in the same read
    thousands of them were lost.
    """
    queue, count = hub.broker.queues.named("q"), 5_000
    peer = await mqtt(hub)
    for _ in range(4):
        said = (codec.publish(b"$queue/q", b"%d" % n, 0, False) for n in range(count))
        peer.writer.write(masked_frame(b"".join(said)))
    peer.writer.write(last)
    async with asyncio.timeout(60):
        while await peer.reader.read(1 << 20):
            pass
    assert len(queue.messages) == 4 * count
