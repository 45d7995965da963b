"""One accepted connection, from its first byte to its last. The listener makes them.

It is young until its first bytes say what it speaks (`listener` has the table), then it feeds one
`Connection` and is written by the tick. Bytes and deadlines only: it knows no protocol.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import typing
from collections.abc import Callable, Sequence
from typing import Final, cast

from hubbub.auth import certificates
from hubbub.config.identity import Network
from hubbub.config.settings import Address
from hubbub.config.settings import Listener as ListenerSettings
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.connection import NEVER, Connection, Protocol
from hubbub.core.gate import Gate, Opening, owner
from hubbub.core.limits import (
    CLOSE_SECONDS,
    HEAD_BYTES,
    LINK_CHOKED,
    LINK_PAUSED,
    SEND_BUFFER,
    STALLED_SECONDS,
    STRANGER_SECONDS,
    WEIGHED_BYTES,
)
from hubbub.core.link import Link
from hubbub.core.log import MEMORY
from hubbub.core.rights import named, words_of
from hubbub.errors import ProtocolError
from hubbub.runtime.arrivals import Arrivals
from hubbub.runtime.arriving import Arriving
from hubbub.runtime.backpressure import Backpressure
from hubbub.runtime.binding import acknowledge, peer_of
from hubbub.runtime.carrying import SocketCarrier
from hubbub.runtime.deadlines import Deadlines
from hubbub.runtime.door import Door
from hubbub.runtime.expiry import Expiry
from hubbub.runtime.farewell import Leaving
from hubbub.runtime.framing import WebSocketFraming
from hubbub.runtime.guests import Adopt, Dismiss, Guests
from hubbub.runtime.handshake import FIRST, REFUSED, first_record, not_in_clear
from hubbub.runtime.rates import Rates, Toll
from hubbub.runtime.strangers import Stranger, Strangers
from hubbub.runtime.turn import FULL_READ, Steady, Turn
from hubbub.runtime.waiting import Waiting
from hubbub.wire import proxy
from hubbub.wire.http import (
    RETRY_LATER,
    Request,
    bad_request,
    looks_like_http,
    parse_head,
    response,
)
from hubbub.wire.site import Site
from hubbub.wire.source import is_among
from hubbub.wire.websocket import Frames, handshake_response

log = logging.getLogger("hubbub.listener")

STOPPING: Final = "the hub is stopping"  # said once for all connections

EMPTY_LINES: Final = b"\r\n"  # before a request line they mean nothing (RFC 9112, 2.2)
PAUSE_SECONDS: Final = 1.0  # until somebody who was not read from is asked again


class Host(typing.Protocol):
    """What sockets need of the hub they belong to."""

    broker: Broker
    clock: Clock
    deadlines: Deadlines[Socket]
    sockets: set[Socket]
    strangers: Strangers
    door: Door
    waiting: Waiting
    rates: Rates
    arrivals: Arrivals
    leaving: Leaving
    most_connections: int
    turn: Turn
    pressure: Backpressure

    def schedule(self) -> None: ...


class Place(typing.Protocol):
    """The listener that accepted them, as they see it."""

    hub: Host
    settings: ListenerSettings
    protocols: list[Protocol]
    gate: Gate
    adopt: Adopt | None
    dismiss: Dismiss
    claims: Callable[[Request], bool]
    address: Address
    proxies: list[Network]
    connections: int
    guests: Guests
    tls: ssl.SSLContext | None
    level: int

    def site(self, secure: bool) -> Site: ...
    def departed(self, source: str) -> None: ...
    def full(self) -> str: ...
    def take_line(self) -> None: ...
    def shake_hands(
        self, transport: asyncio.Transport, context: ssl.SSLContext, data: bytes,
        stranger: Stranger | None = None, peer: tuple[str, int] = ("", 0), source: str = "",
    ) -> None: ...  # fmt: skip


class Socket(Arriving):
    """One accepted connection, from its first byte to its last. To the loop it is a protocol: it
    has the methods of one, and no base, so that all of it can be compiled.
    """

    __slots__ = (
        "listener", "hub", "secure", "transport", "link", "connection", "protocol", "opening",
        "frames", "young", "deadline", "queued", "cut_off", "host", "port", "reason", "made",
        "argument", "blocked", "paused", "held", "unread", "unread_since", "hurried", "expiry",
        "announced", "received", "weighed", "busy", "toll", "steady",
    )  # fmt: skip

    def __init__(self, listener: Place, secure: bool = False, argument: object = None) -> None:
        super().__init__()
        # What is true or not stands together: compiled it is a byte each then, and not eight.
        self.blocked = False  # its reader is behind: the loop's buffer is full,
        self.paused = False  # or nothing is read from it
        self.held = False  # nothing is read from it while the disk is behind
        self.busy = False  # nor while its connection works in turns
        self.secure = secure
        self.cut_off = False
        self.made = False
        self.announced = True  # who it is; a balancer has to say so first
        self.listener = listener
        self.hub = listener.hub
        self.argument = argument
        self.transport: asyncio.Transport | None = None
        self.link: Link | None = None
        self.connection: Connection | None = None
        self.protocol: Protocol | None = None
        self.opening: Opening | None = None
        self.frames: Frames | None = None
        self.young = b""
        self.deadline = self.queued = NEVER
        self.host, self.port = "", 0
        self.reason = ""
        self.expiry: Expiry | None = None  # of its credentials, if they have one
        self.toll: Toll | None = None  # where a rate is set
        self.steady: Steady | None = None  # what reads it, once nothing about it is unusual
        # The least that a reader which is behind left unread, and since when it takes nothing more.
        self.unread = 0
        self.unread_since = 0.0
        # How many bytes came in all, and when it was weighed last.
        self.received = self.weighed = 0
        self.hurried: list[bytes] | None = None  # the out-buffer when the kernel was told to hurry

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made = True
        # A cast and no check: uvloop's transports do not inherit asyncio's.
        transport = self.transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(high=SEND_BUFFER)
        peer = peer_of(transport, self.listener.address)
        if not self.secure:
            self.host, self.port = peer[:2] if peer else (self.listener.address.host, 0)
        self.hub.sockets.add(self)
        if self.secure:
            self._stay()
        else:
            proxies = self.listener.proxies  # a check of theirs may be gone before it is asked
            self.announced = not proxies or bool(peer and not is_among(peer[0], proxies))
            self._arrive()

    def _stay(self) -> None:
        self.hub.deadlines.add(self.hub.clock.now() + STRANGER_SECONDS, self)

    def listens(self, listens: bool) -> None:
        """Its connection works in turns, and hears no more until it is done; or it is."""
        self.busy = not listens
        if self.transport is None or self.transport.is_closing():
            return
        if self.busy:
            self.transport.pause_reading()
        else:
            self.read_on()

    def look_up(self, published: bool) -> None:
        """What was read may be too much: for its own reader, for the room, for the disk."""
        if self.blocked:
            self._pause()
        if self.received - self.weighed > WEIGHED_BYTES:
            self.weigh()
        if self.hub.pressure.crowded(published, self.link):
            self.hub.pressure.hold_back(self)

    def data_received(self, data: bytes) -> None:
        """The long way: of who is not in yet, pays a rate, or has a WebSocket around it."""
        if self.stranger is not None and data and not self.entered:
            self.visit(data)
            return
        unframed = False
        if self.toll is not None:
            data = self.part_of(self.toll, data)
            if not data:
                return
            unframed = self.toll.unframed
        metrics = self.hub.broker.metrics
        size = 0 if unframed else len(data)  # what came in a frame was counted with it
        metrics.bytes_received += size
        published = metrics.messages_in
        connection, link = self.connection, self.link
        out = link.out if link is not None else None
        try:
            if connection is None:
                self._recognise(self.young + data if self.young else data)
            elif not connection.bound:
                self._decide_again(connection, self.young + data)
            elif self.frames is None or unframed:
                connection.feed(data)
                if unframed:
                    self.end_frames()
            else:
                self.feed_frames(data)
            if self.stranger is not None:
                self._spend(size)
            if connection is None or connection.restless or connection.link.closing:
                self.schedule()
        except ProtocolError as error:
            self.refuse(error)
        except Exception:
            self.broke()
        if len(data) > FULL_READ:
            self.hub.turn.filled(self)
        self.hub.turn.heard(self.link)
        if not out and link is not None and link.prompt and link.out is out:
            self.hurry(link)
        self.received += size
        if self.toll is not None:
            self.pay(metrics.messages_in - published, size)
        self.look_up(metrics.messages_in != published)
        self._be_steady()

    def _be_steady(self) -> None:
        """From now on its reads go the short way, if they can."""
        connection, link, transport = self.connection, self.link, self.transport
        unusual = self.stranger is not None or self.toll is not None or self.frames is not None
        if unusual or self.kept or connection is None or link is None or not connection.bound:
            return
        if transport is not None and not (link.closing or transport.is_closing()):
            self.steady = Steady(self, connection, link, self.hub.turn)
            transport.set_protocol(cast(asyncio.Protocol, self.steady))

    def _be_unsteady(self) -> None:
        if self.steady is not None and self.transport is not None:
            self.steady.report()
            self.steady = None
            self.transport.set_protocol(cast(asyncio.Protocol, self))

    def half_since(self, now: float) -> float | None:
        if self.steady is not None:
            self.steady.report()
        return super().half_since(now)

    def broke(self) -> None:
        log.exception("%s:%d broke the hub's own code; closed", self.host, self.port)
        self._end("internal error")

    # What it makes the hub keep: called by the room for that

    def weigh(self) -> None:
        self.weighed = self.received
        self.hub.waiting.weigh(self)

    def hurry(self, link: Link) -> None:
        """Nothing was answered, so nothing took the kernel's acknowledgement along."""
        if link.out is not self.hurried and self.transport is not None:
            self.hurried = link.out
            acknowledge(self.transport)

    def hold(self) -> Callable[[], None] | None:
        """Hear no more of it: who reads what it says is behind."""
        if self.transport is None or self.transport.is_closing():
            return None
        self.transport.pause_reading()
        self.held = True
        return self.go_on

    def go_on(self) -> None:
        """The disk, or a reader, has caught up: what it said meanwhile is heard now."""
        self.held = False
        if self.transport is None or self.transport.is_closing():
            return
        self.read_on()
        if self.connection is not None:
            self.connection.listens(self.hub.clock.now())
            self.schedule()
        elif self.opening is None:
            self.hub.deadlines.add(self.hub.clock.now() + STRANGER_SECONDS, self)

    def run(self, action: Callable[[], None]) -> None:
        """Let the connection do something that no bytes of its own have caused."""
        metrics = self.hub.broker.metrics
        published = metrics.messages_in
        try:
            action()
        except ProtocolError as error:
            self.refuse(error)
        except Exception:
            self.broke()
        if self.toll is not None and metrics.messages_in != published:
            self.pay(metrics.messages_in - published, 0)
        elif self.toll is not None and self.toll.left:
            self.read_on()
        self.schedule()
        self.hub.schedule()

    def close(self, reason: str) -> None:
        """End the connection after what was written, from outside of it."""
        if self.link is not None:
            self.link.close(reason)
            self.schedule()
            self.hub.schedule()

    def eof_received(self) -> bool:
        """A peer that only stopped sending still gets what it asked for before. TLS knows no such
        half-closed connections.
        """
        if self.secure or self.link is None or self.connection is None:
            return False
        if not self.link.closing:  # else it ends behind what is held for the disk
            self.run(self.connection.said_all)
        return True

    def pause_writing(self) -> None:
        """The peer reads slowly, or not at all; `resume_writing` will be called if it goes on."""
        self.blocked = True
        self.unread_since = 0.0
        self.schedule()

    def resume_writing(self) -> None:
        self.blocked = False
        if self.paused and self.transport is not None:
            self.paused = False
            self.read_on()
            # What it said meanwhile is heard first, before it is asked for signs of life.
            self.hub.deadlines.add(self.hub.clock.now() + PAUSE_SECONDS, self)
        if self.link is not None:
            self.link.choked = False
        self.relieve()

    def relieve(self) -> None:
        if self.link is not None:
            self.hub.broker.patience.drained(self.link)
        if self.connection is not None:
            self.connection.drained()
            self.hub.schedule()

    def _pause(self) -> None:
        """Read no more of a peer that has not read the answers to what it asked so far.

        Only what it asks for itself can fill its link so much: QoS 0 is dropped long before.
        """
        if self.link is not None and self.link.size > LINK_PAUSED and self.transport is not None:
            self.paused = True
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.settle()
        if self.expiry is not None:
            self.expiry.cancel()
        if self.opening is not None:
            self.opening.end()
            self.hub.arrivals.exit(self.opening)
        self.hub.sockets.discard(self)
        if self.counted:
            self.listener.departed(self.source)
        link, connection = self.link, self.connection
        if link is not None:
            link.transport = None
            self.reason = self.reason or link.reason
        reason = self.reason or (str(error) if error else "")
        # The checks of a balancer come twice a second and end without a word.
        told = reason != STOPPING and (self.opening is not None or not self.listener.proxies)
        if reason and (told or self.reason not in ("", STOPPING)):
            said = self.host, self.port, reason, self._whose()
            log.info("%s:%d closed: %s%s", *said, extra=self._known())
        self.hub.deadlines.forget(self)
        self.hub.door.forget(self)
        self.hub.waiting.forget(self)
        if self.toll is not None:
            self.hub.rates.leave(self.toll)
        # The heap of deadlines may hold this object for a while: let go of what is large, and of
        # what refers to it, so that nothing of it waits for the collector of cycles.
        self.transport = self.link = self.frames = self.steady = self.opening = None
        self.young = self.kept = b""
        if connection is not None:
            self.connection = None
            self.hub.leaving.lost(connection, reason)
            self.hub.schedule()

    def _known(self) -> dict[str, str]:
        """Whose connection it was, if somebody logged in."""
        opening = self.opening
        shown = opening.credentials if opening is not None else None
        if opening is None or shown is None:
            return {}
        client = shown.client or opening.client  # which the hub chose
        return {"user": shown.user, "client": client, "address": shown.address}

    def _whose(self) -> str:
        known = self._known()
        return f" ({named(known['user'])}, client {known['client']!r})" if known else ""

    # Deadlines

    def schedule(self) -> None:
        """Ask the connection when it wants to be woken."""
        if self.connection is None:
            return
        now = self.hub.clock.now()
        if not (self.cut_off or self.paused or self.held or self.slowed()):
            self.hub.deadlines.add(self.connection.wake(now), self)
        if self.blocked and not self.cut_off:
            self.hub.deadlines.add(now + STALLED_SECONDS / 4, self)
        if self.link is not None and self.link.closing and not self.cut_off:
            self.cut_off = True
            self.hub.deadlines.forget(self)
            self.hub.deadlines.add(now + CLOSE_SECONDS, self)

    def woken(self, now: float) -> None:
        link = self.link
        if link is not None and link.closing and self.transport is not None:
            # It was told to close CLOSE_SECONDS ago and reads nothing of what is left.
            self.transport.abort()
        elif link is not None and self.blocked and self._stalled(now):
            link.close(f"it has read nothing for {STALLED_SECONDS:g} s")
            self.schedule()
            self.hub.schedule()
        elif self.held or self.slowed():
            pass  # its deadline comes back when it is heard again
        elif self.connection is not None:
            self.schedule()
        elif self.opening is None:
            wait = f"{STRANGER_SECONDS:g} s"
            self._end(f"said nothing that could be recognised within {wait}: {self.young[:40]!r}")

    def _stalled(self, now: float) -> bool:
        """Whether a peer takes nothing at all of what waits for it."""
        size = self.transport.get_write_buffer_size() if self.transport is not None else 0
        if size < self.unread or not self.unread_since:
            self.unread, self.unread_since = size, now
        return size > LINK_CHOKED and now - self.unread_since >= STALLED_SECONDS

    # Recognising

    def _recognise(self, data: bytes) -> None:
        if self.waiting and self.transport is not None:
            self.young = data
            self.transport.pause_reading()
            return
        if not self.announced:
            data = self._announce(data)
            if not data:
                return
        if not self.secure:
            if data[0] == FIRST:
                self._begin_tls(data)
                return
            if self.listener.settings.tls.only:
                raise not_in_clear(data)
        undecided = False
        for protocol in self._spoken(framed=False):
            opens = protocol.opens(data)
            if opens:
                self._become(protocol, data, None)
                return
            undecided = undecided or opens is None
        if proxy.is_one(data):
            raise ProtocolError(f"a PROXY header, but {self.host} is none of `proxies` here")
        request, said, data = None, data, data.lstrip(EMPTY_LINES)
        if looks_like_http(data):
            request = parse_head(data)
            undecided = True
        undecided = undecided or not data
        if request is not None:
            self._take_request(request, data)
        elif undecided and len(said) <= HEAD_BYTES:
            self.young = said  # with empty lines: behind them no other protocol begins
        elif undecided:
            reason = f"a request head of more than {HEAD_BYTES} bytes"
            raise ProtocolError(reason, response(431, b"", close=True))
        else:
            raise ProtocolError(f"no protocol here begins with {data[:20]!r}")

    def _announce(self, data: bytes) -> bytes:
        """Take the balancer's word for who this is; what came behind it. b"" waits for more."""
        header = proxy.parse(data)
        if header is None:
            self.young = data
            return b""
        self.announced, self.young = True, b""
        if header.address:
            self.host, self.port = header.address, header.port
            self.settle()  # no stranger of the balancer's, but of its own address
            self._be_stranger()
        return data[header.size :]

    def _decide_again(self, connection: Connection, data: bytes) -> None:
        """The last request bound nobody; this one goes where it would have gone as the first."""
        assert self.link is not None and self.protocol is not None
        self.young = data = data.lstrip(EMPTY_LINES)
        if data and not looks_like_http(data):
            raise bad_request("no method to begin with")
        request = parse_head(data)
        if request is None and len(data) > HEAD_BYTES:
            raise ProtocolError("a request head without end", response(431, b"", close=True))
        if request is None:
            return
        self.young = b""
        if self.link.held or self.protocol.takes(request):
            connection.feed(data)
            return
        self.link.flush()
        self.connection = self.link = None
        connection.lost("")
        self._recognise(data)

    def _begin_tls(self, data: bytes) -> None:
        """Step aside for TLS; another socket of ours begins young inside it."""
        if self.listener.tls is None:
            raise ProtocolError("TLS, but this listener has no tls.certificate", REFUSED)
        if self.unwelcome:  # nothing can be said yet, and a handshake costs more than all else
            self._end("")
            return
        if not first_record(data):
            self.young = data
            return
        assert self.transport is not None
        self.hub.sockets.discard(self)
        self.hub.deadlines.forget(self)
        stranger, self.stranger = self.stranger, None
        peer, source = (self.host, self.port), self.source
        self.listener.shake_hands(self.transport, self.listener.tls, data, stranger, peer, source)

    def _take_request(self, request: Request, data: bytes) -> None:
        refusal = self.listener.site(self.secure).refusal(request.headers)
        if refusal is not None:
            raise ProtocolError(refusal.text, refusal.response())
        claimed = self.listener.claims(request)
        protocol = None if claimed and request.websocket else self._taker(request)
        if protocol is None and not (claimed or request.websocket):
            understood = (one for one in self._spoken(framed=False) if one.understands(request))
            protocol = next(understood, None)
        if protocol is None:
            self._hand_over(request, data)
        elif request.websocket and not request.raw:
            self._become_websocket(protocol, request, data)
        else:
            self._become(protocol, data, request)

    def _taker(self, request: Request) -> Protocol | None:
        for protocol in self.listener.protocols:
            # It says only now whether it wants the plain socket of a WebSocket request.
            if protocol.takes(request) and protocol in self._spoken(
                request.websocket and not request.raw
            ):
                return protocol
        return None

    def _spoken(self, framed: bool) -> Sequence[Protocol]:
        """The protocols that WebSockets, or all other connections, may speak here."""
        excluded = "never" if framed else "only"
        return self.listener.protocols if self.listener.settings.websocket != excluded else ()

    def _opening(self, request: Request | None) -> Opening:
        certificate = shared = ""
        if self.secure and self.transport is not None:
            shown = self.transport.get_extra_info("peercert")
            certificate = certificates.identity(self.listener.settings.tls.identity, shown)
            tls = self.transport.get_extra_info("ssl_object")  # of another server's it has none
            shared = getattr(tls, "identity", "")
        websocket = self.frames is not None
        carrier = self.link.carrier if self.link is not None else None
        self.opening = Opening(
            self.listener.gate, self.host, self.port, self.secure, websocket, request, certificate,
            carrier or SocketCarrier(self),
        )  # fmt: skip
        self.opening.protocol = self.protocol.name if self.protocol is not None else "http"
        self.opening.shared = shared
        self.opening.argument = self.argument
        self.opening.mount = self.listener.settings.mount_point
        self.opening.site = self.listener.site(self.secure)
        self.opening.unwelcome = self.unwelcome
        return self.opening

    def _become(self, protocol: Protocol, data: bytes, request: Request | None) -> None:
        """The connection is this protocol's; bytes after the head go on to it."""
        self._begin(protocol, request)
        if request is not None and not protocol.raw_head:
            data = data[data.index(b"\r\n\r\n") + 4 :]
        data = self.hear_first(self.hub.rates, data)
        if data and self.connection is not None:
            self.connection.feed(data)

    def _become_websocket(self, protocol: Protocol, request: Request, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(handshake_response(request, request.subprotocol))
        self.frames = Frames(
            protocol.message_bytes, any_text=protocol.any_text, binary_only=protocol.streams
        )
        self._begin(protocol, request)
        rest = self.hear_first(self.hub.rates, data[data.index(b"\r\n\r\n") + 4 :])
        if rest:
            self.feed_frames(rest)

    def _begin(self, protocol: Protocol, request: Request | None) -> None:
        self.young = b""
        self.hub.deadlines.forget(self)
        link = self.link = Link(self.hub.broker.outgoing, self.transport)
        link.carrier = SocketCarrier(self)
        link.level = self.listener.level
        if self.frames is not None:
            link.framing = WebSocketFraming(protocol.streams, self.frames)
        self.protocol = protocol
        self.connection = protocol.connect(link, self._opening(request))
        self.connection.start()

    def _hand_over(self, request: Request, data: bytes) -> None:
        """Give the socket to the web application, for good; the listener counts it from now on."""
        assert self.transport is not None
        if self.unwelcome:
            words = words_of(self.unwelcome)
            said = response(429, words.encode() + b"\n", RETRY_LATER, close=True)
            raise ProtocolError(words, said)
        if self.listener.adopt is None:
            said = response(404, b"there are no web pages here\n", close=True)
            raise ProtocolError("no web pages here", said)
        opening = self._opening(request)
        alone = data.find(b"\r\n\r\n") == len(data) - 4  # nothing is behind it
        if alone and (dismissed := self.listener.dismiss(request, opening)):
            raise ProtocolError("", dismissed)  # no line: it is told of as a login
        self.hub.sockets.discard(self)
        self.hub.deadlines.forget(self)
        guest = self.listener.adopt(self.transport, data, opening)
        self.listener.guests.add(self.transport, guest, self.source, self.settle)
        self._be_guest(guest)

    def let_in(self, whose: str, client: str) -> None:
        self._be_known()
        self._be_unsteady()
        if self.connection is not None:  # else the web application has it
            whose = whose or owner("", self.host)
            self.toll = self.toll_of(self.hub.rates, whose, client)
            if self.opening is not None:
                self.hub.arrivals.enter(self.opening, whose, client)

    def look_at_rates(self) -> None:
        """The settings have changed."""
        shown = self.opening.credentials if self.opening is not None else None
        if shown is not None and self.connection is not None and self.toll is None:
            self.toll = self.toll_of(self.hub.rates, shown.owner, shown.client)
            self._be_unsteady()

    # Ending

    def refuse(self, error: ProtocolError) -> None:
        link = self.link
        if link is None:
            if error.reply and self.transport is not None:
                self.transport.write(error.reply)
            self._end(error.reason)
            return
        if error.reply:
            link.hold(error.reply, level=MEMORY)  # it promises nothing; answers stay in order
        link.close(error.reason)

    def _end(self, reason: str) -> None:
        self.reason = reason
        if self.transport is not None:
            self.transport.close()

    def stop(self) -> None:
        """The hub is stopping."""
        if self.connection is not None and self.link is not None:
            self.connection.goodbye()
            self.link.close(STOPPING)
        else:
            self._end(STOPPING)
