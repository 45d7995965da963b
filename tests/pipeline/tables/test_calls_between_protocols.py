"""The `calls` table of a hub that carried a call between each pair of protocols."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pyarrow as pa
import pytest

from hubbub.journal.table import Table
from hubbub.pipeline.carry import Whole
from hubbub.pipeline.tables import calls
from hubbub.pipeline.tables.table import arrow
from tests.process import RunningHub
from tests.test_rpc import PEERS, peer, until_empty

pytestmark = pytest.mark.interop

PAIRS = list(itertools.product(PEERS, PEERS))


async def call(hub: RunningHub, caller: str, responder: str) -> tuple[str, str, str]:
    """Ask once; the names of the queue, the caller and the responder."""
    queue = f"{caller}-{responder}"
    async with (
        peer(caller, hub.port, queue) as asking,
        peer(responder, hub.port, queue) as answering,
    ):
        await answering.respond()
        await asking.ask(b"?")
        await answering.answer(await answering.taken(), b"!")
        assert await asking.heard() == b"!"
        await until_empty(hub, queue)
        return queue, asking.name, answering.name


def test_each_pair_is_an_answered_call(tmp_path: Path) -> None:
    hub = RunningHub(tmp_path / "data")
    try:
        expected = [asyncio.run(call(hub, *pair)) for pair in PAIRS]
    finally:
        assert hub.stop(signal.SIGTERM) == 0
    rows = Table(str(hub.data))
    events = pa.Table.from_batches(map(calls.events, rows.read(0, rows.committed())))
    folding = calls.TABLE.fold(events, Whole(arrow(calls.COLUMNS).empty_table()), 0)
    found = folding.closed.sort_by("seq").to_pylist()
    assert len(folding.opened) == 0
    assert [(row["queue"], row["caller"], row["responder"]) for row in found] == expected
    assert all(row["status"] == "answered" for row in found)
    assert all(0 <= row["latency_ms"] < 60_000 and row["number"] == 0 for row in found)
