"""The machine's clock was set ahead while a hub ran: who is away is away for as long as it was."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from hubbub.config.settings import Settings
from hubbub.core.clock import ASTRAY, Clock
from hubbub.journal.behind import Behind
from hubbub.protocols.mqtt import codec
from hubbub.runtime import node as module
from hubbub.runtime.node import Node
from tests.client.smq.here import until

SECOND = 1_000_000
LASTS = codec.Properties({0x11: 300})  # seconds


class Settable(Clock):
    """A machine's clock that is set."""

    by = 0

    def _machine(self) -> int:
        return super()._machine() + self.by


@pytest.fixture(autouse=True)
def settable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Clock", Settable)
    monkeypatch.setattr(Settable, "by", 0)


def settings(folder: Path) -> Settings:
    return Settings(listen=("127.0.0.1:0",), data=str(folder / "data"))


async def said(node: Node, *pieces: bytes, until: bytes) -> bytes:
    """All that is answered until that comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.listeners[0].address.port)
    writer.write(b"".join(pieces))
    async with asyncio.timeout(10):
        heard = await reader.readuntil(until)
    writer.write(codec.DISCONNECT_PACKET)
    writer.close()
    return heard


CONNECT = codec.connect(b"away", False, 60, properties=LASTS)
SUBSCRIBE = b"\x82\x07\0\1\0\0\1a\1"


async def leave_something(node: Node, will: bool = False) -> None:
    """A client was there and is away, and a message was acknowledged for it."""
    last = codec.Will(b"w", b"gone", 1, False, codec.Properties({0x18: 200})) if will else None
    connect = codec.connect(b"away", False, 60, last, properties=LASTS)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.listeners[0].address.port)
    writer.write(connect + SUBSCRIBE)
    await reader.readuntil(b"\x90\4\0\1\0\1")
    if not will:
        writer.write(codec.DISCONNECT_PACKET)
    writer.close()
    await until(lambda: node.broker.metrics.connections_ended == node.broker.metrics.connections)
    publish = codec.publish(b"a", b"kept", 1, packet_id=9)
    await said(node, codec.connect(b"other", True, 60), publish, until=b"\x40\2\0\x09")


@pytest.mark.parametrize("ahead", [90, 600, 50 * 365 * 86_400])
async def test_a_session_that_is_away_is_there_behind_a_start(
    tmp_path: Path, ahead: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a clock of its own learns the time when the hub runs already. Sessions away
    for a moment were over at the next start, with what was acknowledged for them.
    """
    async with Node(settings(tmp_path)) as node:
        await leave_something(node)
        Settable.by = ahead * SECOND
        await until((tmp_path / "data" / "behind").exists)
    with caplog.at_level(logging.WARNING):
        async with Node(settings(tmp_path)) as node:
            assert abs(node.clock.steer()) < SECOND, "a start takes the clock as it is"
            state = node.broker.state.sessions["mqtt", "away"]
            left = state.expires - node.clock.stamp()
            assert 200 * SECOND < left <= 300 * SECOND
            heard = await said(node, CONNECT, until=b"kept")
            assert heard[:3][2:] == b"\1", "the session is present"
            await until(lambda: not (tmp_path / "data" / "behind").exists())
    assert f"the clock was set {ahead} s ahead" in caplog.text or f"{ahead - 1} s" in caplog.text
    async with Node(settings(tmp_path)) as node:
        left = node.broker.state.sessions["mqtt", "away"].expires - node.clock.stamp()
        assert 200 * SECOND < left <= 300 * SECOND, "once is enough"


async def test_so_does_its_will(tmp_path: Path) -> None:
    async with Node(settings(tmp_path)) as node:
        await leave_something(node, will=True)
        Settable.by = 600 * SECOND
        await until((tmp_path / "data" / "behind").exists)
    async with Node(settings(tmp_path)) as node:
        will = node.broker.state.sessions["mqtt", "away"].will
        assert will is not None
        assert 100 * SECOND < will.expires - node.clock.stamp() <= 200 * SECOND


async def test_the_time_that_a_hub_was_not_there_does_count(tmp_path: Path) -> None:
    """The clock was set by two minutes, and ten more passed until the start."""
    async with Node(settings(tmp_path)) as node:
        await leave_something(node)
        Settable.by = 120 * SECOND
        await until((tmp_path / "data" / "behind").exists)
    Settable.by = 720 * SECOND
    async with Node(settings(tmp_path)) as node:
        await until(lambda: ("mqtt", "away") not in node.broker.state.sessions)


def test_what_is_noted_is_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "behind"
    one = Behind(file)
    one.note(ASTRAY)
    assert (one.found, file.exists()) == (0, False), "that little is nothing"
    one.note(10 * ASTRAY)
    one.note(10 * ASTRAY - SECOND)
    assert file.read_text() == f"{10 * ASTRAY}\n", "it follows, and that need not be said"
    one.note(8 * ASTRAY)
    assert Behind(file).found == 8 * ASTRAY
    one.note(-8 * ASTRAY)
    assert not file.exists()


@pytest.mark.parametrize("said", [b"", b"-5\n", b"soon\n", b"\xff"])
def test_rubbish_is_nothing(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "behind").write_bytes(said)
    assert Behind(tmp_path / "behind").found == 0


def test_a_disk_that_takes_nothing_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Behind(tmp_path / "missing" / "behind")
    for _ in range(3):
        one.note(2 * ASTRAY)
    assert caplog.text.count("cannot be written") == 1
