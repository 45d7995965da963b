"""What the hub asks the process that reads its journal (`history`), and how the answer is cut.

Apart from `history`, because the hub loads this and nothing of what reads.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PIECE: Final = struct.Struct("<BI")  # before each piece of an answer: what it is, bytes
ROWS, END, NAMES = 0, 1, 2  # a frame; the end; which of these names, between zeros, may be had?
NAMES_ASKED: Final = 1_000  # at most in one piece
YES, NO = b"1", b"0"  # the hub's answer: one for each, and a new line


class Question(NamedTuple):
    """The newest `last` messages that `topic` means, published at `since` (microseconds since
    1970) or later, of the rows up to `upto`. `literal`: wildcards are characters of a name. `now`:
    what expired by then is left out. `asks`: who wants to know may not have all names, so the hub
    is asked which.
    """

    topic: str
    literal: bool
    last: int
    since: int
    upto: int
    now: int = 0
    asks: bool = False
