"""The machine's clock was set ahead while a hub ran: who is away is away for as long as it was."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from hubbub import schema
from hubbub.config.settings import Settings
from hubbub.core.clock import ASTRAY, Clock
from hubbub.core.state import lasting_properties
from hubbub.journal import compact
from hubbub.journal.behind import Behind
from hubbub.journal.segments import Directory
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.runtime import node as module
from hubbub.runtime.node import Node
from hubbub.schema import Row
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


async def test_the_clock_may_be_right_again_at_the_start(tmp_path: Path) -> None:
    """Who set it by mistake stops the hub, sets it back and starts the hub."""
    async with Node(settings(tmp_path)) as node:
        await leave_something(node)
        Settable.by = 50 * 365 * 86_400 * SECOND
        await until((tmp_path / "data" / "behind").exists)
    Settable.by = 0
    async with Node(settings(tmp_path)) as node:
        left = node.broker.state.sessions["mqtt", "away"].expires - node.clock.stamp()
        assert 200 * SECOND < left <= 330 * SECOND


async def test_a_start_that_is_killed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 12,000 sessions the first 4,000 were on the disk when it was killed: for the next start
    the time of these was that of the last row, and 8,000 sessions were over.
    """
    many, killed = 12_000, tmp_path / "killed"
    async with Node(settings(tmp_path)) as node:
        assert node.journal is not None
        lasting, expires = lasting_properties(300), node.clock.stamp() + 300 * SECOND
        for number in range(many):
            client = b"%d" % number
            node.broker.change(Row(0, 0, schema.CONNECT, b"mqtt", client, properties=lasting))
            node.broker.change(Row(0, 0, schema.DISCONNECT, b"mqtt", client, expires=expires))
        Settable.by = 600 * SECOND
        await until((tmp_path / "data" / "behind").exists)
    with monkeypatch.context() as patched:
        commit, groups = Journal.commit, list[int]()

        def commit_once(journal: Journal, here: bool = False) -> bool:
            if groups:
                return False
            done, before = commit(journal, here), journal.handed
            groups.extend([before] * (before > 0))
            return done

        patched.setattr(Journal, "commit", commit_once)
        async with Node(settings(tmp_path)) as node:
            journal = node.journal
            assert journal is not None
            await until(lambda: len(groups) > 0 and journal.on_disk == journal.handed)
            assert 0 < journal.position - journal.on_disk < 3 * many
            for _ in range(3):
                node._sweep_once()
            shutil.copytree(tmp_path / "data", killed / "data")
            patched.setattr(Journal, "commit", commit)
            await until(lambda: not (tmp_path / "data" / "behind").exists())
    async with Node(settings(killed)) as node:
        sessions = node.broker.state.sessions
        assert len(sessions) == many
        assert min(one.expires for one in sessions.values()) > node.clock.stamp() + 200 * SECOND


async def test_a_snapshot_of_a_clock_that_was_ahead_keeps_nobody_for_as_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows have no times: a session that was to last for five minutes lasted for a year."""
    Settable.by = 365 * 86_400 * SECOND
    async with Node(settings(tmp_path)) as node:
        await leave_something(node, will=True)
    monkeypatch.setattr(compact, "Clock", Settable)
    directory = Directory(tmp_path / "data")
    compact.compact(directory)
    assert directory.snapshots()
    for days in (0, 0, -1):
        Settable.by = days * 86_400 * SECOND
        async with Node(settings(tmp_path)) as node:
            state, now = node.broker.state.sessions["mqtt", "away"], node.clock.stamp()
            assert abs(state.left - now) < 60 * SECOND
            assert 200 * SECOND < state.expires - now <= 300 * SECOND
            assert state.will is not None
            assert 100 * SECOND < state.will.expires - now <= 200 * SECOND


def test_what_is_noted_is_what_there_is(tmp_path: Path) -> None:
    file = tmp_path / "behind"
    one, now = Behind(file), 1_000 * ASTRAY
    one.note(ASTRAY, now)
    assert (one.late(now), file.exists()) == (0, False), "that little is nothing"
    one.note(10 * ASTRAY, now)
    one.note(10 * ASTRAY - SECOND, now + SECOND)
    assert file.read_text() == f"{10 * ASTRAY} {now}\n", "it follows, and that need not be said"
    one.note(8 * ASTRAY, now)
    again = Behind(file)
    assert again.late(now + 9 * ASTRAY) == 8 * ASTRAY
    assert again.late(now + 2 * ASTRAY) == 2 * ASTRAY, "the clock was set back"
    assert again.late(now - ASTRAY) == 0
    one.note(-8 * ASTRAY, now)
    assert not file.exists()


@pytest.mark.parametrize("said", [b"", b"-5 5\n", b"5\n", b"soon 5\n", b"\xff", b"5 5 5"])
def test_rubbish_is_nothing(tmp_path: Path, said: bytes) -> None:
    (tmp_path / "behind").write_bytes(said)
    assert Behind(tmp_path / "behind").late(10) == 0


def test_a_disk_that_takes_nothing_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Behind(tmp_path / "missing" / "behind")
    for _ in range(3):
        one.note(2 * ASTRAY, 0)
    assert caplog.text.count("cannot be written") == 1


async def test_rows_that_were_ahead_are_of_a_start_whose_clock_is_a_little_behind(
    tmp_path: Path,
) -> None:
    """They were of the machine's clock at that start, and rows go on half an hour later: all that
    was to last for less was over.
    """
    Settable.by = 365 * 86_400 * SECOND
    async with Node(settings(tmp_path)) as node:
        await leave_something(node)
        late = codec.publish(b"$delayed/200/x", b"later", 1, packet_id=9)
        await said(node, codec.connect(b"other", True, 60), late, until=b"\x40\2\0\x09")
    for seconds in (0, -1_800):
        Settable.by = seconds * SECOND
        async with Node(settings(tmp_path)) as node:
            state, now = node.broker.state, node.clock.stamp()
            assert 200 * SECOND < state.sessions["mqtt", "away"].expires - now <= 300 * SECOND
            (due,) = state.delayed.values()
            assert 100 * SECOND < due - now <= 200 * SECOND
