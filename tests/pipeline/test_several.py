"""Several pipelines on one journal: each with its tables, its offsets and its hold."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from hubbub.cli.pipeline import app
from hubbub.errors import DirectoryError, SettingError
from hubbub.journal import holds
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.metrics import Metrics
from hubbub.pipeline.watch import Watch, Watched
from tests.spark.fixtures import Writer, readings_rows


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
