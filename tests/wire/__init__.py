"""Conversations without sockets: a hub in memory, and connections whose bytes can be read back."""

from __future__ import annotations

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.connection import Connection, Protocol
from hubbub.core.gate import Carrier, Gate, Opening
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.errors import ProtocolError
from hubbub.wire.http import parse_head


class Recorder:
    """A transport that keeps what was written, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.pieces.append(data)

    def writelines(self, data: list[bytes]) -> None:
        self.pieces.extend(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0


class Table:
    """A hub in memory with one tick for all its connections.

    `mount`: the mount point of the listener that the next connection comes to.
    """

    mount = ""

    def __init__(self, record: str = "none") -> None:
        self.clock = Clock()
        self.broker = Broker(self.clock, Log(self.clock), record)
        self.gate = Gate(self.broker.open)

    def tick(self) -> None:
        """All ticks that follow each other without anything coming in."""
        self._tick()
        while self.broker.retained.feeding:
            self.broker.retained.feed_on()
            self._tick()

    def _tick(self) -> None:
        for session in self.broker.unsettled:
            session.settle()
        self.broker.unsettled.clear()
        outgoing = self.broker.outgoing
        outgoing.holding = [
            link for link in outgoing.holding if not link.release()
        ]
        touched, outgoing.touched = outgoing.touched, []
        for link in touched:
            link.flush()

    def dial(self, protocol: Protocol, head: bytes = b"", websocket: bool = False) -> Far:
        return Far(self, protocol, head, websocket)


class Refusing(Carrier):
    """Who is refused is told of, as the hub does."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def refused(self, opening: Opening, user: str, client: str, reason: str) -> None:
        self._broker.audit.turned_away(opening, user, client, reason)


class Far:
    """The far end of a connection: `say` bytes, `hear` what came back since the last time."""

    def __init__(self, table: Table, protocol: Protocol, head: bytes, websocket: bool) -> None:
        self.table = table
        self.transport = Recorder()
        self.link = Link(table.broker.outgoing, self.transport)
        request = parse_head(head) if head else None
        opening = Opening(table.gate, "127.0.0.1", 4711, False, websocket, request)
        opening.mount = table.mount
        opening.protocol = protocol.name
        opening.carrier = Refusing(table.broker)
        self.connection: Connection = protocol.connect(self.link, opening)
        self.reason: str | None = None
        self.connection.start()
        if head and getattr(protocol, "raw_head", False):
            self.say(head)

    def say(self, data: bytes) -> None:
        try:
            self.connection.feed(data)
        except ProtocolError as error:
            if error.reply:
                self.link.write(error.reply)
            self.link.close(error.reason)
        self.table.tick()
        if self.transport.closed and self.reason is None:
            self.hang_up(self.link.reason)

    def pieces(self) -> list[bytes]:
        self.table.tick()
        pieces, self.transport.pieces = self.transport.pieces, []
        return pieces

    def hear(self) -> bytes:
        return b"".join(self.pieces())

    @property
    def closed(self) -> bool:
        return self.transport.closed

    def hang_up(self, reason: str = "") -> None:
        """The socket is gone."""
        if self.reason is None:
            self.reason = reason
            self.connection.lost(reason)
            self.table.tick()
