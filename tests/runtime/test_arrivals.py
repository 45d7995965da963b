"""Connections of one address and of one user: how many, how fast, and what is said of one more."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Limits, Listener, Settings, Tls
from hubbub.core.clock import Clock
from hubbub.core.metrics import Metrics
from hubbub.protocols.mqtt import codec
from hubbub.protocols.smq import codec as smq
from hubbub.runtime.arrivals import BY_ADDRESS, BY_USER, RATE, Arrivals
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.certificates import Authority
from tests.client.smq.here import until
from tests.protocols.smq.device import HEAD


def bounded(**most: int) -> Limits:
    return Limits(unbounded_addresses=(), **most)  # type: ignore[arg-type]


@asynccontextmanager
async def serving(limits: Limits, *places: Listener, **more: Any) -> AsyncIterator[Node]:
    places = places or (Listener(address="127.0.0.1:0"),)
    settings = Settings(
        listen=(), listener=places, limits=limits, journal=Journal(record="none"), **more
    )
    node = Node(settings)
    node.web = Application(node)
    async with node:
        yield node


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def say(cls, node: Node, said: bytes) -> Peer:
        port = node.listeners[0].address.port
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.writer.write(said)
        return peer

    async def all(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), 5)

    async def hear(self, size: int) -> bytes:
        return await asyncio.wait_for(self.reader.readexactly(size), 5)


async def client(node: Node, name: bytes, user: bytes | None = None) -> Peer:
    secret = b"secret" if user is not None else None
    return await Peer.say(node, codec.connect(name, True, 60, None, user, secret))


WELCOME = b"\x20\x02\0\0"
REFUSED = b"\x20\x02\0\x03"
V5 = codec.Properties()


async def test_one_more_of_an_address_is_refused_in_the_words_of_what_it_speaks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(bounded(address_connections=3)) as node:
        peers = [await client(node, b"c%d" % number) for number in range(3)]
        for peer in peers:
            assert await peer.hear(4) == WELCOME
        with caplog.at_level(logging.WARNING):
            assert await (await client(node, b"one-more")).all() == REFUSED
            new = codec.connect(b"new", True, 60, properties=V5)
            assert (await (await Peer.say(node, new)).all())[:4][3:] == b"\x97"
            hello = HEAD + smq.framed(smq.build_connect(b"device-1"))
            assert b"this address has 3 connections" in await (await Peer.say(node, hello)).all()
            for path in (b"/login/me", b"/api/v1/status", b"/"):
                head = b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
                answer = await (await Peer.say(node, head)).all()
                assert answer.startswith(b"HTTP/1.1 429 Too Many Requests\r\n"), path
                assert b"\r\nretry-after: 10\r\n" in answer and b"3 are the most" in answer
        lines = [one.getMessage() for one in caplog.records if "refused conn" in one.getMessage()]
        assert lines == [
            "refused connections of address 127.0.0.1: limits.address_connections = 3"
        ]
        assert node.broker.metrics.refused == {BY_ADDRESS: 6}
        peers[0].writer.close()
        await until(lambda: len(node.broker.clients) == 2)
        assert await (await client(node, b"now")).hear(4) == WELCOME


async def test_who_opens_connections_too_fast_is_told_to_try_again() -> None:
    async with serving(bounded(address_connections_per_second=5)) as node:
        answers = []
        for number in range(10):
            new = codec.connect(b"c%d" % number, True, 60, properties=V5)
            answers.append((await (await Peer.say(node, new)).hear(4))[3])
        assert answers.count(0) in (5, 6, 7) and set(answers) == {0, 0x9F}
        assert node.broker.metrics.refused[RATE] == answers.count(0x9F)
        assert await (await client(node, b"old")).hear(4) == REFUSED
        await asyncio.sleep(0.5)
        assert await (await client(node, b"later")).hear(4) == WELCOME


async def test_tls_is_closed_before_the_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = Tls(certificate=str(authority.sign("localhost", server=True)))
    async with serving(bounded(address_connections=1), tls=tls) as node:
        port = node.listeners[0].address.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection("127.0.0.1", port, ssl=authority.client())
        writer.close()
        await until(lambda: not node.arrivals._open)
        again = await asyncio.open_connection("127.0.0.1", port, ssl=authority.client())
        again[1].close()


async def test_pages_and_broken_handshakes_are_counted_out_when_they_are_gone(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    tls = Tls(certificate=str(authority.sign("localhost", server=True)))
    async with serving(bounded(address_connections=100), tls=tls) as node:
        page = await Peer.say(node, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await page.hear(15)).startswith(b"HTTP/1.1 200")
        half = await Peer.say(node, b"\x16\x03\x01\x00\x05hello and no more")
        await until(lambda: node.arrivals._open["127.0.0.1"] == 1)
        assert await half.all()
        page.writer.close()
        await until(lambda: not node.arrivals._open)


async def test_loopback_is_not_bounded_unless_it_is_said() -> None:
    async with serving(Limits(address_connections=1, address_connections_per_second=1)) as node:
        for number in range(5):
            assert await (await client(node, b"c%d" % number)).hear(4) == WELCOME


async def test_behind_a_balancer_the_address_is_the_client_s() -> None:
    place = Listener(address="127.0.0.1:0", proxies=("127.0.0.1",))
    async with serving(Limits(address_connections=1), place) as node:
        hello = codec.connect(b"", True, 60)
        heads = [b"PROXY TCP4 10.0.0.%d 10.9.9.9 1000 1883\r\n" % one for one in (1, 2, 1)]
        peers = [await Peer.say(node, head + hello) for head in heads]
        assert [await peer.hear(4) for peer in peers] == [WELCOME, WELCOME, REFUSED]


async def test_one_more_of_a_user_is_refused_and_who_comes_back_is_not(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        add_user(tmp_path / "users", name, b"secret")
    users = str(tmp_path / "users")
    async with serving(Limits(user_connections=2), password_file=users) as node:
        first = await client(node, b"a", b"ann")
        assert await first.hear(4) == WELCOME
        second = await client(node, b"b", b"ann")
        assert await second.hear(4) == WELCOME
        assert await (await client(node, b"c", b"ann")).all() == REFUSED
        assert await (await client(node, b"c", b"bob")).hear(4) == WELCOME
        assert await (await client(node, b"a", b"ann")).hear(4) == WELCOME, "it comes back"
        assert await first.all() == b""
        assert node.broker.metrics.refused == {BY_USER: 1}
        text = node.broker.audit.refusals.last("ann", "c")[0].text
        assert "this user has 2 connections, and 2 are the most" in text


async def test_who_is_here_when_the_bound_is_set_counts(tmp_path: Path) -> None:
    """Nobody is counted while there is no bound; and all are when there is one."""
    for name in ("ann", "bob"):
        add_user(tmp_path / "users", name, b"secret")
    async with serving(Limits(), password_file=str(tmp_path / "users")) as node:
        here = [await client(node, name, b"ann") for name in (b"a", b"b")]
        assert [await one.hear(4) for one in here] == [WELCOME] * 2
        assert not node.arrivals._users
        node.apply(replace(node.settings, limits=Limits(user_connections=2)))
        assert await (await client(node, b"c", b"ann")).all() == REFUSED
        assert await (await client(node, b"c", b"bob")).hear(4) == WELCOME
        here[0].writer.close()
        await until(lambda: len(node.arrivals._users["user 'ann'"]) == 1)
        assert await (await client(node, b"c", b"ann")).hear(4) == WELCOME
        node.apply(replace(node.settings, limits=Limits()))
        assert not node.arrivals._users
        assert await (await client(node, b"d", b"ann")).hear(4) == WELCOME


@pytest.mark.pure
def test_addresses_that_are_gone_take_no_memory() -> None:
    now = [1_000.0]
    clock = Clock()
    clock.now = lambda: now[0]  # type: ignore[method-assign]
    arrivals = Arrivals(clock, Metrics())
    arrivals.apply(bounded(address_connections=2, address_connections_per_second=10))
    for number in range(30_000):
        source, unwelcome = arrivals.come(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
        assert not unwelcome
        arrivals.leave(source)
        now[0] += 0.001
    assert not arrivals._open and len(arrivals._due) <= 10_000
    assert arrivals.come("unix:/run/hub") == ("", "")
    ours = [arrivals.come(f"2001:db8::{number}")[1] for number in range(3)]
    assert ours[:2] == ["", ""] and ours[2], "a network of 64 bits is one"
