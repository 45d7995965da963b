"""A proxy that cuts MQTT connections between any two packets."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable
from urllib.parse import urlsplit

from hubbub.protocols.mqtt import codec


class Cutting:
    """Passes packets on; after `cut`, each connection ends after a random number of packets.

    A packet counts in either direction; whether the last one still arrives is chance, too. With
    `places` nothing is left to chance: each new connection is cut at the next of them, given as
    (packets, whether the last one still arrives), and none when they are used up.
    """

    def __init__(
        self, url: str, longest: int = 20, places: Iterable[tuple[int, bool]] | None = None
    ) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._longest = longest
        self._random = random.Random(1)
        self._places = None if places is None else list(places)
        self._server: asyncio.Server | None = None
        self._cutting = False
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts = 0
        self.url = ""

    async def __aenter__(self) -> Cutting:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()
        self._drop()
        for task in self._tasks:
            task.cancel()

    def cut(self) -> None:
        """Begin: what is connected is cut at once."""
        self._cutting = True
        self._drop()

    def leave_alone(self) -> None:
        self._cutting = False

    def _drop(self) -> None:
        for writer in list(self._open):
            writer.close()

    async def _accept(self, client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        broker, requests = await asyncio.open_connection(self._host, self._port)
        self._open |= {answers, requests}
        packets, arrives = self._next_place()
        left = [packets]
        passing = [
            asyncio.create_task(self._pass(client, requests, left, arrives)),
            asyncio.create_task(self._pass(broker, answers, left, arrives)),
        ]
        self._tasks.update(passing)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for writer in (answers, requests):
            writer.close()
            self._open.discard(writer)

    def _next_place(self) -> tuple[int, bool]:
        if not self._cutting or self._places == []:
            return 1 << 60, True
        if self._places is not None:
            return self._places.pop(0)
        return self._random.randint(1, self._longest), self._random.random() < 0.5

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        left: list[int],
        arrives: bool,
    ) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(65536):
                data += received
                end = 0
                for start, _, end in codec.packets(data):
                    left[0] -= 1
                    if left[0] <= 0 and self._cutting:
                        self.cuts += 1
                        if arrives:
                            writer.write(data[start:end])
                            await writer.drain()
                        return
                    writer.write(data[start:end])
                data = data[end:]
