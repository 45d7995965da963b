"""Numbers for names: topics and sub-topics that some protocols carry as ids. No I/O.

A number is a random free one of 32 bits, never 0 or 1 (the hub itself), unique in its space: who
guesses one hits nobody (docs/decisions/0018). The
space of topics is shared with the addresses of clients. Both tables are durable: the broker
writes a `create` row for each new name, the fold brings it here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Container
from typing import Final

from hubbub.core.caches import weight_of
from hubbub.errors import HubbubError

BITS = 32
HUB = 1
LARGEST = (1 << 32) - 1  # what the protocols that say numbers have room for
TRIES = 100  # of so many names as may be, not one of 10^12 calls needs five
DRAWN: Final = 1024  # at a time: to ask the system for each takes 3 us of a connect


class Names:
    """One space of names and numbers, both ways. `weight`: of all; a long name is many."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.names: dict[int, str] = {}
        self.weight = 0

    def add(self, name: str, number: int) -> None:
        if name not in self.numbers:
            self.weight += weight_of(name)
        self.numbers[name] = number
        self.names[number] = name

    def remove(self, name: str) -> None:
        if name in self.numbers:
            self.weight -= weight_of(name)
        self.names.pop(self.numbers.pop(name, 0), None)


def is_number(number: int) -> bool:
    """Whether a client can say it, and it is not one of those that mean something else."""
    return HUB < number <= LARGEST


def free_number(*taken: Container[int]) -> int:
    """A random number that is in none of the given collections.

    The bounds of clients, topics and replies leave nearly all of the space free. HubbubError if
    there is none all the same.
    """
    return free_among(taken)


def free_among(taken: tuple[Container[int], ...]) -> int:
    """The same of collections that come as one: a call with a star takes longer."""
    for _ in range(TRIES):
        number = _draw()
        if number > HUB and _is_free(number, taken):
            return number
    for number in range(HUB + 1, 1 << BITS):
        if _is_free(number, taken):
            return number
    raise HubbubError("too many clients and topics: no number is free")


def _is_free(number: int, taken: tuple[Container[int], ...]) -> bool:
    for used in taken:
        if number in used:
            return False
    return True


# Random numbers that nobody has yet. A process that is forked draws its own.
_drawn: list[int] = []
os.register_at_fork(after_in_child=_drawn.clear)


def _draw() -> int:
    if not _drawn:
        _drawn.extend(memoryview(secrets.token_bytes(4 * DRAWN)).cast("I"))
    return _drawn.pop() & ((1 << BITS) - 1)
