"""Rows of a table into a database, through Spark's own JDBC writer: each there once, by its key.

    files of the batches after the last one that the database has, STEP_BYTES at a time
        ──Spark──▶  hubbub_staged_…  a table made again each time, which nobody reads
        ──SQL────▶  <into>, by ON CONFLICT, and the batch into hubbub_progress: one transaction

The database itself says up to which batch it is and of which tables, so a sink follows the tables
as a catalog does: a batch that runs again, a process killed at any moment, a database that is away
lose nothing and double nothing.

    sink     its name in the rules
    tables   the id of the query that makes the tables: another's is refused
    batch    the last batch that is there, and `seq`, its last row: another past is refused
    made     how often `backfill` had made the table again: then all rows are sent again
    refused  how many rows the database would not take

A row that the database refuses (too long for an index, null in a key, a constraint of its own) is
looked for by halving, left out, counted and said. Tried with PostgreSQL. Called by `after` between
two batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.errors import DirectoryError, SettingError
from hubbub.pipeline.database import Database, Run, of_a_row, said, secret_in
from hubbub.pipeline.layout import Layout, Progress, ends_at
from hubbub.pipeline.places import read_payloads_of
from hubbub.pipeline.rules import Sink
from hubbub.pipeline.tables.table import AnyTable, clock, ddl, names

PROGRESS: Final = "hubbub_progress"
_KEEP: Final = {"seq": "bigint", "tables": "text", "made": "bigint", "refused": "bigint"}
_CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {PROGRESS} (sink text PRIMARY KEY, batch bigint, "
    + ", ".join(f"{name} {type}" for name, type in _KEEP.items())
    + ")"
)
STEP_BYTES: Final = 16 << 20  # of files: what one transaction takes over
SENT_ROWS: Final = 1000  # in one message to the database, as Spark has it,
SENT_BYTES: Final = 8 << 20  # and fewer where payloads are large: the driver holds them all
_NO_NUL: Final = "\ufffd"  # text of PostgreSQL cannot have U+0000


class _Stands(NamedTuple):
    """What the database says of a sink."""

    batch: int
    seq: int
    tables: str
    made: int
    gone: bool  # the table that it writes


class JdbcSink:
    """One sink of the rules. `spark`: the session of the batch at work. `notice` is told in a line
    what a user should know.
    """

    def __init__(
        self,
        sink: Sink,
        layout: Layout,
        table: AnyTable,
        spark: Callable[[], SparkSession | None],
        notice: Callable[[str], None],
    ) -> None:
        columns = names(table.columns)
        for key in sink.key:
            if key not in columns:
                raise SettingError(f"sink {sink.name!r}: {table.name} has no column {key!r}")
        self._sink = sink
        self._layout = layout
        self._table = table
        self._spark = spark
        self._notice = notice
        secret = secret_in(sink.password_file)
        self._database = Database(sink.url, sink.user, secret, self._session)
        self._into = _Into(sink, table)
        self._batch: int | None = None
        self.name = f"sink {sink.name!r}"

    def follow(self, now: Progress) -> None:
        """Bring the database to where the tables are. Raises DirectoryError."""
        try:
            if self._batch is None:
                self._batch = self._begun(now)
            for upto, files in self._steps(self._batch, now.batch):
                self._write(files, upto, now)
                self._batch = upto
        except (PySparkException, Py4JError, DirectoryError, OSError) as error:
            self._batch = None
            raise DirectoryError(f"{self.name}: {said(error)}") from error

    def _steps(self, after: int, upto: int) -> Iterator[tuple[int, list[Path]]]:
        """Files that are sent at once, and the batch that the database has then."""
        parts = self._layout.files(self._table.name, after, upto)
        parts.sort(key=lambda part: (part.last, part.first))
        gathered: list[Path] = []
        for part, following in zip(parts, [*parts[1:], None], strict=False):
            gathered.append(part.file)
            if following is None:
                yield upto, gathered
            elif following.last > part.last and _size(gathered) >= STEP_BYTES:
                yield part.last, gathered
                gathered = []

    # Where the database is

    def _begun(self, now: Progress) -> int:
        """The last batch that the database has of these tables; -1 for none."""
        mine, made = self._layout.query(), self._layout.made(self._table.name)
        with self._database.connected() as run:
            stands = self._stands(run, mine, made)
        anew = (
            f"if these tables take their place, say DELETE FROM {PROGRESS} WHERE sink = "
            f"'{self._sink.name}' there, and all rows are sent again, each once by its key"
        )
        if stands.tables != mine:
            raise DirectoryError(
                "what the database has under this name is of other tables (of another hub, or "
                "from before these were made anew): take another name for the sink, and another "
                f"table for it; or, {anew}"
            )
        if not self._agrees(stands, now):
            raise DirectoryError(
                f"the database has batch {stands.batch} up to row {stands.seq}, these tables end "
                f"with batch {now.batch}, row {now.seq}, and have none such, as from a backup; "
                f"{anew}"
            )
        if stands.batch >= 0 and (stands.gone or stands.made != made):
            why = (
                f"{self._sink.into} is not there any more"
                if stands.gone
                else f"{self._table.name} was made again; rows that it has no more stay there"
            )
            self._notice(f"{self.name}: {why}: all rows are sent again")
            return -1
        return stands.batch

    def _stands(self, run: Run, mine: str, made: int) -> _Stands:
        """What is noted there. A sink of which nothing is noted becomes ours."""
        run(_CREATE)
        for name, type in _KEEP.items():  # by an earlier version
            if not _one(run(_COLUMN.format(name=name))):
                run(f"ALTER TABLE {PROGRESS} ADD COLUMN {name} {type}")
        sink = f"'{self._sink.name}'"
        run(
            f"INSERT INTO {PROGRESS} (sink, batch, seq, tables, made, refused) "
            f"VALUES ({sink}, -1, 0, '{mine}', {made}, 0) ON CONFLICT (sink) DO NOTHING"
        )
        rows = run(
            f"SELECT batch, coalesce(seq, 0), coalesce(tables, '{mine}'), coalesce(made, 0), "
            f"to_regclass('{self._sink.into}') IS NULL FROM {PROGRESS} WHERE sink = {sink}"
        )
        rows.next()
        batch, seq, times = (int(rows.getLong(at)) for at in (1, 2, 4))
        return _Stands(batch, seq, str(rows.getString(3)), times, bool(rows.getBoolean(5)))

    def _agrees(self, stands: _Stands, now: Progress) -> bool:
        """Whether that batch of these tables has that row, as far as it is known."""
        if stands.batch > now.batch:
            return False
        if stands.batch == now.batch:
            return stands.seq in (0, now.seq)
        upto = ends_at(self._layout.planned(stands.batch))
        return not stands.seq or not upto or stands.seq <= upto

    # What it gets

    def _write(self, files: list[Path], upto: int, now: Progress) -> None:
        into, size = self._into, _size(files)
        staged = into.staged(self._layout.query())
        sent = max(1, min(SENT_ROWS, SENT_BYTES // max(now.largest, 1)))
        properties = self._database.properties(size) | {"batchsize": str(sent)}
        self._rows(files, now).write.jdbc(self._sink.url, staged, "overwrite", properties)
        with self._database.connected(size) as run:
            self._still_ours(run)
            into.shape(run, staged)
            refused = into.take(run, staged)
            seq = now.seq if upto == now.batch else ends_at(self._layout.planned(upto))
            run(
                f"UPDATE {PROGRESS} SET batch = {upto}, seq = {seq}, "
                f"tables = '{self._layout.query()}', made = {self._layout.made(self._table.name)}, "
                f"refused = coalesce(refused, 0) + {refused.rows} "
                f"WHERE sink = '{self._sink.name}'"
            )
            run(f"DROP TABLE {staged}")
        if refused.rows:
            self._notice(
                f"{self.name}: {refused.rows} rows that the database refuses are left out of "
                f"{self._sink.into}; the first, {refused.key}: {refused.reason}"
            )

    def _still_ours(self, run: Run) -> None:
        where = f"WHERE sink = '{self._sink.name}' FOR UPDATE"
        mine = self._layout.query()
        whose = _one(run(f"SELECT coalesce(tables, '{mine}') FROM {PROGRESS} {where}"))
        gone = _one(run(f"SELECT 1 WHERE to_regclass('{self._sink.into}') IS NULL"))
        begun = self._batch is not None and self._batch >= 0
        if whose != mine or (gone and begun):
            raise DirectoryError(
                f"somebody changed {PROGRESS}, or dropped {self._sink.into}, while rows were sent"
            )

    def _rows(self, files: list[Path], now: Progress) -> DataFrame:
        spark = self._session()
        read_payloads_of(spark, now.largest)
        reader = spark.read.schema(ddl(self._table.columns))
        reader = reader.option("basePath", str(self._layout.root / self._table.name))
        rows = reader.parquet(*map(str, files))
        chosen = (  # not the directory's
            F.translate(one.name, "\0", _NO_NUL).alias(one.name)
            if one.type == "string"
            else F.col(one.name)
            for one in self._table.columns
        )
        return rows.select(*chosen)

    def _session(self) -> SparkSession:
        found = self._spark()
        assert found is not None, "Spark runs"
        return found


class _Refused(NamedTuple):
    """Rows that the database did not take: the key of the first, and why."""

    rows: int = 0
    key: str = ""
    reason: str = ""


class _Into:
    """The table of the database, in SQL."""

    def __init__(self, sink: Sink, table: AnyTable) -> None:
        self._sink = sink
        self._into = sink.into
        self._columns = [_quoted(name) for name in names(table.columns)]
        keys = [_quoted(name) for name in sink.key]
        self._keys = ", ".join(keys)
        self._list = ", ".join(self._columns)
        change = ", ".join(f"{one} = EXCLUDED.{one}" for one in self._columns if one not in keys)
        self._conflict = f"ON CONFLICT ({self._keys}) " + (
            f"DO UPDATE SET {change}" if change else "DO NOTHING"
        )
        # Of rows with one key the last one stays, as if each had been written in its turn.
        last = _quoted("seq" if "seq" in names(table.columns) else clock(table))
        self._one_a_key = (
            f"SELECT DISTINCT ON ({self._keys}) {self._list} FROM {{staged}} "
            f"ORDER BY {self._keys}, {last} DESC"
        )

    def staged(self, query: str) -> str:
        """Where Spark writes: no name that a user gives, nor that another hub takes."""
        schema, dot, _ = self._into.rpartition(".")
        mark = hashlib.sha256(f"{query} {self._sink.name}".encode()).hexdigest()[:16]
        return f"{schema}{dot}hubbub_staged_{mark}"

    def shape(self, run: Run, staged: str) -> None:
        """Make the table, or the columns that it lacks."""
        run(f"CREATE TABLE IF NOT EXISTS {self._into} (LIKE {staged}, PRIMARY KEY ({self._keys}))")
        lacks = run(_LACKS.format(staged=staged, into=self._into))
        fresh = []
        while lacks.next():
            fresh.append(f"{_quoted(str(lacks.getString(1)))} {lacks.getString(2)}")
        for one in fresh:
            run(f"ALTER TABLE {self._into} ADD COLUMN IF NOT EXISTS {one}")

    def take(self, run: Run, staged: str) -> _Refused:
        """Take the rows over; if one is refused, all that are not."""
        chosen = self._one_a_key.format(staged=staged)
        if not _tried(run, f"INSERT INTO {self._into} ({self._list}) {chosen} {self._conflict}"):
            return _Refused()
        run(
            f"CREATE TEMP TABLE {_CHOSEN} ON COMMIT DROP AS SELECT "
            f"row_number() OVER () AS hubbub_row, * FROM ({chosen}) AS one"
        )
        run(f"CREATE UNIQUE INDEX ON {_CHOSEN} (hubbub_row)")
        refused = [*self._halved(run, int(_one(run(f"SELECT count(*) FROM {_CHOSEN}"))))]
        if not refused:
            return _Refused()
        first, reason = refused[0]
        texts = ", ".join(f"left({name}::text, 40)" for name in self._keys.split(", "))
        where = f"WHERE hubbub_row = {first}"
        key = _one(run(f"SELECT concat_ws(', ', {texts}) FROM {_CHOSEN} {where}"))
        return _Refused(len(refused), f"{self._keys} = {key}".replace('"', ""), reason)

    def _halved(self, run: Run, count: int) -> Iterator[tuple[int, str]]:
        """The rows that are refused, with the reason; the others are there then."""
        left = [(1, count)]
        while left:
            first, last = left.pop()
            reason = _tried(
                run,
                f"INSERT INTO {self._into} ({self._list}) SELECT {self._list} FROM {_CHOSEN} "
                f"WHERE hubbub_row BETWEEN {first} AND {last} {self._conflict}",
            )
            if reason and first == last:
                yield first, reason
            elif reason:
                half = (first + last) // 2
                left += [(half + 1, last), (first, half)]


_CHOSEN: Final = "hubbub_chosen"
_COLUMN: Final = (
    f"SELECT 1 FROM pg_attribute WHERE attrelid = to_regclass('{PROGRESS}') "
    "AND attname = '{name}' AND NOT attisdropped"
)
_LACKS: Final = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
    "WHERE attrelid = to_regclass('{staged}') AND attnum > 0 AND NOT attisdropped AND attname "
    "NOT IN (SELECT attname FROM pg_attribute WHERE attrelid = to_regclass('{into}') "
    "AND NOT attisdropped) ORDER BY attnum"
)


def _tried(run: Run, sql: str) -> str:
    """Run it; why not, if a row is to blame and nothing was changed. Raises what else it is."""
    run("SAVEPOINT hubbub")
    try:
        run(sql)
    except Py4JJavaError as error:
        if not of_a_row(error):
            raise
        run("ROLLBACK TO SAVEPOINT hubbub")
        return said(error)
    run("RELEASE SAVEPOINT hubbub")
    return ""


def _one(rows: Any) -> str:
    """The first value, "" without a row."""
    return str(rows.getString(1)) if rows.next() else ""


def _size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
