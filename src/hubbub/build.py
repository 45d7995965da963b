"""What this installation is. The command line asks, and the hub's status says it."""

from __future__ import annotations

import functools
from importlib.util import find_spec


@functools.cache
def is_compiled() -> bool:
    """Whether the hot path was compiled when this was installed; else it is plain Python."""
    found = find_spec("hubbub.schema")
    return found is not None and not str(found.origin).endswith(".py")
