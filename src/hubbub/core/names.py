"""Numbers for names: topics and sub-topics that some protocols carry as ids. No I/O.

A number is a random free one of 22 bits, never 0 or 1 (the hub itself), unique in its space. The
space of topics is shared with the addresses of clients. Both tables are durable: the broker
writes a `create` row for each new name, the fold brings it here.
"""

from __future__ import annotations

import random
from collections.abc import Container

BITS = 22
HUB = 1


class Names:
    """One space of names and numbers, both ways."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.names: dict[int, str] = {}

    def add(self, name: str, number: int) -> None:
        self.numbers[name] = number
        self.names[number] = name


def free_number(*taken: Container[int]) -> int:
    """A random number that is in none of the given collections."""
    while True:
        number = random.getrandbits(BITS)
        if number > HUB and not any(number in used for used in taken):
            return number
