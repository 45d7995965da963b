"""A floor: the least that a Python program on uvloop does to let a client in, and to keep it.

A protocol object for each connection, one answer to a CONNECT and SUBSCRIBE that came together, one
place in a table of names. It checks nothing, has no session, no will, no deadline and no rights.
What a hub costs a connection beyond it is what it does for its users; a program on this loop costs
no less.

`python -m benchmarks.greeter PORT [CERTIFICATE KEY]`. Called by many.py.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from typing import Final, cast

import uvloop

PING: Final = b"\xc0\x00"
WELCOME: Final = b"\x20\x02\x00\x00\x90\x03\x00\x01\x01"

readers: dict[bytes, Greeter] = {}
wills: dict[bytes, set[Greeter]] = {}


class Greeter(asyncio.Protocol):
    """A client. Who subscribes to `will/#` is told of who goes, as many.py wants it."""

    __slots__ = ("name", "transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.name = b""

    def data_received(self, data: bytes) -> None:
        if data == PING:
            self.transport.write(b"\xd0\x00")
        elif data[0] == 0x82:
            wills.setdefault(b"all", set()).add(self)
            self.transport.write(WELCOME[4:])
        else:
            self.name = data[14 : 14 + (data[12] << 8 | data[13])]
            readers[self.name] = self
            self.transport.write(WELCOME)

    def connection_lost(self, error: Exception | None) -> None:
        readers.pop(self.name, None)
        topic = b"will/" + self.name
        packet = b"\x30%c\x00%c" % (2 + len(topic) + 4, len(topic)) + topic + b"gone"
        for one in wills.get(b"all", ()):
            one.transport.write(packet)


async def serve(port: int, files: list[str]) -> None:
    context = None
    if files:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Greeter, "127.0.0.1", port, ssl=context, backlog=512)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
