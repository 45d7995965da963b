"""Tables that a user declares: what is read, what fits, and that no cut of the batches shows."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import cbor2
import duckdb
import msgpack
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import cells
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.cells import Fitter, Unfit
from hubbub.pipeline.decode import Undecodable
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.rules import NO_RULES, Decode, Rules, read_rules
from hubbub.pipeline.tables import ALL, quarantine, typed
from hubbub.pipeline.tables.table import CARRIED, Moment, Spanning, ddl
from hubbub.pipeline.typed import SHIPPED, Typed, cells_of
from tests.spark.fixtures import NOON, SECOND, Writer, publish

START = datetime.fromtimestamp(NOON / SECOND, UTC)


def read(tmp_path: Path, text: str) -> Rules:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    return read_rules(file)


def fits(columns: dict[str, str], payload: bytes, topic: str = "plant/7/climate") -> list[Any]:
    return Fitter(Typed("t", "plant/#", dict(columns)), NO_RULES).row(topic, payload, "")


def taken(kind: str, payload: bytes, content_type: str) -> Any:
    """The value of a table's only column."""
    [value] = Fitter(Typed("t", "#", {"x": f"$ {kind}"}), NO_RULES).row("a", payload, content_type)
    return value


# The declaration


def test_a_json_schema_is_columns(tmp_path: Path) -> None:
    schema = {
        "required": ["temp", "meta"],
        "properties": {
            "temp": {"type": "number", "unit": "°C", "description": "of the oven"},
            "count": {"type": ["integer", "null"]},
            "meta": {
                "type": "object", "required": ["at", "by"],
                "properties": {
                    "at": {"type": "string", "format": "date-time"}, "by": {"type": "string"}
                },
            },
            "list": {"type": "array"}, "any": {}, "on day": {"type": "string", "format": "date"},
        },
    }  # fmt: skip
    (tmp_path / "climate.json").write_text(json.dumps(schema))
    [one] = read(
        tmp_path,
        "[[table]]\nname = 'c'\ntopics = 'a/#'\njson_schema = 'climate.json'\n"
        "columns.count = '$.n INT'\n",
    ).table
    assert [tuple(cell) for cell in cells_of(one)] == [
        ("temp", "double", False, -1, ("temp",)),
        ("count", "int", True, -1, ("n",)),
        ("meta_at", "timestamp", False, -1, ("meta", "at")),
        ("meta_by", "string", False, -1, ("meta", "by")),
        ("on_day", "date", True, -1, ("on day",)),
    ]
    [column] = [one for one in typed.table_of(one).columns if one.name == "temp"]
    assert (column.meaning, column.unit) == ("of the oven", "°C")


def test_a_place_in_a_text_may_have_blanks(tmp_path: Path) -> None:
    lines = """columns.a = '$["a b"].c DOUBLE'\ncolumns.b = '$.x["a \\" ]b"][0] INT NOT NULL'"""
    [one] = read(tmp_path, f"[[table]]\nname = 'mine'\ntopics = 'a'\n{lines}\n").table
    assert [(cell.path, cell.nullable) for cell in cells_of(one)] == [
        (("a b", "c"), True), (("x", 'a " ]b', 0), False)
    ]  # fmt: skip


def schema_of(tmp_path: Path, names: Sequence[str], lines: str = "") -> list[tuple[str, Any]]:
    """The columns of a table whose JSON Schema has numbers of these names."""
    properties = {name: {"type": "number"} for name in names}
    (tmp_path / "s.json").write_text(json.dumps({"properties": properties}))
    lines = f"[[table]]\nname = 'mine'\ntopics = 'a'\njson_schema = 's.json'\n{lines}\n"
    [one] = read(tmp_path, lines).table
    return [(cell.name, cell.path[0]) for cell in cells_of(one)]


