"""Whose the wills of a node are that was stopped, and what was due there: its heir's alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hubbub.cluster import heritage
from hubbub.cluster.membership import Membership
from hubbub.config.cluster import Cluster
from hubbub.config.settings import Settings
from hubbub.journal.writer import Journal
from hubbub.protocols.mqtt import codec
from hubbub.runtime.copying import MARKER, Copying
from tests.cluster.world import Lines, World
from tests.core.recording import folded
from tests.protocols.mqtt.conversation import Device, Stage

WILL = codec.Will(b"gone", b"will", 0, False)
AT = 1000


def member_of(stage: Stage) -> Membership:
    return Membership(stage.broker, Lines(World(names=()), "a"), "0")


def watcher_at(stage: Stage) -> Device:
    watcher = stage.device("watcher")
    watcher.subscribe("gone", 0, "later", 0)
    watcher.hear()
    return watcher


@pytest.mark.parametrize("lasting", [False, True])
def test_who_was_not_dead_publishes_no_will_of_who_is_gone_for_its_heir(lasting: bool) -> None:
    """It stood still for some seconds, and its heir has published them."""
    stage = Stage()
    member, watcher = member_of(stage), watcher_at(stage)
    device = stage.device("ann", not lasting, will=WILL)
    heritage.let_go(stage.broker, member, [stage.mqtt], AT)
    stage.tick()
    assert device.far.closed
    assert not watcher.far.closed
    assert watcher.hear() == []
    assert not folded(stage.log.rows).wills


@pytest.mark.parametrize("stopped", [False, True])
def test_nothing_is_due_after_a_start_until_it_is_known_whose_it_is(
    tmp_path: Path, stopped: bool
) -> None:
    """What an heir has said a second time, and retained, would replace what was said since."""
    before = Stage()
    before.device("ann", will=WILL)
    before.device("bob").publish("$delayed/5/later", b"due", 1)
    after = Stage()
    after.log.rows, after.log.position = list(before.log.rows), before.log.position
    after.log.sync()
    after.broker.state = folded(after.log.rows)
    (tmp_path / MARKER).write_text("")
    journal: Any = Journal(tmp_path, after.clock, "disk", lambda seq: None)
    settings = Settings(cluster=Cluster(url=("nats://127.0.0.1:1",), name="a", copies="1"))
    copying = Copying(member_of(after), journal, settings, [after.mqtt], lambda: None)
    after.broker.recover([after.mqtt])
    watcher = watcher_at(after)
    after.pass_time(10)

    def said() -> list[str]:
        after.broker.delays.wake()
        after.mqtt.wake(after.clock.now())
        after.tick()
        return watcher.hear()

    assert said() == []
    if stopped:
        heritage.let_go(after.broker, copying.membership, [after.mqtt], AT)
    copying._decided()
    assert sorted(said()) == ([] if stopped else ["gone=will", "later=due"])
    copying._decided()
    assert said() == []
    journal.directory.release()
