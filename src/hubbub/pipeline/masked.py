"""What nobody may read in a message: the passwords in URLs.

Whatever quotes a URL of a database or a catalog goes through here; it may stand in a log, in the
hub's status and in a file that others can read.
"""

from __future__ import annotations

import re
from typing import Final

_OF_USER: Final = re.compile(r"(://[^/?#\s:@]*):[^/?#\s]*@")
_NAMED: Final = re.compile(r"(?i)\b(\w*(?:password|passwd|token|secret|credential)\w*=)[^&;\s'\"]+")


def masked(text: str) -> str:
    """The text with *** for each password that stands in it."""
    return _NAMED.sub(r"\1***", _OF_USER.sub(r"\1:***@", text))
