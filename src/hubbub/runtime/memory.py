"""How much memory this process may have: the machine's, or less where a control group bounds it.

That is a container, or a unit of systemd with `MemoryMax=`: its own group, or one around it. The
node bounds by it what would be too much for a small machine. Never says how much is free: that
changes, and a bound that changes refuses today what it took yesterday.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

OWN: Final = Path("/proc/self/cgroup")  # lines of `number:controllers:path` (cgroups(7))
GROUPS: Final = Path("/sys/fs/cgroup")
UNIFIED: Final = "memory.max"  # of version 2; "max" is none
OLDER: Final = "memory.limit_in_bytes"  # of version 1


def memory() -> int:
    """Bytes."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _bounds():
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int(file.read_text()))
    return most


def _bounds() -> Iterator[Path]:
    """The files that may say a bound: of the own group, of each around it, and of the root, which
    in a container is the container's.
    """
    yield GROUPS / UNIFIED
    yield GROUPS / "memory" / OLDER
    lines = ""
    with contextlib.suppress(OSError):
        lines = OWN.read_text()
    for line in lines.splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (GROUPS / "memory", OLDER) if controllers else (GROUPS, UNIFIED)
        group = PurePosixPath(path.lstrip("/"))
        for one in (group, *group.parents):
            yield root / one / name
