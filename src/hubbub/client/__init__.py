"""What a program imports to talk to a hub: `connect(url)` gives the client of that protocol.

The clients run on asyncio and use real sockets; `run` is for programs that have no loop of their
own. They reuse the codecs of `hubbub.protocols` and know nothing else of the hub.

    async with connect("mqtt://127.0.0.1:1883") as client:
        await client.publish("hello", b"world", qos=1)

    client = await connect("mqtt://127.0.0.1:1883")       # the same, where no block can be
    await client.close()                                  # in the end
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, urlsplit

from hubbub.errors import SettingError, without_user

T = TypeVar("T")

# The module is loaded when its scheme is used; each has a `connect(url, **options)`.
_SCHEMES: Final = {
    "mqtt": "hubbub.client.mqtt",
    "mqtts": "hubbub.client.mqtt",
    "ws": "hubbub.client.mqtt",
    "wss": "hubbub.client.mqtt",
    "smq": "hubbub.client.smq",
    "smqs": "hubbub.client.smq",
    "smq+ws": "hubbub.client.smq",
    "smq+wss": "hubbub.client.smq",
    "switch": "hubbub.client.switch",
    "switchs": "hubbub.client.switch",
}


def connect(url: str, **options: Any) -> Any:
    """A client of the hub at `url` (`mqtt://`, `smq://` or `switch://HOST:PORT`), to be entered
    with `async with`, or awaited.

    The options are those of that client. SettingError if the scheme is none of ours; entering
    raises OSError if nobody answers and Refused if the hub says no.
    """
    module = _SCHEMES.get(split_url(url).scheme)
    if module is None:
        raise SettingError(f"cannot connect to {without_user(url)!r}: expected {_expected()}")
    return import_module(module).connect(url, **options)


def _expected() -> str:
    """The schemes by protocol: a bare `ws` is MQTT's, that of SMQ says so."""
    by_module: dict[str, list[str]] = {}
    for scheme, module in _SCHEMES.items():
        by_module.setdefault(module.rpartition(".")[2], []).append(f"{scheme}://")
    return "; ".join(f"{', '.join(urls)} ({name})" for name, urls in by_module.items())


def split_url(url: str) -> SplitResult:
    """The parts of a URL. SettingError if its host or port can be none, or it has none."""
    shown = without_user(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SettingError(f"cannot use {shown!r}: {_wrong(shown)}") from None
    if port == 0:
        raise SettingError(f"cannot use {shown!r}: nothing listens on port 0")
    if parts.scheme in _SCHEMES and not url[len(parts.scheme) :].startswith("://"):
        raise SettingError(f"cannot use {shown!r}: expected {parts.scheme}://HOST:PORT")
    return parts


def _wrong(shown: str) -> str:
    """Why it cannot be used. Said of what is shown: the reason repeats a part of its URL."""
    try:
        _ = urlsplit(shown).port
    except ValueError as error:
        return str(error)
    return "in user and password a letter or digit is itself, all else is written as %2F is for /"


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine to its end, on a loop of its own."""
    return asyncio.run(main)
