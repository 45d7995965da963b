"""What becomes of a batch that fails: it is tried again, then cut, down to the row that did it.

    fails once         the same rows again
    fails twice        Spark's plan is taken back; its rows come in batches of a sixteenth
    … of one row       Spark reads that row no more: it goes to `quarantine`; not before the eighth
                       time, if all that was seen is that a process was killed

Most batches that fail are too large for the memory that there is, and the JVM is gone with them; so
what is known lies in a file beside the tables, written when a batch begins. Behind the last row
of the batch that failed first, batches are of full size again; once a row was found that did it,
they grow by sixteen with each whole one. So they do when sixteen were whole: that was all of the
batch that had failed, and it was no row of it. Used by `run`; knows no Spark.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final, NamedTuple

TRIES: Final = 2
LATE: Final = 5  # times a machine may be too busy to start a Python before its user is told
KILLS: Final = 6  # of processes, by whoever does that, which are not taken for a row's doing
MOST: Final = TRIES + KILLS + 4
PARTS: Final = 16  # five cuts from half a million rows to one


class Trial(NamedTuple):
    """What is known of a batch that was begun and is not whole.

    `begun`: how often it was begun; `failed`: how often it was seen to fail, whoever kills a driver
    was not the batch; `killed`: how often of these a process was killed, and not for the memory it
    took as far as anybody says. `rows`: so many at most in one batch now, 0 = as always; `until`:
    up to this row. `since`: when it was first begun, in seconds since 1970. `rule`: the alert that
    it asks; `skipped`: those with which it failed. `found`: the row that did it is out, so batches
    grow. `whole`: how many of this size were whole.
    """

    batch: int = -1
    begun: int = 0
    failed: int = 0
    rows: int = 0
    until: int = 0
    since: float = 0.0
    rule: str = ""
    skipped: tuple[str, ...] = ()
    error: str = ""
    found: bool = False
    whole: int = 0
    killed: int = 0

    @property
    def spent(self) -> bool:
        """Whether it is not to be tried as it is."""
        return self.begun >= TRIES

    @property
    def bad_rule(self) -> bool:
        """Whether it is left out: often, if others may have killed what asked it."""
        others = self.killed + self.begun - self.failed
        return bool(self.rule) and self.begun - min(others, KILLS) >= TRIES

    @property
    def hopeless(self) -> bool:
        """Whether it failed oftener than all that is done about that needs."""
        return self.batch >= 0 and self.failed >= MOST

    @property
    def poison(self) -> bool:
        """Whether it is one row, and was itself seen to fail: oftener if others may do it."""
        return self.rows == 1 and self.failed - min(self.killed, KILLS) >= TRIES


class Trials:
    """The trial of the batch at work, kept in `file`, or only in memory."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._late = 0  # since a batch was whole
        self.now = _read(file)

    def begins(self, batch: int) -> None:
        """A batch begins, perhaps not for the first time."""
        now = self.now
        if batch != now.batch:
            now = Trial(
                batch, 0, 0, now.rows, now.until, time.time(), found=now.found, whole=now.whole
            )
        self._note(now._replace(begun=now.begun + 1, rule=""))

    def asks(self, rule: str) -> None:
        """The batch asks an alert, "" = it is done with them."""
        self._note(self.now._replace(rule=rule))

    def fails(self, error: str, killed: bool = False) -> None:
        """The batch at work was seen to fail. `killed`: somebody killed a process of it."""
        now = self.now
        failed, killed_so_far = now.failed + 1, now.killed + killed
        self._note(now._replace(failed=failed, killed=killed_so_far, error=error))

    def stops(self) -> None:
        """The batch at work was cut short by its user: that is no failure."""
        self._note(self.now._replace(begun=max(self.now.begun - 1, 0)))

    def late(self, at_work: bool) -> bool:
        """A Python was not ready in time, perhaps for the batch at work, which is not to blame.

        Whether to try once more.
        """
        self._late += 1
        if at_work:
            self.stops()
        return self._late <= LATE

    def cut(self, rows: int, until: int) -> None:
        """Of the batch, which had `rows` up to `until`, fewer at a time, counted anew."""
        until = max(until, self.now.until)
        if rows == 1:
            self._note(self.now._replace(rows=1, until=until))
            return
        fewer = max(rows // PARTS, 1)
        now = self.now._replace(
            begun=0, failed=0, killed=0, rows=fewer, until=until, found=False, whole=0
        )  # fmt: skip
        self._note(now)

    def blame(self) -> str:
        """Leave out the alert with which the batch fails, and count anew; its name."""
        rule = self.now.rule
        skipped = (*self.now.skipped, rule)
        self._note(self.now._replace(begun=0, failed=0, killed=0, rule="", skipped=skipped))
        return rule

    def ends(self, seq: int, found: bool = False) -> bool:
        """The batch is whole up to `seq`; whether from now on batches may have more rows.

        `found`: it was the row that did it, which is in quarantine.
        """
        self._late = 0
        now = self.now
        if now.rows and seq >= now.until:
            self._note(Trial())
            return True
        found = now.rows > 0 and (found or now.found)
        whole = now.whole + 1 if now.rows else 0
        grows = found or whole >= PARTS
        rows, whole = (now.rows * PARTS, 0) if grows else (now.rows, whole)
        self.now = now._replace(batch=-1, rows=rows, found=found, whole=whole)  # said by the next
        return grows

    def _note(self, trial: Trial) -> None:
        self.now = trial
        if self._file is not None:
            fresh = self._file.with_suffix(".tmp")
            fresh.write_text(json.dumps(trial._asdict()) + "\n")
            fresh.replace(self._file)


def _read(file: Path | None) -> Trial:
    try:
        said = json.loads(file.read_text()) if file is not None else {}
        return Trial(**{**said, "skipped": tuple(said.get("skipped", ()))})
    except (OSError, ValueError, TypeError):
        return Trial()  # none yet, or cut off with the power: then it is counted anew