def test_two_properties_that_would_be_one_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as raised:
        schema_of(tmp_path, ("temp", "a b", "a-b"))
    assert '$["a b"] and $["a-b"] would both be the column a_b' in str(raised.value)
    assert """as columns.a_b = '$["a b"] DOUBLE'""" in str(raised.value)
    both = """columns.a_b = '$["a b"] DOUBLE'\ncolumns.other = '$["a-b"] DOUBLE'"""
    found = schema_of(tmp_path, ("temp", "a b", "a-b"), both)
    assert found == [("temp", "temp"), ("a_b", "a b"), ("other", "a-b")]


def test_properties_whose_names_no_column_may_have(tmp_path: Path) -> None:
    names = ("time", "Größe", "2nd", "kept_x", "", "x" * 80)
    assert schema_of(tmp_path, names) == [
        ("own_time", "time"), ("gr_e", "Größe"), ("c_2nd", "2nd"), ("own_kept_x", "kept_x"),
        ("value", ""), ("x" * 50, "x" * 80),
    ]  # fmt: skip


def test_a_json_schema_that_is_too_deep_is_said(tmp_path: Path) -> None:
    deep = '{"properties": {"a": {"type": "object", ' * 900 + '"properties": {}' + "}}}" * 900
    (tmp_path / "s.json").write_text("{" + deep[1:])
    with pytest.raises(SettingError, match="cannot read the JSON Schema"):
        read(tmp_path, "[[table]]\nname='mine'\ntopics='a'\njson_schema='s.json'\n")


