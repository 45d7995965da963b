"""Many schedules, each from a seed; a failure says how to run its own again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.simulation.world import World

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # nothing here needs a real disk
BATCH = 20


def run(first: int, last: int) -> None:
    for seed in range(first, last):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            try:
                World(seed, Path(folder)).run()
            except BaseException:
                print(f"again, step by step: python -m tests.simulation {seed}")
                raise


def test_twenty_schedules() -> None:
    run(0, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(BATCH, 60, BATCH))
def test_schedules(first: int) -> None:
    run(first, first + BATCH)


@pytest.mark.soak
@pytest.mark.timeout(1_800)  # a hundred take one minute, and five beside other programs
@pytest.mark.parametrize("first", [60, *range(1_000, 6_000, 100)])
def test_thousands_of_schedules(first: int) -> None:
    run(first, first + 100)
