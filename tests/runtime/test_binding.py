"""Server sockets: when a port is taken, when somebody can connect, what a failed start leaves."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from hubbub.config.settings import Listener, Settings
from hubbub.errors import SettingError
from hubbub.runtime.binding import ServerSocket
from hubbub.runtime.node import Node


def test_another_program_may_be_faster() -> None:
    """It can bind an address on which nobody listens yet."""
    bound = ServerSocket(Listener(address="127.0.0.1:0"))
    with socket.create_server(("127.0.0.1", bound.address.port)):
        with pytest.raises(SettingError, match=f"127.0.0.1:{bound.address.port} is in use"):
            bound.listen()
    bound.listen()
    bound.close()


async def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        addresses = (f"unix:{tmp_path / 'hub'}", f"127.0.0.1:{taken.getsockname()[1]}")
        places = tuple(Listener(address=address) for address in addresses)
        node = Node(Settings(listen=(), listener=places, data=str(tmp_path / "data")))
        with pytest.raises(SettingError, match="in use"):
            await node.start()
        assert not list(tmp_path.iterdir())
    await node.start()  # the same one, when the port is free
    assert [listener.address.host for listener in node.listeners] == [addresses[0], "127.0.0.1"]
    await node.stop()


async def test_nobody_can_connect_before_the_journal_is_read(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = free.getsockname()
    place = Listener(address=f"127.0.0.1:{address[1]}")
    node = Node(Settings(listen=(), listener=(place,), data=str(tmp_path)))

    def recovered() -> None:
        assert (tmp_path / "log").exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    await node.start(recovered)
    socket.create_connection(address).close()
    await node.stop()
