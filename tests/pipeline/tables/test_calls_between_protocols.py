"""The `calls` table of a hub that carried a call between each pair of protocols."""

from __future__ import annotations

import asyncio
import itertools
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hubbub.pipeline.rules import NO_RULES
from hubbub.pipeline.tables import calls
from hubbub.pipeline.tables.table import Moment, ddl
from tests.process import RunningHub
from tests.test_rpc import PEERS, peer, until_empty

pytestmark = [pytest.mark.spark, pytest.mark.interop]

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


def test_each_pair_is_an_answered_call(spark: SparkSession, tmp_path: Path) -> None:
    hub = RunningHub(tmp_path / "data")
    try:
        expected = [asyncio.run(call(hub, *pair)) for pair in PAIRS]
    finally:
        assert hub.stop(signal.SIGTERM) == 0
    batch = spark.read.format("hubbub").option("path", str(hub.data)).load()
    nothing = spark.createDataFrame([], ddl(calls.COLUMNS))
    found = calls.rows(batch, nothing, Moment(F.lit(None), NO_RULES)).orderBy("seq").collect()
    assert [(row.queue, row.caller, row.responder) for row in found] == expected
    assert [row.queue for row in found if row.status != "answered"] == []
    assert all(0 <= row.latency_ms < 60_000 and row.number == 0 for row in found)
