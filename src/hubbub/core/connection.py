"""What a protocol is to the hub: bytes in, calls on the broker out. No I/O.

The listener asks each `Protocol` of the registry whether a new connection is its own, lets it
make a `Connection`, feeds it what arrives and wakes it when it asked to be woken. A connection
answers through its `Link`.
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from hubbub.config.settings import Settings
from hubbub.core.broker import Broker
from hubbub.core.gate import Opening
from hubbub.core.limits import LOGIN_BYTES, MESSAGE_BYTES
from hubbub.core.link import Link
from hubbub.core.session import Revival
from hubbub.wire.http import Request

NEVER = float("inf")


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection:
    """One conversation. `feed` may raise ProtocolError, which closes with that reason.

    While it is not `bound`, the next request decides again whose connection this is. While it is
    `restless`, what it reads may bring its next time-out nearer, and it is asked after each read.
    `working`: it does what it was asked in turns, and nothing is read meanwhile.
    `asking`: the gate thinks about its credentials; what comes meanwhile is `early` (core.client).
    `lasting`: bytes that it makes the hub keep as long as it is open, beside what is `waiting`.
    """

    # Of the class, because most never have any: an instance with more than 30 attributes of its own
    # is slower at every one of them (CPython shares their places up to that many).
    early: list[bytes] | None = None
    lasting = 0

    def __init__(self, broker: Broker, link: Link, opening: Opening) -> None:
        self.broker = broker
        self.link = link
        self.opening = opening
        self.bound = True
        self.restless = True
        self.asking = False
        self.working = False

    def start(self) -> None:
        """The connection is open; a protocol in which the server speaks first does so here."""

    def feed(self, data: bytes) -> None:
        """Bytes as they arrived; over a WebSocket exactly one message."""
        raise NotImplementedError

    def wake(self, now: float) -> float:
        """Time-outs: do what is due at `now`, return when to be called again (or NEVER)."""
        return NEVER

    def waiting(self) -> int:
        """How many bytes it keeps of what is half sent or not worked on yet; 0 = nothing."""
        return 0

    def missing(self) -> int:
        """How many bytes are the rest of what is half sent, and no message of their own."""
        return 0

    def works(self) -> bool:
        """Whether it waits for the hub, so that nothing it keeps is the client's to complete."""
        return self.asking or self.working

    def put_off(self) -> None:
        """This turn had its time: `proceed` is called in one of the next."""
        if not self.working:
            self.working = True
            self.opening.carrier.listens(False)
        self.broker.later(lambda: self.opening.carrier.run(self._go_on))

    def _go_on(self) -> None:
        self.working = False
        try:
            self.proceed()
        finally:
            if not self.working:
                self.opening.carrier.listens(True)

    def proceed(self) -> None:
        """Go on with what was put off, as long as the link is not closing."""

    def crowded_out(self, reason: str) -> None:
        """It keeps more than all others, and the hub has no room for it: say so and close."""
        self.link.close(reason)

    def said_all(self) -> None:
        """The peer says no more, but may still read: what was written leaves, then it is over."""
        self.link.close("")

    def drained(self) -> None:
        """The link was choked or paused and has room again."""

    def listens(self, now: float) -> None:
        """Nothing was read from it for a while, by the hub's own doing: that was no silence."""

    def goodbye(self) -> None:
        """The hub is stopping: say what the protocol says; the link is closed afterwards."""

    def end_for(self, reason: str, code: int) -> None:
        """Its session ends it; the code is one of its protocol's."""
        self.link.close(reason)

    def show_out(self, reason: str) -> None:
        """It may not stay: say so where the protocol can; the link is closed afterwards."""

    def lost(self, reason: str) -> None:
        """The connection is gone ("" = the peer closed it in order). Called exactly once."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Protocol(Revival):
    """One protocol inside one hub: recognises its connections and keeps what they share.

    `raw_head`: it parses HTTP itself, so a head the listener read is replayed to `feed`.
    `streams`: over a WebSocket its bytes are a stream in binary messages, not kept apart.
    `message_bytes`: the largest WebSocket message it takes; `login_bytes`: all that a client may
    say until it has shown who it is. `any_text`: its messages are bytes,
    also when they are called text. `moves`: its sessions that last are reached from other nodes
    of a cluster, where it asks `core.homes`; `relayed`: connections of other nodes go on here.
    """

    raw_head = False
    streams = False
    message_bytes = MESSAGE_BYTES
    login_bytes = LOGIN_BYTES
    any_text = False
    moves = False
    relayed = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def apply(self, settings: Settings) -> None:
        """Take its settings: at the start, and again when they were read again."""

    def opens(self, data: bytes) -> bool | None:
        """Whether the first bytes of a connection are this protocol's; None = need more."""
        return False

    def takes(self, request: Request) -> bool:
        """Whether a connection that began with this HTTP request is this protocol's.

        For a WebSocket (`request.websocket`) the answer decides before the handshake is sent;
        `request.subprotocol` may be set to the sub-protocol to confirm.
        """
        return False

    def understands(self, request: Request) -> bool:
        """Whether it takes a connection of its kind that begins in an unusual way.

        Asked where no application might have meant something else by the request.
        """
        return False

    def connect(self, link: Link, opening: Opening) -> Connection:
        raise NotImplementedError

    def wake(self, now: float) -> None:
        """Called about once a second, for time-outs that belong to no connection."""
