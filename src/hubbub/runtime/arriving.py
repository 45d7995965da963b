"""The first moments of a connection: is there room for it, and is it a stranger no more?

    accepted ──> too many? ──> turned back
        └──> a stranger, with its own bounds (`strangers`) ──> let in

A part of `socket.Socket`. It knows no protocol; what first bytes mean is decided there.
"""

from __future__ import annotations

import asyncio
import re
import time
import typing
from collections.abc import Callable
from functools import partial
from typing import Final

from hubbub.core.connection import NEVER
from hubbub.core.limits import ASKED_SECONDS, GONE_SECONDS, WEIGHED_BYTES
from hubbub.errors import ProtocolError
from hubbub.runtime.binding import unheard
from hubbub.runtime.door import HTTP, OTHER, SHOWN, TLS, Place, Turn
from hubbub.runtime.expiry import Expiring
from hubbub.runtime.guests import Guest, Visit
from hubbub.runtime.handshake import FIRST
from hubbub.runtime.strangers import Stranger
from hubbub.wire.http import looks_like_http
from hubbub.wire.source import source_of

if typing.TYPE_CHECKING:
    from hubbub.runtime import socket


_SHOWS: Final = re.compile(rb"\n(authorization|cookie):", re.IGNORECASE)


def kind_of(said: bytes) -> str:
    """In which line of its address who begins so stands; there are bytes."""
    if said[0] == FIRST:
        return TLS
    return kind_of_request(said) if looks_like_http(said) else OTHER


def kind_of_request(said: bytes) -> str:
    return SHOWN if _SHOWS.search(said) else HTTP


class Arriving(Expiring):
    """What a socket does until it is let in. `said`: bytes of a stranger; `counted`: it is open;
    `kept`: what it said and nobody heard yet; `entered`: it is its turn to be heard; `invited`: it
    stood in line before it was a connection, so that what it says first is heard.
    """

    __slots__ = (
        "waiting", "said", "stranger", "counted", "source", "unwelcome", "entered", "invited",
    )  # fmt: skip
    listener: socket.Place
    hub: socket.Host
    young: bytes
    announced: bool

    def __init__(self) -> None:
        super().__init__()
        self.said = 0
        self.stranger: Stranger | None = None
        self.source = ""  # the address that it is counted to
        self.unwelcome = ""  # why that may have no such connection
        self.waiting = False  # for room
        self.counted = True
        self.entered = False
        self.invited = False

    def weigh(self) -> None:
        raise NotImplementedError

    def _stay(self) -> None:
        raise NotImplementedError

    def _arrive(self) -> None:
        """Count a connection, once however it is wrapped.

        Where it is one too many the others may be gone: a network that was away for a moment ends
        all connections and brings them back, and the loop hears of both in any order.
        """
        listener, metrics = self.listener, self.hub.broker.metrics
        if self.stranger is None:  # else it stood in line and is counted (`newcomers`)
            metrics.connections += 1
            listener.connections += 1
            if len(self.hub.door):
                listener.take_line()
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

    # Being heard, in turns

    def hear_soon(self) -> None:
        """What was read and not heard yet."""
        self.hub.broker.later(partial(self.data_received, b""))
        self.hub.schedule()

    def visit(self, data: bytes) -> None:
        """A stranger says something: it is heard in its turn, and pays for the time that takes."""
        invited, self.invited = self.invited, False
        if invited or self.hub.door.open_to(self, self._place(data)):
            self._enter(data)
        elif self.transport is not None:
            self.kept += data
            self.transport.pause_reading()
            if len(self.kept) > WEIGHED_BYTES:
                self.weigh()

    def come_in(self) -> None:
        """It is its turn."""
        kept, self.kept = self.kept, b""
        if kept and self.transport is not None and not self.transport.is_closing():
            self._enter(kept)
            self.read_on()

    def _enter(self, data: bytes) -> None:
        door, stranger = self.hub.door, self.stranger
        began, self.entered = time.thread_time(), True
        try:
            self.data_received(data)
        finally:
            self.entered = False
        if stranger is not None and stranger in self.hub.strangers:
            ending = self.transport is None or self.transport.is_closing()
            ending = ending or (self.link is not None and self.link.closing)
            spent = time.thread_time() - began  # and to close it takes as long as to answer
            door.charge(stranger, spent + ASKED_SECONDS if ending else spent)

    def _place(self, data: bytes) -> Place:
        said = self.young or data
        if self.protocol is None:
            kind = kind_of(said)
        else:
            kind = kind_of_request(said) if self.protocol.raw_head else OTHER
        return source_of(self.host), kind

    def take_turn(self, call: Callable[[], None]) -> None:
        """Make a call for a request to the web application when there is time."""
        stranger = self.stranger
        if stranger is None or not isinstance(stranger.visitor, Visit):
            call()
            return
        door, visit = self.hub.door, stranger.visitor

        def called() -> None:
            visit.late = False
            door.charge(stranger, ASKED_SECONDS)
            call()

        turn = Turn(called)
        if door.open_to(turn, (stranger.address, HTTP)):
            turn.come_in()
        else:
            visit.late = True

    # Called by the room for strangers

    def occupied(self) -> bool:
        if self.kept:
            return self.hub.door.soon(self)
        if self.connection is not None:
            return self.held or self.connection.asking
        return self.held or (not self.young and unheard(self.transport))

    def turn_away(self) -> None:
        self.stranger = None
        if self.transport is not None:
            self.transport.abort()

    def _be_stranger(self) -> None:
        if self.announced:
            self.source, self.unwelcome = self.hub.arrivals.come(self.host)
        if self.stranger is not None:
            self.stranger.visitor = self
            return
        self.stranger = Stranger(self, source_of(self.host), self.hub.clock.now())
        self.hub.strangers.add(self.stranger)

    def _be_guest(self, guest: Guest) -> None:
        """The web application has it, as a stranger still."""
        if self.stranger is not None and self.transport is not None:
            self.stranger.visitor = Visit(self.transport, guest)
            self.hub.door.charge(self.stranger, ASKED_SECONDS)

    def _be_known(self) -> None:
        """It was let in, so what it said cost nothing."""
        if self.stranger is not None:
            self.hub.door.refund(self.stranger)
        self.settle()
        if self.kept:
            self.hub.door.forget(self)
            asyncio.get_running_loop().call_soon(self.come_in)

    def settle(self) -> None:
        """It is no stranger any more: it was let in, or is gone."""
        if self.stranger is not None:
            self.hub.strangers.discard(self.stranger)
            self.stranger = None

    def _spend(self, size: int) -> None:
        """What a stranger may say at most until it is known who it says it is: what follows while
        the gate thinks has a bound of its own. Of HTTP it is the parser that knows.
        """
        self.said += size
        protocol, connection, link = self.protocol, self.connection, self.link
        if protocol is None or protocol.raw_head or self.said <= protocol.login_bytes:
            return
        if not ((connection is not None and connection.asking) or link is None or link.closing):
            raise ProtocolError(f"more than {protocol.login_bytes} bytes before it was let in")
