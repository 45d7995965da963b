"""Behind a balancer: who a client is comes from the PROXY header, and only from who may say it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hubbub.auth.passwords import add_user
from hubbub.config.identity import Tls
from hubbub.config.settings import Journal, Listener, Settings
from hubbub.config.sources import load
from hubbub.errors import SettingError
from hubbub.runtime.node import Node
from hubbub.web.app import Application
from tests.auth.test_every_door import Peer, connect, request
from tests.certificates import Authority
from tests.wire.test_proxy import binary

IN = b"\x20\x02\x00\x00"


def says(address: str, port: int = 4711) -> bytes:
    return f"PROXY TCP4 {address} 127.0.0.1 {port} 1883\r\n".encode()


def says2(address: str, more: bytes = b"") -> bytes:
    both = socket.inet_aton(address) + socket.inet_aton("127.0.0.1")
    return binary(0x11, both + b"\x12\x67\x07\x5b" + more)


@asynccontextmanager
async def hub(*proxies: str, **more: Any) -> AsyncIterator[Node]:
    place = Listener(address="127.0.0.1:0", proxies=proxies, **more)
    node = Node(Settings(listen=(), listener=(place,), journal=Journal(record="none")))
    node.web = Application(node)
    async with node:
        yield node


def addresses(node: Node) -> list[str]:
    return [session.address for session in node.broker.clients.values()]


@pytest.mark.parametrize(
    "header", [says("192.0.2.7"), says2("192.0.2.7"), says2("192.0.2.7", bytes(99))]
)
async def test_the_client_is_who_the_balancer_says(header: bytes) -> None:
    async with hub("127.0.0.0/8") as node:
        whole = await Peer.dial(node)
        assert await whole.ask(header + connect(), 4) == IN
        assert addresses(node) == ["192.0.2.7"]
        slow = await Peer.dial(node)
        for byte in header:
            slow.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        assert await slow.ask(connect(client=b"d"), 4) == IN
        assert addresses(node) == ["192.0.2.7", "192.0.2.7"]


async def test_a_health_check_is_itself() -> None:
    async with hub("127.0.0.1") as node:
        for header in (b"PROXY UNKNOWN\r\n", binary(0, b"", 0x20)):
            peer = await Peer.dial(node)
            answer = await peer.ask(header + request(b"/hubbub.js"), 15)
            assert answer.startswith(b"HTTP/1.1 200")


async def test_who_may_not_say_it_is_itself(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with hub("192.0.2.0/24") as node:
        direct = await Peer.dial(node)
        assert await direct.ask(connect(), 4) == IN and addresses(node) == ["127.0.0.1"]
        for header in (says("192.0.2.7"), says2("192.0.2.7"), b"PROXY UNKNOWN\r\n"):
            liar = await Peer.dial(node)
            assert await liar.ask(header + connect(client=b"d"), 4) == b""
        assert addresses(node) == ["127.0.0.1"]
    assert "a PROXY header, but 127.0.0.1 is none of `proxies` here" in caplog.text


@pytest.mark.parametrize(
    "first", [connect(), request(b"/"), b"PROXY TCP4 me you 1 2\r\n", bytes(200)]
)
async def test_a_balancer_must_say_it(first: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with hub("127.0.0.1") as node:
        assert await (await Peer.dial(node)).ask(first, 4) == b""
        assert not node.broker.clients
    assert "PROXY header expected from a balancer (`proxies`)" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.pure
async def test_a_header_must_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.runtime.socket.STRANGER_SECONDS", 0.3)
    async with hub("127.0.0.1") as node:
        peer = await Peer.dial(node)
        began = asyncio.get_running_loop().time()
        assert await peer.ask(says("192.0.2.7")[:-1], 4) == b""
        assert 0.2 < asyncio.get_running_loop().time() - began < 3


async def test_before_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.sign("localhost", server=True)
    async with hub("127.0.0.1", tls=Tls(certificate=str(certificate), only=True)) as node:
        loop, port = asyncio.get_running_loop(), node.listeners[0].address.port
        trust = authority.client()

        def talk() -> bytes:
            with socket.create_connection(("127.0.0.1", port), 10) as plain:
                plain.sendall(says("192.0.2.9"))
                with trust.wrap_socket(plain, server_hostname="localhost") as secure:
                    secure.sendall(connect())
                    answer = secure.recv(4)
                    seen.extend(addresses(node))
                    return answer

        seen: list[str] = []
        assert await loop.run_in_executor(None, talk) == IN
        assert seen == ["192.0.2.9"]


async def test_its_address_is_used_for_guesses_and_refusals(tmp_path: Path) -> None:
    add_user(tmp_path / "users", "ann", b"secret")
    async with hub("127.0.0.1", password_file=str(tmp_path / "users")) as node:
        for _ in range(11):
            guess = await Peer.dial(node)
            await guess.ask(says("192.0.2.66") + connect(b"ann", b"guess"), 4)
        (last, *_) = node.broker.audit.refusals.last("ann", None)
        assert "at 192.0.2.66 was not let in" in last.text
        assert node.gates.logins.guesses.blocked("192.0.2.66", "ann")
        assert not node.gates.logins.guesses.blocked("127.0.0.1", "ann")
        honest = await Peer.dial(node)
        assert await honest.ask(says("192.0.2.7") + connect(b"ann", b"secret"), 4) == IN


async def test_each_address_behind_it_has_its_own_share_of_the_room() -> None:
    async with hub("127.0.0.1") as node:
        node.strangers.room = 8
        silent = []
        for number in range(12):
            silent.append(await Peer.dial(node))
            silent[-1].writer.write(says(f"192.0.2.{number // 6}"))
            while sum(map(len, node.strangers._at.values())) < min(number + 1, 8):
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
        here = {one: len(some) for one, some in node.strangers._at.items()}
        assert set(here) == {"192.0.2.0", "192.0.2.1"} and sum(here.values()) == 8
        assert min(here.values()) >= 2, "a share"


async def test_the_web_pages_are_told_too() -> None:
    seen: list[Any] = []
    async with hub("127.0.0.1") as node:
        web = node.web
        assert isinstance(web, Application)
        inner = web.asgi

        async def spy(scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["client"])
            await inner(scope, receive, send)

        web.asgi = spy  # type: ignore[assignment]
        peer = await Peer.dial(node)
        answer = await peer.ask(says("192.0.2.7") + request(b"/hubbub.js"), 15)
        assert answer.startswith(b"HTTP/1.1 200") and seen == [("192.0.2.7", 4711)]


@pytest.mark.parametrize("wrong", ["localhost", "10.0.0.1/24", "10.0.0.0/33", ""])
def test_settings(wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(f'[[listener]]\naddress = "127.0.0.1:0"\nproxies = ["{wrong}"]\n')
    with pytest.raises(SettingError, match="proxies: .*expected addresses or networks"):
        load(file)
    file.write_text('[[listener]]\naddress = "unix:/tmp/x"\nproxies = ["::1"]\n')
    with pytest.raises(SettingError, match="proxies come over a network"):
        load(file)
