"""Inputs made of other inputs, where nothing measures what they reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

Change = Callable[[Random, bytearray, Sequence[bytes]], None]


def _flip(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _byte(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[dice.randrange(len(data))] = dice.choice((0, 1, 127, 128, 255, dice.randrange(256)))


def _number(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    size = dice.choice((1, 2, 4, 8))
    order = "little" if dice.random() < 0.5 else "big"
    number = dice.choice(NUMBERS) % (1 << 8 * size)
    at = dice.randrange(len(data) + 1)
    data[at : at + size] = number.to_bytes(size, "little" if order == "little" else "big")


def _insert(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = dice.randrange(len(data) + 1)
    data[at:at] = dice.randbytes(dice.randrange(1, 9))


def _remove(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = dice.randrange(len(data) + 1)
    del data[at : at + dice.randrange(1, 17)]


def _repeat(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    at = dice.randrange(len(data) + 1)
    piece = data[at : at + dice.randrange(1, 33)]
    data[at:at] = piece * dice.choice((1, 2, 16, 64))


def _join(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = dice.choice(others)
    start = dice.randrange(len(other) + 1)
    at = dice.randrange(len(data) + 1)
    data[at:] = other[start:]


def _take(dice: Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = dice.choice(others)
    start = dice.randrange(len(other) + 1)
    at = dice.randrange(len(data) + 1)
    piece = other[start : start + dice.randrange(1, 33)]
    data[at : at + len(piece)] = piece


CHANGES: Final[tuple[Change, ...]] = (
    _flip, _byte, _number, _insert, _remove, _repeat, _join, _take,
)  # fmt: skip


def mutated(dice: Random, corpus: Sequence[bytes]) -> bytes:
    """One of these with some changes; `corpus` is not empty."""
    data = bytearray(dice.choice(corpus))
    for _ in range(dice.choice((1, 1, 2, 3, 5, 8))):
        dice.choice(CHANGES)(dice, data, corpus)
    return bytes(data[:LONGEST])
