"""What comes and leaves through a WebSocket: a part of `socket.Socket`, and what its links do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Final

from hubbub.core.limits import LINK_CHOKED
from hubbub.core.link import Framing
from hubbub.core.turns import Stint
from hubbub.errors import ProtocolError
from hubbub.runtime.rates import Paying
from hubbub.wire.websocket import Frames, close_frame, frame, frame_head

WHOLE: Final = 65_536  # bytes of a flush that are not joined: a large payload is shared by many
FRAMES_LOOKED: Final = 16  # of one client, from one look at the time to the next


class WebSocketFraming(Framing):
    """Every piece a message of its own, or, in a stream, a whole flush."""

    def __init__(self, streams: bool, frames: Frames) -> None:
        self._streams = streams
        self._frames = frames

    def frame(self, pieces: list[bytes]) -> list[bytes]:
        if self._streams:
            size = sum(map(len, pieces))
            if size < WHOLE:
                return [frame(b"".join(pieces))]
            return [frame_head(size), *pieces]
        return [frame(piece) for piece in pieces]

    def farewell(self) -> bytes:
        """A close frame, unless one was sent already (RFC 6455, 5.5.1)."""
        return b"" if self._frames.closed else close_frame()


def _wrong(error: ProtocolError) -> Iterator[bytes | None]:
    """What came is wrong from here on, and what came before is not worked on yet."""
    raise error
    yield None


class Framed(Paying):
    """What a socket does with frames, once it has some."""

    __slots__ = ()

    def _end(self, reason: str) -> None:
        raise NotImplementedError

    def look_up(self, published: bool) -> None:
        raise NotImplementedError

    def feed_frames(self, data: bytes) -> None:
        """Hear them, as many as a turn may take; the others in the next ones."""
        frames = self.frames
        assert frames is not None and self.transport is not None
        left, frames.left = frames.left, None
        steps = frames.steps(data) if left is None else chain(left, frames.steps(data))
        try:
            if self._take_steps(steps):
                frames.left_bytes = 0
                if left is not None:
                    self.read_on()
            else:
                frames.left = steps
                frames.left_bytes += len(data)
                self.transport.pause_reading()
                self.hear_later()
        except ProtocolError as error:
            if not (self.busy or self._unpaid()):
                raise
            frames.left = _wrong(error)
        finally:
            if frames.replies:
                self._reply(frames)
        self.end_frames()

    def _take_steps(self, steps: Iterator[bytes | None]) -> bool:
        """False: the turn is over before them, or the connection works on what it was told."""
        connection, protocol = self.connection, self.protocol
        assert connection is not None and protocol is not None
        stint, stream = Stint(connection.broker.clock), []
        try:
            for number, message in enumerate(steps, 1):
                if message is not None and protocol.streams:
                    stream.append(message)
                elif message is not None:
                    connection.feed(message)
                if not number % FRAMES_LOOKED:
                    stream = self._pass_on(stream)
                    if self.busy or stint.over():
                        return False
        finally:
            self._pass_on(stream)
        return True

    def _pass_on(self, stream: list[bytes]) -> list[bytes]:
        """What came is one stream: how it was cut into frames means nothing."""
        if stream and self.toll is not None:
            self.toll.stream += b"".join(stream)  # a frame may have thousands of packets
        elif stream and self.connection is not None:
            self.connection.feed(stream[0] if len(stream) == 1 else b"".join(stream))
        return []

    def _unpaid(self) -> bool:
        """Whether something out of frames waits for its rate."""
        return self.toll is not None and bool(self.toll.stream)

    def read_on(self) -> None:
        super().read_on()
        self.end_frames()

    def hear_later(self) -> None:
        if self.connection is not None:
            self.connection.broker.later(self._hear_on)

    def _hear_on(self) -> None:
        """In a later turn, unless there is another reason not to hear it."""
        if self.frames is not None and self.frames.left is not None and not self.waits():
            self.run(partial(self.feed_frames, b""))
            self.look_up(True)

    def _reply(self, frames: Frames) -> None:
        assert self.transport is not None
        replies, frames.replies = frames.replies, []
        self.transport.write(b"".join(replies))
        if self.transport.get_write_buffer_size() > LINK_CHOKED:
            self._end("it asks with pings and never reads the answers")
            self.transport.abort()

    def end_frames(self) -> None:
        """The peer has closed; what it said before is heard first."""
        frames, waits = self.frames, self.busy or self._unpaid()
        if frames is not None and frames.closed and self.link is not None:
            if not (waits or frames.left is not None):
                self.link.close("")
