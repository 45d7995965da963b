"""Sockets out: the hub connects to other brokers, and again when a connection is lost.

    wait ── attempt ──> connected ── lost ──> wait longer (1 s, 2 s, 4 s … with some chance in it)

The addresses of a bridge are tried in turn. A connection that lasted makes the next wait short
again. Like the listener this module moves bytes and knows no protocol: what is said over a
connection is the affair of the `Connection` that the bridge makes. Called by the hub.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import ssl
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from hubbub.config.settings import Bridge as BridgeSettings
from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.connection import Connection
from hubbub.core.gate import Carrier
from hubbub.core.limits import SEND_BUFFER
from hubbub.core.link import Link
from hubbub.errors import ProtocolError, SettingError
from hubbub.runtime.backpressure import Backpressure
from hubbub.runtime.binding import acknowledge

log = logging.getLogger("hubbub.dialer")

CONNECT_SECONDS: Final = 30.0  # for the connection and TLS: what strangers have here
FIRST_WAIT: Final = 1.0
GOODBYE_SECONDS: Final = 1.0  # of who is cut off
LASTED: Final = 10.0  # seconds after which a connection counts as one that worked
DEFAULT_PORTS: Final = {False: 1883, True: 8883}

Converse = Callable[[Link, str], Connection]
"""Makes the connection of a link to an address."""


class Host(typing.Protocol):
    """What a line needs of the hub it belongs to."""

    broker: Broker
    clock: Clock
    pressure: Backpressure

    def schedule(self) -> None: ...


class Line(asyncio.Protocol):
    """One connection that was dialled. `ended` is set when its socket is gone. `held`: the disk is
    behind; `busy`: what was read last is not worked on yet. Nothing is read meanwhile.
    """

    def __init__(self, host: Host, converse: Converse, address: str) -> None:
        self.hub = host
        self.address = address
        self.transport: asyncio.Transport | None = None
        self.connection: Connection | None = None
        self.link: Link | None = None
        self.held = self.busy = False
        self.ended = asyncio.Event()
        self._converse = converse

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check: uvloop's transports do not inherit asyncio's.
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=SEND_BUFFER)
        self.link = Link(self.hub.broker.outgoing, self.transport)
        self.link.relieved = self.resume_writing
        self.connection = self._converse(self.link, self.address)
        self.connection.opening.carrier = LineCarrier(self)
        self.connection.start()
        self.hub.schedule()

    def data_received(self, data: bytes) -> None:
        self.hub.broker.metrics.bytes_received += len(data)
        connection = self.connection
        assert connection is not None and self.link is not None
        self.run(lambda: connection.feed(data))
        if not self.link.out and self.transport is not None:
            acknowledge(self.transport)  # no answer takes the kernel's along
        if self.hub.pressure.crowded(True, self.link):
            self.hub.pressure.hold_back(self)

    def run(self, action: Callable[[], None]) -> None:
        """Let the connection do something, as long as there is one."""
        if self.connection is None or self.link is None:
            return
        try:
            action()
        except ProtocolError as error:
            self.link.close(error.reason)
        except Exception:
            log.exception("%s broke the hub's own code; closed", self.address)
            self.link.close("internal error")
        self.hub.schedule()

    def listens(self, listens: bool) -> None:
        """Its connection works in turns, and hears no more until it is done; or it is."""
        self.busy = not listens
        if not self.busy:
            self._read_on()
        elif self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def go_on(self) -> None:
        """The disk has caught up."""
        self.held = False
        self._read_on()
        if self.transport is not None and self.connection is not None:
            self.connection.listens(self.hub.clock.now())

    def _read_on(self) -> None:
        transport = self.transport
        if transport is not None and not (self.held or self.busy or transport.is_closing()):
            transport.resume_reading()

    def resume_writing(self) -> None:
        if self.link is not None and self.connection is not None:
            self.link.choked = False
            self.connection.drained()
            self.hub.schedule()

    def connection_lost(self, error: Exception | None) -> None:
        assert self.connection is not None and self.link is not None
        self.link.transport = self.transport = None
        reason = self.link.reason or (str(error) if error else "")
        log.info("%s closed: %s", self.address, reason or "by the other end")
        self.connection.lost(reason)
        self.connection = None
        self.ended.set()
        self.hub.schedule()


class LineCarrier(Carrier):
    """A line as its connection sees it, which works in turns."""

    __slots__ = ("_line",)

    def __init__(self, line: Line) -> None:
        self._line = line

    def run(self, action: Callable[[], None]) -> None:
        self._line.run(action)

    def listens(self, listens: bool) -> None:
        self._line.listens(listens)


class Dialer:
    """Keeps one bridge connected. `line` is the connection of now, None between two. `cut`: it is
    not to be connected before it is resumed.
    """

    def __init__(
        self, host: Host, settings: BridgeSettings, converse: Converse, cut: bool = False
    ) -> None:
        self.hub = host
        self.settings = settings
        self.line: Line | None = None
        self._converse = converse
        self._tls = _context(settings)
        self._addresses = [_address(text, settings.tls) for text in settings.addresses]
        if not self._addresses:
            raise SettingError(f"bridge {settings.name}: bridge.addresses is empty")
        self._task = asyncio.create_task(self._over() if cut else self._run())

    async def _run(self) -> None:
        await self._over()
        self.line = None
        wait, turn = FIRST_WAIT, 0
        while True:
            host, port = self._addresses[turn % len(self._addresses)]
            turn += 1
            began = self.hub.clock.now()
            try:
                await self._attempt(host, port)
            except (OSError, TimeoutError, ValueError) as error:
                why = str(error) or "no answer in time"
                log.warning(
                    "bridge %s: cannot reach %s:%d: %s", self.settings.name, host, port, why
                )
            if self.hub.clock.now() - began > LASTED:
                wait = FIRST_WAIT
            # Many hubs that lost the same broker must not all come back at the same moment.
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, self.settings.retry_seconds)

    async def _attempt(self, host: str, port: int) -> None:
        line = Line(self.hub, self._converse, f"{host}:{port}")
        name = host if self._tls is not None else None
        async with asyncio.timeout(CONNECT_SECONDS):
            loop = asyncio.get_running_loop()
            await loop.create_connection(
                lambda: line, host, port, ssl=self._tls, server_hostname=name
            )
        self.line = line
        await line.ended.wait()
        self.line = None

    def wake(self, now: float) -> None:
        if self.line is not None and self.line.connection is not None:
            self.line.connection.wake(now)

    def stop(self, reason: str = "the hub is stopping") -> None:
        """Say goodbye; no further attempt."""
        self._task.cancel()
        line = self.line
        if line is not None and line.connection is not None and line.link is not None:
            line.connection.goodbye()
            line.link.close(reason)
            self.hub.schedule()

    def cut_off(self, reason: str) -> None:
        """The same, and who does not take the goodbye soon goes without: it may be what floods."""
        self.stop(reason)
        self._task = asyncio.create_task(self._over())

    def resume(self) -> None:
        self._task.cancel()
        self._task = asyncio.create_task(self._run())

    async def _over(self) -> None:
        """Until the last connection is gone."""
        await self.ended(GOODBYE_SECONDS)

    async def ended(self, seconds: float) -> None:
        """Wait until the connection is closed, but not longer than that."""
        if self.line is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.line.ended.wait()
        except TimeoutError:
            if self.line.transport is not None:
                self.line.transport.abort()


def _address(text: str, tls: bool) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?", text)
    if match is None or int(match[2] or 0) > 65_535:
        raise SettingError(f"bridge.addresses: {text!r}: expected HOST:PORT")
    return match[1].strip("[]"), int(match[2] or DEFAULT_PORTS[tls])


def _context(settings: BridgeSettings) -> ssl.SSLContext | None:
    """TLS as the settings say; SettingError for a file that cannot be used."""
    if not settings.tls:
        return None
    try:
        context = ssl.create_default_context()
        if settings.ca:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            folder = Path(settings.ca).is_dir()
            context.load_verify_locations(**{"capath" if folder else "cafile": settings.ca})
        if settings.certificate:
            context.load_cert_chain(settings.certificate, settings.key or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"bridge {settings.name}: its TLS files: {error}") from None
    context.check_hostname = settings.check_name
    return context
