"""How far the time of rows is behind the machine's clock, which was set ahead while a hub ran.

    DIR/behind    28800000000 1764367200000000      microseconds, and the time of rows then, as text
                                                    no such file: not at all

Time goes on as before then, and so does what is to last for a while; but the next start takes the
machine's clock as it is, and all of it is so much older at once. So it is noted for that start:
who is away does not lose what waits for it. The node says how it is, the journal reads it. The file
stays until what that start makes of it is on the disk: one that is killed before is none.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from hubbub.core.clock import ASTRAY
from hubbub.journal.files import write_whole

log = logging.getLogger("hubbub.journal")


class Behind:
    """What is noted in that file. `_found`: as the hub before left it, `_since`: when that was."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found = self._since = 0
        with contextlib.suppress(OSError, ValueError):
            found, since = file.read_text("ascii")[:40].split()
            self._found, self._since = max(0, int(found)), int(since)
        self._noted = self._found

    def late(self, now: int) -> int:
        """How much of the time since then did not pass, but was set. The clock may be right again,
        and less than all of it.
        """
        return max(0, min(self._found, now - self._since))

    def note(self, behind: int, now: int) -> None:
        """It is so much now: asked a few times a second, written when it is another minute."""
        behind = behind if behind > ASTRAY else 0
        if behind == self._noted or (behind and abs(behind - self._noted) < ASTRAY):
            return
        self._noted = behind
        try:
            if behind:
                write_whole(self._file, b"%d %d\n" % (behind, now))
            else:
                self._file.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: cannot be written: %s", self._file, error.strerror)
