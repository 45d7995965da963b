"""Rules on which every promise of the journal rests.

A hub that breaks one has a fault of its own, and what it would write or promise next is wrong. It
ends at once, as databases do: what `committed` says on the disk was right, and the next start goes
on from there. Cheap enough to be asked for each group of rows; the dear ones are in the tests.
"""

from __future__ import annotations

import logging
import os

log = logging.getLogger("hubbub.journal")


def must(holds: bool, rule: str) -> None:
    """End the process (SIGABRT) unless the rule holds."""
    if not holds:
        log.critical("the hub ends here, before it goes on wrong: %s. Please report this.", rule)
        os.abort()
