"""Rows of tables in PostgreSQL, through Spark's own writer: Debian's server, and its driver."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline import run as pipeline
from hubbub.pipeline.jdbc import JdbcSink
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.rules import Rules, Sink, read_rules
from hubbub.pipeline.tables import readings
from tests.spark.fixtures import POSTGRES, Writer, publish

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Postgres:
    """A server on a free port of the loopback, in a directory of its own."""

    def __init__(self) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="hubbub-pg-"))
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self._as:
            shutil.chown(self.place, "postgres")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        made = [str(PROGRAMS[-1] / "initdb"), "-D", f"{self.place}/data", "-U", "hub"]
        made += ["-A", "trust", "-N"]
        subprocess.run([*self._as, *made], check=True, stdout=subprocess.DEVNULL)
        self._server = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        options = ["-p", str(self.port), "-k", str(self.place), "-c", "fsync=off"]
        command = [str(PROGRAMS[-1] / "postgres"), "-D", f"{self.place}/data", *options]
        self._server = subprocess.Popen([*self._as, *command], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as asked:
                if asked.connect_ex(("127.0.0.1", self.port)) == 0:
                    return self._server
            time.sleep(0.1)
        raise AssertionError("PostgreSQL did not start")

    def stop(self) -> None:
        self._server.terminate()
        self._server.wait(30)

    def ask(self, sql: str) -> list[str]:
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "hub", "-d", "postgres"]
        done = subprocess.run([*command, "-AtXc", sql], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres?connectTimeout=5"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    if not PROGRAMS or not POSTGRES.exists():
        pytest.skip("PostgreSQL and its driver are not installed: tests/setup.sh")
    server = Postgres()
    yield server
    server.stop()
    shutil.rmtree(server.place, ignore_errors=True)


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
    assert postgres.ask("select * from hubbub_progress") == [f"it|{batch}"]
    tables = postgres.ask("select tablename from pg_tables where schemaname = 'public' order by 1")
    assert tables == ["hubbub_progress", "readings"]
    postgres.ask(f"update hubbub_progress set batch = {batch + 1}")
    with pytest.raises(DirectoryError, match="it is of other tables"):
        once(Rules(sink=(sink,)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("name = 'a b'", "stands once"),
        ("table = 'none'", "there is no table"),
        ("url = 'jdbc:mysql://x'", "expected the url jdbc:postgresql"),
        ("into = 'x; drop table y'", "no name of a table"),
        ("key = []", "key is empty"),
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
        JdbcSink(sink, Layout(tmp_path), readings.TABLE, SparkSession.getActiveSession)
