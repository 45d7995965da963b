"""Very many connections that are gone at once: each is told so, in turns."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from hubbub.config.settings import Settings
from hubbub.core.connection import Connection
from hubbub.core.turns import Stint
from hubbub.protocols.mqtt import codec
from hubbub.runtime.node import Node
from tests.client.smq.here import until
from tests.runtime.turns import watched


class Gone:
    """A connection; to end its session takes 0.2 ms."""

    def __init__(self, node: Node, told: list[Gone]) -> None:
        self.broker = node.broker
        self._told = told

    def lost(self, reason: str) -> None:
        end = time.thread_time() + 0.0002
        while time.thread_time() < end:
            pass
        assert reason == "cut"
        self._told.append(self)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(listen=("127.0.0.1:0",), data=str(tmp_path / "data"))


def leave(node: Node, all_of_them: list[Gone]) -> None:
    for one in all_of_them:
        node.leaving.lost(cast(Connection, one), "cut")
    node.schedule()


@pytest.mark.pure
async def test_thousands_that_are_cut_are_told_in_turns(settings: Settings) -> None:
    """Of 8,000 behind one switch all others waited for 0.3 s."""
    told: list[Gone] = []
    async with Node(settings) as node:
        here = [Gone(node, told) for _ in range(1_000)]
        with watched() as turns:
            asyncio.get_running_loop().call_soon(leave, node, here)
            await until(lambda: len(told) == 1_000)
        assert told == here
        assert turns.longest < 0.06, "it was 0.2 s"


@pytest.mark.pure
async def test_a_stop_tells_all_that_were_not_told(settings: Settings) -> None:
    told: list[Gone] = []
    node = Node(settings)
    await node.start()
    here = [Gone(node, told) for _ in range(1_000)]
    leave(node, here)
    assert len(told) < 1_000
    await node.stop()
    assert told == here


async def said(node: Node, client: bytes, until: bytes, *more: bytes) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.listeners[0].address.port)
    will = codec.Will(b"w", b"of " + client, 1, False) if client == b"ann" else None
    writer.write(codec.connect(client, False, 60, will) + b"".join(more))
    await reader.readuntil(until)
    return reader, writer


@pytest.mark.parametrize("late", [False, True])
async def test_who_is_told_late_has_its_will_and_its_session(
    settings: Settings, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its client comes back before that."""
    async with Node(settings) as node:
        subscribe = codec.subscribe(1, [(b"w", 1)])
        watcher, keeps = await said(node, b"watcher", b"\x90\3\0\1\1", subscribe)
        _, ann = await said(node, b"ann", b"\x90\3\0\1\1", codec.subscribe(1, [(b"a", 1)]))
        if late:
            monkeypatch.setattr(Stint, "over", lambda self: True)
            monkeypatch.setattr(type(node.leaving), "_tell", lambda self, connection: None)
        ann.transport.abort()
        await until(lambda: node.broker.metrics.connections_ended == 1)
        assert bool(node.leaving._gone) == late
        reader, writer = await said(node, b"ann", b"\x20\2\1\0")
        if late:
            monkeypatch.undo()
            node.leaving.tell_all()
        async with asyncio.timeout(5):
            await watcher.readuntil(b"of ann")
        session = node.broker.sessions["mqtt", "ann"]
        assert session.number and list(session.subscriptions) == ["a"]
        publish = codec.publish(b"a", b"news", 1, packet_id=7)
        _, other = await said(node, b"other", b"\x40\2\0\7", publish)
        async with asyncio.timeout(5):
            await reader.readuntil(b"news")
        for one in (keeps, writer, other):
            one.close()
