"""Memory that is free again goes back to the machine. `hubbub serve` calls it once, at its start.

glibc takes large blocks from the machine and gives them back when they are freed, but raises the
size from which it does so whenever one is freed, up to 32 MiB; what is smaller lies in a heap whose
end has to be free. So a hub that once held 500 MiB of half messages kept 370 of them. A fixed size
ends that (mallopt(3)). An embedded hub leaves the allocator to its program.
"""

from __future__ import annotations

import ctypes
from typing import Final

from hubbub.wire.bytes import CHUNK

_TRIM_THRESHOLD: Final = -1  # M_TRIM_THRESHOLD
_MMAP_THRESHOLD: Final = -3  # M_MMAP_THRESHOLD
_TOP_BYTES: Final = 16 << 20  # free at the end of the heap: else each large read would be two calls


def give_back() -> None:
    """Blocks of CHUNK bytes go back when they are freed. No effect without glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, CHUNK)
        mallopt(_TRIM_THRESHOLD, _TOP_BYTES)
