"""A client of MQTT 3.1.1 that notes each message before it acknowledges it, and can be cut off."""

from __future__ import annotations

import asyncio
import contextlib

from hubbub.protocols.mqtt import codec

SECONDS = 8.0
_ANSWERS = {codec.PUBREC: codec.PUBREL, codec.PUBREL: codec.PUBCOMP}
_DONE = (codec.PUBACK, codec.PUBCOMP, codec.SUBACK)


class Cut(Exception):
    """The connection is gone, or was refused."""


class Plain:
    """`got`: payloads, and whether they were said to be repetitions."""

    def __init__(self, name: str, clean: bool) -> None:
        self.name = name
        self.clean = clean
        self.got: list[tuple[bytes, bool]] = []
        self.ended = asyncio.Event()
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._number = 0

    async def open(self, port: int) -> bool:
        """Whether there was a session."""
        try:
            async with asyncio.timeout(SECONDS):
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
                self._writer.write(codec.connect(self.name.encode(), self.clean, 0))
                head, body = await self._packet()
        except (OSError, EOFError, TimeoutError) as error:
            raise Cut(str(error)) from None
        if head >> 4 != codec.CONNACK or body[1]:
            raise Cut(f"refused: {body!r}")
        self._task = asyncio.create_task(self._listen())
        return bool(body[0])

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        number, done = self._begin()
        await self._say(codec.subscribe(number, [(topic_filter.encode(), qos)]), done)

    async def publish(self, topic: str, payload: bytes, qos: int) -> None:
        """Until it is acknowledged."""
        number, done = self._begin()
        await self._say(codec.publish(topic.encode(), payload, qos, packet_id=number), done)

    def cut(self) -> None:
        self._writer.transport.abort()

    def _begin(self) -> tuple[int, asyncio.Future[None]]:
        self._number = self._number % 0xFFFF + 1
        done = self._waits[self._number] = asyncio.get_running_loop().create_future()
        return self._number, done

    async def _say(self, packet: bytes, done: asyncio.Future[None]) -> None:
        if self.ended.is_set():
            raise Cut("gone")
        self._writer.write(packet)
        try:
            await asyncio.wait_for(done, SECONDS)
        except TimeoutError as error:
            raise Cut("no answer") from error

    async def _packet(self) -> tuple[int, bytes]:
        (head,) = await self._reader.readexactly(1)
        size = shift = 0
        while True:
            (digit,) = await self._reader.readexactly(1)
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                return head, await self._reader.readexactly(size)

    async def _listen(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                self._take(*await self._packet())
        self.ended.set()
        for done in self._waits.values():
            if not done.done():
                done.set_exception(Cut("gone"))

    def _take(self, head: int, body: bytes) -> None:
        kind, number = head >> 4, int.from_bytes(body[:2], "big")
        if kind == codec.PUBLISH:
            packet = codec.parse_publish(head, body)
            self.got.append((packet.payload, packet.dup))
            answer = codec.PUBACK if packet.qos == 1 else codec.PUBREC
            self._writer.write(codec.acknowledgement(answer, packet.packet_id))
        elif kind in _ANSWERS:
            self._writer.write(codec.acknowledgement(_ANSWERS[kind], number))
        elif kind in _DONE and (done := self._waits.pop(number, None)) and not done.done():
            done.set_result(None)
