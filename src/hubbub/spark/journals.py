"""The journals that a source reads: where each is, what it has now, and which of them are gone.

A directory that holds no journal any more, a hub that does not answer, and a journal in whose place
there is another one are the same to a stream: none of its places has what its offset names. Most
streams end there, with an error that says so. One of several journals may go on with the others
(`Options.lenient`): it says that once, keeps the position, and goes on from there when it is back.

Used by the readers in `source` while they plan. Never reads a row.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from hubbub.errors import OffsetError, SettingError, UnreadableError
from hubbub.journal.table import PIECES, Shares, State, Table
from hubbub.spark.filters import Bounds
from hubbub.spark.hub import AwayError, Hub
from hubbub.spark.options import EARLIEST, LATEST, Access, Options
from hubbub.spark.plan import Span
from hubbub.spark.remote import Remote

log = logging.getLogger("hubbub.spark")

OFFSET_VERSION: Final = 1
CUT_VERSION: Final = 2  # of an offset that says where its batch is cut
VERSION: Final = "v"
CUTS: Final = "cuts"
PARTS: Final = "parts"
LOST: Final = "lost"
_NO_JOURNALS: Final = (VERSION, PARTS, LOST, CUTS)
LOG: Final = "0"  # what a journal may be called while there is only one
AGAIN: Final = 10.0  # seconds after which a hub that is away is asked again …
SILENCE: Final = 3.0  # … and how long it may then keep the other journals waiting


def table_at(
    place: str, access: Access, strict: bool = True, journal: str = "", known: bool = False
) -> Table:
    """The journal in a directory, or of the hub at a URL. `journal`: it must have that id."""
    if place.startswith(("http://", "https://")):
        return Table(Remote(Hub(place, access, known), journal, not strict), not strict)
    table = Table(place, allow_loss=not strict)
    if journal and (found := table.shelf.identity()) != journal:
        raise OffsetError(
            f"{place} holds another journal than before ({found or 'none'}, not {journal}): "
            "start with a new checkpoint, or put the old journal back"
        )
    return table


# A worker reads many ranges; what a table learned of the files serves the next one.
known_table = lru_cache(maxsize=8)(table_at)


class Journal:
    """One journal as both readers see it: positions, and where a range begins."""

    def __init__(self, place: str, options: Options) -> None:
        self.place = place
        self.options = options
        self.table = table_at(place, options.access, options.strict)
        self.lost = 0
        self.away = ""  # why it cannot be asked
        self.was = State("", 1, 0)  # what it had when it was last there
        self._now: State | None = None
        self._again = 0.0

    def look(self) -> bool:
        """Ask what it has now; whether it could be asked, `away` says why not.

        A hub that is away is waited for once, and asked now and then from there on.
        """
        if self.away and time.monotonic() < self._again:
            return False
        try:
            self._now = self.table.shelf.state()
        except (AwayError, UnreadableError, OSError) as error:
            if not (self.options.lenient or isinstance(error, AwayError)):
                raise
            self.away, self._again = str(error), time.monotonic() + AGAIN
            hasty = self.options.access._replace(patience=0, silence=SILENCE)
            self.table = table_at(self.place, hasty, self.options.strict)
            return False
        if self.away:
            self.away = ""
            self.table = table_at(self.place, self.options.access, self.options.strict, known=True)
        if self._now.id:
            self.was = self._now
        return True

    @property
    def now(self) -> State:
        """What the last look saw. Raises AwayError if it saw nothing."""
        if (self._now is None or self.away) and not self.look():
            raise AwayError(self.away)
        assert self._now is not None
        return self._now

    @property
    def id(self) -> str:
        return self.now.id

    @property
    def key(self) -> str:
        """Its name in offsets; the place of one that no hub has begun."""
        return self.id or self.place

    @property
    def shown(self) -> str:
        """Its place as a text may show it: a URL without user and password."""
        return self.table.shelf.name

    def start(self) -> int:
        """The last seq before the first row that is wanted."""
        last = self.now.committed
        if self.options.since:
            return min(self._before(self.options.since), last)
        return min(self._resolve(self.options.start.of(self.key, self.place, LOG), last), last)

    def end(self) -> int:
        """The last seq that is wanted."""
        last = self.now.committed
        end = min(self._resolve(self.options.end.of(self.key, self.place, LOG), last), last)
        return min(end, self._before(self.options.until)) if self.options.until else end

    def within(self, bounds: Bounds) -> Span:
        """The rows that are wanted and, as far as seq and time tell, within the bounds."""
        after, upto = max(self.start(), bounds.after), self.end()
        upto = min(upto, bounds.upto) if bounds.upto else upto
        if bounds.since and after < upto:
            after = max(after, self._before(bounds.since))
        if bounds.until and after < upto:
            upto = min(upto, self._before(bounds.until))
        return Span(after, max(after, upto))

    def light(self, span: Span, most: int) -> Span:
        """The span made shorter so that its rows carry about `most` bytes."""
        if span.upto == span.after:
            return span
        try:
            return span._replace(upto=self.table.shelf.within(*span, most))
        except AwayError:
            if not self.options.lenient:
                raise
            return span._replace(upto=span.after)  # the next look sees it

    def shares(self, span: Span, count: int) -> Shares | None:
        """Where the span may be cut; None if nobody says so, or it is not to be cut at all."""
        if span.rows < 2 or not 1 < count <= PIECES:
            return None
        try:
            return self.table.shelf.shares(*span, count)
        except AwayError:
            if not self.options.lenient:
                raise
            return None  # the next look sees it

    def _before(self, moment: int) -> int:
        return self.table.first_at(moment) - 1

    def _resolve(self, position: int, last: int) -> int:
        if position == EARLIEST:
            return self.oldest()
        return last if position == LATEST else max(position - 1, 0)

    def oldest(self) -> int:
        """The offset from which everything that is left can be read."""
        return max(self.now.first - 1, 0)

    def begin(self, after: int, upto: int) -> int:
        """`after`, checked: rows gone by retention are an error, or are skipped and counted."""
        if after > upto:
            raise OffsetError(
                f"asked for rows after {after}, but {self.table.shelf.name} ends at {upto}: "
                f"is this the checkpoint of another hub? Start with a new one "
                f"(`hubbub pipeline run` keeps it with its tables: move them away)"
            )
        oldest = min(self.oldest(), upto)
        if after >= oldest:
            return after
        gone = f"rows {after + 1} to {oldest} of {self.table.shelf.name} are gone (retention)"
        if self.options.strict:
            raise OffsetError(
                f"{gone}: set failOnDataLoss=false to go on after them "
                f"(`hubbub pipeline run --skip-lost`)"
            )
        log.warning("%s: %d rows are skipped", gone, oldest - after)
        self.lost += oldest - after
        return oldest


def check_apart(journals: Sequence[Journal]) -> None:
    """Raise SettingError where two are the same one: its rows would be read twice."""
    found: dict[str, Journal] = {}
    for one in journals:
        other = found.setdefault(one.key, one)
        if other is not one:
            raise SettingError(
                f"{other.shown} and {one.shown} are the same journal ({one.key}): name it once"
            )


class Stand(NamedTuple):
    """Where an offset stands: the journals that are there with the last seq that was read of each,
    and the seqs of those that are gone, by their names.
    """

    there: list[tuple[Journal, int]]
    gone: dict[str, int]


class Journals:
    """All journals of a stream. `lenient`: it goes on with those that are there."""

    def __init__(self, options: Options, journals: Sequence[Journal]) -> None:
        self.all = journals
        self.lenient = options.lenient
        self.gone: dict[str, int] = {}  # as of the last stand, and where each was or ""
        self.places: dict[str, str] = {}
        self._said: set[str] = set()

    def look(self) -> list[Journal]:
        """Those that can be asked, having asked them."""
        return [one for one in self.all if one.look()]

    def stand(self, offset: Mapping[str, Any]) -> Stand:
        """Raises OffsetError or AwayError for an offset that cannot be gone on from."""
        seqs = seqs_of(offset)
        asked = self.look()
        check_apart(asked)
        names = {name for one in asked for name in (one.key, one.place)}
        self.gone = {name: seqs[name] for name in seqs if name not in names}
        there = [one for one in asked if one.id or one.place in seqs]
        missing = [one for one in self.all if one not in there]
        if self.gone and not missing and not names & {*seqs}:
            raise OffsetError(
                f"this is the checkpoint of another hub: it stands in journal {min(self.gone)}, "
                f"and {', '.join(f'{one.shown} is {one.key}' for one in self.all)}. Name the "
                "place of that journal, or start with a new checkpoint (`hubbub pipeline run` "
                "keeps it with its tables: move them away)"
            )
        if not self.lenient:
            self._refuse(missing)
        self._say(missing)
        found = {name: self._place_of(name, missing) for name in self.gone}
        self.places = {name: one.shown if one else "" for name, one in found.items()}
        return Stand([(one, self._position(one, seqs)) for one in there], self.gone)

    def newest(self) -> dict[str, int]:
        """The newest seq of each journal as it was last seen; who plans has looked just before."""
        return {**self.gone, **{one.was.id: one.was.committed for one in self.all if one.was.id}}

    def _position(self, journal: Journal, seqs: Mapping[str, int]) -> int:
        """The position that a checkpoint holds for a journal; its beginning if it holds none."""
        found = seqs.get(journal.key, seqs.get(journal.place))
        return found if found is not None else journal.oldest()

    def _refuse(self, missing: Sequence[Journal]) -> None:
        """Raise an error if a journal is gone, or a hub away."""
        away = [one.away for one in missing if one.away]
        if self.gone:
            texts = "; ".join(self._gone_text(name, missing) for name in sorted(self.gone))
            text = (
                f"{texts}. Put back what is gone, or start its hub, and start the stream again: it "
                "goes on after that row"
            )
            if len(self.all) > 1:
                text += ". With failOnDataLoss=false it goes on with the others until then"
            raise AwayError(text) if away else OffsetError(text)
        if away:
            raise AwayError(away[0])

    def _say(self, missing: Sequence[Journal]) -> None:
        """Log who went, and who is back, once."""
        texts = {name: self._gone_text(name, missing) for name in self.gone}
        new = {one.place: one.away for one in missing if one.away and not one.was.id}
        if len(new) > len(texts):  # an offset says nothing of one that is new to it
            texts |= new
        for name in sorted({*texts} - self._said):
            log.warning("%s: the others go on without it, and with it when it is back", texts[name])
        for one in self.all:
            if one not in missing and {one.key, one.place} & self._said:
                log.warning("%s is back, with journal %s", one.shown, one.key)
        self._said = {*texts}

    def _gone_text(self, name: str, missing: Sequence[Journal]) -> str:
        read = f"which is read up to row {self.gone[name]}"
        place = self._place_of(name, missing)
        if place is not None:
            how = "away" if place.away else "gone"
            return f"journal {name} of {place.shown} is {how}, {read} ({_has(place)})"
        there = ", ".join(map(_has, self.all))
        return f"journal {name} is gone, {read}: none of the places has it ({there})"

    def _place_of(self, name: str, missing: Sequence[Journal]) -> Journal | None:
        """Where it was, if that is known: an offset does not say it."""
        known = [one for one in self.all if one.was.id == name]
        if not known and len(self.gone) == len(missing) == 1:
            known = [*missing]
        return known[0] if known else None


def _has(journal: Journal) -> str:
    """What is at a place, in words."""
    if journal.away:
        return journal.away
    return f"{journal.shown} has {journal.id}" if journal.id else f"{journal.shown} holds none"


def seqs_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """The entries of an offset that are of journals. OffsetError for another version's."""
    if offset.get(VERSION) not in (OFFSET_VERSION, CUT_VERSION):
        raise OffsetError(
            f"expected an offset of version {OFFSET_VERSION} or {CUT_VERSION}, got "
            f"{json.dumps(dict(offset))}: this checkpoint belongs to another version, start with "
            "a new one"
        )
    return {name: int(offset[name]) for name in offset if name not in _NO_JOURNALS}
