"""Which dead nodes are taken over, and when: the servers are the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hubbub.cluster.copies import FENCE, Found, Piece
from hubbub.runtime.heirs import Heirs
from tests.cluster.world import World


class Servers:
    """One stream, of node "b", which node "a" has stopped and nobody adopted."""

    def __init__(self) -> None:
        self.read_at: list[int] = []

    async def nodes(self) -> list[str]:
        return ["a", "b"]

    def stream_of(self, node: str) -> str:
        return node

    async def last(self, stream: str) -> Found:
        return Found(1000, Piece(1, 1, FENCE, 0, False, b"a"))

    async def read(self, node: str, before: int) -> list[Piece]:
        self.read_at.append(before)
        return []


async def test_a_node_takes_nobody_over_before_its_own_heir_is_known() -> None:
    """What the dead one kept for this node is for sessions that the heir has."""
    world, servers = World(names=("a",)), Servers()
    member = world.members["a"]
    copying: Any = SimpleNamespace(
        stream=servers, copies=SimpleNamespace(ready=True), fenced_by="c", fenced_at=7
    )
    heirs = Heirs(member, copying, [], lambda: None)
    heirs._is_dead("b")
    world.clock.seconds += 60
    member.deposed = True
    await heirs._look()
    assert servers.read_at == []
    member.deposed = False
    await heirs._look()
    assert servers.read_at == [1000]
    assert heirs._had("b") == 1000, "it had nothing, and hears that this is known"
