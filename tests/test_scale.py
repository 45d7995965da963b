"""The model of large clusters: what each event costs, for so many nodes."""

from __future__ import annotations

import pytest

from benchmarks.scale.costs import Costs
from benchmarks.scale.model import Frame, Load, figures

COSTS = Costs(*(1e-6, 3e-6, 900, 40, 1e-6, 2e-6, 500, 30, 2e-6, 1e-6, 5e-6, 180, 1e-6))
FRAME = Frame(turn=50e-6, send=6e-6, wake=100e-6, take=5e-6)


def test_a_node_alone_has_nothing_to_say_to_others() -> None:
    found = figures(Load(1, clients=1e5, messages=1e5), COSTS, FRAME)
    assert found == (0, 0, 0, 0, 0, 0)


def test_what_is_told_to_all_grows_with_all_and_what_is_asked_for_does_not() -> None:
    few, many = (Load(nodes, clients=1e5 * nodes, messages=1e5 * nodes) for nodes in (10, 100))
    told = [figures(load, COSTS, FRAME) for load in (few, many)]
    asked = [figures(load, COSTS, FRAME, "asked") for load in (few, many)]
    assert told[1].memory / told[0].memory == pytest.approx(99 / 9)
    assert asked[1].memory == asked[0].memory < told[0].memory
    assert told[1].joining > told[0].joining > asked[1].joining
    assert told[1].frames == 100 * 99 * 500, "a frame in each tick for each other node"


def test_a_message_costs_what_sending_and_taking_it_does() -> None:
    load = Load(3, clients=3e5, messages=3e5, ticks=0.001)
    assert figures(load, COSTS, FRAME).traffic == pytest.approx(1e5 * 6e-6, rel=1e-3)
