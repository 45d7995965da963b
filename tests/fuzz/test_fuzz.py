"""The parsers take what is in the corpus and what comes near it; the harness sees what is wrong."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import security
from tests.fuzz import __main__ as program
from tests.fuzz.__main__ import Result
from tests.fuzz.bounds import KIB, Costly, bounded
from tests.fuzz.connections import BEGINS, FIRST, end, pieces_of
from tests.fuzz.mutate import LONGEST, inputs, mutated
from tests.fuzz.targets import TARGETS, corpus
from tests.process import ROOT


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    end()


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    feed, inputs = bounded(TARGETS[name]), list(corpus(name))
    assert inputs
    for data in (b"", *inputs):
        feed(data)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=150, deadline=None)
@given(dice=st.randoms(use_true_random=False))
def test_what_comes_near_it(name: str, dice: Random) -> None:
    bounded(TARGETS[name])(mutated(dice, KNOWN[name]))


KNOWN = {name: list(corpus(name)) for name in TARGETS}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_bytes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TARGETS)))
    TARGETS[name](data.draw(st.binary(max_size=300)))


def test_changes_are_bounded_and_reach_further() -> None:
    dice = Random(1)
    found = {mutated(dice, [b"abc", bytes(LONGEST)]) for _ in range(500)}
    assert len(found) > 400
    assert max(map(len, found)) <= LONGEST


def test_inputs_without_end_are_bounded_and_differ() -> None:
    found = list(islice(inputs(Random(1), [b"abc", bytes(LONGEST)]), 1_000))
    assert len(set(found)) > 600
    assert max(map(len, found)) <= LONGEST


@pytest.mark.parametrize("size", [1, FIRST, FIRST + 1, 500])
def test_pieces_are_the_whole(size: int) -> None:
    data = bytes(range(256)) * 2
    for start in range(20):
        pieces = pieces_of(data[start : start + size])
        assert all(pieces) and b"".join(pieces) == data[start : start + size]
        assert all(len(piece) == 1 for piece in pieces[: BEGINS - 1])


def test_who_is_furthest_behind_its_goal_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()

    def run(name: str, seconds: float, plain: bool) -> Result:
        ran.append(name)
        return Result(name, 10, name == "broken")

    monkeypatch.setattr(program, "OUT", tmp_path)
    monkeypatch.setattr(program, "GOALS", {"a": 40, "b": 20, "broken": 50})
    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(security, "known", lambda: {"fuzz": {"a": {"inputs": 10}}})
    turns = program.Turns(["a", "b", "broken"], 60.0, True, True)
    turns.work()
    assert {name: ran.count(name) for name in ran} == {"a": 3, "b": 2, "broken": 1}
    assert (tmp_path / "a.count").read_text() == "40", "it began where another run ended"
    again = program.Turns(["a", "b"], 60.0, True, True)
    again.work()
    assert not again.results


def test_each_has_a_turn_though_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "run", lambda name, seconds, plain: Result(name, 1, False))
    turns = program.Turns(["a", "b", "c"], 0.0, True, False)
    turns.work()
    assert sorted(one.target for one in turns.results) == ["a", "b", "c"]


def greedy(data: bytes) -> None:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert bytearray(b"x") * ((most + 2 * KIB) << 10)


def test_too_much_memory_is_a_finding() -> None:
    with pytest.raises(Costly, match="of memory"):
        bounded(greedy)(b"")


@pytest.mark.slow
def test_the_harness_counts() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "0.05", "--plain", "smq"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of 1 targets failed" in done.stdout
