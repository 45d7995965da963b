"""Bytes that are not yet a whole packet: gathered until enough came. Used by every raw protocol."""

from __future__ import annotations

from typing import Final

ENDLESS: Final = 1 << 62
CHUNK: Final = 1 << 20  # the allocator gives back what is as large, wherever it lies


class Pieces:
    """What comes bit by bit and is joined at the end.

    A large one lies in chunks meanwhile: a thousand small pieces of it, freed among what stays, are
    memory that the process never gives back. `size`: all bytes so far.
    """

    __slots__ = ("_all", "_chunks", "_joined", "size")

    def __init__(self) -> None:
        self._all: list[bytes] = []
        self._chunks = 0
        self._joined = 0
        self.size = 0

    @property
    def kept(self) -> int:
        """Those that are in memory."""
        return self.size

    def add(self, data: bytes) -> None:
        self._all.append(data)
        self.size += len(data)
        if self.size - self._joined >= CHUNK:
            self._all[self._chunks :] = [b"".join(self._all[self._chunks :])]
            self._chunks += 1
            self._joined = self.size

    def take(self) -> bytes:
        """All of it; nothing is left."""
        joined = b"".join(self._all)
        self._all = []
        self._chunks = self._joined = self.size = 0
        return joined


class Skipped(Pieces):
    """The same for `count` bytes that nobody wants: what comes behind them is all that is kept."""

    __slots__ = ("_count",)

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    @property
    def kept(self) -> int:
        return 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._count:
            self._all = [data[len(data) - (self.size - self._count) :]]


class Gathering:
    """Joins pieces only when a packet is complete, so that a large one costs one copy or two.

        data = gathering.add(received)      None while less than `need` bytes are there
        … parse packets from data …
        gathering.keep(data[rest:], need)   what is left, and how long its packet will be
    """

    __slots__ = ("_pieces", "_need")

    def __init__(self) -> None:
        self._pieces: Pieces | None = None  # most never have any
        self._need = 0

    @property
    def size(self) -> int:
        """How many bytes wait for the rest of their packet."""
        return self._pieces.kept if self._pieces is not None else 0

    @property
    def missing(self) -> int:
        """How many bytes of a packet whose length is known are not there yet."""
        return self._need - self._pieces.size if self._pieces is not None else 0

    def add(self, data: bytes) -> bytes | None:
        pieces = self._pieces
        if pieces is None:
            return data
        pieces.add(data)
        if pieces.size < self._need:
            return None
        self._pieces = None
        return pieces.take()

    def keep(self, rest: bytes, need: int = 0) -> None:
        if rest:
            self._pieces = Pieces()
            self._pieces.add(rest)
            self._need = need

    def skip(self, count: int) -> None:
        """The next `count` bytes are thrown away as they come."""
        self._pieces, self._need = Skipped(count), count

    def block(self, rest: bytes) -> None:
        """Nothing is complete until `unblock`."""
        self._pieces, self._need = Pieces(), ENDLESS
        if rest:
            self._pieces.add(rest)

    def unblock(self) -> bytes:
        """What came meanwhile."""
        pieces, self._pieces = self._pieces, None
        return pieces.take() if pieces is not None else b""

    def discard(self) -> None:
        """Nothing is waited for any more."""
        self._pieces = None
