"""Numbers for names."""

from __future__ import annotations

import os

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


def test_a_process_that_is_forked_draws_others() -> None:
    free_number()
    here, there = os.pipe()
    child = os.fork()
    if not child:
        os.write(there, b"%d" % free_number())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = {int(os.read(here, 20))}
    os.close(here)
    os.close(there)
    assert drawn.isdisjoint(free_number() for _ in range(2000))


def test_both_ways() -> None:
    names = Names()
    names.add("sensors/\udcff", 77)
    assert names.numbers["sensors/\udcff"] == 77
    assert names.names[77] == "sensors/\udcff"
