"""Which protocols a hub speaks. A new one is a folder, one line here, and a test file.

The order is the order in which a new connection is offered to them: whoever knows its first
bytes or its HTTP request takes it; what nobody takes is the web application's. SMQ comes last
because it takes any WebSocket.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib import import_module

from hubbub.core.broker import Broker
from hubbub.core.connection import Protocol
from hubbub.errors import SettingError
from hubbub.protocols.mqtt.bridge import Bridge as Bridge
from hubbub.protocols.mqtt.bridge import open_bridges as open_bridges

PROTOCOLS: list[str] = [
    "hubbub.protocols.mqtt:Mqtt",
    "hubbub.protocols.smq:Smq",
    "hubbub.protocols.switch:Switch",
]


def load(broker: Broker) -> list[Protocol]:
    """One object for each protocol, for this hub."""
    made = []
    for place in PROTOCOLS:
        module, _, name = place.partition(":")
        made.append(getattr(import_module(module), name)(broker))
    return made


def chosen(protocols: Iterable[Protocol], names: Collection[str]) -> list[Protocol]:
    """Those with the given names, all of them if no name is given; order as registered.

    "http" names the web application, which is no protocol of the registry.
    """
    known = list(protocols)
    wanted = set(names) - {"http"}
    unknown = wanted - {protocol.name for protocol in known}
    if unknown:
        raise SettingError(
            f"there is no protocol {sorted(unknown)[0]}; this hub speaks "
            + ", ".join(protocol.name for protocol in known)
        )
    return [protocol for protocol in known if not names or protocol.name in wanted]
