"""A message-switch client on asyncio: call services by the name of their queue, and serve them.

    async with connect("switch://127.0.0.1:8080") as hub:
        await hub.serve("upper", bytes.upper)       # runs until cancelled
        reply = await hub.call("upper", b"hello")   # elsewhere

It keeps calls and services over lost connections, so programs may start in any order. Reuses the
hub's codec, and nothing else of the hub.
"""

from __future__ import annotations

import itertools
import os
import ssl
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import hubbub.client
from hubbub.client.switch.channel import address_of
from hubbub.client.switch.client import SwitchClient, Transferred
from hubbub.client.switch.service import Handler
from hubbub.errors import SettingError, without_user
from hubbub.protocols.switch.codec import Delivery

__all__ = ["Delivery", "Handler", "SwitchClient", "Transferred", "connect"]

SCHEMES: Final = ("switch", "switchs", "http", "https")

_count = itertools.count(1)


def connect(url: str, token: str = "", *, tls: ssl.SSLContext | None = None) -> SwitchClient:
    """A client for `switch://[USER:PASSWORD@]HOST[:PORT][/TOKEN]`, to be entered.

    `switchs` is with TLS, `tls` says which certificates to trust; `http` and `https` mean the
    same. `switch:///path/of/socket` is a Unix socket. `token` should be its own in the hub;
    without one it is made of program and process. SettingError for what is no such URL.
    """
    parts = hubbub.client.split_url(url)
    if parts.scheme not in SCHEMES:
        shown, schemes = without_user(url), ", ".join(SCHEMES)
        raise SettingError(f"expected a URL that begins with {schemes}, got {shown!r}")
    if parts.netloc and not token:
        token = unquote(parts.path[1:])
    return SwitchClient(address_of(parts, tls), token or _own_token())


def _own_token() -> str:
    program, number = Path(sys.argv[0]), next(_count)
    name = (program.parent.name if program.stem == "__main__" else program.stem) or "python"
    return f"{name}:{os.getpid()}" + (f".{number}" if number > 1 else "")
