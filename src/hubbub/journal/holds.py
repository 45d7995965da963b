"""Readers that retention waits for: `hubbub journal hold NAME`.

    DIR/holds/NAME.json    {"seq": 4711, "time": 1795364407.5, "days": 7.0, "reader": "/x/tables"}

`reader` is whose it is, if that is a pipeline: two would move each other's. Rows after `seq` are
not removed for their age, until the reader has moved its hold on, or has not for so many days: who
went away for good must not fill the disk. `journal.retain_bytes` holds whatever anybody holds.
`roll` looks here when it removes; the command line, and `hubbub pipeline run --hold`, write. Knows
no other file of the journal.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from hubbub.errors import DirectoryError, SettingError

PLACE: Final = "holds"
DAYS: Final = 7.0
LONGEST: Final = 3_652.0  # days: who holds for ever fills the disk after he is gone
MOST: Final = 100  # readers of one journal
_DAY: Final = 86_400.0


class Hold(NamedTuple):
    """Who read up to which row, when that was said, and for how many days it counts.

    `reader`: where the tables of a pipeline are that moves it on; "" = moved by hand so far.
    """

    name: str
    seq: int
    time: float
    days: float
    reader: str = ""

    def over(self, now: float = 0.0) -> bool:
        return (now or time.time()) - self.time > self.days * _DAY


def holds(directory: Path) -> list[Hold]:
    """All of them by name, those that are over too; a file that says nothing is none."""
    found = []
    for file in sorted((directory / PLACE).glob("*.json"))[:MOST]:
        with suppress(OSError, ValueError, TypeError, KeyError):
            said = json.loads(file.read_text())
            seq, time, days = int(said["seq"]), float(said["time"]), float(said["days"])
            found.append(Hold(file.stem, seq, time, days, str(said.get("reader", ""))))
    return found


def held(directory: Path, now: float = 0.0) -> int | None:
    """The row up to which all have read, None if nobody holds anything. `now`: 0 = as the machine's
    clock says.
    """
    return min((one.seq for one in holds(directory) if not one.over(now)), default=None)


def hold(
    directory: Path, name: str, seq: int, days: float | None = None, reader: str = ""
) -> None:
    """Let retention wait for `name`, who has read up to `seq`. `days`: None = as was said before.

    `reader` is noted, and nobody of another one moves the hold while it counts; "" = by hand.
    Raises SettingError for that, for a name that cannot be or one too many, DirectoryError if it
    cannot be written.
    """
    if days is not None and not 0 < days <= LONGEST:
        raise SettingError(f"a hold is for at most {LONGEST:.0f} days, got {days}")
    file = _file(directory, name)
    known = {one.name: one for one in holds(directory)}
    if name not in known and len(known) >= MOST:
        raise SettingError(f"{MOST} readers hold {directory}: release one of them first")
    before = known.get(name, Hold(name, 0, 0.0, DAYS))
    if reader and before.reader not in ("", reader) and not before.over():
        raise SettingError(
            f"the hold {name!r} is moved on by the pipeline whose tables are {before.reader}: give "
            f"this one another name, or, if that one is no more, `hubbub journal hold {name} "
            "--release`"
        )
    said: dict[str, object] = {"seq": seq, "time": time.time(), "days": days or before.days}
    said |= {"reader": reader or before.reader} if reader or before.reader else {}
    fresh = file.with_suffix(f".{os.getpid()}.tmp")
    try:
        file.parent.mkdir(exist_ok=True)
        fresh.write_text(json.dumps(said) + "\n")
        fresh.replace(file)
    except OSError as error:
        raise DirectoryError(f"cannot hold {directory} for {name}: {error.strerror}") from error


def release(directory: Path, name: str) -> None:
    """Wait no more. Raises SettingError if nobody holds under that name."""
    try:
        _file(directory, name).unlink()
    except FileNotFoundError:
        raise SettingError(f"nobody of the name {name!r} holds {directory}") from None


def _file(directory: Path, name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise SettingError(f"a name is of letters, digits, _ and -, got {name!r}")
    return directory / PLACE / f"{name}.json"
