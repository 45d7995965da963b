"""The figures of a day: what a point says, how many are kept, how they are put together."""

from __future__ import annotations

import sys

import pytest

from hubbub.core.limits import FIGURES_KEPT, FIGURES_SECONDS
from hubbub.core.metrics import Histogram
from hubbub.runtime.figures import FIGURES, Figures, together
from tests.protocols.mqtt.conversation import Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def points(figures: Figures, stage: Stage, count: int, published: int = 0) -> None:
    for _ in range(count):
        stage.broker.metrics.messages_in += published
        stage.pass_time(FIGURES_SECONDS)
        figures.wake(stage.clock.now())


def test_a_counter_is_a_rate_and_a_gauge_is_as_it_is(stage: Stage) -> None:
    figures = Figures(stage.broker, None, Histogram())
    stage.device("ann")
    points(figures, stage, 1, published=50)
    points(figures, stage, 1)
    said = figures.since(0, 100)
    assert said["published"] == [50 / FIGURES_SECONDS, 0] and said["clients"] == [1, 1]
    assert set(said) == {"time", *(name for name, _ in FIGURES)}
    assert {len(column) for column in said.values()} == {2}
    assert said["memory"][0] > 1_000_000
    newer = figures.since(int(said["time"][0]), 100)
    assert newer["time"] == said["time"][1:]


def test_nothing_is_made_before_its_time(stage: Stage) -> None:
    figures = Figures(stage.broker, None, Histogram())
    stage.pass_time(FIGURES_SECONDS / 2)
    figures.wake(stage.clock.now())
    assert figures.since(0, 100)["time"] == []


def test_times_are_of_their_interval_alone(stage: Stage) -> None:
    delay = Histogram()
    delay.add(2.0)  # before the first point began
    figures = Figures(stage.broker, None, delay)
    for _ in range(98):
        delay.add(0.0004)
    delay.add(0.4)
    delay.add(0.4)
    points(figures, stage, 2)
    said = figures.since(0, 100)
    assert 0.25 < said["loop_ms_50"][0] <= 0.5 and 250 < said["loop_ms_99"][0] <= 500
    assert said["loop_ms_99"][1] == 0.0
    assert max(figures.since(0, 1)["loop_ms_99"]) > 250, "the most of those put together"


def test_a_day_is_kept_in_bounded_memory(stage: Stage) -> None:
    figures = Figures(stage.broker, None, Histogram())
    points(figures, stage, FIGURES_KEPT + 10, published=10)
    assert len(figures.points) == FIGURES_KEPT
    size = sum(sys.getsizeof(one) + sys.getsizeof(one[1]) + 32 for one in figures.points)
    assert size < 4_000_000
    said = figures.since(0, 1_000)
    assert 900 < len(said["time"]) <= 1_000 and set(said["published"]) == {1.0}


def columns(times: list[int], **said: list[float]) -> dict[str, list[float]]:
    """Of one process, as its figures give them."""
    nothing = {name: [0.0] * len(times) for name, _ in FIGURES}
    return nothing | {"time": [1e6 * time for time in times]} | said


def test_figures_of_several_processes_are_added_up_at_the_nearest_points() -> None:
    one = columns(
        [10, 20, 30], clients=[1, 2, 3], retained=[7, 7, 7], loop_ms_99=[1, 1, 9],
        disk_free=[50, 50, 50],
    )  # fmt: skip
    other = columns(
        [24, 34], clients=[10, 20], retained=[7, 7], loop_ms_99=[5, 5], disk_free=[49, 48]
    )
    found = together([other, one])
    assert found["time"] == one["time"], "of who has most"
    assert found["clients"] == [1, 12, 23], "who was not there adds nothing"
    assert found["retained"] == [7, 7, 7] and found["disk_free"] == [50, 49, 48]
    assert found["loop_ms_99"] == [1, 5, 9]


def test_figures_of_processes_that_have_just_begun_are_none() -> None:
    assert together([columns([]), columns([])])["clients"] == []
