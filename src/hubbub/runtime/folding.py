"""What the messages of a node's stream say, once they are folded as a start folds a journal.

Who takes over from a dead node asks, and who finds in its own stream what it did not write. No I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from hubbub.cluster.copies import FENCE, LOG, STATE
from hubbub.cluster.stops import Numbered
from hubbub.journal.copied import Copy, folded


def copy_of(pieces: Sequence[Numbered]) -> Copy | None:
    """What the newest life with a whole checkpoint leads to; None if there is none."""
    lives: dict[int, dict[str, list[tuple[int, bytes]]]] = {}
    parts: dict[tuple[int, str], bytearray] = {}
    newest = -1, -1
    for _, piece in pieces:
        # Lives and numbers rise: what is not later was put there by somebody else, a second time.
        if piece.kind == FENCE or (piece.life, piece.number) <= newest:
            continue
        newest = piece.life, piece.number
        data = parts.setdefault((piece.life, piece.kind), bytearray())
        data += piece.data
        if not piece.more:
            whole = lives.setdefault(piece.life, {LOG: [], STATE: []})
            whole[piece.kind].append((piece.upto, bytes(data)))
            data.clear()
    for whole in reversed(list(lives.values())):
        if whole[STATE]:
            upto, state = whole[STATE][-1]
            return folded(upto, state, (data for _, data in whole[LOG]))
    return None
