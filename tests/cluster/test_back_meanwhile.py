"""A node that was only cut off is back while its heir takes over, in turns, what it had kept for
the heir's own sessions, and says that itself.
"""

from __future__ import annotations

import pytest

from hubbub.core.limits import CLUSTER_DEAD_SECONDS
from tests.cluster.test_heritage import Dying
from tests.core.recording import folded


@pytest.mark.parametrize("pieces", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [500, 1500])
def test_each_message_comes_once_and_in_order(pieces: int, count: int) -> None:
    """`pieces`: of the adoption, before it is back, and does not know that it was stopped."""
    world = Dying()
    world.meet()
    world.lasting("b", "bob", "kept")
    world.wait(1)
    world.cut.update("ab")
    world.wait(CLUSTER_DEAD_SECONDS + 1)
    world.say_many(world.client("a", "w"), "kept", count)
    rows = world.log("a")
    there = [row for row in rows.rows if row.seq <= rows.durable]
    state = folded(there)
    needed = state.needed()
    adoption = world.adoption(
        "b", "a", (state, {row.seq: state.carried(row) for row in there if row.seq in needed})
    )
    work = adoption.pieces()
    for _ in range(pieces):
        next(work)
    world.cut.clear()
    world.wait(0.6)
    for _ in work:
        pass
    adoption.run()
    world.wait(1)
    assert [int(said) for said in world.waiting("b", "bob")] == list(range(count))
