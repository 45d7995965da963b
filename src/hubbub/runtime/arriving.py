"""The first moments of a connection: is there room for it, and is it a stranger no more?

    accepted ──> too many? ──> turned back
        └──> a stranger, with its own bounds (`strangers`) ──> let in

A part of `socket.Socket`. It knows no protocol; what first bytes mean is decided there.
"""

from __future__ import annotations

import asyncio
import typing

from hubbub.core.connection import NEVER
from hubbub.core.limits import GONE_SECONDS
from hubbub.errors import ProtocolError
from hubbub.runtime.binding import unheard
from hubbub.runtime.strangers import Stranger
from hubbub.runtime.waiting import Conversing
from hubbub.wire.source import source_of

if typing.TYPE_CHECKING:
    from hubbub.runtime.socket import Host, Place


class Arriving(Conversing):
    """What a socket does until it is let in. `said`: bytes of a stranger; `counted`: it is open."""

    __slots__ = ("waiting", "said", "stranger", "counted", "source", "unwelcome")
    listener: Place
    hub: Host
    young: bytes
    announced: bool

    def __init__(self) -> None:
        super().__init__()
        self.waiting = False  # for room
        self.said = 0
        self.stranger: Stranger | None = None
        self.counted = True
        self.source = ""  # the address that it is counted to
        self.unwelcome = ""  # why that may have no such connection

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def _stay(self) -> None:
        raise NotImplementedError

    def _end(self, reason: str) -> None:
        raise NotImplementedError

    def _arrive(self) -> None:
        """Count a connection, once however it is wrapped.

        Where it is one too many the others may be gone: a network that was away for a moment ends
        all connections and brings them back, and the loop hears of both in any order.
        """
        listener, metrics = self.listener, self.hub.broker.metrics
        metrics.connections += 1
        listener.connections += 1
        if listener.connections > self._most() and not self._out_of_files():
            self.waiting = True
            asyncio.get_running_loop().call_later(GONE_SECONDS, self._judge)
        else:
            self._judge()

    def _most(self) -> float:
        return max(self.listener.settings.max_connections, 0) or NEVER

    def _out_of_files(self) -> bool:
        metrics = self.hub.broker.metrics
        return metrics.connections - metrics.connections_ended > self.hub.most_connections

    def _judge(self) -> None:
        """Let it in, or say why not."""
        listener, transport = self.listener, self.transport
        self.waiting = False
        if transport is None or transport.is_closing():
            return
        if listener.connections > self._most() or self._out_of_files():
            listener.guests.sweep()  # some may have gone a moment ago
        if listener.connections > self._most():
            self._turn_back(f"more than max_connections = {self._most()} here")
        elif self._out_of_files():
            self._turn_back(listener.full())
        else:
            self._be_stranger()
            self._stay()
            if self.young:  # what it said meanwhile
                transport.resume_reading()
                self.data_received(b"")

    def _turn_back(self, complaint: str) -> None:
        """Counted out at once, or the next one would be refused for it."""
        self.hub.broker.metrics.connections_refused += 1
        self.counted = False
        self.listener.departed(self.source)
        self._end(complaint)

    # Called by the room for strangers

    def occupied(self) -> bool:
        if self.connection is not None:
            return self.held or self.connection.asking
        return self.held or (not self.young and unheard(self.transport))

    def turn_away(self) -> None:
        self.stranger = None
        if self.transport is not None:
            self.transport.abort()

    def _be_stranger(self) -> None:
        if self.announced:
            self.source, self.unwelcome = self.hub.arrivals.come(self.peer[0])
        self.stranger = Stranger(self, source_of(self.peer[0]), self.hub.clock.now())
        self.hub.strangers.add(self.stranger)

    def settle(self) -> None:
        """It is no stranger any more: it was let in, or is gone."""
        if self.stranger is not None:
            self.hub.strangers.discard(self.stranger)
            self.stranger = None

    def _spend(self, size: int) -> None:
        """What a stranger may say at most. Of HTTP it is the parser that knows."""
        self.said += size
        protocol = self.protocol
        if protocol is not None and not protocol.raw_head and self.said > protocol.login_bytes:
            raise ProtocolError(f"more than {protocol.login_bytes} bytes before it was let in")
