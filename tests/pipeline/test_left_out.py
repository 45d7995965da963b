"""Tables that a run leaves out and another takes in again: what is open stays, and it is said."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.layout import BATCH, KEPT, Layout, Progress
from hubbub.pipeline.left_out import made_again, take_in
from hubbub.pipeline.rules import NO_RULES
from hubbub.pipeline.tables import TABLES, calls, messages, readings, traffic, typed
from hubbub.pipeline.tables.table import AnyTable
from hubbub.pipeline.typed import Typed
from hubbub.schema import SEND
from tests.spark.fixtures import Writer, publish

ALL: tuple[AnyTable, ...] = (messages.TABLE, readings.TABLE, traffic.TABLE, calls.TABLE)
FEW: tuple[AnyTable, ...] = (messages.TABLE,)
OWN = typed.table_of(Typed("climate", "a", {"x": "$.x DOUBLE"}))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path)
    made.root.mkdir()
    opened(made, 0)
    goes_on(made, 0)
    return made


def opened(layout: Layout, batch: int) -> None:
    for table in ("traffic", "calls"):
        place = layout.root / "_open" / table / f"{BATCH}{batch}"
        place.mkdir(parents=True)
        (place / "a.parquet").write_text(f"open after {batch}")


def goes_on(layout: Layout, batch: int) -> None:
    layout.advance(Progress(batch, batch, "2026-01-01 12:00:00", 0, "", 0))


def test_a_run_that_leaves_none_out_says_nothing(layout: Layout) -> None:
    assert take_in(layout, ALL, ()) == take_in(layout, ALL, ()) == []


def test_what_was_open_is_open_still_however_long_it_was_left(layout: Layout) -> None:
    assert take_in(layout, FEW, ()) == []
    for batch in range(1, 2 * KEPT):
        goes_on(layout, batch)
    said = take_in(layout, ALL, ())
    place = layout.root / "_open/calls" / f"{BATCH}{2 * KEPT - 1}"
    assert [file.read_text() for file in place.iterdir()] == ["open after 0"]
    assert said == [
        "readings was left out of batches 1 to 31: their rows are missing in it until "
        "`hubbub pipeline backfill readings` makes it again",
        "traffic was left out of batches 1 to 31: their rows are missing in it until "
        "`hubbub pipeline backfill traffic` makes it again",
        "calls was left out of batches 1 to 31: their rows are missing in it, and what was open "
        f"then may stay so. To have them {layout.home.all_again()}",
    ]
    assert take_in(layout, ALL, ()) == [], "it is said once"


def test_nothing_is_missing_if_there_was_no_batch_or_it_was_made_again(layout: Layout) -> None:
    take_in(layout, FEW, ())
    assert take_in(layout, (*FEW, calls.TABLE), ()) == []
    goes_on(layout, 1)
    made_again(layout, "traffic")
    said = take_in(layout, ALL, ())
    assert [one.partition(" ")[0] for one in said] == ["readings"]


def test_a_new_table_of_the_user_is_one_that_was_left_out_so_far(layout: Layout) -> None:
    [said] = take_in(layout, (*ALL, OWN), ())
    assert said == (
        "climate was left out of batches 0 to 0: their rows are missing in it until "
        "`hubbub pipeline backfill climate --rules FILE` makes it again"
    )
    assert take_in(layout, (*ALL, OWN), ("climate",)) == []


def test_a_damaged_note_is_said_with_what_to_do(layout: Layout) -> None:
    (layout.root / "_left.json").write_text("{")
    with pytest.raises(DirectoryError, match="_left.json is damaged .*remove it"):
        take_in(layout, ALL, ())


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_left_out_and_taken_in_again(writer: Writer, tmp_path: Path, spark: SparkSession) -> None:
    data = tmp_path / "data"
    said: list[str] = []

    def once(*only: str) -> None:
        only = only or tuple(table.name for table in TABLES)
        pipeline.run(
            spark, data, threading.Event(), once=True, only=only, notice=said.append
        )  # fmt: skip

    def asks(second: float) -> None:
        ask = publish(second, "$queue/work", b"?", reply_to=b"answers", number=int(second) + 1)
        writer.write(ask._replace(kind=SEND), publish(second, "a", b"1"))

    def rows(place: str, what: str = "count(*)") -> int:
        query = f"select {what} from '{data}/tables/{place}/*.parquet'"
        [found] = duckdb.connect().execute(query).fetchall()
        return int(found[0])

    asks(0)
    once()
    asks(1)
    once("messages", "audit")
    asks(70)
    once()
    assert rows("readings/**") == 2 and rows("messages/**") == 6
    assert {one.partition(" ")[0] for one in said} == {
        "readings", "quarantine", "traffic", "calls", "sessions", "deliveries"
    }  # fmt: skip
    batch = Layout(data).stands().batch
    assert rows(f"_open/calls/{BATCH}{batch}") == 2, "those of the batches that wrote it"
    for name in ("readings", "traffic"):
        backfill(spark, Layout(data), name, NO_RULES)
    assert rows("readings/**") == 3
    assert rows("traffic/**", "sum(messages)") == 4, "the closed minutes"
    assert rows(f"_open/traffic/{BATCH}{batch}", "sum(messages)") == 2
    assert json.loads((data / "tables/_left.json").read_text()) == {}
