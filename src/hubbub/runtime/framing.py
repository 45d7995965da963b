"""What comes and leaves through a WebSocket: a part of `socket.Socket`, and what its links do."""

from __future__ import annotations

import asyncio

from hubbub.core.connection import Connection, Protocol
from hubbub.core.limits import LINK_CHOKED
from hubbub.core.link import Framing, Link
from hubbub.runtime.rates import Toll
from hubbub.wire.websocket import Frames, close_frame, frame


class WebSocketFraming(Framing):
    """Every piece a message of its own, or, in a stream, a whole flush."""

    def __init__(self, streams: bool, frames: Frames) -> None:
        self._streams = streams
        self._frames = frames

    def frame(self, pieces: list[bytes]) -> list[bytes]:
        if self._streams:
            return [frame(b"".join(pieces))]
        return [frame(piece) for piece in pieces]

    def farewell(self) -> bytes:
        """A close frame, unless one was sent already (RFC 6455, 5.5.1)."""
        return b"" if self._frames.closed else close_frame()


class Framed:
    """What a socket does with frames, once it has some."""

    __slots__ = ()
    transport: asyncio.Transport | None
    link: Link | None
    connection: Connection | None
    protocol: Protocol | None
    frames: Frames | None
    toll: Toll | None

    def _end(self, reason: str) -> None:
        raise NotImplementedError

    def feed_frames(self, data: bytes) -> None:
        frames, connection = self.frames, self.connection
        assert frames is not None and connection is not None and self.transport is not None
        try:
            for message in frames.feed(data):
                if self.toll is not None and self.protocol is not None and self.protocol.streams:
                    self.toll.stream += message  # a frame may have thousands of packets
                else:
                    connection.feed(message)
        finally:
            replies, frames.replies = frames.replies, []
            for reply in replies:
                self.transport.write(reply)
            if self.transport.get_write_buffer_size() > LINK_CHOKED:
                self._end("it asks with pings and never reads the answers")
                self.transport.abort()
        self.end_frames()

    def end_frames(self) -> None:
        """The peer has closed; what it said before is heard first."""
        waits = self.toll is not None and self.toll.stream
        if self.frames is not None and self.frames.closed and self.link is not None and not waits:
            self.link.close("")
