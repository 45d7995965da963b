"""However the journal is cut into batches, the tables whose rows span them say the same.

The journals are those of `tests.simulation`: hubs that are killed, lose power and roll, with
clients of all protocols. What is open at the end must be what the hub itself still has.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.rules import NO_RULES
from hubbub.pipeline.tables import calls, deliveries, sessions, traffic
from hubbub.pipeline.tables.table import Moment, Spanning, ddl
from tests.simulation.hub import replayed
from tests.simulation.test_simulation import MEMORY
from tests.simulation.world import World

Row = dict[str, Any]
FAILED_WRITE = 5  # a schedule in which a segment goes on in another file


class Past(NamedTuple):
    """A journal, and all its rows."""

    folder: Path
    table: Table
    rows: pa.Table


@pytest.fixture(scope="module", params=[FAILED_WRITE, 23])
def past(request: pytest.FixtureRequest) -> Iterator[Past]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        World(request.param, Path(folder)).run()
        table = Table(folder)
        yield Past(Path(folder), table, pa.Table.from_batches(table.read(0, table.committed())))


@pytest.mark.parametrize("module", [calls, deliveries, sessions])
def test_many_batches_say_what_one_says(past: Past, module: Any) -> None:
    last = past.table.committed()
    cuts = random.Random(last).sample(range(1, last), 20)
    events = concerned(past.rows, module)
    whole = in_batches(past, module, events, [])
    assert in_batches(past, module, events, cuts) == whole


def test_what_is_open_is_what_the_hub_has(past: Past) -> None:
    state = replayed(Directory(past.folder))
    waiting = [
        (entry >> 35, *key)
        for key, session in state.sessions.items()
        for entry in session.backlog.entries
        if entry
    ]
    for queue in state.queues.values():
        waiting += [(seq, "queue", queue.client) for seq in queue.messages.values()]
    closed, opened = in_batches(past, deliveries, concerned(past.rows, deliveries), [])
    found = [(row["seq"], row["protocol"], row["receiver"]) for row in opened]
    assert sorted(found) == sorted(waiting)
    grain = [(row["offer"], row["protocol"], row["receiver"]) for row in (*closed, *opened)]
    assert len(set(grain)) == len(grain)


def in_batches(
    past: Past, module: Any, events: list[Row], cuts: list[int]
) -> tuple[list[Row], list[Row]]:
    """The closed rows and the open ones, as the fold makes them batch by batch."""
    closed: list[Row] = []
    carried: list[Row] = []
    for after, upto in pairwise([0, *sorted(cuts), past.table.committed()]):
        added = [event for event in events if after < event["seq"] <= upto]
        if not added:
            continue
        knows = {"segment": past.table.segment_of(upto)} if module is deliveries else {}
        given = [*({**row, "kind": "carried"} for row in carried), *added]
        names = dict.fromkeys(name for row in given for name in row)
        filled = [{name: row.get(name) for name in names} for row in given]
        batches = module.folded([pa.RecordBatch.from_pylist(filled)], **knows)
        found = [row for batch in batches for row in batch.to_pylist()]
        closed += [row for row in found if not row["open"]]
        carried = sorted((row for row in found if row["open"]), key=in_order)
    return told(closed), told(carried)


def in_order(row: Row) -> tuple[int, int]:
    """Places in a backlog first, whose seqs need not rise."""
    return row.get("number") or 0, row["seq"] or 0


def concerned(rows: pa.Table, module: Any) -> list[Row]:
    """The rows that the table asks for, with what Spark's side adds to them."""
    with duckdb.connect() as database:
        database.register("rows", rows)
        database.execute("CREATE MACRO startswith(text, head) AS starts_with(text, head)")
        found = database.sql(f"FROM rows WHERE {module.EVENT} ORDER BY seq").to_arrow_table()
    events: list[Row] = found.to_pylist()
    for event in events:
        event["asks"] = event["reply_to"] != ""
        answers = json.loads(event["properties"] or "{}").get("answers")
        event["answers"] = json.dumps(answers) if answers is not None else None
        event["payload"] = event["payload"] if event["kind"] == "audience" else None
    return events


def told(rows: list[Row]) -> list[Row]:
    """Without what only the next batch needs, in one order."""
    hidden = [column.name for column in deliveries.MEMORY]
    kept = [{name: row[name] for name in row if name not in hidden} for row in rows if row["seq"]]
    return sorted(kept, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize(
    "table",
    [traffic.TABLE, calls.TABLE, deliveries.TABLE, sessions.TABLE],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize("past", [FAILED_WRITE], indirect=True)
def test_spark_carries_what_is_open(spark: SparkSession, past: Past, table: Spanning) -> None:
    last = past.table.committed()
    assert through_spark(spark, past, table, [last // 3]) == through_spark(spark, past, table, [])


def through_spark(spark: SparkSession, past: Past, table: Spanning, cuts: list[int]) -> list[Row]:
    """The closed rows and the open ones, as the table's own `rows` makes them batch by batch."""
    carried = spark.createDataFrame([], ddl((*table.columns, *table.memory)))
    closed: list[Row] = []
    for after, upto in pairwise([0, *cuts, past.table.committed()]):
        part = past.rows.slice(after, upto - after)
        until = F.lit(part.column("time")[-1].as_py())
        moment = Moment(until, NO_RULES, past.table.segment_of(upto))
        batch = timed(spark.createDataFrame(part), NO_RULES)
        found = table.rows(batch, carried, moment).toArrow()
        opened = pa.compute.field("open")
        carried = spark.createDataFrame(found.filter(opened).drop_columns("open"))
        closed += found.filter(~opened).to_pylist()
        left = found.filter(opened).to_pylist()
    first = table.columns[0].name
    names = [column.name for column in table.columns]
    return sorted(
        ({name: row[name] for name in names} for row in (*closed, *left) if row[first] is not None),
        key=repr,
    )
