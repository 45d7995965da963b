"""Server sockets: when a port is taken, when somebody can connect, what a failed start leaves."""

from __future__ import annotations

import re
import socket
import tomllib
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from hubbub.config.settings import Listener, Settings, parse_address
from hubbub.errors import SettingError
from hubbub.runtime.binding import ServerSocket, _overlap
from hubbub.runtime.node import Node
from tests.ports import free_port


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
    address = "127.0.0.1", free_port()
    place = Listener(address=f"127.0.0.1:{address[1]}")
    node = Node(Settings(listen=(), listener=(place,), data=str(tmp_path)))

    def recovered() -> None:
        assert (tmp_path / "log").exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    await node.start(recovered)
    socket.create_connection(address).close()
    await node.stop()


@pytest.mark.parametrize(
    ("first", "second"),
    [("127.0.0.1", "0.0.0.0"), ("127.0.0.1", "[::]"), ("0.0.0.0", "127.0.0.1"),
     ("127.0.0.1", "127.0.0.1")],
)  # fmt: skip
async def test_two_addresses_of_this_hub_are_no_other_program(
    first: str, second: str, tmp_path: Path
) -> None:
    port = free_port()
    places = tuple(Listener(address=f"{host}:{port}") for host in (first, second))
    node = Node(Settings(listen=(), listener=places, data=str(tmp_path / "data")))
    with pytest.raises(SettingError, match="are both addresses of this hub.*`listen` is 127") as no:
        await node.start()
    assert all(place.address in str(no.value) for place in places)


def test_the_examples_of_the_documents_can_listen() -> None:
    """A listener on every address and the default one on loopback cannot both."""
    blocks = [
        block
        for path in (Path(__file__).parents[2] / "docs").glob("**/*.md")
        for block in re.findall(r"```toml\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
        if "[[listener]]" in block
    ]
    assert len(blocks) > 2
    for block in blocks:
        places = msgspec.convert(tomllib.loads(block), Settings).listeners()
        ends = [parse_address(place.address) for place in places]
        assert not any(_overlap(one, other) for one, other in combinations(ends, 2)), block
