"""Numbers that requests say, in their query or a header: read in one way by all that take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MOST: Final = 2**63 - 1
_DIGITS: Final = len(str(MOST))  # bounded before it is read: Python takes no number of 5,000


def number_in(given: Mapping[str, str], name: str, most: int = MOST) -> int:
    """What `name` says there. ValueError, in words for the sender, if it is no such number."""
    text = given.get(name, "")
    plain = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    if not plain or int(text) > most:
        raise ValueError(f"{name}: expected a number from 0 to {most}, got {text[:40]!r}")
    return int(text)
