"""The tick and the promise: what is acknowledged when, with a disk that the test holds back.

Each test runs a hub in this process, over real sockets and a real journal; only the function
that makes a file durable is the test's.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hubbub.client import smq
from hubbub.config.settings import Journal as JournalSettings
from hubbub.config.settings import Listener as Place
from hubbub.config.settings import Session, Settings
from hubbub.config.sources import refuse_open_doors
from hubbub.core.limits import CONGESTED_BYTES
from hubbub.core.message import Message
from hubbub.errors import SettingError
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.protocols.mqtt.serial import CLIENTS
from hubbub.runtime import child
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.protocols.mqtt.conversation import in_words

A_WHILE = 0.3  # long enough for a hub that would break its promise


class Disk:
    """Makes files durable when it is told to. `held` until `go`; counts what it did."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.failures: list[int] = []
        self.syncs = 0

    def hold(self) -> None:
        self._free.clear()

    def go(self) -> None:
        self._free.set()

    def sync(self, fd: int) -> None:
        assert self._free.wait(30)
        if self.failures:
            raise OSError(self.failures.pop(), "the disk of this test")
        self.syncs += 1
        os.fdatasync(fd)


class Peer:
    """An MQTT client that says packets and hears words."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard: list[str] = []
        self._rest = b""

    async def say(self, *packets: bytes) -> None:
        self.writer.write(b"".join(packets))
        await self.writer.drain()

    async def hear(self, *expected: str) -> None:
        """Exactly these come next."""
        async with asyncio.timeout(10):
            while len(self.heard) < len(expected):
                await self._read()
        assert tuple(self.heard[: len(expected)]) == expected
        del self.heard[: len(expected)]

    async def hear_nothing(self, seconds: float = A_WHILE) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not self.heard:
                    await self._read()
        except TimeoutError:
            return
        raise AssertionError(f"heard {self.heard}")

    async def _read(self) -> None:
        data = await self.reader.read(65536)
        assert data, "the hub closed the connection"
        words, self._rest = in_words(self._rest + data)
        self.heard += words


Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr("hubbub.runtime.node.Journal", functools.partial(Journal, sync=disk.sync))
    return disk


@pytest.fixture
async def hub(disk: Disk, tmp_path: Path) -> AsyncIterator[Node]:
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"), session=Session(inflight=5)
    )
    hub = Node(settings)
    hub.web = Application(hub)
    async with hub:
        yield hub
        disk.go()


async def dialled(
    hub: Node, client: str, clean: bool = True, keep_alive: int = 0, place: int = 0
) -> Peer:
    address = hub.listeners[place].address
    peer = Peer(*await asyncio.open_connection(address.host, address.port))
    await peer.say(codec.connect(client.encode(), clean, keep_alive))
    return peer


@pytest.fixture
async def connect(hub: Node) -> Connect:
    """Connect over a socket; the welcome is the first thing to hear."""
    return functools.partial(dialled, hub)


async def listening(connect: Connect, client: str, topic_filter: bytes, qos: int) -> Peer:
    peer = await connect(client)
    await peer.say(codec.subscribe(5, [(topic_filter, qos)]))
    await peer.hear("CONNACK 0", f"SUBACK 5: {qos}")
    return peer


async def test_puback_waits_and_the_delivery_does_not(disk: Disk, connect: Connect) -> None:
    ann, bob = await listening(connect, "ann", b"a", 1), await connect("bob")
    await bob.hear("CONNACK 0")
    disk.hold()
    await bob.say(codec.publish(b"a", b"x", 1, packet_id=7))
    await ann.hear("a=x q1 #1")
    await bob.hear_nothing()
    await bob.say(codec.PINGREQ_PACKET)
    await bob.hear("PINGRESP")
    disk.go()
    await bob.hear("PUBACK 7")


async def test_qos_2_waits_at_every_step(disk: Disk, connect: Connect) -> None:
    ann, bob = await listening(connect, "ann", b"a", 2), await connect("bob", clean=False)
    await bob.hear("CONNACK 0")
    disk.hold()
    await bob.say(codec.publish(b"a", b"x", 2, packet_id=7))
    await bob.hear_nothing()
    await ann.hear_nothing(0.05)
    disk.go()
    await bob.hear("PUBREC 7")
    await ann.hear("a=x q2 #1")
    disk.hold()
    await bob.say(codec.acknowledgement(codec.PUBREL, 7))
    await bob.hear_nothing()
    disk.go()
    await bob.hear("PUBCOMP 7")


async def test_a_lasting_session_is_promised_when_it_is_durable(
    disk: Disk, connect: Connect
) -> None:
    disk.hold()
    ann = await connect("ann", clean=False)
    await ann.hear_nothing()
    disk.go()
    await ann.hear("CONNACK 0")
    disk.hold()
    await ann.say(codec.subscribe(5, [(b"a", 1)]), codec.publish(b"a", b"x", 0))
    await ann.hear_nothing()
    disk.go()
    await ann.hear("SUBACK 5: 1", "a=x")


async def answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readuntil(b"\r\n")


async def test_http_200_waits(disk: Disk, hub: Node) -> None:
    """A send to a queue, by login and by `POST /publish`."""
    address = hub.listeners[0].address
    body = b'{"Message":["x",{"Message":"hello"}]}'
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /login/tok HTTP/1.1\r\n\r\n")
    assert b"200" in await answer(reader)
    await reader.readuntil(b"\r\n\r\n")
    post = b"POST %s HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s"
    disk.hold()
    writer.write(post % (b"/publish/$queue/q?qos=1", len(body), body))
    late = asyncio.create_task(answer(reader))
    await asyncio.sleep(A_WHILE)
    assert not late.done()
    disk.go()
    assert b"200" in await late
    writer.close()


async def test_less_may_be_promised_on_a_listener_and_on_a_topic(
    disk: Disk, tmp_path: Path
) -> None:
    """While the disk works: "none" and "os" have their answer, and "os" only once it is written."""
    listeners = tuple(
        Place(address="127.0.0.1:0", durability=level) for level in ("disk", "os", "none")
    )
    rules = ("keep/# disk", "quick/# os", "free/# none")
    settings = Settings(
        listen=(), listener=listeners, data=str(tmp_path / "data"),
        journal=JournalSettings(topic_durability=rules),
    )  # fmt: skip
    async with Node(settings) as hub:
        safe, quick, free = [await dialled(hub, f"c{place}", place=place) for place in range(3)]
        for peer in (safe, quick, free):
            await peer.hear("CONNACK 0")
        journal = hub.journal
        assert journal is not None
        while journal.pending or journal.flying:  # else a later commit of these is what is held
            await asyncio.sleep(0.01)
        disk.hold()
        segment = tmp_path / "data" / "log" / f"{1:020}.rows"
        await quick.say(codec.publish(b"a", b"on the quick one", 1, packet_id=1))
        await quick.hear("PUBACK 1")
        assert b"on the quick one" in segment.read_bytes()
        await safe.say(codec.publish(b"free/a", b"x", 1, packet_id=2))
        await safe.hear("PUBACK 2")
        await free.say(codec.publish(b"a", b"x", 1, packet_id=3))
        await free.say(codec.publish(b"keep/a", b"x", 1, packet_id=4))
        await free.hear("PUBACK 3")
        await safe.say(codec.publish(b"a", b"x", 1, packet_id=5))
        await safe.say(codec.publish(b"free/a", b"x", 1, packet_id=6))  # answers keep their order
        await safe.hear_nothing()
        await free.hear_nothing(0)
        disk.go()
        await safe.hear("PUBACK 5", "PUBACK 6")
        await free.hear("PUBACK 4")
        async with asyncio.timeout(10):  # what was promised less follows within a tick or two
            while hub.broker.log.durable != hub.broker.log.written:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("journal", "place", "complaint"),
    [
        ({"record": "none"}, "os", 'durability = "os" is more than the journal does'),
        ({"durability": "os"}, "disk", 'durability = "disk" is more than the journal does'),
        ({"topic_durability": ("a/#",)}, "", 'expected "FILTER disk|os|none"'),
        ({"durability": "os", "topic_durability": ("a/# disk",)}, "", "more than the journal"),
    ],
)
def test_nobody_is_promised_more_than_the_journal_does(
    journal: dict[str, Any], place: Any, complaint: str
) -> None:
    listener = Place(address="127.0.0.1:0", durability=place)
    settings = Settings(listen=(), listener=(listener,), journal=JournalSettings(**journal))
    with pytest.raises(SettingError, match=re.escape(complaint)):
        refuse_open_doors(settings)


async def test_a_long_start_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(listen=(), data=str(tmp_path / "data"))
    async with Node(settings) as hub:
        hub.broker.post(Message("a", b"x", 1, retain=True))
    monkeypatch.setattr("hubbub.runtime.node.PROGRESS_SECONDS", 0.0)
    with caplog.at_level("INFO"):
        async with Node(settings):
            assert "reading the journal: 0 of 0 MB" in caplog.text


async def test_a_new_topic_id_waits(disk: Disk, hub: Node) -> None:
    async with smq.connect(f"smq://{hub.listeners[0].address}", client_id="device-1") as client:
        disk.hold()
        late = asyncio.create_task(client.create("sensors/x"))
        await asyncio.sleep(A_WHILE)
        assert not late.done()
        disk.go()
        assert await asyncio.wait_for(late, 10) == hub.broker.state.topics.numbers["sensors/x"]


async def test_what_arrives_during_a_sync_is_one_group(disk: Disk, connect: Connect) -> None:
    bob = await connect("bob")
    await bob.hear("CONNACK 0")
    disk.hold()
    for number in range(1, 101):
        await bob.say(codec.publish(b"a", b"x", 1, packet_id=number))
        await asyncio.sleep(0)
    await bob.hear_nothing(0.1)
    before = disk.syncs
    disk.go()
    await bob.hear(*(f"PUBACK {number}" for number in range(1, 101)))
    assert disk.syncs - before <= 10


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_disk_that_fails_acknowledges_nothing_and_loses_nothing(
    disk: Disk, hub: Node, connect: Connect, number: int
) -> None:
    bob = await connect("bob")
    await bob.hear("CONNACK 0")
    disk.hold()
    disk.failures = [number]
    await bob.say(codec.publish(b"a", b"x", 1, retain=True, packet_id=7))
    await bob.hear_nothing(0.05)
    disk.go()
    await bob.hear("PUBACK 7")
    assert disk.failures == []
    path = Path(hub.settings.data)
    await hub.stop()
    async with Node(Settings(listen=(), data=str(path))) as again:
        message = again.broker.log.read(again.broker.state.retained_seq("a"))
        assert message is not None
        assert message.payload == b"x"


async def test_a_full_disk_is_rolled_once_a_minute_or_when_less_is_to_be_kept(
    hub: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolls: list[str] = []

    async def run(command: list[str]) -> child.Ended:
        rolls.append(command[-1])
        return child.Ended(0, "")

    monkeypatch.setattr(child, "run", run)
    assert hub.journal is not None
    hub.journal.disk.full = True
    for _ in range(5):
        hub.upkeep.roll(hub.journal)
        await asyncio.sleep(0.01)
    assert rolls == ["--make-room"]
    hub.apply(hub.settings)
    hub.upkeep.roll(hub.journal)
    await asyncio.sleep(0.01)
    assert len(rolls) == 2


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.pure
async def test_what_a_roll_left_is_taken_over_also_if_it_failed(
    hub: Node, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    taken: list[bool] = []

    async def run(command: list[str]) -> child.Ended:
        return child.Ended(code, "no room" if code else "")

    assert hub.journal is not None
    monkeypatch.setattr(child, "run", run)
    monkeypatch.setattr(hub.journal, "rolled", lambda complete: taken.append(complete))
    hub.journal.disk.full = True
    hub.upkeep.roll(hub.journal)
    await asyncio.sleep(0.01)
    assert taken == [code == 0]
    assert hub.journal.roll_trouble == ("no room" if code else "")


async def test_publishers_wait_for_the_disk_and_memory_does_not(
    disk: Disk, hub: Node, connect: Connect
) -> None:
    bob = await connect("bob")
    await bob.hear("CONNACK 0")
    size, count = 200_000, 250
    assert size * count > 2 * CONGESTED_BYTES
    disk.hold()
    packets = [codec.publish(b"a", bytes(size), 1, packet_id=n + 1) for n in range(count)]
    sending = asyncio.create_task(bob.say(*packets))
    await asyncio.sleep(A_WHILE)
    assert not sending.done(), "TCP slows it down"
    assert hub.journal is not None
    assert hub.journal.pending_bytes < 2 * CONGESTED_BYTES
    disk.go()
    await bob.hear(*(f"PUBACK {number + 1}" for number in range(count)))
    await sending


async def test_stopping_keeps_what_was_not_acknowledged_yet(
    disk: Disk, hub: Node, connect: Connect
) -> None:
    """Nobody was promised anything, but there is no reason to lose it."""
    bob = await connect("bob")
    await bob.hear("CONNACK 0")
    await bob.say(codec.publish(b"a", b"x", 0), codec.publish(b"b", b"y", 0, retain=True))
    await bob.say(codec.PINGREQ_PACKET)
    await bob.hear("PINGRESP")
    await hub.stop()
    async with Node(Settings(listen=(), data=hub.settings.data)) as again:
        assert list(again.broker.state.retained) == ["b"]


async def test_an_exchange_that_hangs_ends_without_a_word_of_the_client(
    hub: Node, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubbub.protocols.mqtt.serial.EXCLUSIVE_SECONDS", 0.3)
    ann, bob = await listening(connect, f"{CLIENTS}-ann", b"a", 2), await connect("bob")
    await bob.say(codec.publish(b"a", b"1", 2, packet_id=1), codec.publish(b"a", b"2", 0))
    await ann.hear("a=1 q2 #1", "a=2")


async def test_silence_is_ended_in_time(hub: Node, connect: Connect) -> None:
    """Between 1.5 and 2.5 times one second, never earlier."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    ann = await connect("ann", keep_alive=1)
    await ann.hear("CONNACK 0")
    async with asyncio.timeout(20):
        assert await ann.reader.read() == b""
    assert loop.time() - begin > 1.49


async def test_a_lasting_session_comes_back_after_a_restart(hub: Node, connect: Connect) -> None:
    ann = await connect("ann", clean=False)
    await ann.say(codec.subscribe(5, [(b"a", 1)]))
    await ann.hear("CONNACK 0", "SUBACK 5: 1")
    bob = await connect("bob")
    for number in range(1, 8):
        await bob.say(codec.publish(b"a", b"%d" % number, 1, packet_id=number))
    await ann.hear(*(f"a={number} q1 #{number}" for number in range(1, 6)))
    await ann.say(codec.acknowledgement(codec.PUBACK, 1))
    await ann.hear("a=6 q1 #6")
    await hub.stop()
    async with Node(Settings(listen=("127.0.0.1:0",), data=hub.settings.data)) as again:
        ann = await dialled(again, "ann", clean=False)
        await ann.hear("CONNACK 0 present")
        await ann.hear(*(f"a={number} q1 #{number} dup" for number in range(2, 7)))
        await ann.hear("a=7 q1 #7")
