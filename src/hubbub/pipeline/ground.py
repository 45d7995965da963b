"""What a pipeline stands on: the journal that it reads, and the directory of its tables.

Somebody may remove either under it, put another in its place, or unmount the disk. A batch at work
fails then, with whatever file it misses first; one that waits for rows would wait for ever, and
what writes files makes directories that are not there. So `run` asks here while it waits, and when
a batch has failed, before it looks for who is to blame. Reads no row.

A directory of this machine is looked at five times a second. Tables at a URL are listed by a thread
of its own, every SECONDS: a storage that is away may be silent for minutes, and may want money for
each question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hubbub.errors import HubbubError, JournalError
from hubbub.journal.table import Table as Journal
from hubbub.pipeline.places import Place

SECONDS: Final = 10.0
_BACK: Final = "Put it back, the next run goes on from the last whole batch"


class Ground:
    """As it was when the pipeline began. `here`: the journal is a directory of this machine; that
    of a hub is asked by each batch, and says itself what is wrong.
    """

    def __init__(self, place: Place, journal: Journal, here: bool) -> None:
        self._place = place
        self._journal = journal
        self._identity = journal.shelf.identity() if here else ""
        self._rows = journal.committed() if self._identity else 0
        self._found: HubbubError | None = None

    def check(self) -> None:
        """Raise DirectoryError or JournalError if one of the two is not what it was."""
        self._place.need()
        self._need_journal()

    def glance(self) -> None:
        """The same at once, of what is far away as it was seen last."""
        if not self._place.far:
            self._place.need()
        elif self._found is not None:
            raise self._found
        self._need_journal()

    def look(self, over: Callable[[float], bool]) -> None:
        """What looks at a place far away, until it is `over`, which waits for so many seconds."""
        while self._found is None and not over(SECONDS):
            try:
                self._place.need()
            except HubbubError as error:
                self._found = error

    def _need_journal(self) -> None:
        if not self._identity:
            return  # no hub has begun it yet, or it is far away
        found, name = self._journal.shelf.identity(), self._journal.shelf.name
        if not found:
            raise JournalError(
                f"the journal in {name} is gone: it was removed, moved or unmounted while the "
                f"pipeline read it. {_BACK}"
            )
        if found != self._identity:
            raise JournalError(
                f"{name} holds another journal than when this began ({found}, not "
                f"{self._identity}): put the old one back, or give the new one tables of its own "
                "with --data"
            )
        if (rows := self._journal.committed()) < self._rows:
            raise JournalError(
                f"the journal in {name} ends at row {rows}, and had {self._rows} when this began: "
                f"files below {name}/log were removed. {_BACK}"
            )
