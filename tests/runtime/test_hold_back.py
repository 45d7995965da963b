"""A reader slower than its sender, over real sockets: who waits for whom, and for how long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from hubbub.core.limits import HOLD_BACK_BYTES, LINK_CHOKED
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.node import Node
from tests.client.smq.here import serving, until
from tests.protocols.smq.device import HEAD

SIZE = 10_000
COUNT = 1_000
TOGETHER = COUNT * SIZE


@pytest.fixture
async def hub() -> AsyncIterator[Node]:
    async with serving() as node:
        yield node


class Peer:
    """A raw socket with small buffers, so that what waits waits in the hub."""

    def __init__(self, hub: Node) -> None:
        self.port = hub.listeners[0].address.port

    async def open(self, first: bytes) -> Peer:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=32 * 1024)
        self.writer.write(first)
        return self

    async def read(self, size: int) -> bytes:
        async with asyncio.timeout(20):
            return await self.reader.readexactly(size)

    async def read_slowly(self, size: int, wanted: int, rest: float) -> int:
        """How many bytes came, in pieces of `size`, until `wanted` did or nothing more comes."""
        found = 0
        while found < wanted:
            try:
                async with asyncio.timeout(2):
                    found += len(await self.reader.read(min(size, wanted - found)))
            except TimeoutError:
                return found
            await asyncio.sleep(rest)
        return found


async def mqtt(hub: Node, client: bytes, topic: bytes = b"") -> Peer:
    peer = await Peer(hub).open(codec.connect(client, True, 60))
    await peer.read(4)
    if topic:
        peer.writer.write(codec.subscribe(1, [(topic, 0)]))
        await peer.read(5)
    return peer


FRAME = codec.publish(b"file", b"x" * SIZE, 0, False, 0)


async def test_the_only_reader_gets_all_of_it_at_its_own_speed(hub: Node) -> None:
    reader, sender = await mqtt(hub, b"reader", b"file"), await mqtt(hub, b"sender")
    sender.writer.write(FRAME * COUNT)
    found = await reader.read_slowly(200_000, COUNT * len(FRAME), 0.02)
    assert found == COUNT * len(FRAME)
    assert hub.broker.metrics.dropped == {} and hub.broker.metrics.held_back > 1


async def test_the_same_between_smq_clients_by_address(hub: Node) -> None:
    numbers = []
    peers = []
    for name in (b"reader", b"sender"):
        peer = await Peer(hub).open(HEAD + smq.framed(smq.build_connect(name)))
        await peer.read(17)
        numbers.append(int.from_bytes((await peer.read(8))[4:], "big"))
        peers.append(peer)
    reader, sender = peers
    frame = smq.framed(smq.message(smq.PUBLISH, *numbers, 0, rest=b"x" * SIZE))
    sender.writer.write(frame * COUNT)
    assert await reader.read_slowly(200_000, COUNT * len(frame), 0.02) == COUNT * len(frame)
    assert hub.broker.metrics.dropped == {} and hub.broker.metrics.held_back > 1


async def test_of_two_readers_the_fast_one_does_not_wait(hub: Node) -> None:
    asleep = await mqtt(hub, b"asleep", b"file")
    reader, sender = await mqtt(hub, b"reader", b"file"), await mqtt(hub, b"sender")
    for _ in range(COUNT // 20):
        sender.writer.write(FRAME * 20)
        await reader.read(len(FRAME) * 20)
    assert hub.broker.metrics.dropped["slow consumer"] > COUNT / 2
    assert hub.broker.metrics.held_back == 0 and asleep.writer.transport is not None


async def test_where_the_settings_say_so_the_fast_one_waits_too(hub: Node) -> None:
    hub.broker.patience.filters = ("file",)
    slow = await mqtt(hub, b"slow", b"file")
    reader, sender = await mqtt(hub, b"reader", b"file"), await mqtt(hub, b"sender")
    sender.writer.write(FRAME * COUNT)
    found = await asyncio.gather(
        slow.read_slowly(200_000, TOGETHER, 0.02), reader.read_slowly(200_000, TOGETHER, 0.0)
    )
    assert min(found) >= TOGETHER and hub.broker.metrics.dropped == {}


async def test_a_reader_that_reads_nothing_is_waited_for_a_while(hub: Node) -> None:
    """Then its publisher is heard again, and what comes for the reader is dropped."""
    hub.broker.patience.seconds = 0.5
    reader, sender = await mqtt(hub, b"asleep", b"file"), await mqtt(hub, b"sender")
    other = await mqtt(hub, b"other", b"news")
    sender.writer.write(FRAME * COUNT + codec.publish(b"news", b"1", 0, False, 0))
    began = asyncio.get_running_loop().time()
    await other.read(len(codec.publish(b"news", b"1", 0, False, 0)))
    assert 0.4 < asyncio.get_running_loop().time() - began < 5
    dropped = hub.broker.metrics.dropped["slow consumer"]
    kept = (COUNT - dropped) * SIZE
    assert LINK_CHOKED < kept < HOLD_BACK_BYTES + 2 * LINK_CHOKED
    sender.writer.write(FRAME * 10)
    await until(lambda: hub.broker.metrics.dropped["slow consumer"] == dropped + 10)
    assert await reader.read_slowly(200_000, TOGETHER, 0.0) >= kept
    sender.writer.write(FRAME)
    await reader.read(len(FRAME))
    assert hub.broker.metrics.dropped["slow consumer"] == dropped + 10


async def test_who_reads_what_it_says_itself_does_not_wait_for_itself(hub: Node) -> None:
    """A program that reads only when it has said everything would stand still."""
    echo = await mqtt(hub, b"echo", b"file")
    echo.writer.write(FRAME * COUNT + b"\xc0\0")
    await until(lambda: hub.broker.metrics.messages_in == COUNT)
    assert hub.broker.metrics.held_back == 0
    assert hub.broker.metrics.dropped["slow consumer"] > 0


async def test_a_reader_that_goes_lets_its_publisher_go_on(hub: Node) -> None:
    reader, sender = await mqtt(hub, b"asleep", b"file"), await mqtt(hub, b"sender")
    other = await mqtt(hub, b"other", b"news")
    sender.writer.write(FRAME * COUNT + codec.publish(b"news", b"1", 0, False, 0))
    await until(lambda: hub.broker.metrics.held_back > 0)
    reader.writer.transport.abort()
    async with asyncio.timeout(2):
        await other.read(len(codec.publish(b"news", b"1", 0, False, 0)))


async def test_many_publishers_do_not_fill_the_memory_of_one_reader(hub: Node) -> None:
    asleep = await mqtt(hub, b"asleep", b"file")
    senders = [await mqtt(hub, b"s%d" % number) for number in range(40)]
    for sender in senders:
        sender.writer.write(FRAME * 100)
    await until(lambda: hub.broker.metrics.held_back > 0)
    await asyncio.sleep(0.5)
    [link] = [s.link for s in hub.sockets if s.link is not None and s.link.choked]
    assert link.size < HOLD_BACK_BYTES + 2 * LINK_CHOKED
    assert len(hub.sockets) == 41, "nobody was ended"
    asleep.writer.close()


async def test_a_small_message_waits_for_nobody(hub: Node) -> None:
    """A reader that chokes itself with its own messages does not stop a service that answers it."""
    eve, service = await mqtt(hub, b"eve", b"answers"), await mqtt(hub, b"service", b"asked")
    eve.writer.write(codec.publish(b"answers", b"x" * 3_000_000, 0, False, 0) * 3)
    await until(lambda: any(s.link is not None and s.link.choked for s in hub.sockets))
    for _ in range(100):
        service.writer.write(codec.publish(b"answers", b"here", 0, False, 0))
    service.writer.write(b"\xc0\0")
    async with asyncio.timeout(2):
        assert await service.read(2) == b"\xd0\0"
    assert hub.broker.metrics.held_back == 0


async def test_who_waited_in_vain_does_not_wait_again_at_once(hub: Node) -> None:
    """Many readers that read nothing cost a publisher one wait a minute, not one each."""
    hub.broker.patience.seconds = 0.5
    readers = [await mqtt(hub, b"r%d" % n, b"file/%d" % n) for n in range(5)]
    sender = await mqtt(hub, b"sender")
    for number in range(5):
        frame = codec.publish(b"file/%d" % number, b"x" * SIZE, 0, False, 0)
        sender.writer.write(frame * 400)
    sender.writer.write(b"\xc0\0")
    began = asyncio.get_running_loop().time()
    assert await sender.read(2) == b"\xd0\0"
    assert asyncio.get_running_loop().time() - began < 2
    assert hub.broker.metrics.held_back == 1
    assert all(reader.writer.transport is not None for reader in readers)
