"""Connections that the web application has, and what is left of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Settings
from hubbub.core.limits import HALF_SECONDS
from hubbub.runtime.guests import Guest, Guests
from hubbub.runtime.node import Node
from hubbub.web.app import Application


async def test_a_guest_that_left_is_no_stranger(tmp_path: Path) -> None:
    """Each check of somebody's health was kept for ever, and what a flood had asked with it."""
    add_user(tmp_path / "users", "ann", b"secret")
    settings = Settings(
        listen=("127.0.0.1:0",), data=str(tmp_path / "data"), password_file=str(tmp_path / "users")
    )
    hub = Node(settings)
    hub.web = Application(hub)
    async with hub:
        address = hub.listeners[0].address
        for _ in range(20):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b" 200 " in await reader.read(-1)
            writer.close()
        async with asyncio.timeout(5):
            while len(hub.strangers) or len(hub.listeners[0].guests):
                await asyncio.sleep(0.05)


class Closed:
    """A transport that was closed, with so much to be sent."""

    def __init__(self, size: int) -> None:
        self.size, self.aborted = size, False

    def is_closing(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self.size

    def abort(self) -> None:
        self.aborted = True


def test_a_guest_that_left_and_takes_no_answer_is_counted_and_ended() -> None:
    """It said that it says no more, with answers unread: its descriptor was kept for ever, and
    nobody counted it.
    """
    departed: list[str] = []
    guests = Guests(departed.append)

    def add(one: Closed, source: str) -> None:
        guests.add(cast(asyncio.Transport, one), cast(Guest, None), source, lambda: None)

    dead, slow, gone = Closed(1000), Closed(1000), Closed(0)
    for one, source in ((dead, "dead"), (slow, "slow"), (gone, "gone")):
        add(one, source)
    guests.sweep()
    assert departed == ["gone"]
    for second in range(2 * int(HALF_SECONDS)):
        slow.size -= 10
        guests.sweep(100.0 + second)
    assert dead.aborted and not slow.aborted and departed == ["gone", "dead"]
    slow.size = 0
    guests.sweep(500.0)
    assert departed == ["gone", "dead", "slow"] and not len(guests)
    last = Closed(10)
    add(last, "last")
    guests.end()
    assert last.aborted and departed[-1] == "last"
