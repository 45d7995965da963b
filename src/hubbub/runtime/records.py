"""How many records of TLS there are in what came, and how much of it is opened at once.

A record may hold data, or something that is for OpenSSL alone: a change of keys takes it 44 µs and
has an answer, and a peer could send 10,000 in one read of the socket. So a read is opened in parts
of a few records, and whoever has too many that hold no data is ended: honest peers change their
keys once in 2^24 records. Owned by `tls`, for one connection. Opens nothing, decides about nobody.
"""

from __future__ import annotations

import time
from typing import Final

from hubbub.core.limits import TLS_EMPTY

RECORD: Final = 1 << 14  # bytes: the most that one holds (RFC 8446, 5.1)
PART: Final = 2 * RECORD  # given to OpenSSL at a time: its buffers never become smaller again
TOGETHER: Final = 32  # records: 1.4 ms if all of them change the keys
_HEAD: Final = 5


class Records:
    """Those of one stream. `ended`: how many did in the last part; the bytes of it may be cut
    anywhere. Rubbish has any number of them.
    """

    __slots__ = ("ended", "_left", "_head", "_empty", "_since")

    def __init__(self) -> None:
        self.ended = 0
        self._left = 0  # bytes of the record that has begun
        self._head = b""  # or the beginning of its head
        self._empty = 0.0
        self._since = 0.0

    def part(self, data: bytes, at: int) -> int:
        """Where the part ends that begins there."""
        end = min(len(data), at + PART)
        self.ended = 0
        while at < end and self.ended < TOGETHER:
            if not self._left:
                at = self._begin(data, at, end)
            step = min(self._left, end - at)
            at += step
            self._left -= step
            self.ended += not (self._left or self._head)
        return at

    def _begin(self, data: bytes, at: int, end: int) -> int:
        """Read the head of one, or the rest of it that is there."""
        head = self._head + data[at : min(end, at + _HEAD - len(self._head))]
        at += len(head) - len(self._head)
        self._left = head[3] << 8 | head[4] if len(head) == _HEAD else 0
        self._head = b"" if len(head) == _HEAD else head
        return at

    def too_many_empty(self, count: int) -> bool:
        """So many more held no data."""
        now = time.monotonic()
        self._empty = max(0.0, self._empty - (now - self._since)) + count
        self._since = now
        return self._empty > TLS_EMPTY
