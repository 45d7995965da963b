"""Which texts may be names in MQTT (1.5.4). Asked by the hub, and by clients before they send."""

from __future__ import annotations

import re
from typing import Final

# U+0000 to U+001F, U+007F to U+009F, and the last two of each of the 17 planes.
_UNFIT: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | end) for plane in range(17) for end in (0xFFFE, 0xFFFF))
    + "]"
)


def is_plain(name: str) -> bool:
    """Whether it has no control characters and none that Unicode keeps out of texts.

    A protocol may refuse those in names. Of what is not printable they are a part.
    """
    return name.isprintable() or not _UNFIT.search(name)
