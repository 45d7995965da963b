"""What nobody may read in a message: the passwords in URLs.

Whatever quotes a URL of a database or a catalog goes through here; it may stand in a log, in the
hub's status and in a file that others can read.
"""

from __future__ import annotations

import re
from typing import Final

# Up to the first @, as SQLAlchemy reads it, and on where one that is not escaped makes it the host.
_OF_USER: Final = re.compile(r"(://[^/?#\s:@]*):[^\s@]*@(?:[^/?#\s@]*@)*")
_WORDS: Final = r"[\w.-]*(?:password|passwd|token|secret|credential)[\w.-]*"
_NAMED: Final = re.compile(
    rf"(?i)(\b{_WORDS}\s*=\s*|(['\"]){_WORDS}\2\s*:\s*)('[^']*'|\"[^\"]*\"|[^&;,\s'\"]+)"
)


def masked(text: str) -> str:
    """The text with *** for each password that stands in it."""
    return _NAMED.sub(r"\1***", _OF_USER.sub(r"\1:***@", text))
