"""The way of nats-py to a server, where TLS ends as it should: without a line in the log.

nats-py asks for its side to stay open when the server's has ended, which TLS cannot do; asyncio
says so each time. `connecting` gives it to each connection, `shortcut` goes on from here.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport


class Hears(asyncio.StreamReaderProtocol):
    """Of one connection; `over_tls`: from then on it ends when the server's side does."""

    over_tls = False

    def eof_received(self) -> bool:
        super().eof_received()
        return not self.over_tls


class Way(TcpTransport):
    """The transport of one client."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        super().close()  # type: ignore[no-untyped-call]

    def hears(self, reader: asyncio.StreamReader) -> Hears:
        return Hears(reader)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int,
        connect_timeout: int,
    ) -> None:  # fmt: skip
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size)
        hears = self.hears(reader)
        hears.over_tls = True
        assert self._io_writer is not None
        name = uri if isinstance(uri, str) else uri.hostname
        async with asyncio.timeout(connect_timeout):
            transport: Any = await loop.start_tls(
                self._io_writer.transport, hears, ssl_context, server_hostname=name
            )
        self._io_reader = reader
        self._io_writer = asyncio.StreamWriter(transport, hears, reader, loop)

    def __bool__(self) -> bool:
        """nats-py makes one of its own where there is none."""
        return True
