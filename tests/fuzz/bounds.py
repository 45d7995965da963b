"""What no input may take: time, and memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 2.0  # of the processor, for one input of some KiB
KIB: Final = 64 << 10  # by which the most memory that was resident may grow with one input

Feed = Callable[[bytes], None]


class Costly(AssertionError):
    """An input took too much."""


def bounded(feed: Feed) -> Feed:
    """The same; Costly for an input that takes more than its bounds."""

    def fed(data: bytes) -> None:
        begun, before = time.process_time(), _most()
        feed(data)
        took, grown = time.process_time() - begun, _most() - before
        if took > SECONDS:
            raise Costly(f"{len(data)} bytes took {took:.1f} s")
        if grown > KIB:
            raise Costly(f"{len(data)} bytes took {grown >> 10} MiB of memory")

    return fed


def _most() -> int:
    """The most that was ever resident, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
