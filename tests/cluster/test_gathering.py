"""How long those that came wait for those that are about to come."""

from __future__ import annotations

from hubbub.cluster.gathering import TRIES, Gathering
from hubbub.core.limits import CLUSTER_COPY_GATHER_SECONDS, CLUSTER_COPY_RETURN_SECONDS


def moment(gathering: Gathering, comes: int) -> float:
    """How long it was, where of a hundred so many come at once, and then no more."""
    seconds = gathering.begin(0.0, 100)
    gathering.waits(0.0, comes)
    assert not gathering.waits(seconds, comes)
    return seconds


def test_nothing_waits_where_nobody_was_answered() -> None:
    assert not Gathering().waits(0.0, 0)


def test_it_is_over_as_soon_as_all_are_there() -> None:
    gathering = Gathering()
    gathering.begin(0.0, 100)
    assert gathering.waits(0.0, 99) and not gathering.waits(0.0, 100)
    assert not gathering.waits(0.0, 1), "and stays so"


def test_who_says_no_more_is_not_waited_for() -> None:
    gathering = Gathering()
    seconds = gathering.begin(5.0, 100)
    assert gathering.waits(5.0, 99) and not gathering.waits(5.0 + seconds, 99)


def test_a_timer_that_is_early_ends_its_own_moment_alone() -> None:
    gathering = Gathering()
    gathering.begin(0.0, 100)
    first = gathering.moment
    gathering.over(first)
    assert not gathering.waits(0.0, 99)
    gathering.begin(0.0, 100)
    gathering.over(first)
    assert gathering.waits(0.0, 99)


def test_publishers_that_wait_for_nobody_are_found_out() -> None:
    """One of a few moments is long, in case that they do now."""
    gathering = Gathering()
    found = [moment(gathering, comes=60) for _ in range(2 * TRIES)]
    short = [CLUSTER_COPY_GATHER_SECONDS] * (TRIES - 1)
    assert found == 2 * [CLUSTER_COPY_RETURN_SECONDS, *short]


def test_those_that_do_are_waited_for_each_time() -> None:
    gathering = Gathering()
    moment(gathering, comes=60)
    for _ in range(TRIES):
        moment(gathering, comes=100)
    assert moment(gathering, comes=100) == CLUSTER_COPY_RETURN_SECONDS
