"""message-switch as the hub sees it: which connections are its own, and what they share. No I/O."""

from __future__ import annotations

from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Opening
from hubbub.core.link import Link
from hubbub.protocols.switch import codec
from hubbub.protocols.switch.connection import SwitchConnection
from hubbub.protocols.switch.elsewhere import NodeConnection
from hubbub.protocols.switch.operations import Shared
from hubbub.protocols.switch.session import PROTOCOL
from hubbub.protocols.switch.wait import Wakeups
from hubbub.wire.http import Request


class Switch(Protocol):
    name = PROTOCOL
    raw_head = True
    relayed = True

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        self._desk = Shared(broker, Wakeups(broker, PROTOCOL))

    def apply(self, settings: Settings) -> None:
        self.message_bytes = settings.limits.message_bytes

    def takes(self, request: Request) -> bool:
        """Only what begins a useful connection; all other paths may be the application's.

        `GET /` is the diagnostics unless a browser asks.
        """
        if request.websocket:
            return False
        if request.path == b"/":
            return request.method == "GET" and "text/html" not in request.headers.get("accept", "")
        call = codec.call_of(request)
        return call is not None and call.route.operation in codec.OPENING

    def understands(self, request: Request) -> bool:
        """Who forgot to log in is told so, and may do it then; pages are the web's."""
        call = codec.call_of(request)
        return call is not None and call.route.operation not in ("diagnostics", "admin")

    def connect(self, link: Link, opening: Opening) -> Connection:
        made = SwitchConnection if self.broker.homes.alone or opening.via else NodeConnection
        return made(self.broker, link, opening, self._desk, self.message_bytes)

    def wake(self, now: float) -> None:
        self._desk.logins.sweep(now)
