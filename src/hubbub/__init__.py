"""Hubbub: SMQ, MQTT and message-switch on one port, one journal, Spark tables.

What a program imports is named here and loaded when it is first used, so that a client does not
load the hub and the hub does not load Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hubbub.client import connect as connect
    from hubbub.cluster.switchboard import Switchboard as Switchboard
    from hubbub.config.settings import Settings as Settings
    from hubbub.embed.hub import Hub as Hub
    from hubbub.embed.hub import is_smq as is_smq
    from hubbub.embed.peer import Info as Info
    from hubbub.embed.peer import Peer as Peer

__version__ = "0.1.0"

_PUBLIC: Final = {
    "Hub": "hubbub.embed.hub",
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
    return getattr(import_module(_PUBLIC[name]), name)
