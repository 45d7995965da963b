"""The way of a frame to NATS and of what is said to us back, past the tasks of nats-py.

    put ──────────────────────────────→ write ──→ socket      nats-py: a queue, a task that flushes
    socket ──→ Ears ── a subject of ours ──→ heard            nats-py: two tasks and a queue more
                 └── all else ──→ nats-py

nats-py connects, speaks TLS, logs in, pings and comes back: this is the transport that it does so
over. Commands are written whole by both, so they may stand between one another. What comes is cut
into messages here, and only those to subjects of ours stay; what cannot be cut goes on to nats-py,
which says what is wrong with it. Made by `nats` and by `jetstream`. asyncio is here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import ParseResult

from hubbub.cluster.transport import Hears, Way

REST_BYTES: Final = 16 * 1024 * 1024  # of a message that is not whole yet: more than servers send
LINE_BYTES: Final = 1024 * 1024  # without an end: no line of a server is so long
BUFFER_BYTES: Final = 64 * 1024  # for which asyncio, too, says that a socket takes no more
END: Final = b"\r\n"


class Ears(Hears):
    """Hears one connection from its first byte on, so it knows where messages begin."""

    def __init__(self, reader: asyncio.StreamReader, shortcut: Shortcut) -> None:
        super().__init__(reader)
        self._shortcut = shortcut
        self._rest: list[bytes] = []  # of a message that is not whole, as it was read
        self._missing = 0  # of its bytes, as far as it has said
        self._deaf = False

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            super().data_received(data)
            return
        self._rest.append(data)
        self._missing -= len(data)
        if self._missing <= 0:  # else joining what there is would cost as much with each read
            data, self._rest, self._missing = b"".join(self._rest), [], 0
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            at = self._cut(data)
        except ValueError:  # no protocol of NATS
            at = -1
        rest = data[at:] if at >= 0 else data
        if at < 0 or self._missing > REST_BYTES or (len(rest) > LINE_BYTES and not self._missing):
            self._deaf = True
            super().data_received(rest)
        elif rest:
            self._rest.append(rest)

    def _cut(self, data: bytes) -> int:
        """Where the first message begins that is not whole, and what it misses. All before it is
        given to whom it is for; if the data are no messages, nothing is.
        """
        subjects, at, whole = self._shortcut.subjects, 0, len(data)
        ours, theirs = [], []
        while (end := data.find(END, at)) >= 0:
            after, line = end + 2, data[at:end]
            if line.startswith((b"MSG ", b"HMSG ")):
                words = line.split()
                after += _size(words[-1]) + 2
                if after > whole:
                    self._missing = after - whole
                    break
                if words[1].startswith(subjects):
                    begin = end + 2 + (_size(words[-2]) if words[0] == b"HMSG" else 0)
                    ours.append((words[1], data[begin : after - 2]))
                    line = b""
            if line:
                theirs.append(data[at:after])
            at = after
        if theirs:
            super().data_received(b"".join(theirs))
        if ours:
            self._shortcut.heard(ours)
        return at


def _size(word: bytes) -> int:
    if not word.isdigit():
        raise ValueError(word)
    return int(word)


class Shortcut(Way):
    """The transport of one client. `heard` is called with what is said to subjects that begin with
    one of those, and with these. `ready`: what is written now reaches a server that knows us.
    """

    def __init__(self, heard: Callable[[list[tuple[bytes, bytes]]], None]) -> None:
        super().__init__()
        self.heard = heard
        self.subjects: tuple[bytes, ...] = ()
        self.ready = False

    def hears(self, reader: asyncio.StreamReader) -> Ears:
        self.ready = False
        return Ears(reader, self)

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=buffer_size)
        ears = self.hears(reader)
        host, port = uri.hostname or "", uri.port or 0
        async with asyncio.timeout(connect_timeout):
            transport, _ = await loop.create_connection(lambda: ears, host, port)
        writer = asyncio.StreamWriter(transport, ears, reader, loop)
        self._bare_io_reader, self._bare_io_writer = reader, writer
        self._io_reader, self._io_writer = reader, writer

    def put(self, command: bytes) -> None:
        """A whole command, if there is a connection: what is lost is asked for."""
        if (writer := self._open()) is not None:
            writer.write(command)

    def takes(self) -> bool:
        """Whether the socket takes what is put now."""
        writer = self._open()
        return writer is not None and writer.transport.get_write_buffer_size() < BUFFER_BYTES

    def _open(self) -> asyncio.StreamWriter | None:
        writer = self._io_writer
        there = self.ready and writer is not None and not writer.is_closing()
        return writer if there else None

    def close(self) -> None:
        self.ready = False
        super().close()
