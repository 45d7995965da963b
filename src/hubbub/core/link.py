"""The out-buffer of one connection. Sessions and connections write, the tick flushes.

`write` leaves with this tick. `hold` leaves when the rows made so far are as durable as the link's
`level` says (`core.log`): it is for what promises (an acknowledgement, which may have a level of
its own) or carries a durable number out. Held data keeps its order;
what is merely written may overtake it, unless a held item is a barrier: then nothing passes
(nothing is delivered before a held welcome, nothing of a subscription before its held answer).
While a link is shut, what is written or held stays aside, in its order, and only what goes by
`pass_aside` or `write_aside` leaves.
Never does I/O itself: the hub gives it a transport.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from hubbub.core.gate import Carrier
from hubbub.core.limits import LINK_BYTES, LINK_CHOKED
from hubbub.core.log import DISK, Log

# Of one write: a system call takes 1,024, and with 100,000 uvloop 0.23 ended connections (EINVAL).
PIECES: Final = 512

# Bytes of pieces that are joined before they are written: to copy so few takes less than the loop
# and the kernel need for one piece more.
JOINED: Final = 1024

# The level of what was merely written, and waits for a barrier only.
_PASSING: Final = 0

# Short ones that wait for one row become one piece of at most so many bytes: 32,000 answers behind
# one new name were let go in one turn of 15 ms.
_JOINED: Final = 4096

# Something held: for which row it waits, at which level, the bytes, whether it is a barrier.
Held = tuple[int, int, bytes, bool]


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

    def release(self) -> None:
        """What was held for what is safe now leaves with the tick."""
        if self.holding:
            self.holding = [link for link in self.holding if not link.release()]


@mypyc_attr(allow_interpreted_subclasses=True)
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
    `largest` is the largest piece written since the link is choked: one of any size may be on its
    way, so that it does not count. `grown` is called with each flush while it is. `relieved` is
    called when the link is choked no more before the transport ever said that it was full. Where
    there is a `carrier` it hears of both, and ends the connection. `out` is
    another list after each flush. `prompt`: the peer may hold back what it says next until the
    kernel here has acknowledged what it said (Nagle's algorithm), which a kernel without anything
    to send does after 40 ms; whoever reads the socket then hurries it. `joins`: small pieces may
    leave as one. Where a client takes what it reads for one message they may not.
    """

    __slots__ = (
        "outgoing", "transport", "framing", "out", "size", "choked", "held", "held_bytes",
        "barriers", "closing", "reason", "largest", "relieved", "level", "prompt",
        "aside", "carrier", "grown", "joins",
    )  # fmt: skip

    def __init__(self, outgoing: Outgoing, transport: Transport | None = None) -> None:
        self.outgoing = outgoing
        self.transport = transport
        self.framing: Framing | None = None
        self.out: list[bytes] = []
        self.size = 0
        self.held_bytes = 0
        self.held: list[Held] | None = None  # an empty one takes 56 bytes
        self.barriers = 0
        self.reason = ""
        self.largest: bytes | None = None
        self.grown: Callable[[], None] | None = None
        self.relieved: Callable[[], None] | None = None
        self.level = DISK
        self.aside: list[Held] | None = None
        self.carrier: Carrier | None = None  # a method bound to each would take 80 bytes
        self.choked = False
        self.closing = False
        self.prompt = True
        self.joins = False

    def write(self, data: bytes) -> None:
        if self.barriers:
            self._keep(0, _PASSING, data, False)
            return
        if not self.out:
            self.outgoing.touched.append(self)
        self.out.append(data)
        self.size += len(data)
        if self.size > LINK_BYTES:
            self.choked = True  # within one tick, before anything could be measured

    def _keep(self, position: int, level: int, data: bytes, barrier: bool) -> None:
        if self.aside is not None:
            self.aside.append((position, level, data, barrier))
        else:
            if self.held is None:
                self.held = []
            if not (self.held and self._join(self.held, position, level, data, barrier)):
                self.held.append((position, level, data, barrier))
                self.barriers += barrier
        self.held_bytes += len(data)
        if self.held_bytes > LINK_BYTES:
            self.choked = True

    def _join(
        self, held: list[Held], position: int, level: int, data: bytes, barrier: bool
    ) -> bool:
        """Add it to the last one, if both are to leave at the same time."""
        row, its_level, before, blocks = held[-1]
        if position != row or level != its_level or len(before) + len(data) > _JOINED:
            return False
        held[-1] = (row, level, before + data, barrier or blocks)
        self.barriers += barrier and not blocks
        return True

    def hold(self, data: bytes, barrier: bool = False, level: int = 0, upto: int = 0) -> None:
        """`upto`: the last row that it waits for, 0 for the last one made so far; with a level of
        elsewhere, the number there.
        """
        log = self.outgoing.log
        level = level or self.level
        position = upto or log.position
        if not self.held and (log.durable >= position or log.safe(level) >= position):
            self.write(data)
            return
        self._hold(position, level, data, barrier)

    def _hold(self, position: int, level: int, data: bytes, barrier: bool) -> None:
        if not self.held and self.aside is None:
            self.outgoing.holding.append(self)
        self._keep(position, level, data, barrier)

    def shut(self) -> None:
        """From now on everything stays aside but what may pass, until `reopen`."""
        if self.aside is None:
            self.aside = []
            self.barriers += 1

    def pass_aside(self, data: bytes, barrier: bool = False, level: int = 0) -> None:
        """Hold it as if nothing were aside."""
        aside, self.aside = self.aside, None
        if aside is None:
            self.hold(data, barrier, level)
            return
        self.barriers -= 1
        self.hold(data, barrier, level)
        self.barriers += 1
        self.aside = aside

    def write_aside(self, data: bytes) -> None:
        """Write it as if nothing were aside."""
        aside, self.aside = self.aside, None
        self.barriers -= aside is not None
        self.write(data)
        self.barriers += aside is not None
        self.aside = aside

    def reopen(self) -> None:
        """What stayed aside goes on its way, as it would have gone."""
        aside, self.aside = self.aside, None
        if aside is None:
            return
        self.barriers -= 1
        for position, level, data, barrier in aside:
            self.held_bytes -= len(data)
            if level == _PASSING or (not self.held and self.outgoing.log.safe(level) >= position):
                self.write(data)
            else:
                self._hold(position, level, data, barrier)

    def release(self) -> bool:
        """Let go what waited for rows that are safe now; False while something still waits."""
        held, log = self.held, self.outgoing.log
        if held is None:
            return True
        durable, count, barriers = log.durable, 0, 0
        for position, level, data, barrier in held:
            if position > durable and position > log.safe(level):
                break
            count += 1
            barriers += barrier
            self._let_go(data)
        self.barriers -= barriers
        if count == len(held):
            self.held = None
            return True
        del held[:count]  # at once: to take them out one by one would move the others each time
        if barriers:
            self._overtake(held)
        return False

    def discard(self) -> None:
        """What is held is never said."""
        self.held, self.held_bytes, self.barriers = None, 0, int(self.aside is not None)

    def _overtake(self, held: list[Held]) -> None:
        """A barrier is gone: what was merely written behind it leaves, up to the next one.

        Else what is written from now on would pass it, while it waits behind something held.
        """
        if all(level for _, level, _, _ in held):
            return
        left: list[Held] = []
        blocked = False
        for item in held:
            _, level, data, barrier = item
            blocked = blocked or barrier
            if level or blocked:
                left.append(item)
            else:
                self._let_go(data)
        self.held = left

    def _let_go(self, data: bytes) -> None:
        self.held_bytes -= len(data)
        if not self.out:
            self.outgoing.touched.append(self)
        self.out.append(data)
        self.size += len(data)

    def flush(self) -> None:
        """Hand everything to the transport in one call; called once a tick."""
        pieces = self.out
        self.out = []
        transport = self.transport
        if transport is None:
            self.size = 0
            return
        if len(pieces) == 1 and self.framing is None:  # nearly always
            piece = pieces[0]
            self.outgoing.bytes_sent += len(piece)
            transport.write(piece)
            self.size = transport.get_write_buffer_size()
            if self.choked or self.size > LINK_CHOKED:
                self._measure(transport, piece)
        elif pieces:
            written = pieces
            if self.framing is not None:
                pieces = self.framing.frame(pieces)
            if len(pieces) == 1 or (self.joins and self.size < JOINED * len(pieces)):
                whole = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                self.outgoing.bytes_sent += len(whole)
                transport.write(whole)
            else:
                self.outgoing.bytes_sent += sum(map(len, pieces))
                transport.writelines(pieces if len(pieces) <= PIECES else [b"".join(pieces)])
            self.size = transport.get_write_buffer_size()
            if self.choked or self.size > LINK_CHOKED:
                self._measure(transport, max(written, key=len))
        if self.closing and not self.held:
            if self.framing is not None:
                transport.write(self.framing.farewell())
            if self.carrier is not None:
                self.carrier.hang_up()
            else:
                transport.close()

    def _measure(self, transport: Transport, largest: bytes) -> None:
        """It was choked before this flush, or is now."""
        self.choked = self.size > LINK_CHOKED or self.held_bytes > LINK_BYTES
        if not self.choked:
            self.largest = None
        elif self.largest is None or len(largest) > len(self.largest):
            self.largest = largest
        self.grow()
        if self.largest is not None and self.size > LINK_BYTES + len(self.largest):
            self.close(f"its reader is too slow: {self.size} bytes are waiting")
            transport.abort()
        elif not self.choked and self.carrier is not None:
            self.carrier.relieved()
        elif not self.choked and self.relieved is not None:
            self.relieved()

    def grow(self) -> None:
        """What it keeps may be more than before: whoever weighs that is told."""
        if self.carrier is not None:
            self.carrier.grown()
        elif self.grown is not None:
            self.grown()

    def close(self, reason: str) -> None:
        """End the connection after what was written; `reason` goes to the log."""
        if not self.closing:
            self.closing = True
            self.reason = reason
            if not self.out:
                self.outgoing.touched.append(self)
