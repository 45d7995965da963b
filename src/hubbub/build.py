"""What this installation is. The command line asks, and the hub says it of itself."""

from __future__ import annotations

import functools
from importlib.util import find_spec


@functools.cache
def is_compiled() -> bool:
    """Whether the hot path was compiled when this was installed; else it is plain Python."""
    found = find_spec("hubbub.schema")
    return found is not None and not str(found.origin).endswith(".py")


def made(compiled: bool) -> str:
    """The same in words."""
    return "compiled" if compiled else "plain Python"