@pytest.mark.parametrize("required", ["null", "true", '{"a": 1}'])
def test_a_json_schema_that_says_required_otherwise(tmp_path: Path, required: str) -> None:
    kinds = '{"a": {"type": "number"}, "b": {"type": [{"type": "string"}]}}'
    (tmp_path / "s.json").write_text(f'{{"required": {required}, "properties": {kinds}}}')
    lines = "[[table]]\nname = 'mine'\ntopics = 'a'\njson_schema = 's.json'\n"
    [one] = read(tmp_path, lines).table
    assert [(cell.name, cell.nullable) for cell in cells_of(one)] == [("a", True)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("columns.a = '$.a WOLF'", "is no type"),
        ("columns.a = 'a DOUBLE'", "expected as"),
        ("columns.a = '$.a..b DOUBLE'", "is no place"),
        ("columns.seq = '$.a DOUBLE'", "cannot be a column"),
        ("columns.A = '$.a DOUBLE'", "cannot be a column"),
        ("", "1 to 500 columns"),
        ("columns.a = '$.a DOUBLE'\nkey = ['b']", "no column 'b'"),
        ("columns.a = 'avg $.a DOUBLE'", "without one none does"),
        ("columns.a = '$.a DOUBLE'\nwindow = '1 minute'", "says how it is made"),
        ("columns.a = 'avg $.a STRING'\nwindow = '1 minute'", "avg is for numbers"),
        ("columns.a = 'best $.a DOUBLE'\nwindow = '1 minute'", "none of avg"),
        ("columns.a = 'avg $.a DOUBLE'\nwindow = 'soon'", "window is as"),
        ("columns.a = '$.a DOUBLE'\ndedupe_seconds = 0", "above 0"),
        ("columns.a = '$.a DOUBLE'\ndedupe_seconds = inf", "above 0 and at most"),
        ("columns.a = '$.a DOUBLE'\ndedupe_seconds = nan", "above 0 and at most"),
        ("columns.a = '$.a DOUBLE'\ndedupe_seconds = 1e30", "above 0 and at most"),
        ("columns.a = 'max $.a DOUBLE'\nwindow = '99999999999999999999999 days'", "ten years"),
        ("columns.a = 'max $.a DOUBLE'\nwindow = '99999 days'", "ten years"),
        ("columns.a = '$.a DOUBLE'\nlate = 'never'", "late"),
        ("columns.a = '$.a DOUBLE'\njson_schema = 'none.json'", "JSON Schema"),
        ("columns.a = '$.a DOUBLE'\nname2 = ''", "there is no key"),
        ("columns.a = { from = '$.a', type = 'DOUBLE', unt = 'K' }", "there is no key"),
    ],
)
def test_a_declaration_that_cannot_be(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        read(tmp_path, f"[[table]]\nname = 'mine'\ntopics = 'a/+'\n{lines}\n")


def test_names_of_tables(tmp_path: Path) -> None:
    for name in ("messages", "Mine", "x_open", "1"):
        with pytest.raises(SettingError, match="table"):
            read(tmp_path, f"[[table]]\nname='{name}'\ntopics='a'\ncolumns.a = '$ DOUBLE'\n")
    assert {table.name for table in ALL} == SHIPPED


def test_one_that_changed_under_its_rows_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.root.mkdir()
    before = Rules(table=(Typed("t", "a", {"x": "$.x DOUBLE"}),))
    typed.save(layout, before)
    typed.save(layout, Rules(table=(Typed("t", "a/#", {"x": "$.y DOUBLE NOT NULL"}),)))
    after = Rules(table=(Typed("t", "a", {"x": "$.x BIGINT"}),))
    with pytest.raises(SettingError, match="x was double, is bigint.*backfill t"):
        typed.save(layout, after)
    layout.declare(typed.declared(layout, after, anew="t").encode())
    typed.save(layout, NO_RULES)
    assert typed.saved(layout) == after.table
    assert typed.every(layout)[-1].name == "t"


# Cells


@pytest.mark.parametrize(
    ("spec", "payload", "cell"),
    [
        ("$.a DOUBLE", b'{"a": 1}', 1.0),
        ("$.a DOUBLE", b'{"a": null}', None),
        ("$.a DOUBLE", b"{}", None),
        ("$.a DOUBLE", b"[1]", None),
        ("$ DOUBLE", b"21.5", 21.5),
        ("$.a.b[1] BIGINT", b'{"a": {"b": [0, 9223372036854775807]}}', 2**63 - 1),
        ("$.a INT", b'{"a": 3.0}', 3),
        ('$["a.b"] BOOLEAN', b'{"a.b": false}', False),
        ("$.a STRING", b'{"a": ""}', ""),
        ("$.a TIMESTAMP", b'{"a": 1767268800000}', START),
        ("$.a TIMESTAMP", b'{"a": "2026-01-01T13:00:00+01:00"}', START),
        ("$.a DATE", b'{"a": "2026-01-01"}', date(2026, 1, 1)),
        ("topic[1] STRING", b"\xff no JSON", "7"),
        ("topic[9] STRING", b"", None),
    ],
)
def test_what_fits(spec: str, payload: bytes, cell: object) -> None:
    [found] = fits({"a": spec}, payload)
    assert found == cell and type(found) is type(cell)


@pytest.mark.parametrize(
    ("spec", "payload", "reason"),
    [
        ("$.a DOUBLE", b'{"a": "off"}', r"t.a: expected DOUBLE, got 'off'"),
        ("$.a DOUBLE", b'{"a": true}', "got True"),
        ("$.a INT", b'{"a": 2147483648}', "expected INT"),
        ("$.a BIGINT", b'{"a": 1.5}', "expected BIGINT"),
        ("$.a BOOLEAN", b'{"a": 1}', "expected BOOLEAN"),
        ("$.a STRING", b'{"a": 1}', "expected STRING"),
        ("$.a TIMESTAMP", b'{"a": "noon"}', "expected TIMESTAMP"),
        ("$.a DATE", b'{"a": "31.1.2026"}', "expected DATE"),
        ("$.a DOUBLE NOT NULL", b"{}", "t.a is missing, and NOT NULL"),
        ("$.a DOUBLE NOT NULL", b'{"b": ' + b"9" * 500 + b"}", "missing"),
    ],
)
def test_what_does_not(spec: str, payload: bytes, reason: str) -> None:
    with pytest.raises(Unfit, match=reason):
        fits({"a": spec}, payload)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=6,
).map(lambda value: json.dumps(value).encode()), st.sampled_from(
    ["DOUBLE", "BIGINT", "INT", "BOOLEAN", "STRING", "TIMESTAMP", "DATE"]
))  # fmt: skip
def test_no_payload_raises_anything_else(payload: bytes, kind: str) -> None:
    try:
        fits({"a": f"$.a {kind}", "b": f"$.b[0] {kind}", "c": f"$ {kind}"}, payload)
    except (Unfit, Undecodable):
        pass


