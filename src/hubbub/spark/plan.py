"""Into which tasks the rows of a batch are cut.

By rows, as the sources of other hubs are, where rows are alike: who repeats such a batch needs to
know no more than its first and last row. Where they are not, one task would have all the bytes
and the others would wait for it: then by what rows cost (`journal.shares`), and since that may be
known less well when the batch is repeated, the offset says where it was cut. Used by `source` and
by the pipeline; reads no row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from hubbub.journal.table import ROW_COST, Shares, Stretch, cost_upto, ends_of

ROWS_PER_TASK: Final = 20_000  # below this a second task costs more than it saves …
COST_PER_TASK: Final = 32 << 20  # … and below this, however few the rows are
UNEVEN: Final = 1.25  # the largest task by rows is so much more than by cost: then by cost

Ends = tuple[int, ...]  # the last seq of each task


class Span(NamedTuple):
    """Rows of a journal: after < seq <= upto."""

    after: int
    upto: int

    @property
    def rows(self) -> int:
        return self.upto - self.after


class Range(InputPartition):
    """A partition: the rows after < seq <= upto of one journal, known by its id.

    `place`: "" if it is gone, and so are they.
    """

    def __init__(self, place: str, journal: str, after: int, upto: int) -> None:
        self.place = place
        self.journal = journal
        self.after = after
        self.upto = upto


class Wanted(NamedTuple):
    """Rows that a batch has of one journal; `place` is "" if it is gone."""

    place: str
    journal: str
    span: Span

    def cut(self, ends: Iterable[int]) -> list[Range]:
        """The tasks that end there; one of which retention took all is none."""
        after, upto = self.span
        ends = sorted({end for end in ends if after < end < upto} | {upto}) if upto > after else ()
        starts = [after, *ends]
        return [
            Range(self.place, self.journal, start, end)
            for start, end in zip(starts, ends, strict=False)
        ]


def by_rows(spans: Sequence[Span], cores: int, least: int = 0) -> list[Ends]:
    """About as many tasks as cores, fewer if there is little, `least` at least; of as many rows."""
    rows = sum(span.rows for span in spans)
    parts = max(_tasks(rows, cores), least)
    return [_even(span, _part(parts, span.rows, rows)) for span in spans]


def fair(
    spans: Sequence[Span], known: Sequence[Shares | None], cores: int, least: int = 0
) -> list[Ends] | None:
    """The same by cost; None if by rows does as well, without `least`.

    `known`: of each span what its rows cost, None if nobody says so.
    """
    shared = [_guess(span, one) for span, one in zip(spans, known, strict=True)]
    cost = sum(one.cost for one in shared)
    rows = sum(span.rows for span in spans)
    plain = by_rows(spans, cores)
    parts = max(_tasks(rows, cores), min(cost // COST_PER_TASK + 1, cores), least)
    ends = [
        ends_of(_stretches(span, one), _part(parts, one.cost, cost))
        for span, one in zip(spans, shared, strict=True)
    ]
    if not rows or least <= sum(map(len, plain)):
        if _worst(spans, shared, plain) <= UNEVEN * _worst(spans, shared, ends):
            return None
    return ends


def text_of(cuts: Mapping[str, Ends]) -> str:
    """Where journals are cut, by their ids, as an offset has it: `6f…e1:20,40;a1…b2:7`."""
    inner = {name: ends[:-1] for name, ends in cuts.items() if len(ends) > 1}
    return ";".join(f"{name}:{','.join(map(str, ends))}" for name, ends in inner.items())


def cuts_in(text: str) -> dict[str, Ends]:
    """What `text_of` wrote."""
    pairs = (one.rpartition(":") for one in text.split(";") if one)
    return {name: tuple(map(int, ends.split(","))) for name, _, ends in pairs}


def _tasks(rows: int, cores: int) -> int:
    return min(rows // ROWS_PER_TASK + 1, cores)


def _part(parts: int, one: int, every: int) -> int:
    return max(round(parts * one / every), 1) if every else 1


def _even(span: Span, parts: int) -> Ends:
    parts = min(parts, span.rows)
    return tuple(span.after + span.rows * (index + 1) // parts for index in range(parts))


def _guess(span: Span, known: Shares | None) -> Shares:
    return known if known is not None else Shares(span.rows * ROW_COST, _even(span, 1))


def _stretches(span: Span, shared: Shares) -> list[Stretch]:
    starts = (span.after, *shared.ends)
    each = shared.cost // max(len(shared.ends), 1)
    pairs = zip(starts, shared.ends, strict=False)
    return [Stretch(start, end, each) for start, end in pairs]


def _worst(spans: Sequence[Span], shared: Sequence[Shares], ends: Sequence[Ends]) -> float:
    """What the largest of these tasks costs."""
    return max(
        (
            cost
            for span, one, upto in zip(spans, shared, ends, strict=True)
            for cost in _costs(span, one, upto)
        ),
        default=0.0,
    )


def _costs(span: Span, shared: Shares, ends: Ends) -> Iterator[float]:
    before = 0.0
    for end in ends:
        cost = cost_upto(shared, span.after, end)
        yield cost - before
        before = cost
