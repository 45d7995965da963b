"""How far the time of rows is behind the machine's clock, which was set ahead while a hub ran.

    DIR/behind    28800000000      microseconds, as text; no such file: not at all

Time goes on as before then, and so does what is to last for a while; but the next start takes the
machine's clock as it is, and all of it is so much older at once. So it is noted for that start:
who is away does not lose what waits for it. The node says how it is, the journal reads it.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from hubbub.core.clock import ASTRAY
from hubbub.journal.files import write_whole

log = logging.getLogger("hubbub.journal")


class Behind:
    """What is noted in that file. `found`: as the hub before left it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.found = 0
        with contextlib.suppress(OSError, ValueError):
            self.found = max(0, int(file.read_text("ascii")[:20]))
        self._noted = self.found

    def note(self, behind: int) -> None:
        """It is so much now: asked a few times a second, written when it is another minute."""
        behind = behind if behind > ASTRAY else 0
        if behind == self._noted or (behind and abs(behind - self._noted) < ASTRAY):
            return
        self._noted = behind
        try:
            if behind:
                write_whole(self._file, b"%d\n" % behind)
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)
