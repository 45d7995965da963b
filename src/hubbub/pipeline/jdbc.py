"""Rows of a table into a database, through Spark's own JDBC writer: each there once, by its key.

    files of the batches after the last one that the database has
        ──Spark──▶  <into>_hubbub   a table made again each time, which nobody reads
        ──SQL────▶  <into>, by ON CONFLICT, and the batch into hubbub_progress: one transaction

The database itself says up to which batch it is, so a sink follows the tables as a catalog does:
a batch that runs again, a process killed at any moment, a database that is away lose nothing and
double nothing. Tried with PostgreSQL. Called by `after` between two batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.layout import Layout, Progress
from hubbub.pipeline.rules import Sink
from hubbub.pipeline.tables.table import AnyTable, ddl, names

DRIVER: Final = "org.postgresql.Driver"
PROGRESS: Final = "hubbub_progress"
_CREATE: Final = f"CREATE TABLE IF NOT EXISTS {PROGRESS} (sink text PRIMARY KEY, batch bigint)"


class JdbcSink:
    """One sink of the rules. `spark`: the session of the batch at work."""

    def __init__(
        self,
        sink: Sink,
        layout: Layout,
        table: AnyTable,
        spark: Callable[[], SparkSession | None],
    ) -> None:
        columns = names(table.columns)
        for key in sink.key:
            if key not in columns:
                raise SettingError(f"sink {sink.name!r}: {table.name} has no column {key!r}")
        self._sink = sink
        self._layout = layout
        self._table = table
        self._spark = spark
        self._secret = Path(sink.password_file).read_text().strip() if sink.password_file else ""
        self._batch: int | None = None
        self.name = f"sink {sink.name!r}"

    def follow(self, now: Progress) -> None:
        """Bring the database to where the tables are. Raises DirectoryError."""
        try:
            if self._batch is None:
                self._batch = self._stands()
            if self._batch > now.batch:
                raise DirectoryError(
                    f"the database has batch {self._batch}, the tables end with {now.batch}: it is "
                    "of other tables; take another name for the sink, and another table for it"
                )
            parts = self._layout.files(self._table.name, self._batch, now.batch)
            if parts:
                self._write([str(part.file) for part in parts], now)
                self._batch = now.batch
        except (PySparkException, Py4JError, DirectoryError) as error:
            self._batch = None
            raise DirectoryError(f"{self.name}: {_said(error)}") from error

    def _write(self, files: list[str], now: Progress) -> None:
        staged = f"{self._sink.into}_hubbub"
        self._rows(files).write.jdbc(self._sink.url, staged, "overwrite", self._properties())
        columns = [_quoted(name) for name in names(self._table.columns)]
        keys = ", ".join(map(_quoted, self._sink.key))
        others = [one for one in columns if one not in map(_quoted, self._sink.key)]
        change = ", ".join(f"{one} = EXCLUDED.{one}" for one in others)
        with self._connected() as run:
            into = self._sink.into
            run(f"CREATE TABLE IF NOT EXISTS {into} (LIKE {staged}, PRIMARY KEY ({keys}))")
            run(
                f"INSERT INTO {into} ({', '.join(columns)}) SELECT DISTINCT ON ({keys}) "
                f"{', '.join(columns)} FROM {staged} ON CONFLICT ({keys}) "
                + (f"DO UPDATE SET {change}" if change else "DO NOTHING")
            )
            run(
                f"INSERT INTO {PROGRESS} VALUES ('{self._sink.name}', {now.batch}) "
                "ON CONFLICT (sink) DO UPDATE SET batch = EXCLUDED.batch"
            )
            run(f"DROP TABLE {staged}")

    def _rows(self, files: list[str]) -> DataFrame:
        reader = self._session().read.schema(ddl(self._table.columns))
        reader = reader.option("basePath", str(self._layout.root / self._table.name))
        return reader.parquet(*files).select(*names(self._table.columns))  # not the directory's

    def _stands(self) -> int:
        found: list[int] = []
        with self._connected() as run:
            run(_CREATE)
            rows = run(f"SELECT batch FROM {PROGRESS} WHERE sink = '{self._sink.name}'")
            while rows.next():
                found.append(int(rows.getLong(1)))
        return found[0] if found else -1

    def _session(self) -> SparkSession:
        found = self._spark()
        assert found is not None, "Spark runs"
        return found

    def _properties(self) -> dict[str, str]:
        return {"driver": DRIVER, "user": self._sink.user, "password": self._secret}

    @contextmanager
    def _connected(self) -> Iterator[Callable[[str], Any]]:
        """Runs SQL in one transaction, which ends with the block."""
        jvm = self._session()._jvm
        assert jvm is not None, "Spark runs"
        given = jvm.java.util.Properties()
        for name, value in self._properties().items():
            given.setProperty(name, value)
        # Not by DriverManager, which knows no jars that Spark was given later.
        kind = jvm.org.apache.spark.util.Utils.classForName(DRIVER, True, False)
        connection = (
            kind.getDeclaredConstructor(None).newInstance(None).connect(self._sink.url, given)
        )
        try:
            connection.setAutoCommit(False)
            statement = connection.createStatement()

            def run(sql: str) -> Any:
                return statement.getResultSet() if statement.execute(sql) else None

            yield run
            connection.commit()
        finally:
            connection.close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _said(error: Exception) -> str:
    """What the database said, without Java's stack and the name of its class."""
    lines = re.findall(r"(?:SQLException|PSQLException|ClassNotFoundException): (.+)", str(error))
    text = lines[-1] if lines else (str(error).strip().splitlines() or [type(error).__name__])[0]
    if DRIVER in text and "Exception" not in text:
        text = f"{text} is not there: name PostgreSQL's driver with --conf spark.jars=FILE"
    return text
