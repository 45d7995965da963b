"""What connections make the hub keep: one budget, the heaviest goes, nothing half sent stays."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hubbub.client import mqtt
from hubbub.config.settings import Limits, Settings
from hubbub.core.gate import KNOWN, STRANGER, VISITOR, Whose
from hubbub.core.limits import HALF_SECONDS, KIB, MIB, STRANGE_BYTES
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt import specification as spec
from hubbub.runtime.node import Node
from hubbub.runtime.waiting import CROWDED_OUT, LOOKED_AT, LOOKED_LEAST, LOOKS, Waiting
from hubbub.wire.bytes import CHUNK, Gathering, Pieces
from tests.process import RunningHub, StartHub

BUDGET = 32 * MIB


class Kept:
    """`piece` bytes are on their way to others too."""

    def __init__(self, size: int, piece: int = 0, user: str = "", standing: int = KNOWN) -> None:
        self.size, self.piece = size, piece
        self.user, self.standing = user or str(id(self)), standing
        self.ended = ""
        self.since: float | None = None

    def weight(self, shared: set[int] | None = None) -> int:
        if shared is None or not self.piece:
            return self.size
        known = 7 in shared
        shared.add(7)
        return self.size - self.piece * known

    def whose(self) -> Whose:
        return Whose(self.standing, self.user)

    def crowd_out(self, reason: str) -> None:
        assert not self.ended
        self.ended, self.size = reason, 0

    def half_since(self, now: float) -> float | None:
        return self.since


def test_the_heaviest_go_until_an_eighth_is_free() -> None:
    waiting = Waiting(Metrics(), 800)
    some = [Kept(size) for size in (100, 250, 50, 300, 90)]
    for one in some:
        waiting.weigh(one)
    assert not any(one.ended for one in some) and waiting.total == 790
    late = Kept(20)
    waiting.weigh(late)
    assert [bool(one.ended) for one in [*some, late]] == [False, False, False, True, False, False]
    assert "300 bytes" in some[3].ended and waiting.total == 510
    assert waiting._metrics.dropped == {CROWDED_OUT: 1}


def test_of_the_user_who_has_most_the_heaviest_goes() -> None:
    """Before, one user with 600 of 0.85 MiB had all others ended that had one of 20 MiB."""
    waiting = Waiting(Metrics(), 800)
    honest = Kept(200, user="ann")
    many = [Kept(size, user="bob") for size in (40, 42, 41, *[40] * 12)]
    for one in (honest, *many):
        waiting.weigh(one)
    assert not honest.ended and sum(bool(one.ended) for one in many) == 3
    assert many[1].ended and many[2].ended and waiting.total <= 700


def test_who_was_not_let_in_spends_nothing_of_who_was() -> None:
    """Before, 1,080 halves of a login ended every message of more than half a MiB."""
    waiting = Waiting(Metrics(), 64 * MIB)
    honest = Kept(40 * MIB, user="ann")
    visitor = Kept(20 * MIB, user="::1", standing=VISITOR)
    strangers = [Kept(MIB // 2, user="::1", standing=STRANGER) for _ in range(200)]
    for one in (honest, visitor, *strangers):
        waiting.weigh(one)
        assert waiting.strange.total <= STRANGE_BYTES
    assert not honest.ended and not visitor.ended and sum(bool(one.ended) for one in strangers) > 99
    late = next(one for one in strangers if not one.ended)
    late.standing = KNOWN  # it was let in
    waiting.weigh(late)
    assert waiting.total == 60 * MIB + MIB // 2
    more = Kept(5 * MIB, user="eve")
    waiting.weigh(more)
    assert visitor.ended and not honest.ended and not more.ended


def test_what_became_less_meanwhile_ends_nobody() -> None:
    waiting = Waiting(Metrics(), 100)
    before, after = Kept(90), Kept(80)
    waiting.weigh(before)
    before.size = 10
    waiting.weigh(after)
    assert not before.ended and not after.ended and waiting.total == 90


def test_what_is_sent_to_many_counts_once() -> None:
    waiting = Waiting(Metrics(), 100)
    readers = [Kept(40, piece=38) for _ in range(10)]
    for one in readers:
        waiting.weigh(one)
    assert not any(one.ended for one in readers)


def test_half_a_message_has_half_a_minute() -> None:
    waiting, quiet = Waiting(Metrics()), Kept(5)
    quiet.since = 100.0
    others = [Kept(0) for _ in range(2 * LOOKED_AT)]
    for _ in range(2 * LOOKS):
        waiting.look(100.0 + HALF_SECONDS, [*others, quiet])
    assert not quiet.ended
    for _ in range(LOOKS + 3):
        waiting.look(100.1 + HALF_SECONDS, [*others, quiet])
    assert "nothing came of the rest" in quiet.ended


@pytest.mark.parametrize("count", [1, 1_000, 10_000, 100_000])
def test_a_look_is_at_a_part_of_all(count: int) -> None:
    """Who is idle costs next to nothing, and a turn of the loop is short."""
    waiting, seen = Waiting(Metrics()), 0

    class Seen(Kept):
        def half_since(self, now: float) -> float | None:
            nonlocal seen
            seen += 1
            return None

    holders = [Seen(0) for _ in range(count)]
    waiting.look(0.0, holders)
    for _ in range(LOOKS):
        before = seen
        waiting.look(0.0, holders)
        assert seen - before <= min(max(count // LOOKS, LOOKED_LEAST), LOOKED_AT)
    assert seen >= min(count, LOOKS * LOOKED_AT)


def test_pieces_lie_in_chunks() -> None:
    pieces = Pieces()
    for number in range(2_500):
        pieces.add(bytes((number % 256,)) * KIB)
    assert [len(one) for one in pieces._all[:2]] == [CHUNK, CHUNK]
    assert len(pieces._all) == 2 + 2_500 - 2 * KIB
    assert pieces.take() == b"".join(bytes((number % 256,)) * KIB for number in range(2_500))
    assert not pieces.size


def test_what_is_skipped_takes_no_memory_and_ends_in_its_place() -> None:
    gathering = Gathering()
    gathering.skip(1_000)
    for _ in range(9):
        assert gathering.add(b"x" * 100) is None and not gathering.size
    assert gathering.add(b"x" * 100 + b"after") == b"after"
    assert gathering.add(b"next") == b"next"


# A hub


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Node]:
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"), limits=Limits(waiting_bytes=BUDGET)
    )
    async with Node(settings) as hub:
        yield hub


async def dial(hub: Node) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = hub.listeners[0].address
    return await asyncio.open_connection(address.host, address.port)


async def greeted(hub: Node, client: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await dial(hub)
    writer.write(codec.connect(client, True, 0, properties=codec.Properties()))
    await reader.readuntil(b"\x20")
    await reader.readexactly((await reader.readexactly(1))[0])
    return reader, writer


async def test_who_sends_half_is_ended_with_quota_and_the_others_go_on(hub: Node) -> None:
    """Before, 40 of 63 MiB took 2.6 GB, and the process kept them."""
    small_reader, small = await greeted(hub, b"small")
    whole = codec.publish(b"a", bytes(5 * MIB), 1, packet_id=9, properties=b"\0")
    small.write(whole[: 4 * MIB])
    await small.drain()
    peers = []
    for number in range(12):
        reader, writer = await greeted(hub, b"big%d" % number)
        writer.write(codec.publish(b"a", bytes(10 * MIB), 0, properties=b"\0")[: 9 * MIB])
        await writer.drain()
        peers.append((reader, writer))
    ended = 0
    for reader, _ in peers:
        try:
            last = await asyncio.wait_for(reader.readexactly(4), 0.2)
        except TimeoutError:
            continue
        assert last[:1] == b"\xe0" and b"\x97" in last
        ended += 1
    assert ended >= 8 and hub.waiting.total <= BUDGET
    assert hub.broker.metrics.dropped[CROWDED_OUT] >= ended
    small.write(whole[4 * MIB :])
    assert (await small_reader.readexactly(2))[:1] == b"\x40"


async def test_halves_of_logins_end_no_message(hub: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.waiting.strange, "most", 4 * MIB)
    reader, honest = await greeted(hub, b"honest")
    whole = codec.publish(b"a", bytes(5 * MIB), 1, packet_id=9, properties=b"\0")
    honest.write(whole[: 4 * MIB])
    half = b"\x10\x80\xf0\x1f" + b"\0\4MQTT\4\6\0\0" + b"\0\1x" + b"\0\1w\xff\xf0" + bytes(450_000)
    strangers = []
    for _ in range(100):
        _, writer = await dial(hub)
        writer.write(half)
        strangers.append(writer)
    async with asyncio.timeout(10):
        while hub.broker.metrics.dropped.get(CROWDED_OUT, 0) < 50:
            await asyncio.sleep(0.01)
    assert hub.waiting.total < 5 * MIB and hub.waiting.strange.total <= 4 * MIB
    honest.write(whole[4 * MIB :])
    assert (await reader.readexactly(2))[:1] == b"\x40"
    for writer in strangers:
        writer.close()


def aliased(count: int) -> bytes:
    """As many messages, each with an alias for a topic of 60 kB."""
    said = (codec.Properties(numbers={spec.TOPIC_ALIAS: one + 1}) for one in range(count))
    return b"".join(codec.publish(b"t" * 60_000, b"", 0, properties=one.encode()) for one in said)


async def test_what_a_connection_keeps_for_long_counts_and_is_not_half_sent(hub: Node) -> None:
    """Before, 40 connections with 100 aliases of 65 kB took 250 MiB that nobody had counted."""
    _, writer = await greeted(hub, b"one")
    for _ in range(2):  # the same again takes no more
        writer.write(aliased(20))
        await writer.drain()
    async with asyncio.timeout(10):
        while hub.waiting.total != 20 * 60_000:
            await asyncio.sleep(0.01)
    will = codec.Will(b"w", bytes(50_000), 0, False)
    other = await dial(hub)
    other[1].write(codec.connect(b"two", True, 0, will))
    async with asyncio.timeout(10):
        while hub.waiting.total != 20 * 60_000 + 50_000:
            await asyncio.sleep(0.01)
    assert len(hub.sockets) == 2
    assert not [one for one in hub.sockets if one.half_since(hub.clock.now()) is not None]
    many = [await greeted(hub, b"many%d" % number) for number in range(10)]
    for _, each in many:
        each.write(aliased(80))
    async with asyncio.timeout(10):
        while hub.broker.metrics.dropped.get(CROWDED_OUT, 0) < 3:
            await asyncio.sleep(0.01)
    assert hub.waiting.total <= BUDGET
    for each in (writer, other[1], *[one for _, one in many]):
        each.close()


async def test_who_reads_no_answers_is_ended_and_who_reads_is_not(hub: Node) -> None:
    address = hub.listeners[0].address
    async with mqtt.connect(f"mqtt://{address}", client_id="writer") as writer:
        for number in range(10):  # each its own: of one payload all who wait for it share a copy
            await writer.publish(f"big/{number}", bytes(8 * MIB), qos=1, retain=True)
    deaf = []
    for number in range(10):
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, (address.host, address.port))
        wish = b"big/%d" % number, 1
        peer.send(codec.connect(b"deaf%d" % number, True, 0) + codec.subscribe(1, [wish]))
        deaf.append(peer)
    async with asyncio.timeout(10):
        while CROWDED_OUT not in hub.broker.metrics.dropped:
            await asyncio.sleep(0.01)
    assert hub.waiting.total <= BUDGET
    async with mqtt.connect(f"mqtt://{address}", client_id="reader") as reader:
        await reader.subscribe("big/0", qos=1)
        async with asyncio.timeout(10):
            async for message in reader.messages():
                assert len(message.payload) == 8 * MIB
                break
    for peer in deaf:
        peer.close()


async def test_who_waits_for_the_same_large_message_has_one_copy_of_it(hub: Node) -> None:
    address = hub.listeners[0].address
    async with mqtt.connect(f"mqtt://{address}", client_id="writer") as writer:
        await writer.publish("big", bytes(8 * MIB), qos=1, retain=True)
    deaf = []
    for number in range(10):
        _, peer = await greeted(hub, b"deaf%d" % number)
        peer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(codec.subscribe(1, [(b"big", 1)], codec.NO_PROPERTIES))
        deaf.append(peer)
    async with mqtt.connect(f"mqtt://{address}", client_id="reader") as reader:
        await reader.subscribe("big", qos=1)
        async with asyncio.timeout(10):
            async for message in reader.messages():
                assert len(message.payload) == 8 * MIB
                break
    assert CROWDED_OUT not in hub.broker.metrics.dropped
    for peer in deaf:
        peer.close()


@pytest.mark.parametrize(
    "half",
    [
        codec.publish(b"a", bytes(100), 0, properties=b"\0")[:50],
        b"\x82\x20\0\1",
        b"\x30",
    ],
    ids=["half a publish", "half a subscribe", "one byte"],
)
async def test_what_stays_half_is_ended(hub: Node, half: bytes) -> None:
    reader, writer = await greeted(hub, b"half")
    writer.write(half)
    await asyncio.sleep(0.6)
    assert [sock for sock in hub.sockets if sock.half_since(hub.clock.now()) is not None]
    for ahead in (0.0, 0.0, HALF_SECONDS + 1, HALF_SECONDS + 1):
        hub.waiting.look(hub.clock.now() + ahead, hub.sockets)
    assert (await asyncio.wait_for(reader.read(), 5))[:1] == b"\xe0"


@pytest.mark.interop
def test_the_memory_goes_back(start_hub: StartHub) -> None:
    hub = start_hub("--set", f"limits.waiting_bytes={256 * MIB}")
    before = resident(hub)
    for _ in range(2):
        peers = []
        for number in range(12):
            peer = socket.create_connection(("127.0.0.1", hub.port))
            peer.sendall(codec.connect(b"big%d" % number, True, 0))
            peer.recv(4)
            whole = codec.publish(b"a", bytes(40 * MIB), 0)
            peer.sendall(whole[:-1])
            peers.append(peer)
        assert resident(hub) < before + 320 * MIB
        for peer in peers:
            peer.close()
        until = time.monotonic() + 10
        while resident(hub) > before + 40 * MIB and time.monotonic() < until:
            time.sleep(0.1)
        assert resident(hub) < before + 40 * MIB


def resident(hub: RunningHub) -> int:
    return int(Path(f"/proc/{hub.process.pid}/statm").read_text().split()[1]) * 4096
