"""Inputs made of other inputs, where nothing measures what they reach.

Millions are made, so what is drawn is drawn in the cheapest way: `random()` takes a fifth of the
time of `randrange()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

LONGEST: Final = 4096  # bytes of an input

# Lengths and counts at which parsers go wrong.
NUMBERS: Final = tuple(
    number + step
    for power in (0, 7, 8, 14, 15, 16, 21, 24, 28, 31, 32, 53, 62, 63, 64)
    for number in (1 << power,)
    for step in (-1, 0, 1)
)

VALUES: Final = (0, 1, 127, 128, 255)  # of bytes
STEPS: Final = 8  # changes of one input, at most, before another one is taken

Change = Callable[[Random, bytearray, Sequence[bytes]], None]


def _below(dice: Random, number: int) -> int:
    return int(dice.random() * number)


def _flip(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[_below(dice, len(data))] ^= 1 << _below(dice, 8)


def _byte(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        value = _below(dice, 256 + len(VALUES))
        data[_below(dice, len(data))] = value if value < 256 else VALUES[value - 256]


def _number(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    size = 1 << _below(dice, 4)
    number = NUMBERS[_below(dice, len(NUMBERS))] % (1 << 8 * size)
    at = _below(dice, len(data) + 1)
    data[at : at + size] = number.to_bytes(size, "little" if dice.random() < 0.5 else "big")


def _insert(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _below(dice, len(data) + 1)
    data[at:at] = dice.randbytes(1 + _below(dice, 8))


def _remove(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _below(dice, len(data) + 1)
    del data[at : at + 1 + _below(dice, 16)]


def _repeat(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = _below(dice, len(data) + 1)
    piece = data[at : at + 1 + _below(dice, 32)]
    data[at:at] = piece * (1, 1, 1, 2, 2, 16, 64)[_below(dice, 7)]


def _join(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = others[_below(dice, len(others))]
    data[_below(dice, len(data) + 1) :] = other[_below(dice, len(other) + 1) :]


def _take(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = others[_below(dice, len(others))]
    start = _below(dice, len(other) + 1)
    at = _below(dice, len(data) + 1)
    piece = other[start : start + 1 + _below(dice, 32)]
    data[at : at + len(piece)] = piece


CHANGES: Final[tuple[Change, ...]] = (
    _flip, _byte, _number, _insert, _remove, _repeat, _join, _take,
)  # fmt: skip


def _change(dice: Random, data: bytearray, corpus: Sequence[bytes]) -> None:
    CHANGES[_below(dice, len(CHANGES))](dice, data, corpus)


def mutated(dice: Random, corpus: Sequence[bytes]) -> bytes:
    """One of these with some changes; `corpus` is not empty."""
    data = bytearray(corpus[_below(dice, len(corpus))])
    for _ in range(1 + _below(dice, STEPS)):
        _change(dice, data, corpus)
    return bytes(data[:LONGEST])


def inputs(dice: Random, corpus: Sequence[bytes]) -> Iterator[bytes]:
    """Without end: one of these, and again with each change that it goes through."""
    while True:
        data = bytearray(corpus[_below(dice, len(corpus))])
        for _ in range(1 + _below(dice, STEPS)):
            _change(dice, data, corpus)
            del data[LONGEST:]
            yield bytes(data)
