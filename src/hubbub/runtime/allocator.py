"""Memory that is free again goes back to the machine. `hubbub serve` sees to it.

glibc takes large blocks from the machine and gives them back when they are freed, but raises the
size from which it does so whenever one is freed, up to 32 MiB; what is smaller lies in a heap whose
end has to be free. So a hub that once held 500 MiB of half messages kept 370 of them. A fixed size
ends that (mallopt(3)). What a thousand strangers had lies below something that stays: when many of
them have gone the heap is looked through once (malloc_trim(3)), which took a hub from 96 to 56 MiB
in 8 ms. An embedded hub leaves the allocator to its program.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from hubbub.wire.bytes import CHUNK

LOOK_SECONDS: Final = 5.0  # from one look at how many have gone to the next
MANY: Final = 500  # that went meanwhile: a flood, or a network that is away
_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD
_TOP_BYTES: Final = 16 << 20  # free at the end of the heap: else each large read would be two calls


def give_back() -> None:
    """Blocks of CHUNK bytes go back when they are freed. No effect without glibc."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, CHUNK)
        mallopt(_TRIM_THRESHOLD, _TOP_BYTES)


def trim() -> None:
    """All that is free goes back: some 40 ms for a GB. No effect without glibc."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None)


class Departures:
    """Calls `over` once after many have gone: `look` is told now and then how many ever did."""

    def __init__(self, over: Callable[[], None] = trim) -> None:
        self._over = over
        self._gone = 0
        self._many = False

    def look(self, gone: int) -> None:
        before, self._many = self._many, gone - self._gone >= MANY
        self._gone = gone
        if before and not self._many:
            self._over()
