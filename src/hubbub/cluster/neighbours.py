"""The processes of one hub as a cluster, over Unix sockets in a directory of their own.

    process 1 ── 1 to 2 ──> DIR/2        each listens on its own name and dials all others; what
              <── 2 to 1 ── DIR/1        it dialled it only writes to: one connection, one order

Beats and frames are those of every engine, each with its length before it. A process that ends
takes its connections with it, and is dialled until it is there again. The parent of the processes
(`hubbub.processes`) makes the directory, for its own user alone. asyncio is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, cast

from hubbub.cluster.engine import Heard
from hubbub.core.limits import CLUSTER_FRAME_BYTES, KIB, LINK_CHOKED

RETRY_SECONDS: Final = 0.1  # from one try to reach a process to the next: a start takes 0.5 s
SILENT_SECONDS: Final = 10.0  # for one that is there and says nothing: it hangs, others serve
MARK_SECONDS: Final = 0.1  # in which all is read that others have written: 100 MB
QUEUED_BYTES: Final = 4 * LINK_CHOKED  # to one process; messages stop at one, changes are small
FRAME_MOST: Final = CLUSTER_FRAME_BYTES + 64 * KIB  # with its head; what is longer is none
_LENGTH: Final = struct.Struct(">I")

log = logging.getLogger("hubbub.cluster")


def node_name(number: int) -> str:
    """What a process is called as a node."""
    return f"process-{number}"


class _Way(asyncio.Protocol):
    """To one process: only written to. `over` is called when it is lost."""

    def __init__(self, engine: Neighbours, over: Callable[[], None]) -> None:
        self._engine = engine
        self._over = over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).set_write_buffer_limits(LINK_CHOKED, LINK_CHOKED // 2)

    def resume_writing(self) -> None:
        self._engine.changed()

    def connection_lost(self, error: Exception | None) -> None:
        self._over()


class _From(asyncio.Protocol):
    """From one process: bytes to frames."""

    def __init__(self, engine: Neighbours) -> None:
        self._engine = engine
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._engine.incoming.add(self._transport)

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data if self._rest else data, 0
        while at + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            end = at + _LENGTH.size + length
            if length > FRAME_MOST:
                log.warning("a frame of %d bytes on the socket of %s", length, self._engine.name)
                self._transport.abort()
                return
            if end > len(data):
                break
            self._engine.heard(data[at + _LENGTH.size : end])
            at = end
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self._engine.incoming.discard(self._transport)


class Neighbours:
    """The engine of process `number` of `count`; all have one `directory`."""

    trouble = ""
    complete = True
    most = CLUSTER_FRAME_BYTES

    def __init__(self, directory: Path, number: int, count: int) -> None:
        self.name = node_name(number)
        self.up = False
        self.heard: Heard = lambda frame: None
        self.changed: Callable[[], None] = lambda: None
        self.incoming: set[asyncio.Transport] = set()
        self._directory = directory
        self._others = [node_name(one) for one in range(1, count + 1) if one != number]
        self._ways: dict[str, asyncio.Transport] = {}
        self._server: asyncio.Server | None = None
        self._dialling: list[asyncio.Task[None]] = []

    async def open(self, heard: Heard, changed: Callable[[], None]) -> None:
        self.heard, self.changed = heard, changed
        path = self._directory / self.name
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of the process that had this number before
        mask = os.umask(0o177)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(partial(_From, self), str(path))
        finally:
            os.umask(mask)
        self.up = True
        self._dialling = [asyncio.create_task(self._dial(name)) for name in self._others]

    async def _dial(self, name: str) -> None:
        """Have a way to a process whenever there is one."""
        loop = asyncio.get_running_loop()
        while True:
            lost = asyncio.Event()
            try:
                way, _ = await loop.create_unix_connection(
                    partial(_Way, self, lost.set), str(self._directory / name)
                )
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._ways[name] = way
            self.changed()
            try:
                await lost.wait()
            finally:
                del self._ways[name]
                way.abort()

    async def settle(self, met: Callable[[str], bool]) -> None:
        """Until all others have said which sessions are theirs, or a client would begin anew here
        what waits for it there. One that is not there is being started; for one that hangs not
        for ever.
        """
        loop = asyncio.get_running_loop()
        for name in self._others:
            silent = loop.time() + SILENT_SECONDS
            while not met(name) and loop.time() < silent:
                if name not in self._ways:
                    silent = loop.time() + SILENT_SECONDS
                await asyncio.sleep(RETRY_SECONDS / 10)

    def send(self, node: str, frames: list[bytes]) -> bool:
        taken = False
        for name in [node] if node else self._others:
            way = self._ways.get(name)
            if way is None or way.is_closing() or way.get_write_buffer_size() > QUEUED_BYTES:
                continue
            way.writelines([part for one in frames for part in (_LENGTH.pack(len(one)), one)])
            taken = True
        return taken

    def mark(self, passed: Callable[[], None]) -> None:
        """Nobody stands between two processes who could send it back, so all are read meanwhile.
        A timer may be over before they are, where the hub stood still once more: then the next one
        is behind that.
        """
        loop = asyncio.get_running_loop()
        loop.call_later(MARK_SECONDS, loop.call_later, 0.0, passed)

    def waiting(self, node: str = "") -> int:
        ways = [self._ways.get(node)] if node else list(self._ways.values())
        return sum(way.get_write_buffer_size() for way in ways if way is not None)

    async def close(self) -> None:
        self.up = False
        if self._server is not None:
            self._server.close()
        until = asyncio.get_running_loop().time() + 1.0
        while self.waiting() and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.01)
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        for transport in list(self.incoming):
            transport.abort()
