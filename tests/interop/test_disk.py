"""A disk that is full, read-only, slow, or fails to sync: the hub says so and waits, publishers
wait with it, and when the disk is well again everything goes on with nothing lost.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from hubbub.config.settings import Journal as JournalSettings
from hubbub.config.settings import Listener, Settings
from hubbub.core.broker import Broker
from hubbub.core.quotas import BEFORE
from hubbub.errors import DirectoryError
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from tests.disk import small_disk
from tests.protocols.mqtt.conversation import in_words

pytestmark = pytest.mark.interop

SECONDS = 20.0


class Peer:
    """Speaks MQTT over a real socket; `heard`: packets in words."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.heard: list[str] = []
        self.here = True
        self._rest = b""
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        while data := await self.reader.read(65536):
            words, self._rest = in_words(self._rest + data)
            self.heard += words
        self.here = False

    def publish(self, number: int, topic: str = "a", size: int = 0, retain: bool = False) -> None:
        payload = b"%d " % number + bytes(size)
        self.writer.write(codec.publish(topic.encode(), payload, 1, retain, number))

    async def hear(self, word: str) -> None:
        await until(lambda: word in self.heard, f"{word} never came; heard {self.heard[-5:]}")

    def acknowledged(self) -> set[int]:
        return {int(word.split()[1]) for word in self.heard if word.startswith("PUBACK")}

    def close(self) -> None:
        self._task.cancel()
        self.writer.close()


async def until(is_so: Callable[[], object], complaint: str) -> None:
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, complaint
        await asyncio.sleep(0.01)


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Node]:
    listener = Listener(address="127.0.0.1:0")
    journal = JournalSettings(keep_free_bytes=1)  # these tests fill it
    settings = Settings(data=str(path), listen=(), listener=(listener,), journal=journal)
    async with Node(settings) as node:
        yield node


@asynccontextmanager
async def peer(node: Node, client: bytes, keep_alive: int = 0) -> AsyncIterator[Peer]:
    """With a keep-alive it has a will, on gone/CLIENT."""
    port = node.listeners[0].address.port
    made = Peer(*await asyncio.open_connection("127.0.0.1", port))
    try:
        will = codec.Will(b"gone/" + client, b"", 0, False) if keep_alive else None
        made.writer.write(codec.connect(client, False, keep_alive, will))
        await until(lambda: made.heard, "no CONNACK")
        yield made
    finally:
        made.close()


def journal_of(node: Node) -> Journal:
    assert node.journal is not None
    return node.journal


def retained(node: Node) -> set[int]:
    return {int(name.removeprefix("r/")) for name in node.broker.state.retained}


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", mib=12) as path:
        yield path


async def all_say(node: Node, caplog: pytest.LogCaptureFixture, what: str) -> bool:
    """The log, `$SYS` and the status, which is that of `/api/v1/status`."""
    assert what in caplog.text
    assert what in node.broker.readings["$SYS/broker/journal/trouble"]()
    return what in (await node.status())["journal"]["trouble"]


async def test_a_full_disk(tiny_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(bytes(11 << 20))
    async with running(tiny_disk / "data") as node, peer(node, b"ann") as ann:
        node.broker.sessions["mqtt", "ann"].payer = BEFORE  # nobody's, so all of the disk is there
        for number in range(1, 41):
            ann.publish(number, f"r/{number}", 50_000, retain=True)
        await until(lambda: journal_of(node).trouble, "no trouble")
        assert await all_say(node, caplog, "No space left")
        await asyncio.sleep(0.2)  # what was synced before may be on its way still
        before = len(ann.acknowledged())
        await asyncio.sleep(0.3)
        assert before < 40 and len(ann.acknowledged()) == before
        ballast.unlink()
        await ann.hear("PUBACK 40")
        node.upkeep.hurry()  # a roll may have found no room, and would be tried again in a minute
        await until(lambda: not journal_of(node).complaint(), "it never recovers")
        assert (await node.status())["journal"]["trouble"] == ""
    async with running(tiny_disk / "data") as node:
        assert retained(node) == set(range(1, 41))


async def test_a_permission_that_is_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path / "data") as node, peer(node, b"ann") as ann:
        ann.publish(1, "r/1", retain=True)
        await ann.hear("PUBACK 1")
        journal = journal_of(node)
        writable = journal.disk._fd
        journal.disk._fd = read_only = os.open(journal.directory.segment(1), os.O_RDONLY)
        ann.publish(2, "r/2", retain=True)
        await until(lambda: journal.trouble, "no trouble")
        assert ann.acknowledged() == {1}
        assert await all_say(node, caplog, "Bad file descriptor")
        journal.disk._fd = writable
        os.close(read_only)
        await ann.hear("PUBACK 2")
    async with running(tmp_path / "data") as node:
        assert retained(node) == {1, 2}


async def test_syncs_that_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    failures = [errno.EIO] * 3
    async with running(tmp_path / "data") as node, peer(node, b"ann") as ann:
        ann.publish(1, "r/1", retain=True)
        await ann.hear("PUBACK 1")

        def sync(fd: int) -> None:
            if failures:
                raise OSError(failures.pop(), "injected")
            os.fdatasync(fd)

        journal_of(node).disk._sync = sync
        for number in range(2, 10):
            ann.publish(number, f"r/{number}", retain=True)
        await ann.hear("PUBACK 9")
        status = (await node.status())["journal"]
        assert status["failures"] == 3 and not status["trouble"]
    assert "cannot be written: injected" in caplog.text and "can be written again" in caplog.text
    assert len(Directory(tmp_path / "data").segments()) == 2, "a suspect file is not written on"
    async with running(tmp_path / "data") as node:
        assert retained(node) == set(range(1, 10))
        assert journal_of(node).reports == []


