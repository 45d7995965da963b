"""Finds the name that somebody meant who wrote another one. Asked by all that refuse names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

LIKE: Final = 0.5  # of 1: a letter too many or two in wrong order, and an ending left out


def meant(name: str, known: Iterable[str], otherwise: str = "", like: float = LIKE) -> str:
    """ "did you mean topics?", or `otherwise` if no known name is like it."""
    near = get_close_matches(name, sorted(known), 1, like)
    return f"did you mean {near[0]}?" if near else otherwise
