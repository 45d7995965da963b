"""Who answers for a stop: takes over what a dead node had before it.

    the stream of a  ── life ──┤ stop by b ├── life, a let go in it ──┤ stop by c ├──
                               └ b, or who is the heir of b           └ c, when b's is answered

A stop whose author died before it had adopted is not the last word of a stream: the dead node may
be back, let go, and be stopped again, while what it had is still there, before the first stop. So
stops are answered in their order, each by one node only: whoever has the estate in which its author
put it (`cluster.estates`), which a stop says: the author itself, as long as it has not let go.
A node whose disk has less than its copy stops its own stream, and is the heir of that.
No clock, and no number but those of streams. Called by the runtime and the simulation. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Final, NamedTuple

from hubbub.cluster.copies import FENCE, Piece
from hubbub.cluster.estates import began_by, begun_behind

NAME_BYTES: Final = 100  # more than the longest name of an estate
ESTATE: Final = re.compile("[A-Za-z0-9_-]{1,60}(@[0-9]{1,20})?")

Numbered = tuple[int, Piece]  # a piece, and its number in the stream


class Stop(NamedTuple):
    """The message `at` of a stream; `author`: the estate that whoever put it had then."""

    at: int
    author: str


def author_of(piece: Piece) -> str:
    """Whose a stop is, "" if it names no estate: who may write to a stream can put any bytes there.
    """
    author = piece.data[:NAME_BYTES].decode(errors="replace") if piece.kind == FENCE else ""
    return author if ESTATE.fullmatch(author) else ""


def stop_of(at: int, piece: Piece) -> Stop:
    return Stop(at, author_of(piece))


def stops_of(pieces: Iterable[Numbered]) -> list[Stop]:
    return [stop_of(at, piece) for at, piece in pieces if piece.kind == FENCE]


def unanswered(stops: Iterable[Stop], answered: int) -> list[Stop]:
    return [stop for stop in stops if stop.at > answered]


def decisive(dead: str, stops: Sequence[Stop]) -> Stop:
    """Who answers for this one does so for the first. One that a node put into its own stream, and
    had not answered for when it ended, is for whoever answers for the next one.
    """
    return next((stop for stop in stops if began_by(stop.author) != dead), stops[-1])


def is_ours(
    name: str, held: Container[str], dead: str, stop: Stop, own: Iterable[Stop] = ()
) -> bool:
    """Whether the node `name`, which has the estates `held`, is to answer for that stop. `own`:
    those of its own stream that nobody has answered for.
    """
    if stop.author in held:
        return True
    if began_by(stop.author) != name:
        return False
    # Two that ended one another's have no heir but one another: the first of them by name goes on.
    ended = min((one for one in own if one.at > begun_behind(stop.author)), default=None)
    if ended is None or began_by(ended.author) != dead:
        return False
    return begun_behind(ended.author) < stop.at and name < dead
