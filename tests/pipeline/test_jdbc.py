"""Rows of tables in PostgreSQL, through Spark's own writer: Debian's server, and its driver."""

from __future__ import annotations

import random
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import after, database, jdbc
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.after import NOWHERE, After
from hubbub.pipeline.backfill import backfill
from hubbub.pipeline.jdbc import JdbcSink
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.rules import NO_RULES, Rules, Sink, read_rules
from hubbub.pipeline.tables import readings
from tests.pipeline.postgres import Postgres
from tests.spark.fixtures import POSTGRES, Writer, publish


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_each_row_is_there_once_whatever_happens(
    writer: Writer, tmp_path: Path, spark: SparkSession, postgres: Postgres
) -> None:
    data = tmp_path / "data"
    sink = Sink("it", "readings", postgres.url, "public.readings", ("seq", "path"), "hub")
    said: list[str] = []

    def once(rules: Rules) -> None:
        pipeline.run(
            spark, data, threading.Event(), once=True, rules=rules, notice=said.append,
            only=("readings",),
        )  # fmt: skip

    writer.write(*(publish(n, "a", b'{"x": %d, "y": 2}' % n) for n in range(5)))
    once(Rules(sink=(sink,)))
    assert postgres.ask("select count(*), sum(value) from readings") == ["10|20"]
    assert postgres.ask("select min(time at time zone 'UTC') from readings") == [
        "2026-01-01 12:00:00"
    ]
    columns = "select column_name from information_schema.columns where table_name = 'readings'"
    assert {*postgres.ask(columns)} == {one.name for one in readings.COLUMNS}
    postgres.ask("delete from hubbub_progress")  # as if it had been killed before it was said
    writer.write(publish(6, "a", b"7"))
    once(Rules(sink=(sink,)))
    assert postgres.ask("select count(*), sum(value) from readings") == ["11|27"]
    postgres.stop()
    writer.write(publish(7, "a", b"8"))
    with pytest.raises(DirectoryError, match="sink 'it'"):
        once(Rules(sink=(sink,)))
    assert Layout(data).stands().seq == 7, "the tables went on"
    postgres.start()
    writer.write(publish(8, "a", b"9"))
    once(Rules(sink=(sink,)))
    assert postgres.ask("select count(*), sum(value) from readings") == ["13|44"]
    batch = Layout(data).stands().batch
    now = postgres.ask("select sink, batch, seq, refused from hubbub_progress")
    assert now == [f"it|{batch}|8|0"]
    tables = postgres.ask("select tablename from pg_tables where schemaname = 'public' order by 1")
    assert tables == ["hubbub_progress", "readings"]
    postgres.ask(f"update hubbub_progress set batch = {batch + 1}")
    with pytest.raises(DirectoryError, match="and have none such, as from a backup"):
        once(Rules(sink=(sink,)))


class Tried:
    """Tables with a sink, followed batch by batch."""

    def __init__(self, spark: SparkSession, data: Path, sink: Sink) -> None:
        self.spark, self.data, self.rules = spark, data, Rules(sink=(sink,))
        self.said: list[str] = []

    def once(self, rules: Rules | None = None) -> None:
        pipeline.run(
            self.spark, self.data, threading.Event(), once=True, rules=rules or self.rules,
            notice=self.said.append, only=("readings",),
        )  # fmt: skip

    def gets(self, writer: Writer, *rows: tuple[str, bytes]) -> None:
        writer.write(*(publish(0, topic, payload) for topic, payload in rows))
        self.once()


