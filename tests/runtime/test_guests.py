"""Connections that the web application has, and what is left of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hubbub.auth.passwords import add_user
from hubbub.config.settings import Settings
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