def test_late_is_by_the_two_times_of_a_row() -> None:
    rules = Rules(event_time="at", lateness=60)
    for policy, wrong in (("keep", False), ("quarantine", True)):
        fitter = Fitter(Typed("t", "#", {"a": "$ DOUBLE"}, late=policy), rules)  # type: ignore[arg-type]
        assert fitter.late(START, START - timedelta(seconds=60)) is False
        if wrong:
            with pytest.raises(Unfit, match="t: late by more than a minute"):
                fitter.late(START, START - timedelta(seconds=61))
            with pytest.raises(Unfit, match="t: more than a second in the future"):
                fitter.late(START, START + timedelta(seconds=5))
        else:
            assert fitter.late(START, START - timedelta(seconds=61))


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        (59_998.5, "late by more than an hour"),
        (86_401, "late by more than a day"),
        (1e8, "late by more than a day"),
        (3_600, "late by more than a minute"),
        (60, "late by more than a second"),
        (1, "late by a second or less"),
        (0.000001, "late by a second or less"),
        (-0.5, "a second or less in the future"),
        (-61, "more than a minute in the future"),
    ],
)
def test_how_late_it_was_is_a_reason_that_many_have(seconds: float, reason: str) -> None:
    declared = Typed("t", "#", {"a": "$ DOUBLE"}, late="quarantine")
    fitter = Fitter(declared, Rules(event_time="at", lateness=0))
    times = (START, START - timedelta(seconds=seconds))
    assert fitter.reason(times, "a", b"1", "") == f"t: {reason}"


# Tables

RULES = """
event_time = "at"
lateness = 10

[[table]]
name = "climate"
topics = "plant/+/climate"
late = "quarantine"
columns.device = "topic[1] STRING NOT NULL"
columns.temperature = { from = "$.temp", type = "DOUBLE", nullable = false }

[[table]]
name = "firsts"
topics = "plant/+/climate"
columns.device = "topic[1] STRING"
columns.id = "$.id BIGINT"
dedupe_by = ["device", "id"]
dedupe_seconds = 30

[[table]]
name = "windows"
topics = "plant/+/climate"
window = "10 seconds"
key = ["device"]
columns.device = "topic[1] STRING"
columns.id = "count $.id BIGINT"
columns.mean = "avg $.temp DOUBLE"
columns.total = "sum $.temp DOUBLE"
columns.highest = "max $.temp DOUBLE"

[[table]]
name = "both"
topics = "plant/+/climate"
window = "1 minute"
columns.id = "count $.id BIGINT"
dedupe_by = ["id"]
dedupe_seconds = 20
columns.least = "min $.temp DOUBLE"
"""


def climate(second: float) -> Any:
    """A message each 0.7 s: ids come again after 14 and 35 s, some are late, some broken."""
    n = round(second / 0.7)
    at = (START + timedelta(seconds=second - (25 if n % 9 == 0 else 3))).isoformat()
    temp = "off" if n % 11 == 0 else 0.1 * n
    said = {"id": n % 20 if n % 40 < 20 else n % 50, "temp": temp, "at": at}
    payload = b"{" if n % 13 == 0 else json.dumps(said).encode()
    return publish(second, f"plant/{n % 3}/climate", payload)


