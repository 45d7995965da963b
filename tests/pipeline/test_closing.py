"""Rules by which minutes that are closed would be open again: a run refuses them."""

from __future__ import annotations

import threading
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import SettingError
from hubbub.pipeline import closing
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.noted import noted
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import TABLES, typed
from hubbub.pipeline.typed import Typed
from tests.spark.fixtures import Writer, publish

LATER = Rules(event_time="ts", lateness=600)
WINDOW = typed.table_of(
    Typed("climate", "a", {"x": "avg $.x DOUBLE"}, window="1 minute")
)


def test_what_closes_by_the_rules() -> None:
    assert closing.closed_by((*TABLES, WINDOW), LATER) == {"traffic": 600.0, "climate": 600.0}
    assert closing.closed_by(TABLES, Rules(lateness=600)) == {"traffic": 0.0}


def test_more_patience_is_refused_and_less_is_not(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.root.mkdir()
    assert closing.read(layout) == {}, "of an older version nothing is known"
    closing.need({}, {"traffic": 600.0}, layout.home)
    closing.note(layout, TABLES, NO_RULES)
    closing.note(layout, (WINDOW,), LATER)
    assert closing.read(layout) == {"traffic": 0.0, "climate": 600.0}
    closing.need(closing.read(layout), {"traffic": 0.0, "climate": 1.0, "new": 9.0}, layout.home)
    with pytest.raises(SettingError) as refused:
        closing.need(closing.read(layout), {"traffic": 600.0, "climate": 600.0}, layout.home)
    assert str(refused.value) == (
        "traffic: by the rules so far a message counts at its own time up to 0 s behind the hub's "
        "clock, by these up to 600 s, so what is closed would be there twice: put event_time and "
        "lateness back; or `hubbub pipeline backfill traffic --rules FILE` makes them by these; "
        f"or {layout.home.all_again()}"
    )


def test_at_a_url_it_is_noted_with_each_batch(tmp_path: Path) -> None:
    home = Layout(tmp_path).home
    before = noted(3, {"traffic": 3}, None, {"traffic": 0.0})
    with pytest.raises(SettingError, match="would be there twice"):
        before.take_in(TABLES, LATER, home)
    before.take_in(TABLES, LATER, home, anew=("traffic",))
    noted(3, {"traffic": 3}, None).take_in(TABLES, LATER, home)


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("far", [False, True])
def test_no_minute_is_there_twice(
    writer: Writer, tmp_path: Path, spark: SparkSession, far: bool
) -> None:
    data, to = tmp_path / "data", f"file://{tmp_path}/far" * far
    place = tmp_path / "far" if far else data / "tables"

    def once(rules: Rules) -> None:
        pipeline.run(spark, data, threading.Event(), once=True, rules=rules, to=to)

    def minutes() -> list[tuple[int, int]]:
        query = f"select count(*), count(distinct minute) from '{place}/traffic/**/*.parquet'"
        return duckdb.connect().execute(query).fetchall()

    writer.write(publish(0, "a", b'{"ts": "2026-01-01T12:00:00"}'), publish(70, "a", b"1"))
    once(NO_RULES)
    writer.write(publish(80, "a", b'{"ts": "2026-01-01T12:00:30"}'), publish(1_000, "a", b"1"))
    with pytest.raises(SettingError, match="traffic: by the rules so far .* up to 600 s"):
        once(LATER)
    if far:
        return
    backfill(spark, Layout(data), "traffic", LATER)
    once(LATER)
    [(rows, different)] = minutes()
    assert rows == different
