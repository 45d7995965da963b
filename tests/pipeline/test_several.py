"""Several pipelines on one journal: each with its tables, its offsets and its hold.

And one for each node of a cluster, with their tables in one place.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from contextlib import AsyncExitStack
from functools import reduce
from pathlib import Path
from typing import Any, Self

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

from hubbub import connect
from hubbub.cli.pipeline import app
from hubbub.errors import DirectoryError, JournalError, SettingError
from hubbub.journal import holds
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.metrics import Metrics
from hubbub.pipeline.places import Disk, Remote
from hubbub.pipeline.watch import Watch, Watched
from hubbub.spark.options import Options
from hubbub.spark.source import Reader
from tests.cluster.test_nats import PROGRAM, Nodes, nodes, server, stack
from tests.process import RunningHub
from tests.spark.fixtures import Writer, readings_rows

__all__ = ["nodes", "server", "stack"]


def test_one_reads_the_journal_of_another_directory(writer: Writer, tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "own"
    last = writer.write(*readings_rows(3))
    there, here = pipeline.Source(), pipeline.Source(directory=str(data))
    assert here.journal(own).committed() == there.journal(data).committed() == last
    assert here.options(own) == there.options(data) == {"path": str(data)}
    assert pipeline.Source("http://hub").here(own) is None


def test_the_hub_of_the_journal_shows_both(writer: Writer, tmp_path: Path) -> None:
    data, own = tmp_path / "data", tmp_path / "own"
    metrics = Metrics(pipeline.Source().journal(data), 0)
    files = {
        Watch(Watched(data, str(place / "tables"), True), metrics, print).file
        for place in (data, own)
    }
    assert {file.parent for file in files} == {data / "pipelines"}
    assert len(files) == 2 and data / "pipelines/tables.json" in files


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--journal", "/none"), "there is no journal in /none"),
        (("--journal", "JOURNAL", "--hold", "a b"), "a name is of letters"),
        (("--hub", "http://127.0.0.1:9", "--hold", "lake"), "--hold: only for a journal in DIR"),
        (("--hub", "http://127.0.0.1:9", "--journal", "JOURNAL"), "--hub and --journal"),
    ],
)
def test_what_cannot_be_is_said_before_spark_starts(
    writer: Writer, tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    data = str(tmp_path / "own")
    given = [str(tmp_path / "data") if word == "JOURNAL" else word for word in words]
    with pytest.raises(SettingError, match=complaint):
        app(["run", "--data", data, *given], standalone_mode=False)


def test_a_comma_would_be_two_journals_that_never_begin(tmp_path: Path) -> None:
    odd = tmp_path / "a,b"
    odd.mkdir()
    (odd / "format").touch()
    with pytest.raises(SettingError, match="to Spark a comma stands between two directories"):
        app(["run", "--data", str(odd)], standalone_mode=False)


def test_the_same_tables_are_refused_also_for_who_reads_another_journal(
    writer: Writer, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    first = Layout(own)
    first.prepare(())
    try:
        with pytest.raises(DirectoryError, match=r"another pipeline \(process \d+\) writes"):
            app(
                ["run", "--data", str(own), "--journal", str(tmp_path / "data")],
                standalone_mode=False,
            )
    finally:
        first.release()


@pytest.mark.spark
def test_two_at_once_have_each_their_rows_and_offsets(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    data, own = tmp_path / "data", tmp_path / "own"
    writer.write(*readings_rows(50))
    stop, seen = threading.Event(), {data: 0, own: 0}

    def follow(place: Path, session: SparkSession, tables: tuple[str, ...]) -> None:
        def report(said: pipeline.Report) -> None:
            seen[place] = said.seq
            holds.hold(data, place.name, said.seq)

        source = pipeline.Source(directory=str(data))
        pipeline.run(session, place, stop, report, every=0.1, only=tables, source=source)

    both = [
        threading.Thread(target=follow, args=(data, spark, ("messages", "traffic"))),
        threading.Thread(target=follow, args=(own, spark.newSession(), ("messages", "readings"))),
    ]
    for one in both:
        one.start()
    limit, last = time.monotonic() + 100, 50
    while time.monotonic() < limit and set(seen.values()) != {170}:
        if set(seen.values()) == {last} and last < 170:
            last = writer.write(*readings_rows(60))
        time.sleep(0.05)
    stop.set()
    for one in both:
        one.join()
    assert set(seen.values()) == {170}
    for place, there, missing in ((data, "traffic", "readings"), (own, "readings", "traffic")):
        assert (place / "tables" / there).is_dir() and not (place / "tables" / missing).exists()
        rows = "select count(*), count(distinct seq), max(seq) from"
        query = f"{rows} '{place}/tables/messages/**/*.parquet'"
        assert duckdb.connect().execute(query).fetchone() == (170, 170, 170)
        layout = Layout(place)
        planned = layout.planned(layout.stands().batch).splitlines()[-1]
        assert json.loads(planned)[writer.id] == 170
    assert [(one.name, one.seq) for one in holds.holds(data)] == [("data", 170), ("own", 170)]
    assert holds.held(data) == 170


# Of the nodes of a cluster


class Follower:
    """The pipeline of one node, whose tables lie beside those of the others."""

    def __init__(self, spark: SparkSession, journal: Path, place: Path, url: bool) -> None:
        self.journal, self.place, self.seq = journal, place, 0
        self.tables = place / "tables"
        self._session, self._stop = spark.newSession(), threading.Event()
        self._to = self.tables.as_uri() if url else ""
        self.running = self._start()

    def _start(self) -> asyncio.Task[None]:
        source = pipeline.Source(directory=str(self.journal))
        run = asyncio.to_thread(
            pipeline.run, self._session, self.place, self._stop, self._report, every=0.3,
            only=("messages", "readings"), source=source, to=self._to,
        )  # fmt: skip
        return asyncio.create_task(run)

    def _report(self, said: pipeline.Report) -> None:
        self.seq = said.seq

    def again(self) -> None:
        self.running = self._start()

    async def has(self, count: int) -> None:
        """Until its tables have so many messages, all that its journal holds."""
        async with asyncio.timeout(100):
            while True:
                assert not self.running.done(), "it ended"
                found = await asyncio.to_thread(self._held)
                if len(found) >= count and self.seq >= found[count - 1]:
                    assert len(found) == count
                    return
                await asyncio.sleep(0.3)

    def _held(self) -> list[int]:
        only = {"kinds": "publish", "topics": "plant/1"}
        reader = Reader(Options({"path": str(self.journal), **only}))
        batches = (batch for part in reader.partitions() for batch in reader.read(part))
        return [seq for batch in batches for seq in batch["seq"].to_pylist()]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self._stop.set()
        await asyncio.wait([self.running])

    async def stop(self) -> None:
        self._stop.set()
        await self.running


async def publish(hub: RunningHub, numbers: range) -> None:
    async with connect(hub.url("mqtt"), client_id=f"writer-{hub.port}") as writer:
        for number in numbers:
            await writer.publish("plant/1", b"%d" % number, 1)


def of_all(spark: SparkSession, followers: dict[str, Follower], table: str) -> DataFrame:
    """A table of all nodes, as the guide on clusters reads it."""
    each = (
        spark.read.parquet(f"{one.tables}/{table}").withColumn("node", lit(name))
        for name, one in followers.items()
    )
    return reduce(DataFrame.unionByName, each)


def values(rows: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.selectExpr(*columns).collect())


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(PROGRAM is None, reason="no nats-server (apt install nats-server)")
@pytest.mark.parametrize("far", ["b", pytest.param("a", marks=pytest.mark.soak)])
async def test_the_tables_of_a_cluster_lie_in_one_place_and_have_each_message_once(
    spark: SparkSession,
    nodes: Nodes,
    stack: AsyncExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    far: str,
) -> None:
    """Also after node b was killed, and its pipeline in the midst of a batch. Those of one node are
    at a URL, as in an object store, those of the other one in a directory.
    """
    hubs = dict(zip("ab", await nodes.pair(), strict=True))
    for name, hub in hubs.items():
        keeps: dict[str, Any] = {"client_id": f"reader-{name}", "session_expiry": 600}
        async with connect(hub.url("mqtt"), clean=False, **keeps) as reader:
            await reader.subscribe("plant/#", qos=1)  # so all of it crosses, and waits for a node
    await nodes.filters(hubs["a"], "b", 1)
    await nodes.filters(hubs["b"], "a", 1)
    shared = tmp_path / "shared"
    followers = {
        name: Follower(spark, nodes.root / name / "data", shared / name, name == far)
        for name in hubs
    }
    a, b = [await stack.enter_async_context(one) for one in followers.values()]
    await publish(hubs["a"], range(20))
    await publish(hubs["b"], range(100, 120))
    for one in (a, b):
        await one.has(40)

    def cut_short(*_: object) -> None:
        raise OSError("the machine is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Remote if far == "b" else Disk, "advance", cut_short)
        await publish(hubs["b"], range(120, 140))
        await a.has(60)
        hubs["b"].stop(signal.SIGKILL)
        with pytest.raises(JournalError, match="the machine is gone"):
            await b.running
    await publish(hubs["a"], range(20, 40))
    await a.has(80)
    hubs["b"] = await asyncio.to_thread(nodes.hub, "b")
    b.again()
    await publish(hubs["b"], range(140, 160))
    for one in (a, b):
        await one.has(100)
        await one.stop()

    messages = of_all(spark, followers, "messages")
    crossed = messages.where("get_json_object(properties, '$.node') IS NOT NULL")
    once = messages.where("get_json_object(properties, '$.node') IS NULL")
    readings = of_all(spark, followers, "readings").join(crossed, ["node", "seq"], "left_anti")
    said = sorted([("a", n) for n in range(40)] + [("b", n) for n in range(100, 160)])
    number = "int(string(payload))"
    assert values(once, "node", number) == said
    assert values(crossed, "get_json_object(properties, '$.node')", number) == said
    assert values(crossed.where("node = get_json_object(properties, '$.node')"), "node") == []
    assert values(readings, "node", "int(value)") == said