async def test_a_slow_disk_slows_publishers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hubbub.runtime.backpressure.CONGESTED_BYTES", 1 << 20)
    async with running(tmp_path / "data") as node, peer(node, b"ann") as ann:
        journal = journal_of(node)

        def sync(fd: int) -> None:
            time.sleep(0.3)
            os.fdatasync(fd)

        journal.disk._sync = sync
        most = 0
        said = False
        for number in range(1, 101):
            ann.publish(number, "a", 100_000)
            most = max(most, journal.pending_bytes)
            said = said or (
                node.pressure.congested
                and await all_say(node, caplog, "publishers wait for the disk")
            )
            await asyncio.sleep(0.002)
        await until(lambda: len(ann.acknowledged()) == 100, "not all were acknowledged")
        # One more read of a socket may come in after the limit was passed.
        assert most < 4 << 20, f"{most} bytes waited for the disk"
        status = (await node.status())["journal"]
        assert said and status["sync_ms_50"] >= 300 and status["slowed"] and not status["trouble"]


async def test_a_file_system_that_is_read_only(tiny_disk: Path) -> None:
    async with running(tiny_disk / "data") as node, peer(node, b"ann") as ann:
        ann.publish(1, "r/1", retain=True)
        await ann.hear("PUBACK 1")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(DirectoryError, match="make it writable or choose another directory"):
        async with running(tiny_disk / "data"):
            pass


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DirectoryError, match="make it writable or choose another directory"):
        async with running(tmp_path / "file" / "data"):
            pass


async def test_who_only_pings_outlives_a_disk_that_stalls_under_a_flood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client floods with QoS 0 while a sync takes seconds, longer than others' keep-alive:
    they are answered, nobody is ended, and no will goes out.
    """
    monkeypatch.setattr("hubbub.runtime.backpressure.CONGESTED_BYTES", 1 << 20)
    monkeypatch.setattr("hubbub.runtime.backpressure.FLOODED_BYTES", 8 << 20)
    async with running(tmp_path / "data") as node, peer(node, b"watches") as watches:
        watches.writer.write(codec.subscribe(1, [(b"gone/#", 0)]))
        await watches.hear("SUBACK 1: 0")
        stalled = threading.Event()

        def sync(fd: int) -> None:
            stalled.wait(20)
            os.fdatasync(fd)

        async with peer(node, b"floods", 1) as floods:
            async with peer(node, b"pings", 1) as pings:
                async with peer(node, b"writes", 1) as writes:
                    journal_of(node).disk._sync = sync
                    for _ in range(400):
                        floods.writer.write(codec.publish(b"a", bytes(50_000), 0))
                    await until(lambda: node.pressure.congested, "the flood was no flood")
                    writes.publish(7, "r/7", retain=True)
                    end = time.monotonic() + 4
                    while time.monotonic() < end:
                        pings.writer.write(codec.PINGREQ_PACKET)
                        await asyncio.sleep(0.3)
                    assert node.pressure.congested and "PUBACK 7" not in writes.heard
                    assert pings.heard.count("PINGRESP") >= 10
                    stalled.set()
                    await writes.hear("PUBACK 7")
                    await until(lambda: not node.pressure.congested, "the flood never ended")
                    assert all(one.here for one in (floods, pings, writes))
                    assert not [word for word in watches.heard if "gone/" in word]


@pytest.fixture
def little_disk(tmp_path: Path) -> Iterator[Path]:
    """Ten segments of 4 MB."""
    with small_disk(tmp_path / "disk", mib=40) as path:
        yield path


def answered(peer: Peer, number: int, broker: Broker) -> bool:
    return number in peer.acknowledged() or broker.no_room != ""


@pytest.mark.slow
async def test_a_disk_that_fills_refuses_what_stays_and_recovers_by_itself(
    little_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue fills it, traffic goes on, the queue is emptied: nothing is lost, nobody helps."""
    kept = JournalSettings(segment_bytes=1_000_000, retain_bytes=4_000_000)
    listener = Listener(address="127.0.0.1:0")
    settings = Settings(
        data=str(little_disk / "data"), listen=(), listener=(listener,), journal=kept
    )
    async with Node(settings) as node, peer(node, b"ann") as ann, peer(node, b"bob") as bob:
        broker, number = node.broker, 0
        broker.sessions["mqtt", "ann"].payer = BEFORE  # nobody's, so all of the disk is there
        while not broker.no_room and number < 2_000:
            number += 1
            ann.publish(number, "$queue/q", 20_000)
            await until(partial(answered, ann, number, broker), "no PUBACK")
        assert await all_say(node, caplog, "are kept free")
        queued = len(broker.state.queues["q"].messages)
        assert queued >= 200, "a tenth of the disk is little to ask"
        for other in range(1, 501):  # as much as is free
            bob.publish(other, "plain", 20_000)
            await bob.hear(f"PUBACK {other}")
        assert journal_of(node).trouble == "", "traffic that stays nowhere filled the disk"
        assert len(broker.state.queues["q"].messages) == queued
        broker.queues.destroy("q")
        async with asyncio.timeout(4 * SECONDS):  # two folds, and a pause before each
            while broker.no_room:  # nobody publishes: nothing but the hub's own row ends a segment
                await asyncio.sleep(0.1)
        assert "the disk has room again" in caplog.text
