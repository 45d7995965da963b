"""Why a file that a setting names cannot be read, in words. Whoever reads one of them asks."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def reason(file: str | Path, error: OSError) -> str:
    """Of a file that is not there: where it was looked for. A service starts in `/`."""
    said = error.strerror or str(error)
    if error.errno == errno.ENOENT and not os.path.isabs(file):
        said += f" in {_here()}, where this was started: give its whole path"
    return said


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that is gone"
