"""Whether a node may promise again whose stream another one has stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hubbub.cluster import heritage
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.journal.writer import Journal
from hubbub.runtime.copying import Copying
from tests.cluster.test_keeping import KEEP, Keepers


def test_who_waits_for_its_heir_does_so_after_a_start_too_and_not_for_ever(tmp_path: Path) -> None:
    world = Keepers(names=("a", "b"))
    member = world.members["a"]
    heritage.let_go(member.broker, member, [], 1000)
    assert heritage.awaited(world.restart("a")) == 1000
    member = world.members["a"]
    journal: Any = Journal(tmp_path, world.clock, "disk", lambda seq: None)
    settings = Settings(cluster=Cluster(url=("nats://127.0.0.1:1",), name="a", copies="1"))
    copying = Copying(member, journal, settings, [], lambda: None)
    copying._wait_for_heir(heritage.awaited(member))
    copying.wake()
    assert "heir" in member.broker.no_quorum
    world.clock.seconds += KEEP + 1
    copying.wake()
    assert (member.deposed, copying.fenced_at) == (False, 0)
    journal.directory.release()
