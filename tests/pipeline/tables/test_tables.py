"""Rows of a journal, and what messages, readings and traffic must make of them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub import schema
from hubbub.pipeline.tables import TABLES, messages, readings, traffic
from hubbub.pipeline.tables.table import Spanning, Table, ddl
from hubbub.schema import Row
from tests.spark.fixtures import Writer, publish

GIVEN = (
    Row(0, 0, schema.CONNECT, b"mqtt", b"dev"),
    publish(0, "a", b"1", ref=1, number=7, content_type=b"text/plain"),
    publish(30, "a", b'{"t": 20.5, "unit": "C"}', retain=True, qos=1),
    publish(59.9, "b", b"\xff\x00", expires=1_767_268_999_000_000),
    publish(60, "a", b"{", content_type=b"application/json"),
    publish(61, "$queue/q", b"hi", kind=schema.SEND, ref=2, number=5, reply_to=b"$client/9"),
)

pytestmark = pytest.mark.spark


@pytest.fixture
def batch(spark: SparkSession, writer: Writer, tmp_path: Path) -> DataFrame:
    writer.write(*GIVEN)
    return spark.read.format("hubbub").load(str(tmp_path / "data"))


def test_messages(batch: DataFrame) -> None:
    found = messages.rows(batch).orderBy("seq")
    assert found.columns == [column.name for column in messages.COLUMNS]
    rows = found.collect()
    assert [(row.seq, row.kind, row.topic, bytes(row.payload)) for row in rows] == [
        (2, "publish", "a", b"1"),
        (3, "publish", "a", b'{"t": 20.5, "unit": "C"}'),
        (4, "publish", "b", b"\xff\x00"),
        (5, "publish", "a", b"{"),
        (6, "send", "$queue/q", b"hi"),
    ]
    assert [(row.ref, row.number) for row in rows] == [(0, 0)] * 4 + [(2, 5)]
    assert [row.expires is None for row in rows] == [True, True, False, True, True]
    assert {row.day for row in rows} == {date(2026, 1, 1)}


def test_readings(batch: DataFrame) -> None:
    rows = readings.rows(batch).collect()
    assert [(row.seq, row.topic, row.client, row.path, row.value, row.text) for row in rows] == [
        (2, "a", "dev", "", 1.0, None),
        (3, "a", "dev", "t", 20.5, None),
        (3, "a", "dev", "unit", None, "C"),
    ]


def test_traffic_closes_all_minutes_but_the_last(spark: SparkSession, batch: DataFrame) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    carried = spark.createDataFrame([("a", noon, 10, 100)], ddl(traffic.COLUMNS))
    until = F.lit("2026-01-01 12:01:01").cast("timestamp")
    found = traffic.rows(batch, carried, until)
    rows = found.withColumn("minute", F.date_format("minute", "HH:mm")).collect()
    assert sorted(tuple(row) for row in rows) == [
        ("$queue/q", "12:01", 1, 2, True),
        ("a", "12:00", 12, 125, False),
        ("a", "12:01", 1, 1, True),
        ("b", "12:00", 1, 2, False),
    ]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_have_the_declared_columns(
    spark: SparkSession, batch: DataFrame, table: Table | Spanning
) -> None:
    nothing = spark.createDataFrame([], ddl(table.columns))
    if isinstance(table, Table):
        assert table.rows(batch).dtypes == nothing.dtypes
    else:
        found = table.rows(batch, nothing, F.current_timestamp())
        assert found.dtypes == [*nothing.dtypes, ("open", "boolean")]
    assert table.grain and all(column.meaning for column in table.columns)
