"""Memory that is free again goes back to the machine. `hubbub serve` sees to it.

glibc takes large blocks from the machine and gives them back when they are freed, but raises the
size from which it does so whenever one is freed, up to 32 MiB; what is smaller lies in a heap whose
end has to be free. So a hub that once held 500 MiB of half messages kept 370 of them. A fixed size
ends that (mallopt(3)). What a thousand strangers had lies below something that stays: when many of
them have gone, or there is much more than before, the heap is looked through once (malloc_trim(3)),
which took a hub from 96 to 56 MiB in 8 ms, and from 207 to 57 after a flood of half messages.

What goes back to the machine comes from there page by page, each zeroed: a MiB takes 0.3 ms on a
virtual machine, more than all else that is done for a message of that size, of which there are four
such blocks. So the end of the heap keeps some room: 1.4 ms of CPU for a message became 0.43.

An embedded hub leaves the allocator to its program.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from hubbub.wire.bytes import CHUNK

LOOK_SECONDS: Final = 5.0  # from one look at how many have gone, and how much is there, to the next
MANY: Final = 500  # that went meanwhile: a flood, or a network that is away
MUCH: Final = 32 << 20  # bytes more than there were, at two looks
_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD
_TOP_PAD: Final = -2  # M_TOP_PAD
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD
_ROOM: Final = 8 << 20  # at the end of the heap: with 4 MiB some of four messages of 1 MiB had none
_MOST_ROOM: Final = 2 * _ROOM
_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = mmap.PAGESIZE


def give_back() -> None:
    """Blocks of CHUNK bytes go back when they are freed. No effect without glibc."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, CHUNK)
        mallopt(_TOP_PAD, _ROOM)
        mallopt(_TRIM_THRESHOLD, _MOST_ROOM)


def trim() -> None:
    """All that is free goes back: some 40 ms for a GB. No effect without glibc."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def resident() -> int:
    """Bytes of memory that the process has now; 0 where Linux is not."""
    try:
        return int(_STATM.read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


class Leavings:
    """Calls `over` once after many have gone, and when there is much more memory than there was,
    for longer than a moment: `look` is told now and then how many ever went, and asks `there`.

    Whether it is in use only the looking through says: few ms where it is. So each growth is looked
    at once.
    """

    def __init__(
        self, over: Callable[[], None] = trim, there: Callable[[], int] = resident
    ) -> None:
        self._over = over
        self._there = there
        self._gone = 0
        self._many = False
        self._before = self._least = there()

    def look(self, gone: int) -> None:
        before, self._many = self._many, gone - self._gone >= MANY
        there = self._there()
        stays, self._before = min(there, self._before), there
        self._gone, self._least = gone, min(there, self._least)
        if (before and not self._many) or stays - self._least >= MUCH:
            self._over()
            self._before = self._least = self._there()
