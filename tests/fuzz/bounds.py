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
    """The same; Costly for an input that takes more than its bounds.

    To ask for the time of the processor costs more than most inputs, so that is done only of one
    that took long by the clock, which is said once more.
    """
    most = _most()

    def fed(data: bytes) -> None:
        nonlocal most
        begun = time.monotonic()
        feed(data)
        took = time.monotonic() - begun
        before, most = most, _most()
        if most - before > KIB:
            raise Costly(f"{len(data)} bytes took {most - before >> 10} MiB of memory")
        if took > SECONDS:
            _hurried(feed, data)

    return fed


def _hurried(feed: Feed, data: bytes) -> None:
    begun = time.process_time()
    feed(data)
    took = time.process_time() - begun
    if took > SECONDS:
        raise Costly(f"{len(data)} bytes took {took:.1f} s")


def _most() -> int:
    """The most that was ever resident, in KiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
