"""What leaves through a WebSocket. The listener gives it to the links of such connections."""

from __future__ import annotations

from hubbub.core.link import Framing
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
