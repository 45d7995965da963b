"""Rows of a journal, and what messages, readings and traffic must make of them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from hubbub import schema
from hubbub.pipeline.carry import Whole
from hubbub.pipeline.event_time import timed
from hubbub.pipeline.rules import NO_RULES, Decode, Rules
from hubbub.pipeline.tables import TABLES, audit, messages, quarantine, readings, traffic
from hubbub.pipeline.tables.table import Folded, Made, Summed, Table, arrow, ddl
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
    return timed(spark.read.format("hubbub").load(str(tmp_path / "data")), NO_RULES)


def test_messages(batch: DataFrame) -> None:
    found = messages.rows(batch, NO_RULES).orderBy("seq")
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
    rows = readings.rows(batch, NO_RULES).collect()
    assert [(row.seq, row.topic, row.client, row.path, row.value, row.text) for row in rows] == [
        (2, "a", "dev", "", 1.0, None),
        (3, "a", "dev", "t", 20.5, None),
        (3, "a", "dev", "unit", None, "C"),
    ]


def counted(
    rows: DataFrame, rules: Rules, until: datetime, *carried: tuple[object, ...]
) -> list[tuple[object, ...]]:
    """The rows of `traffic` that a batch leaves, with the minute as HH:MM."""
    schema = arrow(traffic.COLUMNS)
    before = [dict(zip(schema.names, one, strict=True)) for one in carried]
    parts = traffic.TABLE.sums(messages.rows(rows, rules), rules).toArrow().cast(schema)
    both = pa.concat_tables([parts, pa.Table.from_pylist(before, schema)])
    found = traffic.TABLE.summed(both, until, rules).to_pylist()
    return sorted(tuple({**row, "minute": f"{row['minute']:%H:%M}"}.values()) for row in found)


def test_traffic_closes_all_minutes_but_the_last(batch: DataFrame) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    astray = noon + timedelta(days=365)  # of a clock that was put right since
    carried = [("a", noon, 10, 100, 1), ("c", astray, 1, 1, 0)]
    assert counted(batch, NO_RULES, noon + timedelta(seconds=61), *carried) == [
        ("$queue/q", "12:01", 1, 2, 0, True),
        ("a", "12:00", 12, 125, 1, False),
        ("a", "12:01", 1, 1, 0, True),
        ("b", "12:00", 1, 2, 0, False),
        ("c", "12:00", 1, 1, 0, False),
    ]


def test_traffic_counts_in_the_minute_of_the_event(
    spark: SparkSession, writer: Writer, tmp_path: Path
) -> None:
    noon = 1_767_268_800  # seconds
    writer.write(
        publish(130, "t", b'{"ts": %d}' % (noon + 75)),  # its own minute is 12:01
        publish(130, "t", b'{"ts": "2026-01-01T12:02:01Z"}'),
        publish(130, "t", b'{"ts": %d}' % (noon - 500)),  # too late: counts at 12:02
        publish(130, "t", b'{"ts": %d}' % (noon + 500)),  # from the future: the same
        publish(130, "t", b"none"),
    )
    rules = Rules(event_time="ts", lateness=60)
    rows = timed(spark.read.format("hubbub").load(str(tmp_path / "data")), rules)
    until = datetime(2026, 1, 1, 12, 2, 10, tzinfo=UTC)
    found = counted(rows, rules, until)
    assert [(minute, count, late, still) for _, minute, count, _, late, still in found] == [
        ("12:01", 1, 0, True),
        ("12:02", 4, 2, True),
    ]
    found = counted(rows, rules, until + timedelta(seconds=50))
    assert [count for _, _, count, *_, still in found if not still] == [1]


def test_audit(spark: SparkSession, writer: Writer, tmp_path: Path) -> None:
    came = b'{"address":"192.0.2.7","user":"ann","listener":"[::]:1883","lasting":true}'
    no = b'{"verb":"publish","user":"ann","address":"192.0.2.7","rule":"acl:3 (deny safe)"}'
    out = b'{"verb":"connect","user":"eve","address":"192.0.2.8","reason":"wrong password"}'
    writer.write(
        Row(0, 0, schema.CONNECT, b"mqtt", b"old"),
        Row(0, 0, schema.CONNECT, b"mqtt", b"panel", number=9, properties=came),
        publish(0, "a", b"1"),
        Row(0, 0, schema.REFUSED, b"mqtt", b"panel", b"safe", properties=no),
        Row(0, 0, schema.REFUSED, b"smq", b"x", properties=out),
        Row(0, 0, schema.REFUSED, number=40, properties=b'{"verb":"connect"}'),
        Row(0, 0, schema.MANAGED, b"switch", b"me", b"$queue/q", properties=b'{"verb":"destroy"}'),
    )  # fmt: skip
    frame = timed(spark.read.format("hubbub").load(str(tmp_path / "data")), NO_RULES)
    found = audit.rows(frame, NO_RULES).orderBy("seq").drop("seq", "time")
    assert [column.name for column in audit.COLUMNS][2:] == found.columns
    assert [tuple(row) for row in found.collect()] == [
        ("connect", "mqtt", "", "old", "", "", "connect", "", "", 0),
        ("connect", "mqtt", "ann", "panel", "192.0.2.7", "[::]:1883", "connect", "", "", 0),
        ("refused", "mqtt", "ann", "panel", "192.0.2.7", "", "publish", "safe",
         "acl:3 (deny safe)", 0),
        ("refused", "smq", "eve", "x", "192.0.2.8", "", "connect", "", "wrong password", 0),
        ("refused", "", "", "", "", "", "connect", "", "", 40),
        ("managed", "switch", "", "me", "", "", "destroy", "$queue/q", "", 0),
    ]  # fmt: skip


def test_quarantine_has_what_was_declared_and_is_not_so(batch: DataFrame) -> None:
    rows = quarantine.rows(batch, NO_RULES).collect()
    assert [(row.seq, row.declared, bytes(row.payload)) for row in rows] == [
        (5, "application/json", b"{")
    ]
    assert "not application/json" in rows[0].reason
    rules = Rules(decode=(Decode("b/#", "application/cbor"),))
    rows = quarantine.rows(batch, rules).orderBy("seq").collect()
    assert [(row.seq, row.declared) for row in rows] == [
        (4, "application/cbor"),
        (5, "application/json"),
    ]


def test_long_names_are_not_repeated_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readings, "_BYTES", 1000)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    message = {
        "seq": 1, "time": noon, "event_time": noon, "topic": "t" * 300, "protocol": "mqtt",
        "client": "c" * 10, "payload": b"[0,1,2,3]", "content_type": "",
    }  # fmt: skip
    times = pa.timestamp("us", "UTC")
    kinds = [times if "time" in name else pa.scalar(message[name]).type for name in message]
    schema = pa.schema(zip(message, kinds, strict=True))
    batch = pa.RecordBatch.from_pylist([message], schema=schema)
    pieces = list(readings.made(NO_RULES)(batch))
    assert [piece.column("value").to_pylist() for piece in pieces] == [[0, 1, 2], [3]]


def test_a_rule_names_the_content_type(batch: DataFrame) -> None:
    rules = Rules(decode=(Decode("$queue/+", "text/plain"),))
    rows = readings.rows(batch, rules).where("seq = 6").collect()
    assert [(row.path, row.text) for row in rows] == [("", "hi")]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_rows_have_the_declared_columns(
    spark: SparkSession, batch: DataFrame, table: Made
) -> None:
    nothing = spark.createDataFrame([], ddl(table.columns))
    if isinstance(table, Table):
        assert table.rows(batch, NO_RULES).dtypes == nothing.dtypes
    elif isinstance(table, Summed):
        assert table.sums(messages.rows(batch, NO_RULES), NO_RULES).dtypes == nothing.dtypes
        found = table.summed(arrow(table.columns).empty_table(), datetime.now(UTC), NO_RULES)
        assert found.schema.names == [*nothing.columns, "open"]
    else:
        assert isinstance(table, Folded)
        schema = arrow((*table.columns, *table.memory))
        (rows,) = batch.drop("event_time").toArrow().combine_chunks().to_batches()
        events = pa.Table.from_batches([table.events(rows)])
        folding = table.fold(events, Whole(schema.empty_table()), 0)
        assert folding.closed.schema == arrow(table.columns)
        assert folding.opened.schema == schema
    assert table.grain and all(column.meaning for column in table.columns)
