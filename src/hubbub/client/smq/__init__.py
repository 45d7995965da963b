"""An SMQ client on asyncio, over a raw socket or a WebSocket, with TLS or without.

    async with connect("smq://user:password@127.0.0.1:8080") as client:
        await client.subscribe("greetings")
        await client.publish("greetings", b"hello")
        async for message in client.messages():
            await client.publish(message.sender, b"got it")

It talks to any SMQ hub. When a connection is lost it connects again and sets everything up anew:
topics, sub-topics, subscriptions, observations. Reuses the hub's codec, and nothing else of it.
"""

from __future__ import annotations

import ssl
from typing import Final
from urllib.parse import urlsplit

from hubbub.client.smq.client import Settings, SmqClient
from hubbub.client.smq.connection import Credentials, credentials_of
from hubbub.client.smq.message import SmqMessage
from hubbub.client.smq.transport import SCHEMES
from hubbub.errors import SettingError, without_user
from hubbub.protocols.smq import codec

__all__ = ["SmqClient", "SmqMessage", "connect"]

BACKOFF: Final = (0.5, 30.0)
TEXT_BYTES: Final = 255  # what a u8 length can say


def connect(
    url: str,
    *,
    client_id: str = "",
    credentials: str | bytes | Credentials = b"",
    info: str = "",
    reconnect: bool = True,
    backoff: tuple[float, float] = BACKOFF,
    tls: ssl.SSLContext | None = None,
) -> SmqClient:
    """A client for `smq://[USER:PASSWORD@]HOST[:PORT][/PATH]`, to be entered with `async with`.

    Schemes: `smq` and `smqs` (TLS) over a raw socket; `smq+ws` and `smq+wss`, here also `ws` and
    `wss`, over a WebSocket. `client_id` has 6 to 255 bytes and should be unique; without it, it
    is random. `credentials` are up to 255 bytes, or a callable that makes them of the hub's seed
    and the address it sees us at: `(seed, address) -> bytes`. `info` is for the hub's program.
    `reconnect=False` ends the client with its first connection; `backoff` is the first and the
    longest pause in seconds between two attempts. SettingError for what cannot be.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        shown, schemes = without_user(url), ", ".join(SCHEMES)
        raise SettingError(f"expected a URL that begins with {schemes}, got {shown!r}")
    if client_id and not codec.UID_BYTES <= len(client_id.encode()) <= TEXT_BYTES:
        raise SettingError(
            f"expected a client_id of {codec.UID_BYTES} to {TEXT_BYTES} bytes, got {client_id!r}"
        )
    return SmqClient(
        Settings(
            parts, client_id, credentials_of(parts, credentials), info.encode(), reconnect,
            backoff, tls,
        )
    )  # fmt: skip
