"""Bytes that are not yet a whole packet: gathered until enough came. Used by every raw protocol."""

from __future__ import annotations


class Gathering:
    """Joins pieces only when a packet is complete, so that a large one costs one copy.

        data = gathering.add(received)      None while less than `need` bytes are there
        … parse packets from data …
        gathering.keep(data[rest:], need)   what is left, and how long its packet will be
    """

    __slots__ = ("_pieces", "_have", "_need")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._need = 0

    @property
    def missing(self) -> int:
        """How many bytes of a packet whose length is known are not there yet."""
        return self._need - self._have if self._pieces else 0

    def add(self, data: bytes) -> bytes | None:
        if not self._pieces:
            return data
        self._pieces.append(data)
        self._have += len(data)
        if self._have < self._need:
            return None
        joined = b"".join(self._pieces)
        self._pieces = []
        return joined

    def keep(self, rest: bytes, need: int = 0) -> None:
        if rest:
            self._pieces = [rest]
            self._have = len(rest)
            self._need = need
