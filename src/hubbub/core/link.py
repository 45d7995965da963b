"""The out-buffer of one connection. Sessions and connections write, the tick flushes.

`write` leaves with this tick. `hold` leaves when the rows made so far are durable: it is for
what promises (an acknowledgement) or carries a durable number out. Held data keeps its order;
what is merely written may overtake it, unless a held item is a barrier: then nothing passes
(nothing is delivered before a held welcome, nothing of a subscription before its held answer).
Never does I/O itself: the hub gives it a transport.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from mypy_extensions import mypyc_attr

from hubbub.core.limits import LINK_BYTES, LINK_CHOKED
from hubbub.core.log import Log


class Transport(Protocol):
    """What a link needs of a socket; asyncio's transports have it."""

    def write(self, data: bytes) -> None: ...
    def writelines(self, data: list[bytes]) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def get_write_buffer_size(self) -> int: ...


class Outgoing:
    """What the tick looks at: the links that were written to, and those that hold something.

    `bytes_sent`: what was handed to sockets, framing included.
    """

    __slots__ = ("touched", "holding", "log", "bytes_sent")

    def __init__(self, log: Log) -> None:
        self.touched: list[Link] = []
        self.holding: list[Link] = []
        self.log = log
        self.bytes_sent = 0


class Framing:
    """Wraps what leaves in one flush, where a transport inside the transport asks for it."""

    def frame(self, pieces: list[bytes]) -> list[bytes]:
        raise NotImplementedError

    def farewell(self) -> bytes:
        """What the wrapping says before the connection closes."""
        return b""


@mypyc_attr(allow_interpreted_subclasses=True)
class Link:
    """`choked`: over its bound; QoS 0 is dropped, the rest stays in the backlog.

    `size` are the bytes that were written and not yet taken by the peer, `held_bytes` those held.
    """

    __slots__ = (
        "outgoing", "transport", "framing", "out", "size", "choked", "held", "held_bytes",
        "barriers", "closing", "reason",
    )  # fmt: skip

    def __init__(self, outgoing: Outgoing, transport: Transport | None = None) -> None:
        self.outgoing = outgoing
        self.transport = transport
        self.framing: Framing | None = None
        self.out: list[bytes] = []
        self.size = 0
        self.held_bytes = 0
        self.choked = False
        self.held: deque[tuple[int, bytes, bool]] = deque()
        self.barriers = 0
        self.closing = False
        self.reason = ""

    def write(self, data: bytes) -> None:
        if self.barriers:
            self.held.append((0, data, False))
            self.held_bytes += len(data)
            return
        if not self.out:
            self.outgoing.touched.append(self)
        self.out.append(data)
        self.size += len(data)

    def hold(self, data: bytes, barrier: bool = False) -> None:
        log = self.outgoing.log
        if log.durable >= log.position and not self.held:
            self.write(data)
            return
        if not self.held:
            self.outgoing.holding.append(self)
        self.held.append((log.position, data, barrier))
        self.held_bytes += len(data)
        if barrier:
            self.barriers += 1

    def release(self, durable: int) -> bool:
        """Let go what waited for rows up to `durable`; False while something still waits."""
        held = self.held
        while held and held[0][0] <= durable:
            _, data, barrier = held.popleft()
            self.held_bytes -= len(data)
            if barrier:
                self.barriers -= 1
            if not self.out:
                self.outgoing.touched.append(self)
            self.out.append(data)
            self.size += len(data)
        return not held

    def flush(self) -> None:
        """Hand everything to the transport in one call; called once a tick."""
        pieces = self.out
        self.out = []
        transport = self.transport
        if transport is None:
            self.size = 0
            return
        if pieces:
            if self.framing is not None:
                pieces = self.framing.frame(pieces)
            self.outgoing.bytes_sent += sum(map(len, pieces))
            if len(pieces) == 1:
                transport.write(pieces[0])
            else:
                transport.writelines(pieces)
            self.size = transport.get_write_buffer_size()
            self.choked = self.size > LINK_CHOKED
            if self.size > LINK_BYTES:
                self.close(f"its reader is too slow: {self.size} bytes are waiting")
                transport.abort()
        if self.closing and not self.held:
            if self.framing is not None:
                transport.write(self.framing.farewell())
            transport.close()

    def close(self, reason: str) -> None:
        """End the connection after what was written; `reason` goes to the log."""
        if not self.closing:
            self.closing = True
            self.reason = reason
            if not self.out:
                self.outgoing.touched.append(self)
