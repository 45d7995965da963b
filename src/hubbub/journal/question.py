"""What the hub asks the process that reads its journal (`history`), and how the answer is cut.

Apart from `history`, because the hub loads this and nothing of what reads.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

PIECE: Final = struct.Struct("<?I")  # before each piece of an answer: whether it is the end, bytes


class Question(NamedTuple):
    """The newest `last` messages that `topic` means, published at `since` (microseconds since
    1970) or later, of the rows up to `upto`. `literal`: wildcards are characters of a name. `now`:
    what expired by then is left out.
    """

    topic: str
    literal: bool
    last: int
    since: int
    upto: int
    now: int = 0
