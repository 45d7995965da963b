"""What an import takes, a hub starts on and serves, however odd it is."""

from __future__ import annotations

from pathlib import Path

import hubbub
from hubbub import schema
from hubbub.config.settings import Listener, Settings
from hubbub.journal.admit import LATEST
from hubbub.journal.exchange import import_rows
from hubbub.runtime.node import Node
from hubbub.schema import Row
from tests.journal.rows import message, numbered


async def test_a_hub_starts_on_what_was_imported(tmp_path: Path) -> None:
    """A will of a protocol that it does not speak, and a message that ends in the year 9999."""
    will = Row(0, 0, schema.WILL, b"of-a-plugin", b"ann", b"gone", payload=b"x")
    kept = message(b"21", b"a", retain=True)._replace(expires=LATEST)
    import_rows(numbered([will, kept]), tmp_path)
    place = Listener(address="127.0.0.1:0")
    async with Node(Settings(data=str(tmp_path), listen=(), listener=(place,))) as node:
        url = f"mqtt://{node.listeners[0].address}"
        async with hubbub.mqtt(url, version="5", reconnect=False) as client:
            await client.subscribe("#")
            assert (await anext(client.messages())).payload == b"21"
