"""The views, and results as text."""

from __future__ import annotations

import csv
import io
import json
import os
import threading
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline import sql
from hubbub.spark.start import heap
from tests.pipeline.test_run import answer, ask
from tests.spark.fixtures import Writer, publish

pytestmark = pytest.mark.spark


def printed(spark: SparkSession, query: str, form: str) -> str:
    out = io.StringIO()
    sql.show(spark.sql(query).toArrow(), form, out)
    return out.getvalue()


def test_tables_by_name_as_of_the_last_whole_batch(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    first = writer.write(publish(0, "a", b"1"), ask(1), ask(2))
    writer.write(answer(3, first), publish(60, "a", b"2"))
    pipeline.run(spark, tmp_path / "data", threading.Event(), once=True)
    assert sql.views(spark, tmp_path / "data").seq == 5
    counts = {
        name: spark.table(name).count()
        for name in ("messages", "readings", "traffic", "traffic_open", "calls", "calls_open")
    }
    assert counts == {
        "messages": 5, "readings": 2, "traffic": 3, "traffic_open": 1, "calls": 1, "calls_open": 1,
    }  # fmt: skip
    # What a batch has written before it is whole does not show yet.
    group = tmp_path / "data/tables/messages/day=2026-01-01/batch_id=0"
    (group / "part-0000000000-000.parquet").rename(group / "part-0000000001-000.parquet")
    sql.views(spark, tmp_path / "data")
    assert spark.table("messages").count() == 0
    assert spark.table("messages").columns[-2:] == ["day", "batch_id"]


def test_without_tables_it_says_what_to_run(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(DirectoryError, match="run `hubbub pipeline run` first"):
        sql.views(spark, tmp_path)


QUERY = """
select 1 as n, 'x,"y"' as text, cast(null as string) as none, X'ff00' as bytes,
       encode('hi', 'UTF-8') as said, timestamp '2026-01-01 12:00:00.5' as time,
       array(1, 2) as list, true as yes
"""


def test_csv(spark: SparkSession) -> None:
    header, row = csv.reader(io.StringIO(printed(spark, QUERY, "csv")))
    assert header == ["n", "text", "none", "bytes", "said", "time", "list", "yes"]
    assert row == [
        "1", 'x,"y"', "", "0xff00", "hi", "2026-01-01T12:00:00.500000Z", "[1, 2]", "true",
    ]  # fmt: skip


def test_nothing_in_csv_is_a_formula() -> None:
    """Whatever strangers wrote: as a topic, or as the bytes of a payload."""
    cells = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1", "\r=1", "=", "-21.5", "+1e3", "a=1", ""]
    table = pa.table({"text": cells, "payload": [one.encode() for one in cells]})
    out = io.StringIO()
    sql.show(table, "csv", out)
    rows = list(csv.reader(io.StringIO(out.getvalue(), newline="")))[1:]  # \r has not ended one
    wanted = [*(f"'{one}" for one in cells[:7]), *cells[7:]]
    assert rows == [[one, one] for one in wanted]
    out = io.StringIO()
    sql.show(table.slice(0, 1), "json", out)
    assert json.loads(out.getvalue()) == [{"text": "=1+1", "payload": "=1+1"}]
    numbers = io.StringIO()
    sql.show(pa.table({"n": [-1]}), "csv", numbers)
    assert numbers.getvalue() == "n\n-1\n"


def test_json(spark: SparkSession) -> None:
    assert json.loads(printed(spark, QUERY, "json")) == [
        {
            "n": 1,
            "text": 'x,"y"',
            "none": None,
            "bytes": "0xff00",
            "said": "hi",
            "time": "2026-01-01T12:00:00.500000Z",
            "list": [1, 2],
            "yes": True,
        }
    ]
    assert json.loads(printed(spark, "select 1 as n where false", "json")) == []


@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_long_result_is_written_without_being_made_of_objects_whole(form: str) -> None:
    result = pa.table({"n": range(1_000_000, 1_200_000)})
    with Path(os.devnull).open("w") as out:
        tracemalloc.start()
        sql.show(result, form, out)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 6e6  # they were 22 and 36 MB


@pytest.mark.spark
def test_a_result_that_is_too_large_is_said(spark: SparkSession, tmp_path: Path) -> None:
    """Java's memory was over: a stack, and a prompt that Spark no longer stood behind."""
    sql.bound_results(spark)
    conf = spark.sparkContext._jsc.sc().conf()
    bound = int(conf.get(sql.RESULT_BYTES))
    assert bound <= heap(spark) // 4
    try:
        conf.set(sql.RESULT_BYTES, "1m")
        with pytest.raises(SettingError, match="more than Spark's memory takes: ask for less"):
            sql.ask(spark, tmp_path, "SELECT uuid() FROM range(100000)")
        assert sql.ask(spark, tmp_path, "SELECT 1").num_rows == 1
    finally:
        conf.remove(sql.RESULT_BYTES)


def test_table(spark: SparkSession) -> None:
    query = "select * from values (5, 'a\\n\\u001b[31m'), (100, repeat('x', 100)) as t(n, text)"
    assert printed(spark, query, "table") == (
        "n    text\n---  " + "-" * 60 + "\n  5  a\\n\\x1b[31m\n100  " + "x" * 59 + "…\n(2 rows)\n"
    )
    assert printed(spark, "select 1 as n where false", "table") == "n\n-\n(0 rows)\n"


def test_a_time_that_python_cannot_have_is_shown_as_text() -> None:
    micros = [-62_135_596_800_000_000 - 14 * 3_600_000_000, None, 0]
    times = pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC"))
    out = io.StringIO()
    sql.show(pa.table({"t": times}), "csv", out)
    assert out.getvalue().split() == [
        "t", "0000-12-31T10:00:00.000000Z", '""', "1970-01-01T00:00:00.000000Z"
    ]  # fmt: skip
