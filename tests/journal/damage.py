"""Every way in which a journal's directory can be wrong, each done to a copy of a good one.

`DAMAGE` says what each is, with which code `verify` ends, and which rows are lost by it. The tests
of `verify`, `repair` and a real start go through all of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Final, NamedTuple

from hubbub.journal.content import HEADER_BYTES
from hubbub.journal.segments import FORMAT, Directory
from tests.journal.history import NEWEST_ROW
from tests.journal.rows import flip, forged

RIGHT, DAMAGED, REFUSED, UNREAD = 0, 1, 2, 3  # what `verify` ends with

MIDDLE: Final = NEWEST_ROW - 1  # a segment of which no snapshot knows
COVERED: Final = 3  # one that both know
SNAPSHOTS: Final = (4, 5)


class Damage(NamedTuple):
    """`lost`: rows that are gone by it. `states`: so is what sessions and topics were."""

    do: Callable[[Directory], object]
    verdict: int
    lost: tuple[int, ...] = ()
    states: bool = False


def _flip_each(directory: Directory) -> None:
    for seq in SNAPSHOTS:
        flip(directory.snapshot(seq), -100)


def _without_snapshots(directory: Directory) -> None:
    for seq in SNAPSHOTS:
        os.unlink(directory.snapshot(seq))


def _headless(directory: Directory) -> None:
    _flip_each(directory)
    os.unlink(directory.segment(1))


def _committed(data: bytes) -> Callable[[Directory], object]:
    return lambda directory: (directory.log / "committed").write_bytes(data)


def _format(text: str) -> Callable[[Directory], object]:
    return lambda directory: (directory.path / "format").write_text(text)


def _foreign(directory: Directory) -> None:
    (directory.log / "99999.rows").write_bytes(b"not ours")
    (directory.log / "notes.txt").write_bytes(b"not ours")


def _committed_and_last(directory: Directory) -> None:
    os.unlink(directory.log / "committed")
    flip(directory.segment(NEWEST_ROW), 4000)


def _forge(directory: Directory, seq: int) -> None:
    """Let the first frame say that it has 2^31 rows, with the checksum that belongs to that."""
    path = directory.segment(seq)
    path.write_bytes(forged(path.read_bytes(), HEADER_BYTES, 16, 1 << 31, "<I"))


def _cut(path_size: int) -> Callable[[Directory], object]:
    return lambda directory: os.truncate(directory.segment(NEWEST_ROW), path_size)


DAMAGE: Final[dict[str, Damage]] = {
    "nothing": Damage(lambda directory: None, RIGHT),
    "no state": Damage(lambda directory: shutil.rmtree(directory.state), REFUSED),
    "no snapshots": Damage(_without_snapshots, REFUSED),
    "damaged snapshots": Damage(_flip_each, REFUSED),
    "damaged snapshots of a log that begins later": Damage(_headless, REFUSED, (1,), True),
    "newest snapshot damaged": Damage(lambda d: flip(d.snapshot(5), -100), DAMAGED),
    "newest snapshot cut": Damage(lambda d: os.truncate(d.snapshot(5), 3000), DAMAGED),
    "newest snapshot gone": Damage(lambda d: os.unlink(d.snapshot(5)), RIGHT),
    "older snapshot damaged": Damage(lambda d: flip(d.snapshot(4), -100), DAMAGED),
    "first segment gone": Damage(lambda d: os.unlink(d.segment(1)), RIGHT),
    "covered segment gone": Damage(lambda d: os.unlink(d.segment(COVERED)), DAMAGED, (COVERED,)),
    "covered segment damaged": Damage(lambda d: flip(d.segment(COVERED), -9), DAMAGED, (COVERED,)),
    "segment gone": Damage(lambda d: os.unlink(d.segment(MIDDLE)), DAMAGED, (MIDDLE,)),
    "segment damaged": Damage(lambda d: flip(d.segment(MIDDLE), 4000), DAMAGED, (MIDDLE,)),
    "header damaged": Damage(lambda d: flip(d.segment(MIDDLE), 20), DAMAGED),
    "last segment gone": Damage(lambda d: os.unlink(d.segment(NEWEST_ROW)), DAMAGED, (NEWEST_ROW,)),
    "last segment damaged": Damage(
        lambda d: flip(d.segment(NEWEST_ROW), 4000), DAMAGED, (NEWEST_ROW,)
    ),
    "last segment cut": Damage(_cut(4000), DAMAGED, (NEWEST_ROW,)),
    "last segment empty": Damage(_cut(0), DAMAGED, (NEWEST_ROW,)),
    "a forged frame": Damage(lambda d: _forge(d, MIDDLE), REFUSED),
    "no format": Damage(lambda d: os.unlink(d.path / "format"), REFUSED),
    "empty format": Damage(_format(""), REFUSED),
    "newer format": Damage(_format(FORMAT.replace("1", "2")), REFUSED),
    "foreign files": Damage(_foreign, RIGHT),
    "no committed": Damage(lambda d: os.unlink(d.log / "committed"), RIGHT),
    "empty committed": Damage(_committed(b""), RIGHT),
    "damaged committed": Damage(_committed(b"\xff" * 32), RIGHT),
    "no committed, last segment damaged": Damage(_committed_and_last, RIGHT, (NEWEST_ROW,)),
    "no id": Damage(lambda d: os.unlink(d.path / "id"), RIGHT),
    "half restored": Damage(lambda d: d.restoring.write_bytes(b""), REFUSED),
    "a folder for a segment": Damage(lambda d: d.segment(NEWEST_ROW + 1).mkdir(), UNREAD),
    "a segment that leads nowhere": Damage(
        lambda d: d.segment(NEWEST_ROW + 1).symlink_to("/nowhere"), UNREAD
    ),
    "a file with a segment's name": Damage(
        lambda d: d.segment(99).write_bytes(b"not ours" * 999), DAMAGED
    ),
}
# What repair says no to: it is somebody else's, or to be done again.
BEYOND_REPAIR: Final = {
    "a forged frame",
    "newer format", "half restored", "a folder for a segment", "a segment that leads nowhere",
}  # fmt: skip
