"""`format("hubbub")` in batch and as a stream, over journals that the hub's writer wrote."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from hubbub import config, schema
from hubbub.errors import OffsetError, SettingError
from hubbub.journal.table import Table
from hubbub.spark import source
from hubbub.spark.source import Journal, Options, Range, StreamReader
from tests.spark.fixtures import Writer, publish, readings_rows


def seqs(frame: DataFrame) -> list[int]:
    return sorted(row.seq for row in frame.select("seq").collect())


def data(writer: Writer, tmp_path: Path) -> str:
    writer.write(*readings_rows(100))
    return str(tmp_path / "data")


# Without Spark: options, offsets, ranges


def test_default_path_is_that_of_every_command() -> None:
    assert source.DATA == config.DEFAULT_DATA


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({}, source.EARLIEST),
        ({"startingOffsets": "latest"}, source.LATEST),
        ({"startingoffsets": "7"}, 7),
        ({"startingOffsets": '{"0": 7}'}, 7),
        ({"startingOffsets": '{"0": -1}'}, source.LATEST),
    ],
)
def test_starting_offsets(options: Mapping[str, str], start: int) -> None:
    assert Options(options).start == start


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "soon"},
        {"startingOffsets": '{"1": 7}'},
        {"startingOffsets": "[]"},
        {"endingOffsets": "earliest"},
        {"maxOffsetsPerTrigger": "-1"},
        {"failOnDataLoss": "perhaps"},
        {"kinds": "publish,shout"},
        {"topics": "a/#/b"},
        {"topics": "a+/b"},
    ],
)
def test_a_bad_option_names_itself(options: Mapping[str, str]) -> None:
    with pytest.raises(SettingError, match=next(iter(options))):
        Options(options)


def test_a_stream_takes_what_is_committed_and_no_more_than_the_limit(
    writer: Writer, tmp_path: Path
) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path), "maxOffsetsPerTrigger": "30"}))
    start = reader.initialOffset()
    assert start == {"v": 1, "0": 0}
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert reader.latestOffset(start, limit) == {"v": 1, "0": 30}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"v": 1, "0": 100}
    assert reader.latestOffset({"v": 1, "0": 100}, limit) == {"v": 1, "0": 100}
    assert reader.partitions({"v": 1, "0": 100}, {"v": 1, "0": 100}) == []


def test_available_now_ends_where_the_journal_ended_then(writer: Writer, tmp_path: Path) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path)}))
    reader.prepareForTriggerAvailableNow()
    writer.write(publish(2, "late"))
    assert reader.latestOffset({"v": 1, "0": 0}, ReadAllAvailable()) == {"v": 1, "0": 100}
    assert reader.reportLatestOffset() == {"v": 1, "0": 101}


def test_a_directory_without_journal_is_empty(tmp_path: Path) -> None:
    reader = StreamReader(Options({"path": str(tmp_path / "none")}))
    assert reader.initialOffset() == {"v": 1, "0": 0}
    assert reader.latestOffset({"v": 1, "0": 0}, ReadAllAvailable()) == {"v": 1, "0": 0}


def test_an_offset_of_another_version_or_journal_is_an_error(
    writer: Writer, tmp_path: Path
) -> None:
    reader = StreamReader(Options({"path": data(writer, tmp_path)}))
    with pytest.raises(OffsetError, match="version 1"):
        reader.latestOffset({"v": 2, "0": 0}, ReadAllAvailable())
    with pytest.raises(OffsetError, match="another hub"):
        reader.latestOffset({"v": 1, "0": 5000}, ReadAllAvailable())


def test_rows_that_retention_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(tmp_path / "data")
    path = data(writer, tmp_path)
    writer.close()
    monkeypatch.setattr(Table, "first", lambda table: 51)
    with pytest.raises(OffsetError, match=r"rows 11 to 50 .* failOnDataLoss=false"):
        Journal(Options({"path": path})).begin(10, 100)
    assert Journal(Options({"path": path, "failOnDataLoss": "false"})).begin(10, 100) == 50
    assert Journal(Options({"path": path})).begin(50, 100) == 50


def test_a_range_is_read_the_same_each_time(writer: Writer, tmp_path: Path) -> None:
    journal = Journal(Options({"path": data(writer, tmp_path), "minPartitions": "3"}))
    parts = journal.ranges(0, 100)
    once = [batch.to_pylist() for part in parts for batch in journal.read(part)]  # type: ignore[arg-type]
    twice = [batch.to_pylist() for part in parts for batch in journal.read(part)]  # type: ignore[arg-type]
    assert once == twice
    assert [row["seq"] for rows in once for row in rows] == list(range(1, 101))


def test_topics_and_kinds_choose_rows(writer: Writer, tmp_path: Path) -> None:
    writer.write(
        publish(0, "a/b"),
        publish(0, "a"),
        publish(0, "$SYS/a"),
        publish(0, "b/b", kind=schema.SEND),
        publish(0, "100%41/x"),
    )

    def chosen(**options: str) -> list[int]:
        journal = Journal(Options({"path": str(tmp_path / "data"), **options}))
        batches = journal.read(Range(0, 5))
        return [seq for batch in batches for seq in batch.column("seq").to_pylist()]

    assert chosen(topics="a/#") == [1, 2]
    assert chosen(topics="a/+") == [1]
    assert chosen(topics="#") == [1, 2, 4, 5]
    assert chosen(topics="+/b") == [1, 4]
    assert chosen(topics="a, $SYS/#") == [2, 3]
    assert chosen(kinds="send") == [4]
    assert chosen(kinds="publish", topics="b/b") == []


# With Spark


@pytest.mark.spark
def test_batch_has_every_row_and_column(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    properties = b'{"user":[["k","v"]]}'
    writer.write(publish(1.5, "t/ü", b"\x00\xff", qos=2, retain=True, properties=properties))
    frame = spark.read.format("hubbub").load(str(tmp_path / "data"))
    assert frame.columns == [column.name for column in schema.COLUMNS]
    row = frame.first()
    assert row is not None
    assert (row.seq, row.kind, row.topic, bytes(row.payload)) == (1, "publish", "t/ü", b"\x00\xff")
    assert (row.qos, row.retain, row.properties) == (2, True, properties.decode())
    assert frame.selectExpr("cast(time as string) as t").first() == ("2026-01-01 12:00:01.5",)


@pytest.mark.spark
def test_batch_between_offsets(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    reader = spark.read.format("hubbub").option("minPartitions", "4")
    path = data(writer, tmp_path)
    assert seqs(reader.load(path)) == list(range(1, 101))
    between = reader.option("startingOffsets", "10").option("endingOffsets", '{"0": 20}')
    assert seqs(between.load(path)) == list(range(10, 20))


@pytest.mark.spark
def test_stream_goes_on_where_its_checkpoint_stands(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    path = data(writer, tmp_path)
    seen: list[list[int]] = []

    def run() -> None:
        rows = spark.readStream.format("hubbub").option("maxOffsetsPerTrigger", "60").load(path)
        rows.writeStream.foreachBatch(lambda frame, batch: seen.append(seqs(frame))).option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination(60)

    run()
    writer.write(publish(2, "more"))
    run()
    assert seen == [list(range(1, 61)), list(range(61, 101)), [101]]


@pytest.mark.spark
def test_an_error_reaches_the_user_with_our_words(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="topics: # must be the last level"):
        spark.read.format("hubbub").option("topics", "#/x").load("nowhere").count()


STRANGER = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
print("rows:", spark.read.format("hubbub").load(sys.argv[1]).count())
print("ours:", [name for name in sys.modules if name.startswith("hubbub")])
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_that_imports_nothing_of_ours_finds_the_source(
    writer: Writer, tmp_path: Path
) -> None:
    path = data(writer, tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", STRANGER, path], capture_output=True, text=True, timeout=100
    )
    assert "rows: 100\nours: []" in ran.stdout, ran.stderr


def test_a_journal_without_rows_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Spark reads a partition of its own making where there is none of ours."""
    frame = spark.read.format("hubbub").option("path", str(tmp_path)).load()
    assert frame.count() == 0
