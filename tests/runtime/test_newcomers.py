"""Connections out of the kernel's line, while strangers stand in ours: taken, made, closed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Journal, Settings
from hubbub.protocols.mqtt import codec
from hubbub.runtime.door import HTTP, OTHER, SHORT, SHOWN, TLS, Turn
from hubbub.runtime.newcomers import NEW
from hubbub.runtime.node import Node
from hubbub.runtime.socket import Socket
from hubbub.runtime.strangers import Strangers

COUNT = 40


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[Node]:
    """A hub whose loop accepts nobody, so that the kernel has all who come."""
    users = tmp_path / "users"
    add_user(users, "ann", b"secret", scram=False)
    settings = Settings(
        listen=("127.0.0.1:0",), password_file=str(users), journal=Journal(record="none")
    )
    async with Node(settings) as node, asyncio.timeout(60):
        server = node.listeners[0]._server
        assert server is not None
        asyncio.get_running_loop().remove_reader(server.sockets[0].fileno())
        node.door._due = node.door.clock() + 1e9  # as if a flood were under way, without an end
        node.door.open_to(Turn(lambda: None), ("192.0.2.1", HTTP))
        yield node


def login(name: int) -> bytes:
    return codec.connect(b"%d" % name, True, 60, None, b"ann", b"secret")


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def dialled(node: Node, count: int = COUNT) -> list[socket.socket]:
    host, port = node.listeners[0].address[:2]
    return [socket.create_connection((host, port), 60) for _ in range(count)]


async def said(sock: socket.socket) -> bytes:
    return await asyncio.to_thread(sock.recv, 100)


def opened(node: Node) -> int:
    metrics = node.broker.metrics
    assert metrics.connections - metrics.connections_ended == node.listeners[0].connections
    return node.listeners[0].connections


def let_in(node: Node) -> None:
    """The flood is over."""
    node.door._due = 0.0
    node.door._serve()


async def test_all_that_wait_are_taken_and_each_is_a_connection_in_its_turn(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        newcomers, socks = node.listeners[0].newcomers, dialled(node)
        for number, sock in enumerate(socks):
            sock.sendall(login(number))
        node.listeners[0].take_line()
        assert len(newcomers) == len(node.strangers) == opened(node) == COUNT
        assert not node.sockets, "none is a connection yet"
        let_in(node)
        for sock in socks:
            assert await said(sock) == b"\x20\2\0\0"
        assert not len(newcomers) and opened(node) == COUNT and not len(node.strangers)
        for sock in socks:
            sock.close()
        await until(lambda: not opened(node))


async def test_each_stands_in_the_line_of_what_it_says(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        page = b"GET / HTTP/1.1\r\nHost: x\r\n"
        shown = page + b"authorization: Basic eDp5\r\n\r\n"
        said = {NEW: b"", TLS: b"\x16\3", HTTP: page, SHOWN: shown, OTHER: login(1)}
        socks = dialled(node, len(said))
        for sock, words in zip(socks, said.values(), strict=True):
            sock.sendall(words)
        node.listeners[0].take_line()
        assert sorted(node.door._lines) == sorted(
            [("192.0.2.1", HTTP), *(("127.0.0.1", kind) for kind in said)]
        )
        for sock in socks:
            sock.close()


async def test_a_line_that_is_there_has_the_kernels_taken(tmp_path: Path) -> None:
    """By whoever the loop accepts; where nobody stands at the door the loop accepts all."""
    async with serving(tmp_path) as node:
        loop, listener = asyncio.get_running_loop(), node.listeners[0]
        socks = dialled(node)
        made = cast(asyncio.Protocol, Socket(listener))
        sock, _ = listener._bound.socket.accept()  # type: ignore[union-attr]
        transport, _ = await loop.connect_accepted_socket(lambda: made, sock)
        assert len(listener.newcomers) == COUNT - 1
        transport.abort()
        for sock in socks:
            sock.close()


async def test_who_is_gone_when_it_is_its_turn_is_counted_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        socks = dialled(node)
        node.listeners[0].take_line()
        for sock in socks:
            sock.close()
        let_in(node)
        await until(lambda: not opened(node))
        assert not len(node.strangers) and not len(node.listeners[0].newcomers)


async def test_in_a_full_room_the_oldest_of_them_is_closed(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        node.strangers = Strangers(COUNT // 2, node.broker.metrics)
        socks = dialled(node)
        node.listeners[0].take_line()
        assert len(node.strangers) == opened(node) == COUNT // 2
        assert await said(socks[0]) == b"", "it was closed"
        socks[-1].sendall(login(7))
        let_in(node)
        assert await said(socks[-1]) == b"\x20\2\0\0"
        for sock in socks:
            sock.close()
        await until(lambda: not opened(node))


async def test_no_more_are_taken_than_there_are_files_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as node:
        node.most_connections = COUNT // 4
        socks = dialled(node)
        node.listeners[0].take_line()
        assert opened(node) == COUNT // 4
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("how", ["time", "end"])
async def test_their_time_ends_and_so_does_the_hub(tmp_path: Path, how: str) -> None:
    async with serving(tmp_path) as node:
        newcomers, socks = node.listeners[0].newcomers, dialled(node)
        node.listeners[0].take_line()
        assert len(newcomers) == COUNT
        if how == "time":
            node.strangers.sweep(node.clock.now() + 100)
            assert opened(node) == SHORT, "who is next in a moment has some more"
            node.listeners[0].close()
        else:
            node.listeners[0].close()
        for sock in socks:
            assert await said(sock) == b""
    assert not len(newcomers)