def contents(data: Path) -> dict[str, list[tuple[object, ...]]]:
    layout, found = Layout(data), {}
    for table in (*map(typed.table_of, typed.saved(layout)), quarantine.TABLE):
        columns = ", ".join(f'"{one.name}"' for one in table.columns if one.name != "day")
        places = {table.name: f"{layout.root}/{table.name}/**/*.parquet"}
        if isinstance(table, CARRIED):
            opened = layout.carried(table.name, layout.stands().batch)
            if opened:
                places[f"{table.name}_open"] = str(opened[0].parent / "*.parquet")
        for name, place in places.items():
            query = f"select {columns} from '{place}' where {table.columns[0].name} is not null"
            found[name] = sorted(duckdb.connect().execute(query).fetchall(), key=repr)
    return found


@pytest.mark.spark
def test_a_name_that_ends_with_a_line_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    """Java's `$` matches before a last newline, which names of SMQ may have."""
    lines = 'name = "climate"\ntopics = "plant/+/climate"\ncolumns.temp = "$.temp DOUBLE"'
    rules = read(tmp_path, f"[[table]]\n{lines}")
    (table,) = typed.tables_of(rules)
    names = ["plant/1/climate", "plant/1/climate\n", "plant/\n/climate"]
    rows = spark.createDataFrame([("publish", name, "") for name in names],
                                 "kind string, topic string, content_type string")  # fmt: skip
    for condition in (table.event(rules), quarantine.event(rules)):
        found = rows.where(condition).collect()
        assert [row.topic for row in found] == [names[0], names[2]]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_no_cut_of_the_batches_shows_nor_does_a_backfill(
    writer: Writer, tmp_path: Path, spark: SparkSession
) -> None:
    data, whole = tmp_path / "data", tmp_path / "whole"
    rules = read(tmp_path, RULES)
    for cut in ((0, 75), (75, 171)):
        writer.write(*(climate(n * 0.7) for n in range(*cut)))
        pipeline.run(spark, data, threading.Event(), once=True, rules=rules, only=("messages",))
    shutil.copytree(data, whole, ignore=shutil.ignore_patterns("tables", "lock"))
    pipeline.run(spark, whole, threading.Event(), once=True, rules=rules, only=("messages",))
    cuts, one = contents(data), contents(whole)
    assert cuts.keys() == one.keys()
    for name, rows in one.items():
        assert cuts[name] == rows, name
    by_hand(one)
    before = contents(data)
    for name in ("firsts", "windows"):
        backfill(spark, Layout(data), name, rules)
    after = contents(data)
    for name, rows in before.items():
        assert after[name] == rows, f"{name}, made again"


