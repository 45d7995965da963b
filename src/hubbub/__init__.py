"""Hubbub: SMQ, MQTT and message-switch on one port, one journal, Spark tables.

    mqtt(url, …), smq(url, …), switch(url, …)    a client on asyncio, for `async with`
    blocking.mqtt(url, …), .smq, .switch         the same for programs without a loop, for `with`
    connect(url, **options)                      the client that the URL's scheme means, untyped
    Hub(listen=…)                                a whole hub in this program, for `with`
    errors                                       what they raise

    async with hubbub.mqtt("mqtt://127.0.0.1:1883") as client:
        await client.publish("demo/hello", json={"load": 0.4}, qos=1)

What a program imports is named here and loaded when it is first used, so that a client does not
load the hub and the hub does not load Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hubbub import errors as errors
    from hubbub.client import blocking as blocking
    from hubbub.client import connect as connect
    from hubbub.client.mqtt import connect as mqtt
    from hubbub.client.smq import connect as smq
    from hubbub.client.switch import connect as switch
    from hubbub.cluster.switchboard import Switchboard as Switchboard
    from hubbub.config.settings import Settings as Settings
    from hubbub.embed.hub import Hub as Hub
    from hubbub.embed.hub import is_smq as is_smq
    from hubbub.embed.peer import Info as Info
    from hubbub.embed.peer import Peer as Peer

__version__ = "0.1.0"

__all__ = [
    "Hub", "Info", "Peer", "Settings", "Switchboard", "__version__", "blocking", "connect",
    "errors", "is_smq", "mqtt", "smq", "switch",
]  # fmt: skip

# Where each is, and what it is called there: "" is the module itself.
_PUBLIC: Final = {
    "Hub": "hubbub.embed.hub",
    "blocking": "hubbub.client.blocking:",
    "errors": "hubbub.errors:",
    "mqtt": "hubbub.client.mqtt:connect",
    "smq": "hubbub.client.smq:connect",
    "switch": "hubbub.client.switch:connect",
    "Settings": "hubbub.config.settings",
    "connect": "hubbub.client",
    "Switchboard": "hubbub.cluster.switchboard",
    "Info": "hubbub.embed.peer",
    "Peer": "hubbub.embed.peer",
    "is_smq": "hubbub.embed.hub",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hubbub' has no attribute {name!r}")
    place, colon, called = _PUBLIC[name].partition(":")
    module = import_module(place)
    return module if colon and not called else getattr(module, called or name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
