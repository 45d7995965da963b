"""Schedules of a cluster, each from a seed; a failure says how to run its own again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.simulation.cluster import ClusterWorld
from tests.simulation.test_simulation import MEMORY

# Each of them failed once: a number used again, a torn group, an heir that was not known yet, a
# stamp that a crash took and that others knew, an heir that was deposed.
FOUND = (1, 11, 20, 30, 33, 37, 1031, 10379, 30709, 30828)


def run(seed: int, verbose: bool = False) -> ClusterWorld:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        world = ClusterWorld(seed, Path(folder), verbose=verbose)
        try:
            world.run()
        except BaseException:
            print(f"again, step by step: python -m tests.simulation --cluster {seed}")
            raise
        return world


def test_a_few_schedules_of_a_cluster() -> None:
    worlds = [run(seed) for seed in FOUND]
    assert any(world.relayed for world in worlds)
    assert any(world.adoptions for world in worlds)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 20_000, 100))
def test_ten_thousand_schedules_of_a_cluster(first: int) -> None:
    for seed in range(first, first + 100):
        run(seed)
