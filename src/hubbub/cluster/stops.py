"""Who answers for a stop: takes over what a dead node had before it.

    the stream of a  ── life ──┤ stop by b ├── life, a let go in it ──┤ stop by c ├──
                               └ b, or who is the heir of b           └ c, when b's is answered

A stop whose author died before it had adopted is not the last word of a stream: the dead node may
be back, let go, and be stopped again, while what it had is still there, before the first stop. So
stops are answered in their order, each by one node only: its author, as long as that has not let
go since, or who took over the life in which the author put it. That is told by numbers of streams
alone, no clock: a stop says how far its author's own stream was then. Called by the runtime and
the simulation. No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hubbub.cluster.copies import FENCE, Piece
from hubbub.cluster.estates import STOPPED
from hubbub.cluster.heritage import HEIR

Numbered = tuple[int, Piece]  # a piece, and its number in the stream


class Stop(NamedTuple):
    """The message `at` of a stream; `base`: the last one that the author's own had then."""

    at: int
    author: str
    base: int


def stop_of(at: int, piece: Piece) -> Stop:
    return Stop(at, piece.data.decode(errors="replace"), piece.upto)


def stops_of(pieces: Iterable[Numbered]) -> list[Stop]:
    return [stop_of(at, piece) for at, piece in pieces if piece.kind == FENCE]


def unanswered(stops: Iterable[Stop], answered: int) -> list[Stop]:
    return [stop for stop in stops if stop.at > answered]


def is_ours(
    name: str, taken: Mapping[str, int], dead: str, stop: Stop, own: Iterable[Stop] = ()
) -> bool:
    """Whether the node `name`, whose journal has taken so much, is to answer for that stop. `own`:
    those of its own stream that nobody has answered for.
    """
    if taken.get(HEIR + stop.author, 0) > stop.base:
        return True
    if stop.author != name:
        return False
    # Two that stopped one another have no heir but one another: the first of them by name goes on.
    # Where it was another one that ended the life in which the author put it, that is its heir.
    ended = min((one for one in own if one.at > stop.base), default=None)
    each_other = ended is not None and ended.author == dead and ended.base < stop.at
    return stop.base >= taken.get(STOPPED, 0) or (each_other and name < dead)
