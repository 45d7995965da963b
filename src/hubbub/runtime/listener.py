"""Sockets in: one port for every protocol. The hub opens listeners; nobody else calls this.

A new connection is young: nobody knows yet what it speaks. Its first bytes decide, or its HTTP
head, within a bound of bytes and of time:

    from an address of `proxies`      -> the PROXY header first, then young as whoever it names
    0x16, the first byte of TLS       -> the handshake, then young again, inside TLS
    first bytes a protocol knows      -> that protocol
    an HTTP head a protocol takes     -> that protocol (a WebSocket after the handshake)
    any other HTTP head               -> the web application, with the bytes so far replayed
    anything else                     -> closed, with a reason in the log

From then on the socket (`runtime.socket`) feeds one `Connection` and is written by the tick. Here
is nothing that knows a protocol or decides about messages.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from hubbub.auth import certificates
from hubbub.auth.validity import Validity, authorities, validity
from hubbub.config.settings import Listener as ListenerSettings
from hubbub.config.settings import networks, parse_address
from hubbub.core.connection import Protocol
from hubbub.core.gate import Gate, Opening
from hubbub.core.limits import HANDSHAKES
from hubbub.core.log import DISK
from hubbub.runtime.binding import BACKLOG, ServerSocket, keep_alive
from hubbub.runtime.guests import Adopt, Dismiss, Guests, Visit
from hubbub.runtime.handshake import reason_of
from hubbub.runtime.newcomers import Newcomers
from hubbub.runtime.socket import Host, Socket
from hubbub.runtime.strangers import MINUTE, Stranger
from hubbub.runtime.tls import Secured
from hubbub.wire.http import Request
from hubbub.wire.site import Site
from hubbub.wire.source import source_of

log = logging.getLogger("hubbub.listener")

DAY: Final = 86_400.0  # from one line about a certificate that ends to the next
AUTHORITIES_SAID: Final = 5  # of one listener, each day: a system's whole list may be given


class Listener:
    """One address: its rules, its protocols and what accepts connections there.

    `connections` are open, `guests` those of them that the web application has; `handshakes`
    are those that are not through with theirs, the oldest first, and from where each comes; `tls`
    is None where there is no certificate, and `validity` where nobody knows its dates. `level`:
    what its clients are promised (`core.log`). `called` is what this machine is, None if somebody
    else asks by which name it is reached.
    """

    def __init__(
        self,
        hub: Host,
        settings: ListenerSettings,
        protocols: Sequence[Protocol],
        gate: Gate,
        adopt: Adopt | None = None,
        claims: Callable[[Request], bool] = lambda request: False,
        called: str | None = None,
        dismiss: Dismiss = lambda request, opening: b"",
    ) -> None:
        self.hub = hub
        self.settings = settings
        self.protocols = list(protocols)
        self.gate = gate
        self.adopt = adopt
        self.dismiss = dismiss
        self.claims = claims
        self.guests = Guests(self.departed)
        self.newcomers = Newcomers(self, lambda: Socket(self))
        self.handshakes: OrderedDict[asyncio.Transport, str] = OrderedDict()
        self.connections = 0
        self.tls: ssl.SSLContext | None = None
        self.validity: Validity | None = None
        self._listed: Validity | None = None  # of the revocation lists
        self._authorities: list[tuple[str, Validity]] = []
        self._dates_again = 0.0
        self.level = hub.broker.log.level_of(settings.durability) or DISK
        self.address = parse_address(settings.address)
        self.proxies = networks(settings.proxies)
        # By a name that is not ours a page comes in only where it needs no credentials, and
        # TLS would not have let it get so far.
        hosts = None
        if called is not None and settings.allow_anonymous and not self.address.path:
            hosts = (called, f"{called}.local", *settings.hosts)
        self._sites = {
            False: Site(settings.origins, hosts, self._misdirected),
            True: Site(settings.origins),
        }
        self._told_again = self._full_again = 0.0
        self._server: asyncio.Server | None = None
        self._bound: ServerSocket | None = None

    async def open(self, bound: ServerSocket) -> None:
        """Accept connections on `bound`; `address` then says the real port.

        SettingError if the port is taken, or a file of TLS cannot be used.
        """
        self.read_certificates()
        bound.listen()
        loop = asyncio.get_running_loop()
        create = loop.create_unix_server if bound.address.path else loop.create_server
        self._server = await create(self._socket, sock=bound.socket, backlog=BACKLOG)
        self._bound, self.address, self.hub.leaving.open = bound, bound.address, True

    def _socket(self) -> asyncio.Protocol:
        return cast(asyncio.Protocol, Socket(self))

    def close(self) -> None:
        """Accept nobody any more; the socket stays its maker's to close."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.newcomers.close()
        self.hub.leaving.end(self.handshakes)

    def keep_alive(self, idle: float, interval: float) -> None:
        """For connections accepted from now on: they inherit it."""
        if self._bound is not None:
            keep_alive(self._bound.socket, idle, interval)

    def read_certificates(self) -> None:
        """For new connections; SettingError leaves what was read before."""
        if self.settings.tls.offered:
            self.tls = certificates.context(self.settings.tls)
            self.validity = validity(self.settings.tls.certificate)
            self._listed = validity(self.settings.tls.crl)
            self._authorities = authorities(self.settings.tls.client_ca)
            self._look_at_dates(self.hub.clock.now())

    def certified(self) -> dict[str, Any]:
        """Its certificate and until when it is good; {} if there is none."""
        return self._until(self.settings.tls.certificate, self.validity)

    def trusted(self) -> dict[str, Any]:
        """The same of its authorities: of the one that ends first."""
        found = min((one for _, one in self._authorities), key=lambda one: one.ends, default=None)
        return self._until(self.settings.tls.client_ca, found)

    def revoked(self) -> dict[str, Any]:
        """The same of its revocation lists."""
        return self._until(self.settings.tls.crl, self._listed)

    def _until(self, file: str, found: Validity | None) -> dict[str, Any]:
        if found is None:
            return {}
        ends = int(found.ends.timestamp() * 1e6)
        return {"listener": str(self.address), "file": file, "expires": ends}

    def _look_at_dates(self, now: float) -> None:
        """A certificate that is over ends nobody who is here, and lets nobody else in."""
        self._dates_again = now + DAY
        tls, at = self.settings.tls, datetime.now(UTC)
        for name, file, found in (
            ("certificate", tls.certificate, self.validity), ("crl", tls.crl, self._listed)
        ):  # fmt: skip
            if found is not None and (complaint := found.complaint(at)):
                log.warning("%s: tls.%s = %r %s", self.address, name, file, complaint)
        said = [(place, why) for place, one in self._authorities if (why := one.complaint(at))]
        for place, complaint in said[:AUTHORITIES_SAID]:
            log.warning("%s: tls.client_ca = %s %s", self.address, place, complaint)
        if len(said) > AUTHORITIES_SAID:
            log.warning(
                "%s: tls.client_ca = %r: %d more are over, or are soon: hubbub doctor has all",
                self.address, tls.client_ca, len(said) - AUTHORITIES_SAID,
            )  # fmt: skip

    def site(self, secure: bool) -> Site:
        """Which requests of browsers are taken, with TLS or without."""
        return self._sites[secure]

    def _misdirected(self, host: str) -> None:
        now = self.hub.clock.now()
        if now >= self._told_again:
            self._told_again = now + MINUTE
            log.warning(
                "%s: refused requests for %.200r with 421: if this hub is called that, add the "
                "name to the setting `hosts`", self.address, host,
            )  # fmt: skip

    def departed(self, source: str = "") -> None:
        """A connection is gone, which was counted to that address."""
        self.connections -= 1
        if source:
            self.hub.arrivals.leave(source)
        self.hub.broker.metrics.connections_ended += 1

    def full(self) -> str:
        """No file is left for one more connection: what is said of that."""
        most = self.hub.most_connections
        now = self.hub.clock.now()
        if now >= self._full_again:
            self._full_again = now + MINUTE
            log.error(
                "%s: refused connections: %d are open, and this process may have no more files "
                "(`ulimit -n`, LimitNOFILE=)", self.address, most,
            )  # fmt: skip
        return f"more than {most} connections"

    def take_line(self) -> None:
        """Accept at once who waits in the kernel: somebody stands at the door."""
        if self._bound is not None and not self.address.path:
            self.newcomers.take(self._bound.socket)

    def sweep(self, now: float) -> None:
        """About once a second."""
        self.guests.sweep(now)
        if now >= self._dates_again:
            self._look_at_dates(now)

    def _not_shaken(self, peer: tuple[str, int], error: BaseException | None) -> None:
        """One that was refused is told of as a login is; of one that went away there is a line."""
        said = f"TLS handshake: {reason_of(error)}"
        if not isinstance(error, ssl.SSLError):
            log.info("%s:%d closed: %s", *peer, said)
            return
        opening = Opening(self.gate, *peer, True)
        opening.protocol = "tls"
        self.hub.broker.audit.turned_away(opening, "", "", said)

    def _make_room(self) -> None:
        """For one more handshake the oldest goes of an address that has most: the oldest of all may
        be a slow device beside a flood from elsewhere.
        """
        there = Counter(self.handshakes.values())
        most = max(there.values())
        oldest = next(one for one, source in self.handshakes.items() if there[source] == most)
        del self.handshakes[oldest]
        oldest.abort()

    def shake_hands(
        self, transport: asyncio.Transport, context: ssl.SSLContext, data: bytes,
        stranger: Stranger | None = None, peer: tuple[str, int] = ("", 0), source: str = "",
    ) -> None:  # fmt: skip
        """Begin TLS on a connection of `peer` whose first bytes were `data`."""
        inner = Socket(self, secure=True)
        (inner.host, inner.port), inner.source = peer, source
        inner.stranger = stranger
        if stranger is not None:
            stranger.visitor = Visit(transport)
        if len(self.handshakes) >= HANDSHAKES:
            self._make_room()

        def shaken(error: BaseException | None) -> None:
            self.handshakes.pop(transport, None)  # or it went for another one
            if error is not None:
                self._not_shaken(peer, error)
                inner.settle()
                self.departed(source)
            elif inner.stranger is not None:
                inner.stranger.visitor = inner

        self.handshakes[transport] = source_of(peer[0])
        inside = cast(asyncio.Protocol, inner)
        Secured(transport, context, inside, self.hub.leaving, shaken, self._later).begin(data)

    def _later(self, call: Callable[[], None]) -> None:
        self.hub.broker.later(call)
        self.hub.schedule()
