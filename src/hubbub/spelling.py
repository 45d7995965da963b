"""Finds the name that somebody meant who wrote another one. Asked by all that refuse names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

LIKE: Final = 0.5  # of 1: a letter too many or two in wrong order, and an ending left out
CLOSE: Final = 0.8  # a slip of the hand, and nothing else


def meant(
    name: str, known: Iterable[str], otherwise: str = "", like: float = LIKE, before: str = ""
) -> str:
    """ "did you mean topics?", or `otherwise` if no known name is like it. `before`: goes before
    the name that was found.
    """
    near = get_close_matches(name, sorted(known), 1, like)
    return f"did you mean {before}{near[0]}?" if near else otherwise
