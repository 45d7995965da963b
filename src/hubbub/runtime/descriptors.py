"""File descriptors: how many this process may have, and for what.

Each connection takes one. Most systems start programs with 1,024 and let them take more, so that
is done at start; when they are all taken no file can be opened, and the journal must go on. So
connections get what is left beside `RESERVED`. Called by the node; the journal counts on it.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from hubbub.core.limits import CLIENTS, FAREWELLS

# For segments, snapshots, their syncs, and the child that folds with its pipes: some 20 at once.
# And for who leaves a listener; those of one more would take only what is spare of the 64.
RESERVED: Final = 64 + FAREWELLS
_OPEN: Final = Path("/proc/self/fd")


def raise_limit() -> int:
    """Take as many descriptors as this process may without asking anybody; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CLIENTS + RESERVED if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems have another bound behind
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else soft


def for_connections(limit: int) -> int:
    """How many of `limit` are left for connections: not open yet, nor reserved."""
    taken = len(os.listdir(_OPEN)) if _OPEN.is_dir() else RESERVED
    return max(1, min(CLIENTS, limit - taken - RESERVED))
