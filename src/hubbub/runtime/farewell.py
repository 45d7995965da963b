"""How a connection ends that the hub closes: so that the peer can read why.

A socket that is closed with something unread resets the connection, and the reason that was
written last is lost on the way. So it is shut for sending, counted out, and read and discarded
until the peer closes, or LINGER_SECONDS are over. Each keeps its descriptor for so long: a node has
no more than FAREWELLS, for which `descriptors` keeps some. Called by the listeners' sockets.

Of those that are gone a switch may have had thousands: what comes of it, a session that ends and a
will, is done in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from hubbub.core.connection import Connection
from hubbub.core.limits import FAREWELLS, LINGER_SECONDS, SEND_BUFFER
from hubbub.core.link import Link
from hubbub.core.turns import Stint
from hubbub.wire.websocket import Frames


class Ended(Protocol):
    """A socket of the listener's."""

    transport: asyncio.Transport | None
    link: Link | None
    frames: Frames | None

    def connection_lost(self, error: Exception | None) -> None: ...


def leave(sock: Ended, leaving: Leaving) -> None:
    """End it, after what was written.

    A peer that left in order needs no more, unless it is to answer a Close frame (RFC 6455, 7.1.1);
    what is long has a time of its own.
    """
    transport, link = sock.transport, sock.link
    if transport is None or link is None:
        return
    few = transport.get_write_buffer_size() <= SEND_BUFFER
    answers = sock.frames is not None and not sock.frames.closed
    if not ((link.reason or answers) and few and leaving.open):
        transport.close()
        return
    Farewell(transport, leaving)
    sock.connection_lost(None)


class Left(Protocol):
    """A socket that only waits for its peer to go."""

    def abort(self) -> None: ...


class Leaving:
    """Those of a node, the oldest first; `open` while its listeners accept others."""

    def __init__(self) -> None:
        self.open = False
        self.transports: dict[Left, None] = {}
        # Connections that are gone and do not know it, with the reason; and what this turn has had.
        self._gone: dict[Connection, str] = {}
        self._turn = -1.0
        self._stint: Stint | None = None

    def add(self, one: Left) -> None:
        """One more, instead of the oldest if there are enough."""
        if len(self.transports) >= FAREWELLS:
            oldest = next(iter(self.transports))
            self.discard(oldest)  # the loop ends it in its next turn
            oldest.abort()
        self.transports[one] = None

    def discard(self, one: Left) -> None:
        self.transports.pop(one, None)

    def lost(self, connection: Connection, reason: str) -> None:
        """Tell a connection that it is gone: now, or in another turn if this one has had its time.
        Until then it is one that nobody has found out about.
        """
        broker = connection.broker
        if self._stint is None or self._turn != broker.clock.turned:
            self._turn, self._stint = broker.clock.turned, Stint(broker.clock)
        if self._gone or self._stint.over():
            self._gone[connection] = reason
            broker.later(partial(self._tell, connection))
        else:
            connection.lost(reason)

    def _tell(self, connection: Connection) -> None:
        reason = self._gone.pop(connection, None)
        if reason is not None:
            connection.lost(reason)

    def tell_all(self) -> None:
        """There are no other turns: the hub is stopping."""
        for connection in list(self._gone):
            self._tell(connection)

    def end(self, others: Iterable[Left]) -> None:
        """Nobody waits any more, nor do these."""
        self.open = False
        for transport in [*self.transports, *others]:
            transport.abort()


class Farewell(asyncio.Protocol):
    """What is left of a connection: nobody listens to it any more."""

    def __init__(self, transport: asyncio.Transport, leaving: Leaving) -> None:
        self._transport = transport
        self._leaving = leaving
        leaving.add(transport)
        self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)
        transport.set_protocol(self)
        try:
            transport.write_eof()
        except OSError:  # the peer has reset it meanwhile
            transport.abort()
            return
        transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Discarded."""

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        self._leaving.discard(self._transport)
