"""A broker that says what a test tells it to, over a real socket."""

from __future__ import annotations

import asyncio
from types import TracebackType

from hubbub.protocols.mqtt import codec

Packet = tuple[int, bytes]  # first byte, body

CONNACK = b"\x20\x02\x00\x00"
CONNACK_PRESENT = b"\x20\x02\x01\x00"
CONNACK_5 = b"\x20\x03\x00\x00\x00"


class Peer:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def packet(self) -> Packet:
        """The next packet of the client."""
        async with asyncio.timeout(10):
            head = (await self._reader.readexactly(1))[0]
            size = shift = 0
            while True:
                byte = (await self._reader.readexactly(1))[0]
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return head, await self._reader.readexactly(size)

    async def expect(self, kind: int) -> Packet:
        head, body = await self.packet()
        assert head >> 4 == kind, codec.NAMES[head >> 4]
        return head, body

    async def accept(self, answer: bytes = CONNACK) -> bytes:
        """Take a CONNECT and answer it; its body."""
        _, body = await self.expect(codec.CONNECT)
        self.say(answer)
        return body

    def say(self, *packets: bytes) -> None:
        self._writer.write(b"".join(packets))

    def hang_up(self) -> None:
        self._writer.close()

    async def over(self) -> bool:
        """Whether the client closed, after whatever it still said."""
        async with asyncio.timeout(10):
            await self._reader.read()
            return True


class Broker:
    """Listens on a free port; `peer()` is the next connection."""

    def __init__(self) -> None:
        self._peers: asyncio.Queue[Peer] = asyncio.Queue()
        self._all: list[Peer] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Hang up and listen no more."""
        if self._server is not None:
            self._server.close()
        for peer in self._all:
            peer.hang_up()
        self._all.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(reader, writer)
        self._all.append(peer)
        self._peers.put_nowait(peer)

    async def peer(self) -> Peer:
        async with asyncio.timeout(10):
            return await self._peers.get()
