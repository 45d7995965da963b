"""Whole connections to a hub in this process: first bytes, and all that follows them.

Each input is said to a listener twice: in one piece; and byte by byte, some of them to the end and
the others as far as their first bytes, with the rest in pieces of any length. What was spoken, and
whether the connection stayed, must be the same, and nothing may break the hub's own code, which it
would only say to its log. There is no kernel between: the loop's part is played by `Wire`. The hub
keeps nothing on a disk and is made anew now and then, since what clients leave behind (sessions,
retained messages) is theirs.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import selectors
import zlib
from collections.abc import Sequence
from random import Random
from typing import Any, Final, NamedTuple, cast

from hubbub.config.settings import Journal, Settings
from hubbub.runtime.node import Node
from hubbub.runtime.socket import Socket

LIVES: Final = 2_000  # connections to one hub
WAITS: Final = ("switch",)  # where an answer may wait for seconds, and the end behind it too
LONGEST: Final = 4096  # bytes of what is said in pieces
BEGINS: Final = 16  # bytes of each input that are said one by one: they say what is spoken
FIRST: Final = 40  # of one in FURTHER inputs: behind them most is decided
FURTHER: Final = 8
WHOLLY: Final = 32  # of so many inputs one is said byte by byte to its end
TURNS: Final = 1_000  # of the loop, for the work that a connection asked for


class _Deaf(selectors.DefaultSelector):
    """Hears of no file while there is something to do: these connections have none, and to ask
    costs more than most bytes that are said."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout) if timeout is None or timeout > 0 else []


class _Loop(asyncio.SelectorEventLoop):
    """Tells whether anything is to be done in its next turn: a turn costs more than most bytes."""

    _ready: Sequence[object]  # asyncio's own

    def busy(self) -> bool:
        return bool(self._ready)


_LOOP: Final = _Loop(_Deaf())
_SETTINGS: Final = Settings(listen=("127.0.0.1:0",), journal=Journal(record="none"))


class Outcome(NamedTuple):
    spoken: str
    closed: bool


class Wire(asyncio.Transport):
    """The transport of a client that reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 4711)})
        self.closed = False
        self.heard_by: asyncio.Protocol

    def write(self, data: Any) -> None:
        assert not self.closed or data is not None

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self.closed = True

    abort = close

    def write_eof(self) -> None:
        self.closed = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.heard_by = cast(asyncio.Protocol, protocol)

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        """It says what it says."""

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits in it."""

    def get_write_buffer_size(self) -> int:
        return 0


class _Broken(logging.Handler):
    """Notes that the hub's own code broke, which it only says to its log."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.record: logging.LogRecord | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.record = record


class _Hub:
    """A hub for LIVES connections, then another one."""

    def __init__(self) -> None:
        self.node: Node | None = None
        self.left = 0
        self.broken = _Broken()

    async def fresh(self) -> None:
        """Between two inputs: the lives of one know what was retained."""
        if self.node is None or self.left <= 0:
            await self.stop()
            self.node, self.left = Node(_SETTINGS), LIVES
            await self.node.start()
            # Strangers who say much have to wait, which takes time that nobody has here.
            self.node.door.clock = itertools.count(step=1.0).__next__

    async def hear(self, pieces: list[bytes]) -> Outcome:
        assert self.node is not None
        self.left -= 1
        log = logging.getLogger("hubbub")
        log.addHandler(self.broken)
        try:
            outcome = await self._said(self.node, pieces)
        finally:
            log.removeHandler(self.broken)
        if self.broken.record is not None:
            record, self.broken.record = self.broken.record, None
            assert record.exc_info
            raise AssertionError(record.getMessage()) from record.exc_info[1]
        return outcome

    async def stop(self) -> None:
        if self.node is not None:
            await self.node.stop()
            self.node = None

    async def _said(self, node: Node, pieces: list[bytes]) -> Outcome:
        sock, wire = Socket(node.listeners[0]), Wire()
        wire.heard_by = cast(asyncio.Protocol, sock)
        sock.connection_made(wire)
        for piece in pieces:
            if wire.closed:
                break
            wire.heard_by.data_received(piece)
            if _LOOP.busy():
                await asyncio.sleep(0)
        for _ in range(TURNS):  # what works in turns has not come to what is behind it
            await asyncio.sleep(0)
            if sock.connection is None or not sock.connection.works():
                break
        await asyncio.sleep(0)
        spoken = sock.protocol.name if sock.protocol is not None else ""
        outcome = Outcome(spoken, wire.closed and spoken not in WAITS)
        wire.closed = True
        sock.connection_lost(None)
        await asyncio.sleep(0)
        return outcome


_HUB: Final = _Hub()


def pieces_of(data: bytes) -> list[bytes]:
    """The same for the same input, whoever says it."""
    number = zlib.crc32(data)
    first = BEGINS if number % FURTHER else FIRST
    if not number % WHOLLY or len(data) <= first:
        return [data[at : at + 1] for at in range(len(data))]
    dice = Random(number)
    ends = sorted({first + int(dice.random() * (len(data) - first)) for _ in range(8)})
    begins = [*range(first), *ends]
    return [data[at:end] for at, end in zip(begins, [*begins[1:], len(data)], strict=True)]


def connection(data: bytes) -> None:
    """A connection that says these bytes at once, and one that says them in pieces."""
    if data:  # no loop says that nothing came
        _LOOP.run_until_complete(_both_ways(data))


async def _both_ways(data: bytes) -> None:
    await _HUB.fresh()
    whole = await _HUB.hear([data])
    if len(data) <= LONGEST:
        bytewise = await _HUB.hear(pieces_of(data))
        if bytewise != whole:  # what the first one retained the second one got: both have it now
            whole = await _HUB.hear([data])
        assert bytewise == whole, data


def end() -> None:
    """Stop the hub; the next connection has another one."""
    _LOOP.run_until_complete(_HUB.stop())
