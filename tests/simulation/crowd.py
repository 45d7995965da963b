"""More of everything: five hubs, a shared group with members at three of them, retained messages of
QoS 2, and hubs that die more often. Seeds as those of `cluster`, odd ones.
"""

from __future__ import annotations

from pathlib import Path

from tests.simulation.cluster import _EVENTS, Author, ClusterWorld, Listener

FIVE = ("a", "b", "c", "d", "e")
STEPS = 900
_MORE = {
    ClusterWorld._kill: 1.5,
    ClusterWorld._wait: 1.0,
    ClusterWorld._look: 2.0,
    ClusterWorld._begin_again: 1.0,
}


class Member(Listener):
    """Of the group: what one has of QoS 2 no other one gets."""

    world: CrowdWorld  # type: ignore[assignment]

    def _keep(self, payload: bytes) -> None:
        if payload.split()[2:3] == [b"2"]:
            others = [one.name for one in self.world.members if payload in one.got]
            assert not others, f"{self.name} has {payload!r}, as {others}"
        super()._keep(payload)


class CrowdWorld(ClusterWorld):
    all_names = FIVE

    def __init__(self, seed: int, root: Path, verbose: bool = False) -> None:
        super().__init__(seed | 1, root, STEPS, verbose)
        for event, more in _MORE.items():
            self.weights[_EVENTS.index(event)] += more

    def _make_clients(self) -> None:
        super()._make_clients()
        chance = self.chance
        self.authors += [
            Author(self, f"pub2-{name}", chance.random() < 0.5, topics)  # type: ignore[arg-type]
            for name, topics in (
                ("e", {"k/1": 2, "g/1": 2, "r/3": 2}),
                ("d", {"g/1": 2, "g/2": 1, "l/2": 2}),
                ("b", {"g/2": 2, "g/3": 1}),
            )
        ]
        self.members = [
            Member(self, f"shr-{name}", chance.random() < 0.5, "$share/grp/g/#", 2, ordered=False)  # type: ignore[arg-type]
            for name in ("a", "e", "c")
        ]
        self.listeners += [
            Listener(self, "sub2-e", True, "k/#", 2),  # type: ignore[arg-type]
            Listener(self, "one-d", True, "l/#", 1),  # type: ignore[arg-type]
            Listener(self, "g-c", False, "g/#", 2),  # type: ignore[arg-type]
        ]
        self.clients = [*self.authors, *self.listeners, *self.members]

    def _subscribed(self) -> bool:
        return super()._subscribed() and all(one.subscribed for one in self.members)

    def _owed(self) -> str | None:
        got = set().union(*(one.got for one in self.members))
        if missing := self._acknowledged("g/") - got:
            return f"the group has not got {sorted(missing)}"
        return super()._owed()
