"""Listening on a path: who may, what lies there already, what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path

import msgspec
import pytest

from hubbub.config.settings import Address, Listener, Settings, parse_address
from hubbub.config.settings import Queue as QueueSettings
from hubbub.config.sources import load
from hubbub.errors import SettingError
from hubbub.runtime.node import Node

CONNECT = bytes.fromhex("100d 0004 4d515454 04 02 003c 0001 61")  # MQTT 3.1.1, client "a"


def settings_at(path: Path, **more: object) -> Settings:
    listener = Listener(address=f"unix:{path}", **more)  # type: ignore[arg-type]
    return Settings(listen=(), listener=(listener,), data=str(path.parent / "data"))


async def said(path: Path, data: bytes, size: int) -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.readexactly(size), 5)
    finally:
        writer.close()


def run(settings: Settings, path: Path, data: bytes = b"", size: int = 0) -> bytes:
    async def main() -> bytes:
        async with Node(settings):
            return await said(path, data, size) if data else b""

    return asyncio.run(main())


def test_every_protocol_can_be_spoken_there(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    assert run(settings_at(path), path, CONNECT, 4) == bytes.fromhex("2002 0000")
    assert not path.exists(), "nothing is left behind"


def test_the_socket_of_message_switch(tmp_path: Path) -> None:
    path = tmp_path / "switch"
    settings = Settings(
        listen=(), data=str(tmp_path / "data"), queue=QueueSettings(socket=str(path))
    )
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    assert run(settings, path, b"GET /login/x HTTP/1.1\r\n\r\n", len(answer)) == answer
    with pytest.raises(asyncio.IncompleteReadError):
        run(settings, path, CONNECT, 4)  # message-switch alone


@pytest.mark.parametrize(("mode", "bits"), [("660", 0o660), ("0600", 0o600), ("666", 0o666)])
def test_who_may_use_it(tmp_path: Path, mode: str, bits: int) -> None:
    async def main() -> None:
        async with Node(settings_at(tmp_path / "hub", mode=mode)):
            assert stat.S_IMODE(os.stat(tmp_path / "hub").st_mode) == bits

    asyncio.run(main())


def test_the_socket_of_a_dead_hub_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert path.is_socket()
    assert run(settings_at(path), path, CONNECT, 4) == bytes.fromhex("2002 0000")


def test_the_socket_of_a_living_program_is_not(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(SettingError, match="in use by another program"):
            run(settings_at(path), path)
        assert path.is_socket()


def test_nobody_waits_in_the_line_of_a_program_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    with socket.socket(socket.AF_UNIX) as hung, contextlib.ExitStack() as stack:
        hung.bind(str(path))
        hung.listen(1)
        with pytest.raises(BlockingIOError):
            while True:
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(path))
        with pytest.raises(SettingError, match="in use by another program"):
            run(settings_at(path), path)


@pytest.mark.parametrize("name", [b"\0any", b"\0\xff\xff", b"", b"a", b"one\xff"])
def test_whatever_a_client_calls_its_own_end_it_is_one_of_this_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes
) -> None:
    """One in the abstract space broke the hub's code, and its connection never ended."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "hub"

    async def main() -> None:
        async with Node(settings_at(path)) as node:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(name)
                sock.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(sock, str(path))
                await loop.sock_sendall(sock, CONNECT)
                heard = await asyncio.wait_for(loop.sock_recv(sock, 4), 5)
                assert heard == bytes.fromhex("2002 0000")
                (one,) = node.sockets
                assert (one.host, one.port) == (f"unix:{path}", 0)
            async with asyncio.timeout(5):
                while node.sockets:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_another_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "hub"
    path.write_text("precious")
    with pytest.raises(SettingError, match="a file that is no socket"):
        run(settings_at(path), path)
    assert path.read_text() == "precious"


def test_the_socket_of_who_came_after_us_is_left(tmp_path: Path) -> None:
    path = tmp_path / "hub"

    async def main() -> None:
        async with Node(settings_at(path)):
            path.unlink()
            path.write_text("not ours")

    asyncio.run(main())
    assert path.read_text() == "not ours"


@pytest.mark.parametrize("where", ["no/such/folder/s", "x" * 200])
def test_a_path_that_cannot_be(tmp_path: Path, where: str) -> None:
    settings = msgspec.structs.replace(settings_at(tmp_path / where), data=str(tmp_path / "data"))
    with pytest.raises(SettingError, match="cannot listen on unix:"):
        run(settings, tmp_path)


def test_its_address() -> None:
    address = parse_address("unix:/run/hub.sock")
    assert address == Address("unix:/run/hub.sock", 0)
    assert (address.path, str(address), address.loopback) == (
        "/run/hub.sock",
        "unix:/run/hub.sock",
        True,
    )
    assert parse_address("127.0.0.1:1883").path == ""
    with pytest.raises(SettingError, match=r"or unix:PATH"):
        parse_address("unix:")


def test_the_setting() -> None:
    settings = load(None, ["queue.socket=/run/switch.sock"])
    last = settings.listeners()[-1]
    assert (last.address, last.protocols) == ("unix:/run/switch.sock", ("switch",))
    with pytest.raises(SettingError, match="mode"):
        load(None, ["listener.mode=999"])