def by_hand(found: dict[str, list[tuple[object, ...]]]) -> None:
    """The same, computed by a few lines of plain Python."""
    rows, firsts = [], []
    last: dict[tuple[str, int], float] = {}
    sums: dict[tuple[int, str], list[int]] = {}
    for n in range(171):
        second = n * 0.7
        if n % 13 == 0:
            continue
        device, id = str(n % 3), n % 20 if n % 40 < 20 else n % 50
        if second - last.get((device, id), -1000) > 30:
            firsts.append((n + 1, device, id))
        last[device, id] = second
        if n % 11 == 0:
            continue
        rows.append((n, second))
        own = second - (0 if n % 9 == 0 else 3)
        key = (int(own // 10) * 10, device)
        sums.setdefault(key, []).append(n)
    assert {row[0] for row in found["climate"]} == {n + 1 for n, _ in rows if n % 9}
    got = {(row[0], row[4], row[5]) for row in found["firsts"]}
    assert got == set(firsts)
    windows = found["windows"] + found["windows_open"]
    counted = {((row[0] - START).total_seconds(), row[1]): row for row in windows}  # type: ignore[operator]
    assert counted.keys() == {(float(start), device) for start, device in sums}
    for (start, device), numbers in sums.items():
        row = counted[float(start), device]
        assert (row[2], row[6]) == (len(numbers), len(numbers))
        assert row[3] == pytest.approx(sum(numbers) / len(numbers) / 10)
        assert row[7] == sum(n % 9 == 0 for n in numbers)
    reasons = {str(row[6]).partition(":")[0] for row in found["quarantine"]}
    assert {"climate", "climate.temperature", "not JSON"} <= reasons


# Sums


@pytest.mark.spark
def test_a_sum_that_has_no_place_is_null_however_batches_are_cut(spark: SparkSession) -> None:
    columns = {"s": "sum $.a DOUBLE", "m": "avg $.a DOUBLE", "b": "sum $.b BIGINT",
               "n": "avg $.b BIGINT", "c": "sum $.c DOUBLE"}  # fmt: skip
    one = Typed("t", "a", dict(columns), window="1 minute")
    table, moment = typed.table_of(one), Moment(F.lit(START), NO_RULES)
    assert isinstance(table, Spanning)
    kinds = "time timestamp, event_time timestamp, late boolean, s double, m double, b bigint, "
    most = 2**63 - 1
    values: list[tuple[float, ...]] = [
        (9e25, 9e25, most, most, 0.1), (1.0, 1.0, most, most, 0.2), (2.0, 2.0, 1, 1, 0.7)
    ]  # fmt: skip

    def added(*cuts: Sequence[tuple[float, ...]]) -> list[object]:
        opened = spark.createDataFrame([], ddl((*table.columns, *table.memory)))
        for cut in cuts:
            rows = [(START, START, False, *row) for row in cut]
            fresh = spark.createDataFrame(rows, f"{kinds} n bigint, c double")
            opened = typed._gathered(one, fresh, opened, moment).drop("open")
        [row] = opened.select(*columns).collect()
        return [*row]

    expected = [None, None, None, (2 * most + 1) / 3, 1.0]
    for cuts in ([values], [values[:1], values[1:]], [values[2:], values[:2]]):
        assert added(*cuts) == expected
    assert added(values[1:2], []) == [1.0, 1.0, most, float(most), 0.2]


# Made again


def told(data: Path) -> list[tuple[object, ...]]:
    files = f"{data}/tables/t/**/*.parquet"
    query = f"select seq, x from read_parquet('{files}', hive_partitioning=false) order by 1"
    return duckdb.connect().execute(query).fetchall()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_backfill_takes_a_table_in_again_and_gives_it_another_form(
    writer: Writer, tmp_path: Path, spark: SparkSession
) -> None:
    data, lines = tmp_path / "data", "[[table]]\nname = 't'\ntopics = 'a'\ncolumns.x = '$.x "
    plain, deduped, other = (
        read(tmp_path, f"{lines}{rest}")
        for rest in ("DOUBLE'\n", "DOUBLE'\ndedupe_by = ['x']\n", "BIGINT'\n")
    )

    def run(rules: Rules, *values: int) -> None:
        writer.write(*(publish(value, "a", b'{"x":%d}' % value) for value in values))
        pipeline.run(spark, data, threading.Event(), once=True, rules=rules, only=("messages",))

    run(deduped, 1, 1, 2)
    run(NO_RULES, 3)
    with pytest.raises(SettingError, match="hubbub pipeline backfill t "):
        run(deduped, 2)
    assert backfill(spark, Layout(data), "t", deduped) == (3, 0)
    run(deduped, 3, 4)
    assert [x for _, x in told(data)] == [1, 2, 3, 4]
    assert backfill(spark, Layout(data), "t", plain) == (7, 0)
    assert backfill(spark, Layout(data), "t", deduped) == (4, 0)
    assert backfill(spark, Layout(data), "t", other) == (7, 0)
    run(other, 5)
    assert [(seq, type(x)) for seq, x in told(data)] == [(n, int) for n in range(1, 9)]
    shutil.rmtree(next(data.glob("tables/messages/day=2026-*")))
    with pytest.raises(SettingError, match="8 rows of t .* --discard"):
        backfill(spark, Layout(data), "t", plain)
    assert backfill(spark, Layout(data), "t", other) == (8, 8)


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_quarantine_is_judged_anew_with_the_table(
    writer: Writer, tmp_path: Path, spark: SparkSession
) -> None:
    data = tmp_path / "data"
    lines = "[[table]]\nname = '{}'\ntopics = 'a'\ncolumns.x = '$.x {}'\n"
    both = lines.format("u", "BIGINT")
    strict, wide = (read(tmp_path, lines.format("t", kind) + both) for kind in ("INT", "STRING"))
    values = [b'{"x": 1}', b'{"x": "off"}', b"{"]
    rows = [publish(n, "a", one) for n, one in enumerate(values)]
    declared = publish(9, "a", b"{", content_type=b"application/json")

    def judged() -> list[tuple[object, ...]]:
        files = f"{data}/tables/quarantine/**/*.parquet"
        query = f"select seq, declared from read_parquet('{files}') order by all"
        return duckdb.connect().execute(query).fetchall()

    writer.write(*rows, declared)
    pipeline.run(spark, data, threading.Event(), once=True, rules=strict, only=("messages",))
    others = [(2, "table u"), (3, "table u"), (4, "application/json")]
    assert judged() == sorted([*others, (2, "table t"), (3, "table t")])
    assert backfill(spark, Layout(data), "t", wide) == (1, 0)
    assert judged() == sorted([*others, (1, "table t"), (3, "table t")])
    assert backfill(spark, Layout(data), "t", wide) == (1, 0)
    assert len(judged()) == 5
    text = Rules(decode=(Decode("a", "text/plain"),))
    backfill(spark, Layout(data), "readings", text)
    assert judged() == sorted([*others, (1, "table t"), (3, "table t")])
    shutil.rmtree(next(data.glob("tables/messages/day=2026-*")))
    backfill(spark, Layout(data), "t", strict, discard=True)
    assert len(judged()) == 5, "why messages that are gone did not fit"


@pytest.mark.parametrize(
    ("kind", "value", "cell"),
    [
        ("DOUBLE", Decimal("1.5"), 1.5),
        ("DOUBLE", Fraction(1, 4), 0.25),
        ("BIGINT", Decimal(-(2**63)), -(2**63)),
        ("INT", Fraction(6, 2), 3),
        ("DATE", date(2026, 1, 31), date(2026, 1, 31)),
    ],
)
def test_numbers_and_dates_of_cbor(kind: str, value: object, cell: object) -> None:
    payload = cbor2.dumps(value, date_as_datetime=False)
    found = taken(kind, payload, "application/cbor")
    assert found == cell and type(found) is type(cell)


@pytest.mark.parametrize("kind", ["DOUBLE", "BIGINT", "INT"])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e99999", "-1e400"])
def test_numbers_of_cbor_that_are_none(kind: str, value: str) -> None:
    with pytest.raises(Unfit, match=f"expected {kind}"):
        taken(kind, cbor2.dumps(Decimal(value)), "application/cbor")


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_backfill_that_fails_leaves_the_table_and_says_why(
    writer: Writer, tmp_path: Path, spark: SparkSession
) -> None:
    data = tmp_path / "data"
    writer.write(publish(1, "a", b"1"))
    pipeline.run(spark, data, threading.Event(), once=True, only=("readings",))
    [file] = data.glob("tables/messages/*/*/part-0*.parquet")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DirectoryError, match="readings stays as it was: ") as raised:
        backfill(spark, Layout(data), "readings", NO_RULES)
    assert "\n" not in str(raised.value)
    file.write_bytes(whole)
    assert backfill(spark, Layout(data), "readings", NO_RULES) == (1, 0)


# Values that no clock and no float has


@pytest.mark.parametrize("kind", ["DOUBLE", "BIGINT", "INT", "TIMESTAMP", "DATE"])
@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_value_that_is_no_number_is_one_message_s_matter(kind: str, value: float) -> None:
    wanted = pytest.raises(Unfit, match=f"expected {kind}")
    for payload, said in (
        (cbor2.dumps(value), "application/cbor"),
        (msgpack.packb(value), "application/msgpack"),
    ):
        with wanted:
            taken(kind, payload, said)
    for digits in (b"1e999", b"-1e999", b"9" * 400):
        with pytest.raises(Unfit, match=f"expected {kind}"):
            taken(kind, digits, "")


def test_a_time_whose_offset_leads_out_of_the_calendar_fits_no_column() -> None:
    near = timezone(timedelta(hours=14))
    far = timezone(-timedelta(hours=14))
    for time in (datetime(1, 1, 1, tzinfo=near), datetime(9999, 12, 31, 23, tzinfo=far)):
        with pytest.raises(Unfit, match="expected TIMESTAMP"):
            taken("TIMESTAMP", cbor2.dumps(time), "application/cbor")
        with pytest.raises(Unfit, match="expected TIMESTAMP"):
            taken("TIMESTAMP", json.dumps(time.isoformat()).encode(), "")
    assert taken("TIMESTAMP", cbor2.dumps(START), "application/cbor") == START


def test_what_a_value_does_to_python_is_the_reason_of_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(value: Any) -> Any:
        raise LookupError("no such thing")

    monkeypatch.setitem(cells._MAKE, "string", broken)
    rules = Rules(table=(Typed("t", "#", {"x": "$.x STRING"}),))
    times, payloads = [START] * 2, [b'{"x":"y"}', b'{"x":null}']
    context = [[1, 2], times, times, ["a", "b"], payloads, [""] * 2]
    names = ("seq", "time", "event_time", "topic", "payload", "content_type")
    kinds = (pa.int64(), *[pa.timestamp("us", "UTC")] * 2, pa.string(), pa.binary(), pa.string())
    batch = pa.record_batch([pa.array(*one) for one in zip(context, kinds, strict=True)], names)
    [found] = typed.fitted([batch], rules.table[0], rules)
    assert found.column("seq").to_pylist() == [2]
    reason = Fitter(rules.table[0], rules).reason((START, START), "a", b'{"x":"y"}', "")
    assert reason == "t: LookupError: no such thing"


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("windowed", [False, True])
def test_what_does_not_fit_counts_once_where_repetitions_are_left_out(
    writer: Writer, tmp_path: Path, spark: SparkSession, windowed: bool
) -> None:
    """What is remembered and what is new come of the same messages: in one pass without window."""
    column = "avg $.y DOUBLE" if windowed else "$.y DOUBLE"
    window = "1 minute" if windowed else ""
    one = Typed("t", "a", {"x": "$.x BIGINT", "y": column}, dedupe_by=("x",), window=window,
                key=("x",) if windowed else ())  # fmt: skip
    writer.write(publish(0, "a", b'{"x":1,"y":2}'), publish(1, "a", b'{"x":"no"}'))
    told: list[int] = []
    pipeline.run(
        spark, tmp_path / "data", threading.Event(), once=True, rules=Rules(table=(one,)),
        report=lambda report: told.append(report.quarantined),
    )  # fmt: skip
    assert told == [1]
    if not windowed:
        kinds = "kind string, seq bigint, time timestamp, event_time timestamp, topic string"
        rows = spark.createDataFrame([], f"{kinds}, payload binary, content_type string")
        table = typed.table_of(one)
        assert isinstance(table, Spanning)
        opened = spark.createDataFrame([], ddl((*table.columns, *table.memory)))
        found = table.rows(rows, opened, Moment(F.lit(START), NO_RULES))
        plan = found._jdf.queryExecution().executedPlan().toString()
        assert plan.count("MapInArrow") == 1, plan