@pytest.fixture
def tried(spark: SparkSession, tmp_path: Path, postgres: Postgres) -> Tried:
    sink = Sink("it", "readings", postgres.url, "readings", ("seq", "path"), "hub")
    return Tried(spark, tmp_path / "data", sink)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_rows_that_the_database_refuses_are_left_out(
    writer: Writer, postgres: Postgres, tried: Tried
) -> None:
    key = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))
    rows = [("a", b'{"x": %d}' % n) for n in range(5)]
    rows[2] = ("a", b'{"x": "a\\u0000b"}')
    rows[3] = ("a", b'{"%s": 1, "y": 2}' % key.encode())
    tried.gets(writer, *rows)
    assert postgres.ask("select seq, path, text from readings order by 1, 2") == [
        "1|x|", "2|x|", "3|x|a\ufffdb", "4|y|", "5|x|",
    ]  # fmt: skip
    [said] = tried.said
    assert said.startswith("sink 'it': 1 rows that the database refuses are left out of readings")
    assert "seq, path = 4, " in said and "index row" in said
    assert postgres.ask("select refused from hubbub_progress") == ["1"]
    tried.gets(writer, ("a", b"7"))
    assert postgres.ask("select count(*) from readings") == ["6"]


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_a_constraint_that_is_deferred_blames_its_row(
    writer: Writer, postgres: Postgres, tried: Tried
) -> None:
    tried.gets(writer, ("a", b"1"))
    once = "unique (value) deferrable initially deferred"
    postgres.ask(f"alter table readings add constraint once {once}")
    tried.gets(writer, ("a", b"2"), ("a", b"1"), ("a", b"3"))
    assert postgres.ask("select seq from readings order by 1") == ["1", "2", "4"]
    assert "1 rows that the database refuses" in tried.said[0]


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_a_key_of_topics_has_the_latest_value(
    writer: Writer, postgres: Postgres, tried: Tried
) -> None:
    sink = Sink("last", "readings", postgres.url, "last", ("topic",), "hub")
    tried.rules = Rules(sink=(sink,))
    tried.gets(writer, *((f"a/{n % 3}", b"%d" % n) for n in range(3000)))
    assert postgres.ask("select value from last order by topic") == ["2997", "2998", "2999"]


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_tables_that_are_others_or_were_made_again(
    writer: Writer, postgres: Postgres, tried: Tried
) -> None:
    count = "select count(*) from readings"
    for number in range(3):
        tried.gets(writer, ("a", b"%d" % number))
    postgres.stop()
    with pytest.raises(DirectoryError, match="sink 'it'"):
        tried.gets(writer, ("a", b"3"))
    backfill(tried.spark, Layout(tried.data), "readings", tried.rules)
    postgres.start()
    tried.said.clear()
    tried.gets(writer, ("a", b"4"))
    assert postgres.ask(count) == ["5"], "those of the batch that the sink had not, too"
    assert tried.said == [
        "sink 'it': readings was made again; rows that it has no more stay there: all rows are "
        "sent again"
    ]
    postgres.ask("drop table readings")
    tried.once()
    assert postgres.ask(count) == ["5"]
    assert "readings is not there any more: all rows are sent again" in tried.said[-1]
    shutil.rmtree(tried.data / "tables")
    for number in range(6):  # past the batch that the database has
        writer.write(publish(9, "a", b"%d" % number))
        with pytest.raises(DirectoryError, match="is of other tables"):
            tried.once()
    assert postgres.ask(count) == ["5"]
    postgres.ask("delete from hubbub_progress where sink = 'it'")
    tried.once()
    assert postgres.ask(count) == ["11"]


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_a_locked_table_holds_nothing_for_long(
    writer: Writer, postgres: Postgres, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_SECONDS", 1)
    tried.gets(writer, ("a", b"1"))
    locks = "begin; lock table readings; select pg_sleep(500)"
    command = ["psql", "-h", "127.0.0.1", "-p", str(postgres.port), "-U", "hub", "-d", "postgres"]
    other = subprocess.Popen([*command, "-c", locks], stdout=subprocess.DEVNULL)
    held = "select count(*) from pg_locks where mode = 'AccessExclusiveLock' and granted"
    while postgres.ask(held) == ["0"]:
        time.sleep(0.1)
    with pytest.raises(DirectoryError, match="somebody has locked the table"):
        tried.gets(writer, ("a", b"2"))
    assert Layout(tried.data).stands().seq == 2, "the tables went on"
    other.kill()
    other.wait()
    postgres.ask("select pg_terminate_backend(pid) from pg_stat_activity where query ~ 'pg_sleep' "
                 "and pid <> pg_backend_pid()")  # fmt: skip
    tried.once()
    assert postgres.ask("select count(*) from readings") == ["2"]


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_who_takes_and_never_answers(
    writer: Writer, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not POSTGRES.exists():
        pytest.skip("PostgreSQL's driver is not installed: tests/setup.sh")
    monkeypatch.setattr(database, "CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"jdbc:postgresql://127.0.0.1:{port}/x?sslpassword=geheim"
        sink = Sink("it", "readings", url, "readings", ("seq", "path"), "hub")
        with pytest.raises(DirectoryError, match="Connection attempt timed out"):
            Tried(spark, tmp_path / "data", sink).gets(writer, ("a", b"1"))
    assert Layout(tmp_path / "data").stands().seq == 1, "the tables went on"


def test_one_that_fails_slowly_is_asked_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def fails(self: JdbcSink, now: Progress) -> None:
        asked.append(now.batch)
        raise DirectoryError("it is away")

    monkeypatch.setattr(JdbcSink, "follow", fails)
    sink = Sink("it", "readings", "jdbc:postgresql://x/y", "t", ("seq", "path"))
    for rest, expected in ((1e9, [0]), (0.0, [0, 1, 2])):
        monkeypatch.setattr(after, "REST", rest)
        said: list[str] = []
        made = After(NOWHERE, Layout(tmp_path), (readings.TABLE,), {}, said.append, (sink,))
        for batch in range(3):
            made._sink(Progress(batch, 1, "", 0, "", 0))
        assert asked == expected and len(said) == 1
        asked.clear()
        with pytest.raises(DirectoryError, match="it is away"):
            made.end()


def test_one_that_is_back_gets_what_it_lacks_though_nothing_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked again with the next batch, and a plant may be quiet all night."""
    away, now = [True], Progress(3, 7, "2026-01-01 12:00:00", 0, "", 0)
    got: list[int] = []

    def follow(self: JdbcSink, now: Progress) -> None:
        if away:
            raise DirectoryError("it is away")
        got.append(now.seq)

    monkeypatch.setattr(JdbcSink, "follow", follow)
    monkeypatch.setattr(Layout, "progress", lambda self: now)
    monkeypatch.setattr(after, "REST", 0.0)
    sink = Sink("it", "readings", "jdbc:postgresql://x/y", "t", ("seq", "path"))
    said: list[str] = []
    made = After(NOWHERE, Layout(tmp_path), (readings.TABLE,), {}, said.append, (sink,))
    made._sink(now)
    away.clear()
    made.later()
    assert got == [], "it was asked just now"
    made.later(0)
    assert got == [7] and said[1:] == ["sink 'it' has all batches again"]
    made.later(0)
    made.end()
    assert got == [7], "it lacks nothing"
    away.append(True)
    made._sink(now)
    away.clear()
    made.end()
    assert got == [7, 7], "who ends asks once more"


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_a_column_more_and_steps_of_a_backlog(
    writer: Writer, postgres: Postgres, tried: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jdbc, "STEP_BYTES", 1)
    for number in range(3):
        writer.write(publish(0, "a", b"%d" % number))
        tried.once(NO_RULES)
    postgres.ask("create table readings (seq bigint, path text, primary key (seq, path))")
    sent: list[int] = []
    write = JdbcSink._write

    def noted(self: JdbcSink, files: list[Path], upto: int, now: Progress) -> None:
        sent.append(upto)
        write(self, files, upto, now)

    monkeypatch.setattr(JdbcSink, "_write", noted)
    tried.once()
    assert sent == [0, 1, 2]
    assert postgres.ask("select sum(value) from readings") == ["3"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("name = 'a b'", "stands once"),
        ("table = 'none'", "there is no table"),
        ("url = 'jdbc:mysql://x'", "expected the url jdbc:postgresql"),
        ("into = 'x; drop table y'", "no name of a table"),
        ("key = []", "key is empty"),
        ("key = ['seq', 'text']", "text of readings may be null"),
        (f"into = '{'n' * 64}'", "longer than 63 bytes"),
        ("sort = 1", "known are"),
    ],
)
def test_a_sink_that_cannot_be(tmp_path: Path, change: str, said: str) -> None:
    given = {
        "name": "'a'", "table": "'readings'", "url": "'jdbc:postgresql://x/y'", "into": "'t'",
        "key": "['seq']",
    }  # fmt: skip
    name, _, value = change.partition(" = ")
    given[name] = value
    file = tmp_path / "rules.toml"
    file.write_text("[[sink]]\n" + "".join(f"{key} = {one}\n" for key, one in given.items()))
    with pytest.raises(SettingError, match=said):
        read_rules(file)


def test_a_key_that_is_no_column(tmp_path: Path) -> None:
    sink = Sink("it", "readings", "jdbc:postgresql://x/y", "t", ("wolf",))
    with pytest.raises(SettingError, match="readings has no column 'wolf'"):
        JdbcSink(sink, Layout(tmp_path), readings.TABLE, SparkSession.getActiveSession, print)
