"""Numbers for names."""

from __future__ import annotations

import pytest

from hubbub.core.names import BITS, HUB, Names, free_number
from hubbub.errors import HubbubError


def test_a_number_is_free_in_every_space_and_never_the_hubs() -> None:
    taken = {free_number() for _ in range(2000)}
    others = range(0, 1 << BITS, 2)
    for _ in range(200):
        number = free_number(taken, others)
        assert HUB < number < 1 << BITS
        assert number not in taken
        assert number not in others


def test_a_full_space_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubbub.core.names.BITS", 14)
    taken = set(range(1 << 14)) - {4711}
    assert free_number(taken) == 4711
    with pytest.raises(HubbubError, match="no number is free"):
        free_number(taken, {4711})


def test_both_ways() -> None:
    names = Names()
    names.add("sensors/\udcff", 77)
    assert names.numbers["sensors/\udcff"] == 77
    assert names.names[77] == "sensors/\udcff"
