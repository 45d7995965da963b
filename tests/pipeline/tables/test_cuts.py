"""However the journal is cut into batches, the tables whose rows span them say the same.

The journals are those of `tests.simulation`: hubs that are killed, lose power and roll, with
clients of all protocols. What is open at the end must be what the hub itself still has.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from hubbub.journal.segments import Directory
from hubbub.journal.table import Table
from hubbub.pipeline import carry
from hubbub.pipeline.carry import Pieces, Whole, carried
from hubbub.pipeline.event_time import stamped
from hubbub.pipeline.rules import NO_RULES, Reading
from hubbub.pipeline.tables import calls, deliveries, messages, sessions, traffic
from hubbub.pipeline.tables.table import Folded, arrow
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


@pytest.mark.pure  # small pieces, so that most of them stay as they are
@pytest.mark.parametrize("module", [calls, deliveries, sessions])
def test_many_batches_say_what_one_says(
    past: Past, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "PIECE", 6)
    monkeypatch.setattr(carry, "SMALL", 3)
    last = past.table.committed()
    cuts = random.Random(last).sample(range(1, last), 20)
    events = concerned(past.rows, module)
    whole = in_batches(past, module.TABLE, events, [])
    assert in_batches(past, module.TABLE, events, cuts) == whole


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
    events = concerned(past.rows, deliveries)
    closed, opened = in_batches(past, deliveries.TABLE, events, [])
    found = [(row["seq"], row["protocol"], row["receiver"]) for row in opened]
    assert sorted(found) == sorted(waiting)
    grain = [(row["offer"], row["protocol"], row["receiver"]) for row in (*closed, *opened)]
    assert len(set(grain)) == len(grain)


def in_batches(
    past: Past, table: Folded, events: pa.Table, cuts: list[int]
) -> tuple[list[Row], list[Row]]:
    """The closed rows and the open ones, as the fold makes them batch by batch."""
    closed: list[Row] = []
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        files: list[Path] = []
        for batch, (after, upto) in enumerate(pairwise([0, *sorted(cuts), last_of(past)])):
            seq = pc.field("seq")
            added = events.filter((seq > after) & (seq <= upto))
            if len(added):
                held = Pieces(files, arrow((*table.columns, *table.memory)))
                folding = table.fold(added, held, past.table.segment_of(upto))
                place = Path(folder) / str(batch)
                staying = carried(held, folding, place)
                files = staying + [
                    file.rename(file.with_name(f"{batch}-{file.name}")) for file in place.iterdir()
                ]
                closed += folding.closed.to_pylist()
        opened = [row for file in files for row in pq.read_table(file).to_pylist()]
    return told(closed, table), told(opened, table)


def last_of(past: Past) -> int:
    return past.table.committed()


def concerned(rows: pa.Table, module: Any) -> pa.Table:
    """The rows that the table takes."""
    whole = rows.combine_chunks().to_batches()
    return pa.Table.from_batches([module.events(one) for one in whole])


@pytest.mark.parametrize("module", (calls, deliveries, sessions))
def test_what_a_table_takes_is_what_its_condition_says(past: Past, module: Any) -> None:
    rows = past.rows
    with duckdb.connect() as database:
        database.register("rows", rows)
        database.execute("CREATE MACRO startswith(text, head) AS starts_with(text, head)")
        said = database.sql(f"SELECT seq FROM rows WHERE {module.EVENT} ORDER BY seq").fetchall()
    assert concerned(past.rows, module)["seq"].to_pylist() == [seq for (seq,) in said]
    assert said


def told(rows: list[Row], table: Folded) -> list[Row]:
    """Without what only the next batch needs, in one order."""
    hidden = [column.name for column in table.memory]
    kept = [{name: row[name] for name in row if name not in hidden} for row in rows if row["seq"]]
    return sorted(kept, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize("past", [FAILED_WRITE], indirect=True)
def test_spark_knows_whether_a_batch_concerns_them(spark: SparkSession, past: Past) -> None:
    rows = spark.createDataFrame(past.rows)
    for module in (calls, deliveries, sessions):
        found = rows.where(module.EVENT).select("seq").toArrow().sort_by("seq")
        assert found["seq"] == concerned(past.rows, module)["seq"]


def test_minutes_are_the_same_however_batches_are_cut(past: Past) -> None:
    assert minutes(past, [last_of(past) // 3, last_of(past) // 2]) == minutes(past, [])


def minutes(past: Past, cuts: list[int]) -> list[Row]:
    """The closed minutes and the open ones."""
    make, part = messages.made(NO_RULES), traffic.TABLE.part(NO_RULES)
    schema = arrow(traffic.COLUMNS)
    opened, found = schema.empty_table(), []
    for after, upto in pairwise([0, *cuts, last_of(past)]):
        (rows,) = past.rows.slice(after, upto - after).combine_chunks().to_batches()
        (some,) = make(stamped(rows, Reading(NO_RULES), False))
        parts = pa.Table.from_batches(part(some), schema)
        fold = traffic.TABLE.fold(parts, Whole(opened), rows["time"][-1].as_py(), NO_RULES)
        found += fold.closed.to_pylist()
        opened = fold.opened
    return sorted((*found, *opened.to_pylist()), key=repr)
