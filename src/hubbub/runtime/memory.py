"""How much memory this process may have: the machine's, or less where it is in a container.

The node bounds by it what would be too much for a small machine. Never says how much is free: that
changes, and a bound that changes refuses today what it took yesterday.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

GROUPS: Final = (  # the bounds of a control group, of both versions; "max" is none
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory() -> int:
    """Bytes."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in GROUPS:
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int(file.read_text()))
    return most
