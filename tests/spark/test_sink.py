"""`df.write` and `df.writeStream` into a running hub: rows become messages, each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from hubbub.errors import Refused, SettingError
from hubbub.journal.table import Table
from hubbub.spark import messages
from hubbub.spark.sink import Published, Target, Writer
from tests.process import RunningHub, StartHub

COLUMNS = "topic string, payload string"


TYPES: dict[str, DataType] = {
    "string": StringType(), "binary": BinaryType(), "boolean": BooleanType(), "int": IntegerType(),
}  # fmt: skip


def schema(columns: str = COLUMNS) -> StructType:
    """Like DDL, for which Spark would have to run."""
    pairs = [column.split() for column in columns.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def published(hub: RunningHub) -> list[dict[str, Any]]:
    """The messages in its journal, but for what the hub notes for itself."""
    table = Table(str(hub.data))
    rows = [row for batch in table.read(0, table.committed()) for row in batch.to_pylist()]
    return [
        row
        for row in rows
        if row["kind"] in ("publish", "send") and not row["topic"].startswith("$hub/")
    ]


# Without Spark


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({"tpic": "a"}, COLUMNS, "no option 'tpic', did you mean topic?"),
        ({"url": "mqtt://x"}, COLUMNS, "url: expected http"),
        ({"url": "http://a,http://b"}, COLUMNS, "of one hub"),
        ({"query": "a/b"}, COLUMNS, "query: expected a name without /"),
        ({"query": "a\nb"}, COLUMNS, "query: expected a name"),
        ({"query": "\N{SNOWMAN}"}, COLUMNS, "query: expected a name"),
        ({"qos": "high"}, COLUMNS, "qos: expected a number"),
        ({}, "payload string", "Give a column topic, or the option topic"),
        ({}, "topic string, paylod string", "paylod is no part of a message, did you mean payload"),
        ({}, "topic string, payload int", "payload is int, expected string or binary"),
        ({}, "topic string, qos string", "qos is string"),
    ],
)
def test_what_cannot_be_published_is_said_before_anything_is(
    options: dict[str, str], columns: str, words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        Target(options, schema(columns))


def test_a_hub_has_nothing_to_overwrite() -> None:
    with pytest.raises(SettingError, match="append"):
        Writer(Target({}, schema()), overwrite=True)


def test_rows_are_messages_and_null_is_left_out() -> None:
    columns = "topic string, payload binary, retain boolean, properties string"
    target = Target({"qos": "1", "retain": "true"}, schema(columns))
    rows = [
        {"topic": "a", "payload": b"\xff", "retain": None, "properties": '{"user": []}'},
        {"topic": "b", "payload": None, "retain": False, "properties": None},
    ]
    (lines,) = target._parts(iter([pa.RecordBatch.from_pylist(rows)]))
    assert lines == [
        {"qos": 1, "topic": "a", "base64": b"\xff", "properties": {"user": []}},
        {"qos": 1, "topic": "b", "retain": False},
    ]


def test_properties_that_are_no_json_are_said() -> None:
    target = Target({}, schema("topic string, properties string"))
    rows = pa.RecordBatch.from_pylist([{"topic": "a", "properties": "{user"}])
    with pytest.raises(SettingError, match="column properties: expected JSON, got '{user'"):
        list(target._parts(iter([rows])))


def test_a_request_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def lines(rows: int, size: int) -> Iterator[int]:
        batch = pa.RecordBatch.from_pylist([{"topic": "a", "payload": "x" * size}] * rows)
        return map(len, Target({}, schema())._parts(iter([batch, batch])))

    monkeypatch.setattr("hubbub.spark.sink.ROWS", 10)
    monkeypatch.setattr("hubbub.spark.sink.BYTES", 1000)
    assert list(lines(8, 1)) == [10, 6]
    assert list(lines(3, 400)) == [3, 3]
    assert list(lines(1, 5000)) == [1, 1]
    columns = "topic string, correlation binary, properties string"
    long = {"topic": "a", "correlation": b"x" * 300, "properties": f'{{"x": "{"y" * 300}"}}'}
    batch = pa.RecordBatch.from_pylist([long] * 5)
    assert [*map(len, Target({}, schema(columns))._parts(iter([batch])))] == [2, 2, 1]


@pytest.mark.interop
def test_a_hub_that_takes_less_at_once_is_sent_less(start_hub: StartHub) -> None:
    """Twice its largest message is the most it takes: with a small one no batch came through."""
    hub = start_hub("--set", "limits.message_bytes=10_000")
    target = Target({"url": hub.url("http")}, schema())
    batch = pa.RecordBatch.from_pylist([{"topic": "a", "payload": f"{n:099}"} for n in range(1500)])
    done, first = Published("q", 0, 0), 0
    for lines in target._parts(batch.slice(at, 500) for at in (0, 500, 1000)):
        target._post(target.hub(), "q/0/0", first, lines, done)
        first += len(lines)
    assert done == Published("q", 1500, 0)
    assert [int(row["payload"]) for row in published(hub)] == [*range(1500)]
    target = Target({"url": hub.url("http"), "reconnectSeconds": "1"}, schema())
    for size in (30_000, 30_000_000):
        with pytest.raises(Refused, match="says 413: a body of more than 20000 bytes"):
            target._post(target.hub(), "r/0/0", 0, [{"topic": "a", "payload": "x" * size}], done)


class Task:
    """What Spark says of the task in which a sink writes."""

    batch = "0"

    @classmethod
    def get(cls) -> type[Task]:
        return cls

    @classmethod
    def getLocalProperty(cls, name: str) -> str:
        return cls.batch

    @classmethod
    def partitionId(cls) -> int:
        return 0


@pytest.mark.interop
def test_what_the_hub_would_skip_of_another_stream_of_the_same_name_is_said(
    hub: RunningHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that is new, or put back, counts from 0 again: all that came was lost, silently,
    until it passed the batch that the hub knew.
    """
    monkeypatch.setattr("hubbub.spark.sink.TaskContext", Task)
    target = Target({"url": hub.url("http"), "query": "copy"}, schema())

    def publish(batch: int, rows: int, text: str = "a") -> Published:
        monkeypatch.setattr(Task, "batch", str(batch))
        lines = [{"topic": "out", "payload": f"{text}{n}"} for n in range(rows)]
        return target.publish("copy", iter([pa.RecordBatch.from_pylist(lines)] if rows else []))

    assert publish(0, 30) == Published("copy", 30, 0)
    assert publish(0, 30) == Published("copy", 0, 30)  # written again, as after a crash
    with pytest.raises(Refused, match="hub took 30 messages before, and now there are 20"):
        publish(0, 20, "b")
    assert publish(7, 10) == Published("copy", 10, 0)
    with pytest.raises(Refused, match="batch 3 of query copy comes after batch 7, .* checkpoint"):
        publish(3, 25, "c")
    assert len(published(hub)) == 40


