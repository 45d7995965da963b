"""Where a range of rows is cut so that its pieces cost who reads them about as much.

A row of twenty bytes and one of a MiB are both a row: cut by rows, one task has all the work. What
a piece costs is what it takes in memory, and something for each row. It is known

    of a file         by its size; of a compressed one by that and what its first frame becomes
    in a file         by the headers of its frames, which are walked where a cut falls

so what is read is a few heads, not the rows: a file in which no cut falls is not walked, nor one
which is little beside a piece. There the cost is taken for even. No cut is exact, and none need be.
`frames` calls it, for Spark's readers and for a hub which is asked; reads nothing itself.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from hubbub.journal.frame import Frame

ROW_COST: Final = 768  # bytes that Spark moves while it makes one row: 600 to 1,100 were measured
PIECES: Final = 4096  # that are asked for at most
SLIGHT: Final = 4  # a file that is less than this part of a piece is not walked
WALK_SECONDS: Final = 0.1  # for one question: others who read the journal of a hub wait for it


Sizes = Callable[[int, int], Iterator[tuple[Frame, int]]]  # the frames of a range, their bytes


class Piece(NamedTuple):
    """The rows of a segment file, and about how many bytes they are in memory."""

    after: int
    upto: int
    bytes: int


class Stretch(NamedTuple):
    """Rows behind `after` up to `upto`, and what they cost together."""

    after: int
    upto: int
    cost: int


class Shares(NamedTuple):
    """The last seq of each piece, and what all of them cost."""

    cost: int
    ends: tuple[int, ...]


def shared(
    pieces: Iterable[Piece], sizes: Sizes, after: int, upto: int, count: int
) -> Shares:
    """The range in at most `count` pieces that cost about as much.

    `pieces`: the files that hold it.
    """
    found = [_outlined(one, after, upto) for one in pieces]
    total = sum(one.cost for one in found)
    until = time.monotonic() + WALK_SECONDS
    refined: list[Stretch] = []
    cuts = _spots(found, total, count)
    for index, one in enumerate(found):
        matters = one.cost * count * SLIGHT > total
        if matters and (index in cuts or index in (0, len(found) - 1)):
            refined += _walked(sizes, one, until)
        else:
            refined.append(one)
    return Shares(sum(one.cost for one in refined), ends_of(refined, count))


def ends_of(stretches: Sequence[Stretch], count: int) -> tuple[int, ...]:
    """The last seq of each of at most `count` pieces; within a stretch the cost is even."""
    if not stretches:
        return ()
    sums = list(accumulate(one.cost for one in stretches))
    ends: list[int] = []
    for number in range(1, count):
        target = sums[-1] * number / count
        index = bisect_left(sums, target)
        one = stretches[index]
        behind = (sums[index] - target) / one.cost if one.cost else 0.0
        ends.append(one.upto - round((one.upto - one.after) * behind))
    last = stretches[-1].upto
    inner = {end for end in ends if stretches[0].after < end < last}
    return (*sorted(inner), last)


def cost_upto(shared: Shares, after: int, seq: int) -> float:
    """What the rows behind `after` up to `seq` cost, of pieces that cost the same."""
    knots = (after, *shared.ends)
    index = bisect_left(knots, seq)
    if index <= 0:
        return 0.0
    if index >= len(knots):
        return float(shared.cost)
    before, end = knots[index - 1], knots[index]
    return shared.cost / len(shared.ends) * (index - 1 + (seq - before) / (end - before))


def _spots(stretches: Sequence[Stretch], total: int, count: int) -> set[int]:
    """In which of the stretches a cut falls."""
    sums = list(accumulate(one.cost for one in stretches))
    return {bisect_left(sums, total * number / count) for number in range(1, count)}


def _outlined(piece: Piece, after: int, upto: int) -> Stretch:
    """What is wanted of a file, with what it costs as far as its size tells."""
    first, last = max(piece.after, after), min(piece.upto, upto)
    size = piece.bytes * (last - first) // max(piece.upto - piece.after, 1)
    return Stretch(first, last, size + ROW_COST * (last - first))


def _walked(sizes: Sizes, stretch: Stretch, until: float) -> Iterator[Stretch]:
    """Frame by frame, until then; behind those the rest as the stretch has it."""
    position = stretch.after
    for found, size in sizes(stretch.after, stretch.upto):
        if time.monotonic() > until:
            rows = stretch.upto - position
            part = rows / (stretch.upto - stretch.after)
            yield Stretch(position, stretch.upto, round(stretch.cost * part))
            return
        last = min(found.last, stretch.upto)
        rows = last - max(found.first - 1, position)
        yield Stretch(position, last, size * rows // found.rows + ROW_COST * rows)
        position = last
    if position < stretch.upto:
        yield Stretch(position, stretch.upto, 0)  # these are lost
