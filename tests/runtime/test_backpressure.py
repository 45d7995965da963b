"""Who waits while the disk is behind, and who while only the servers that have copies are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from hubbub.core.broker import Broker
from hubbub.core.clock import Clock
from hubbub.core.limits import CONGESTED_BYTES, FLOODED_BYTES
from hubbub.core.link import Link
from hubbub.core.log import Log
from hubbub.journal.writer import Journal
from hubbub.runtime.backpressure import Backpressure
from hubbub.runtime.busypoll import BusyPoll
from hubbub.runtime.turn import Turn
from hubbub.schema import PUBLISH, row_without_message


class Servers:
    """They have all but so many bytes."""

    def __init__(self) -> None:
        self.waiting_bytes = 0


class Reads:
    """A connection, and whether it is read from."""

    def __init__(self) -> None:
        self.held = False
        self.transport: asyncio.Transport | None = cast(asyncio.Transport, self)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def go_on(self) -> None:
        self.held = False


@pytest.fixture
def pressure(tmp_path: Path) -> Iterator[Backpressure]:
    clock = Clock()
    soon: list[Any] = []
    broker = Broker(clock, Log(clock), "none")
    turn = Turn(broker, soon.append, lambda: None, BusyPoll(soon.append, 0.0))
    found = Backpressure(clock, turn)
    found.journal = Journal(tmp_path / "data", clock, "disk", lambda seq: None)
    found.journal.recover(lambda batch: None)
    found.copied = Servers()
    yield found
    found.journal.close()


def promised(waits: bool) -> Link:
    """The link of who waits for an answer, or does not."""
    clock = Clock()
    broker = Broker(clock, Log(clock), "none")
    link = Link(broker.outgoing)
    if waits:
        link.held = [(1, 1, b"PUBACK", False)]
    return link


def wait(pressure: Backpressure, disk: int, servers: int) -> None:
    assert pressure.journal is not None and isinstance(pressure.copied, Servers)
    if disk:
        row = row_without_message(PUBLISH, b"mqtt", b"c", b"t")
        pressure.journal.append(row._replace(payload=bytes(disk)))
    pressure.copied.waiting_bytes = servers
    pressure.measure()


@pytest.mark.parametrize("link", [None, promised(False), promised(True)])
def test_nobody_waits_while_little_does(pressure: Backpressure, link: Link | None) -> None:
    wait(pressure, 1_000, CONGESTED_BYTES - 10_000)
    assert not pressure.congested and not pressure.crowded(True, link)


@pytest.mark.parametrize("link", [None, promised(False), promised(True)])
def test_who_publishes_waits_for_the_disk(pressure: Backpressure, link: Link | None) -> None:
    wait(pressure, CONGESTED_BYTES + 1, 0)
    assert pressure.congested and pressure.crowded(True, link)
    assert not pressure.crowded(False, link), "who only reads is heard"


def test_live_traffic_goes_on_while_only_servers_are_behind(
    pressure: Backpressure, caplog: pytest.LogCaptureFixture
) -> None:
    wait(pressure, 1_000, CONGESTED_BYTES + 1)
    assert pressure.congested and not pressure.crowded(True, promised(False))
    assert pressure.crowded(True, promised(True)), "who waits for an answer says no more"
    assert pressure.crowded(True), "nor a bridge, of which nobody knows"
    assert "publishers of QoS 1 and 2 wait for the servers of NATS: 16 MB" in caplog.text


@pytest.mark.parametrize("disk", [0, FLOODED_BYTES])
def test_everybody_waits_in_a_flood(pressure: Backpressure, disk: int) -> None:
    wait(pressure, disk, FLOODED_BYTES + 1)
    assert pressure.crowded(False, promised(False))


def test_who_was_held_back_goes_on_when_less_waits(pressure: Backpressure) -> None:
    wait(pressure, 0, CONGESTED_BYTES + 1)
    waits = Reads()
    pressure.hold_back(waits)
    assert waits.held
    wait(pressure, 0, CONGESTED_BYTES + 2)
    assert waits.held, "there is more, not less"
    wait(pressure, 0, 0)
    assert not waits.held and not pressure.congested


def test_what_other_nodes_said_goes_on_before_who_publishes_here_is_heard(
    pressure: Backpressure,
) -> None:
    client, order = Reads(), []
    servers = cast(Any, pressure.copied)
    servers.waiting_bytes = FLOODED_BYTES + 1
    pressure.measure()
    pressure.hold_back(client)
    pressure.measured = lambda: order.append(client.held)
    pressure.measure()
    servers.waiting_bytes = 0
    pressure.measure()
    assert order == [True, True] and not client.held
