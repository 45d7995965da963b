"""SIGHUP before the hub is ready: remembered, and done when it is. By default it would end it.

A supervisor may send it at any time, and a start may read a large journal first. `__main__` calls
`remember` before it loads anything; `server` takes over when the hub can read its files again. Of
the time before, when Python itself starts (some 20 ms), no program of Python can decide.
"""

from __future__ import annotations

import signal
from types import FrameType

_came = False


def remember() -> None:
    """From now on one that comes is kept."""
    signal.signal(signal.SIGHUP, _keep)


def came() -> bool:
    """Whether one came that was not done yet; it is taken for done now."""
    global _came
    before, _came = _came, False
    return before


def _keep(number: int, frame: FrameType | None) -> None:
    global _came
    _came = True