# With Spark


@pytest.mark.spark
@pytest.mark.interop
def test_rows_are_published_and_a_repeated_write_changes_nothing(
    spark: SparkSession, hub: RunningHub
) -> None:
    rows = spark.range(30).selectExpr(
        "if(id < 20, concat('a/', id % 3), '$queue/jobs') AS topic", "cast(id AS string) AS payload"
    )
    write = rows.repartition(2).write.format("hubbub").mode("append")
    write = write.options(url=hub.url("http"), qos="1", query="nightly")
    write.save()
    write.save()
    found = published(hub)
    assert sorted(int(row["payload"]) for row in found) == list(range(30))
    assert {row["qos"] for row in found} == {1}
    assert {row["topic"] for row in found if row["kind"] == "send"} == {"$queue/jobs"}
    again = messages(spark, "a/#", hub.url("http")).where("topic = 'a/1'").select("text")
    assert sorted(int(row.text) for row in again.collect()) == [n for n in range(20) if n % 3 == 1]
    with pytest.raises(PySparkException, match="SettingError: there is no option 'quos'"):
        write.option("quos", "1").save()


@pytest.mark.spark
@pytest.mark.interop
def test_a_batch_of_a_stream_that_runs_again_changes_nothing(
    spark: SparkSession, hub: RunningHub, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    spark.range(40).selectExpr(
        "concat('in/', id % 4) AS topic", "cast(id AS string) AS payload"
    ).write.format("hubbub").mode("append").option("url", hub.url("http")).save()

    def run() -> dict[str, Any]:
        rows = messages(spark, "in/#", hub.url("http"), stream=True)
        out = rows.selectExpr("replace(topic, 'in', 'out') AS topic", "payload")
        writer = out.writeStream.format("hubbub").option("url", hub.url("http"))
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        query = writer.start()
        query.awaitTermination(60)
        progress = query.lastProgress
        return dict(json.loads(progress.json)) if progress is not None else {}

    ended = run()["sources"][0]
    assert ended["endOffset"] == ended["latestOffset"]
    for file in (checkpoint / "commits").glob("*0*"):
        file.unlink()  # as if the driver had ended between the sink's commit and its own
    run()
    out = [int(row["payload"]) for row in published(hub) if row["topic"].startswith("out/")]
    assert sorted(out) == list(range(40))
