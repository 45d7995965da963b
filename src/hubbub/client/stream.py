"""The sending half of a client's socket: what is written during one turn leaves as one piece.

The transports of MQTT and SMQ build on it. Of a closed one, writes are lost in silence. Never looks
into the bytes, and leaves what arrives to those who build on it.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast

PIECE_BYTES: Final = 64 * 1024  # written at once, also within one turn of the loop


class Stream(asyncio.Protocol):
    """One socket, of which there is none before `connection_made`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        # What leaves at the end of this turn.
        self._out: list[bytes] = []
        self._out_bytes = 0
        # Cleared while the socket takes no more; set for ever at the end.
        self._room = asyncio.Event()
        self._room.set()

    # For the connection

    def write(self, data: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._out_bytes += len(data)

    async def written(self) -> None:
        """Return when there is room for more."""
        if self._out_bytes >= PIECE_BYTES:
            self._flush()
            await asyncio.sleep(0)  # so that the answers are read, too
        await self._room.wait()

    def close(self) -> None:
        """Send what was written, then close."""
        self._flush()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if out and self._socket is not None and not self._socket.is_closing():
            self._socket.write(self._wrapped(b"".join(out)))

    def _wrapped(self, data: bytes) -> bytes:
        """A piece as it leaves."""
        return data

    # Called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # that of a stream

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._room.set()
