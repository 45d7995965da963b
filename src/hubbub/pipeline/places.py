"""Where `run` puts rows and finds them again: a local disk, or any file system Spark can reach.

Called by `run` for each batch, by `sql` and `backfill` for reading. Both places give a plain reader
one final row per grain at any moment; they differ in how a batch that was cut short is made good:

    Disk     whole files by rename, what a batch cut short has left is removed   pipeline.layout
    Remote   one directory a batch, written again as a whole                     object storage

    URL/<table>/batch_id=N/[day=D/]part-….parquet    final rows; of -1 and -2: the columns, no rows
    URL/_open/<table>/slot=N mod 16/                  rows still open after batch N
    URL/_open/<table>/slot=left/                      the same, when a run began to leave it out
    URL/_progress/slot=N mod 16/                      {"batch": N, …}, the greatest counts
    URL/_checkpoint/                                  Spark's position
    URL/_writer/<number>-<host>-<process>-…           who writes: the greatest number

Nothing is ever renamed or deleted one by one there, and Spark does all the writing. Files of small
batches stay small: `hubbub pipeline compact --to` writes a tidy copy.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
from collections.abc import Callable, Collection
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from hubbub.errors import DirectoryError
from hubbub.pipeline import closing
from hubbub.pipeline.absence import Home
from hubbub.pipeline.carry import Pieces, Whole, carried, write
from hubbub.pipeline.handover import finish
from hubbub.pipeline.layout import (
    FENCED,
    KEPT,
    LOCKED,
    NO_DAY,
    RISING,
    Layout,
    Progress,
    journal_of,
)
from hubbub.pipeline.left_out import take_in
from hubbub.pipeline.noted import Noted, noted
from hubbub.pipeline.rules import NO_RULES, Rules
from hubbub.pipeline.tables import typed
from hubbub.pipeline.tables.table import (
    CARRIED,
    AnyTable,
    Carried,
    Column,
    Folding,
    Held,
    Spanning,
    arrow,
    ddl,
    names,
)
from hubbub.spark.start import java_class

LEFT: Final = "left"  # the slot of open rows of a table that is left out
_ALL: Final = 1 << 62  # batches
NO_BATCH: Final = -1  # where a table on object storage has its file without rows
BATCH_ID: Final = Column("batch_id", "bigint", "the batch that wrote the row, or began its group")

SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "8",  # else rows are sorted by day first
    "parquet.compression.codec.zstd.level": "1",  # 5 % larger than level 3, a tenth less CPU
    "parquet.writer.version": "v2",  # has the differences of numbers and times
    **{f"parquet.enable.dictionary#{name}": "false" for name in RISING},
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.sql.streaming.stopTimeout": "60s",  # by default who stops a query waits for ever
    # What a value cannot be cast to is null: one payload `off` must not end a whole batch.
    "spark.sql.ansi.enabled": "false",
    # Large payloads: a page is looked at after some rows and not after a hundred, and what goes to
    # Python or is written at once is bounded.
    "parquet.page.size.row.check.min": "10",
    "parquet.block.size": str(64 << 20),
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
}
PATH: Final = "org.apache.hadoop.fs.Path"
READ_BYTES: Final = 32 << 20  # of payloads that Spark's Parquet reader may hold at once
READ_ROWS: Final = 4096  # Spark's own default


# For what files need on a local disk Hadoop starts programs (`readlink`, `chmod`), forty a batch.
# So it takes a dozen. Files of the checkpoint have no `.crc` then, as those of tables never had.
LOCAL: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}


def settle(spark: SparkSession, local: bool = False) -> None:
    """Let a session write files as all those of the tables are. `local`: on a disk of its own."""
    for name, value in (SETTINGS | (LOCAL if local else {})).items():
        spark.conf.set(name, value)
    if local:
        place = java_class(spark, PATH)("file:///")
        place.getFileSystem(spark._jsc.hadoopConfiguration()).setWriteChecksum(False)


def read_payloads_of(spark: SparkSession, largest: int) -> None:
    """Let a session read so many rows at once that payloads of `largest` bytes fit into memory."""
    rows = min(max(READ_BYTES // max(largest, 1), 1), READ_ROWS)
    spark.conf.set("spark.sql.parquet.columnarReaderBatchSize", str(rows))


Fold = Callable[[Held], Folding]


class Place(Protocol):
    """What a batch needs of the place where the tables lie.

    `spark`: the session of the batch at work, which Spark makes for each query. `far`: it may take
    long to answer.
    """

    spark: SparkSession
    home: Home
    checkpoint: str
    far: bool

    def prepare(self, anew: Collection[str] = ()) -> None:
        """Raise DirectoryError if it is not as it was left. Tables of `anew` may be gone."""

    def take_in(self) -> list[str]:
        """Go on with tables that a run left out; what is to be said of them. Those that begin are
        there afterwards: had it been refused, they would not be gone for the next run.
        """

    def need(self) -> None:
        """Raise DirectoryError if it was taken away from under this run."""

    def release(self) -> None: ...
    def progress(self) -> Progress | None: ...
    def advance(self, progress: Progress) -> None: ...
    def undo(self, batch: int) -> None: ...
    def planned(self, batch: int) -> str: ...
    def forget_plan(self, batch: int) -> None: ...
    def query(self) -> str:
        """The id of Spark's query: as long as its checkpoint lives, batches have one numbering."""

    def rooms(self, names: list[str]) -> dict[str, Path]:
        """By table an empty place where tasks write its files; none where only Spark can."""

    def put(self, table: AnyTable, rows: pa.Table, progress: Progress) -> None:
        """A few rows that are here already."""

    def append(self, table: AnyTable, rows: DataFrame, batch: int) -> object:
        """Write rows where nobody sees them yet, or at once; what `show` needs."""

    def show(self, table: AnyTable, written: object, progress: Progress) -> int:
        """Put it where it is seen; how many files that were, if it had not been seen before."""

    def appended(self, table: AnyTable, progress: Progress) -> DataFrame: ...
    def carried(self, table: Carried, batch: int) -> DataFrame | None: ...
    def carry_on(self, table: Carried, batch: int) -> None: ...
    def split(self, table: Spanning, rows: DataFrame, progress: Progress) -> None: ...
    def fold(self, table: Carried, fold: Fold, progress: Progress) -> None:
        """Fold the events of a batch into the open rows, and put everything where it belongs."""


class Disk:
    """The tables under a data directory. `tables`: those that this run writes."""

    far = False

    def __init__(
        self, spark: SparkSession, layout: Layout, tables: tuple[AnyTable, ...], rules: Rules
    ) -> None:
        self.layout = layout
        self.home = layout.home
        self.checkpoint = str(layout.checkpoint)
        self.spark = spark
        self._tables = tables
        self._rules = rules
        self._anew: list[str] = []

    def prepare(self, anew: Collection[str] = ()) -> None:
        self._anew = self.layout.prepare(tuple(table.name for table in self._tables), anew)
        finish(self.layout)

    def take_in(self) -> list[str]:
        kept = [table for table in self._tables if table.name not in self._anew]
        closing.need(closing.read(self.layout), closing.closed_by(kept, self._rules), self.home)
        own = {one.name for one in typed.saved(self.layout)}
        typed.save(self.layout, self._rules)
        said = take_in(self.layout, self._tables, own, self._anew)
        for table in self._tables:
            columns = tuple(column for column in table.columns if column.name not in table.by)
            nothing = arrow(columns).empty_table()
            self.layout.empty(table.name, bool(table.by), partial(pq.write_table, nothing))
        closing.note(self.layout, self._tables, self._rules)
        return said

    def need(self) -> None:
        self.layout.need()

    def release(self) -> None:
        self.layout.release()

    def progress(self) -> Progress | None:
        return self.layout.progress()

    def advance(self, progress: Progress) -> None:
        self.layout.need_own()
        self.layout.advance(progress)

    def undo(self, batch: int) -> None:
        self.layout.undo(batch)

    def planned(self, batch: int) -> str:
        return self.layout.planned(batch)

    def forget_plan(self, batch: int) -> None:
        self.layout.forget_plan(batch)

    def query(self) -> str:
        return self.layout.query()

    def rooms(self, names: list[str]) -> dict[str, Path]:
        return {name: self.layout.scratch(name) for name in names}

    def put(self, table: AnyTable, rows: pa.Table, progress: Progress) -> None:
        place = self.layout.scratch(table.name)
        place.mkdir()
        write(rows, place / "rows.parquet")
        self.show(table, place, progress)

    def append(self, table: AnyTable, rows: DataFrame, batch: int) -> Path:
        place = self.layout.written_to(table.name)
        rows.write.mode("append").partitionBy(*table.by).parquet(str(place))
        return place

    def show(self, table: AnyTable, written: object, progress: Progress) -> int:
        assert isinstance(written, Path)
        return self.layout.append(table.name, progress.batch, progress.group, written)

    def appended(self, table: AnyTable, progress: Progress) -> DataFrame:
        files = self.layout.of_batch(table.name, progress.batch, progress.group)
        if not files:
            return self.spark.createDataFrame([], ddl(table.columns))
        reader = self.spark.read.schema(ddl(table.columns))
        reader = reader.option("basePath", str(self.layout.root / table.name))
        return reader.parquet(*map(str, files))

    def carried(self, table: Carried, batch: int) -> DataFrame | None:
        files = self.layout.carried(table.name, batch)
        if not files:
            return None
        reader = self.spark.read.schema(ddl((*table.columns, *table.memory)))
        return reader.parquet(*(str(file) for file in files))

    def carry_on(self, table: Carried, batch: int) -> None:
        self.layout.carry_on(table.name, batch)

    def split(self, table: Spanning, rows: DataFrame, progress: Progress) -> None:
        if table.memory:
            place = self.layout.scratch(table.name)
            self._apart(table, rows, place)
        else:
            place = self.layout.written_to(table.name)
            rows.write.mode("append").partitionBy("open").parquet(str(place))
        self.layout.append(table.name, progress.batch, progress.group, place / "open=false")
        self.layout.carry(table.name, progress.batch, place / "open=true")

    def _apart(self, table: Spanning, rows: DataFrame, place: Path) -> None:
        """Closed rows have no memory."""
        rows = rows.persist()
        closed = rows.where("NOT open").select(*names(table.columns))
        if not closed.isEmpty():
            closed = closed.sortWithinPartitions(table.columns[0].name)
            closed.write.partitionBy(*table.by).parquet(str(place / "open=false"))
        rows.where("open").drop("open").write.parquet(str(place / "open=true"))
        rows.unpersist()

    def fold(self, table: Carried, fold: Fold, progress: Progress) -> None:
        files = self.layout.carried(table.name, progress.batch - 1)
        held = Pieces(files, arrow((*table.columns, *table.memory)))
        folding = fold(held)
        place = self.layout.scratch(table.name)
        staying = carried(held, folding, place / "open")
        held.close()
        if len(folding.closed):
            (place / "closed").mkdir()
            write(folding.closed, place / "closed" / "rows.parquet")
            self.layout.append(table.name, progress.batch, progress.group, place / "closed")
        self.layout.carry_pieces(table.name, progress.batch, staying, place / "open")


class Remote:
    """The tables under a URL of a file system that Hadoop knows: s3a://, hdfs://, abfs://, file://.

    Written through Spark alone. There is no lock, only a fence: who begins to write puts up a
    number above all others, and who finds one above its own writes no more. Spark Connect has no
    way to look for it. `tables`: those that this run writes; `journal`: the id of what it reads.

    That a table is there is seen by its file without rows, in one of two places: it is written
    again when a day begins, since rules of the storage may remove what is old.
    """

    far = True

    def __init__(
        self,
        spark: SparkSession,
        url: str,
        tables: tuple[AnyTable, ...] = (),
        rules: Rules = NO_RULES,
        journal: Callable[[], str] = lambda: "",
    ) -> None:
        self.root = url.rstrip("/")
        self.home = Home(self.root, "name an empty place with --to", False)
        self.checkpoint = f"{self.root}/_checkpoint"
        self.spark = spark
        self._tables = tables
        self._rules = rules
        self._journal = journal
        self._mine = ""
        self._noted = Noted()  # with the last progress that was read
        self._anew: list[str] = []

    def prepare(self, anew: Collection[str] = ()) -> None:
        progress = self.progress()
        stands = progress is not None
        self._begin(stands)
        if not stands and self._was_whole():
            raise self._lacks("_progress")
        if not stands and not self._there("_checkpoint/metadata") and self._has_rows(_ALL):
            raise self._lacks("_checkpoint")
        self._anew = self.lacking([table.name for table in self._tables])
        if refused := [name for name in self._anew if name not in anew]:
            raise self.lacks_tables(refused)
        if not is_remote():
            if progress is not None:
                self._need_ours(progress.batch)
            self._fence()

    def _need_ours(self, batch: int) -> None:
        """Tables of another journal, as of another node: who writes them must not end for us."""
        theirs, ours = journal_of(self.planned(batch)), self._journal()
        if theirs and ours and theirs != ours:
            raise DirectoryError(
                f"{self.root} are the tables of another journal ({theirs}, not {ours}): each has "
                "a place of its own, name another one with --to"
            )

    def _was_whole(self) -> bool:
        """Whether a batch with rows was: Spark says so after its progress was written. Asked of
        Spark, which can list through Spark Connect too; of a place that is new it is one look.
        """
        files = self.spark.read.option("pathGlobFilter", "[0-9]*")
        commits = self._found(files, f"{self.checkpoint}/commits", "binaryFile")
        if commits is None:
            return False
        names = [os.path.basename(row.path) for row in commits.select("path").collect()]
        last = max((int(name) for name in names if name.isdigit()), default=-1)
        return self._has_rows(last)

    def _has_rows(self, last: int) -> bool:
        """Whether a table has rows of a batch up to `last`."""
        found = (self._read((BATCH_ID,), f"{self.root}/{table.name}") for table in self._tables)
        whole = F.col("batch_id").between(0, last)
        return any(one is not None and not one.where(whole).isEmpty() for one in found)

    def _open_anew(self, table: Carried) -> None:
        """Where what was open of a table went with it, nothing is open."""
        batch, slot = self._open_in(table.name, self._noted.batch)
        if self._found(self.spark.read.schema("x int"), slot) is None:
            self._carry(table, self._nothing_open(table), batch, slot)

    def lacking(self, names: list[str]) -> list[str]:
        """Those that batches wrote, as far as they say so, and that are not there."""
        wrote = [name for name in names if self._noted.sure and self._noted.last(name) >= 0]
        return [name for name in wrote if not self._holds(name)]

    def _holds(self, name: str) -> bool:
        return any(self._there(f"{name}/batch_id={one}") for one in (NO_BATCH, NO_BATCH - 1))

    def _put_columns(self, table: AnyTable, batch: int) -> None:
        """Write its file without rows."""
        hollow(self.spark, table, f"{self.root}/{table.name}/batch_id={batch}", table.by)

    def _renew(self, day: int) -> None:
        """One of the two files of each table, while the other one is there."""
        if gone := self.lacking([table.name for table in self._tables]):
            raise self.lacks_tables(gone)
        for table in self._tables:
            first = day % 2 == 0 and self._there(f"{table.name}/batch_id={NO_BATCH - 1}")
            self._put_columns(table, NO_BATCH if first else NO_BATCH - 1)

    def take_in(self) -> list[str]:
        """Open rows of a table lie in the slot of the last batch that wrote it, which the batch
        that goes on with it may write. So they are kept apart when a run begins to leave it out.
        """
        said = self._noted.take_in(self._tables, self._rules, self.home, self._anew)
        for name in self._noted.left_by(self._tables):
            rows = self._found(self.spark.read, self._slot(name, self._noted.batch))
            if rows is not None:
                kept = rows.where(F.col("batch_id") == self._noted.batch).coalesce(1)
                kept.write.mode("overwrite").parquet(self._slot(name, LEFT))
        for table in self._tables:
            if isinstance(table, CARRIED) and table.name in self._anew:
                self._open_anew(table)
            if not self._holds(table.name):
                self._put_columns(table, NO_BATCH)
        return said

    def _begin(self, tables: bool) -> None:
        """Raise DirectoryError where something else lies, or half of ours."""
        if self._there(LOCKED):
            raise DirectoryError(
                f"{self.root} are the tables of a data directory, which lie otherwise: leave --to "
                "out, or name an empty place with it"
            )
        names = [] if is_remote() else self._listed("")
        if names and not {FENCED, "_progress", "_checkpoint"}.intersection(names):
            raise DirectoryError(
                f"{self.root} holds what no pipeline wrote ({', '.join(names[:3])}): "
                "name an empty place with --to"
            )
        parts = ("_checkpoint/metadata", "_checkpoint/offsets")
        if tables and not all(map(self._there, parts)):
            raise self._lacks("_checkpoint")

    def _fence(self) -> None:
        """From now on this one writes, and who did before writes no more."""
        writers = self._listed(FENCED)
        number = 1 + max((int(name.partition("-")[0]) for name in writers), default=0)
        self._mine = f"{number:010}-{platform.node()}-{os.getpid()}-{secrets.token_hex(4)}"
        system, path = self._at(f"{FENCED}/{self._mine}")
        system.create(path, False).close()
        for name in writers:
            system.delete(self._at(f"{FENCED}/{name}")[1], False)

    def _check(self) -> None:
        """Raise DirectoryError if another pipeline began to write here."""
        last = max(self._listed(FENCED), default="") if self._mine else ""
        if last > self._mine:
            who = re.sub(r"^\d+-(.*)-(\d+)-\w+$", r"process \2 on \1", last)
            raise DirectoryError(
                f"another pipeline ({who}) began to write {self.root}: this one ends; "
                "let one of the two run, or give it another --to"
            )

    def _at(self, path: str) -> tuple[Any, Any]:
        """Hadoop's file system and path of a place below the root, "" = the root."""
        place = "/".join((self.root, path)) if path else self.root
        found = java_class(self.spark, PATH)(place)
        return found.getFileSystem(self.spark._jsc.hadoopConfiguration()), found

    def _there(self, path: str) -> bool:
        """Whether something is there; it may be a pattern."""
        if is_remote():
            return self._found(self.spark.read.schema("x int"), f"{self.root}/{path}") is not None
        system, place = self._at(path)
        return bool(system.globStatus(place))

    def _listed(self, path: str) -> list[str]:
        system, place = self._at(path)
        if not system.exists(place):
            return []
        return sorted(str(one.getPath().getName()) for one in system.listStatus(place))

    def need(self) -> None:
        """One listing of the root; through Spark Connect the tables are asked for one by one. Spark
        makes a checkpoint anew by what it writes there, but never the metadata of its query.
        """
        wanted = [table.name for table in self._tables]
        if self._noted.batch >= 0:
            wanted += ["_checkpoint", "_progress"]
            wanted += ["_open"] * any(isinstance(table, CARRIED) for table in self._tables)
        try:
            there = [*filter(self._there, wanted)] if is_remote() else self._listed("")
            if self._noted.batch >= 0 and not self._there("_checkpoint/metadata"):
                there = [name for name in there if name != "_checkpoint"]
        except (PySparkException, Py4JError, OSError):
            return  # it cannot be asked now; who writes there says more
        lacks = [name for name in wanted if name not in there]
        for part in lacks:
            if part.startswith("_"):
                raise self._lacks(part)
        if lacks:
            raise self.lacks_tables(lacks)

    def _lacks(self, part: str) -> DirectoryError:
        whole = "their checkpoint" if part == "_checkpoint" else f"{self.root}/{part}"
        return self.home.lacks_part(whole)

    def lacks_tables(self, names: list[str]) -> DirectoryError:
        return self.home.lacks_tables(names, self._noted.batch)

    def release(self) -> None:
        """There is nothing to give back."""

    def progress(self) -> Progress | None:
        try:
            said = self.spark.read.schema(_PROGRESS).json(f"{self.root}/_progress/*")
            rows = said.fillna(0, ["lost", "largest"]).collect()  # older ones do not say
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        if not rows:
            return None
        last = max(rows, key=lambda row: row.batch)  # they are few, and to sort them is a plan more
        *progress, wrote, declared, closed = last
        self._noted = noted(last.batch, wrote, declared, closed)
        return Progress(*progress)

    def advance(self, progress: Progress) -> None:
        self._check()
        for part, file in (("_progress", ""), ("_checkpoint", "/metadata")):
            if self._noted.batch >= 0 and not self._there(part + file):
                raise self._lacks(part)
        if self._noted.batch >= 0 and progress.group == progress.batch:
            self._renew(date.fromisoformat(progress.time[:10]).toordinal())
        wrote = self._noted.after(progress.batch, self._tables)
        declared = self._noted.declares(self._rules)
        closed = self._noted.closed | closing.closed_by(self._tables, self._rules)
        said = self.spark.createDataFrame([(*progress, wrote, declared, closed)], _PROGRESS)
        place = f"{self.root}/_progress/slot={progress.batch % KEPT}"
        said.coalesce(1).write.mode("overwrite").json(place)
        self._noted = noted(progress.batch, wrote, declared, closed)

    def undo(self, batch: int) -> None:
        """A batch that runs again writes its directories again."""

    def planned(self, batch: int) -> str:
        try:
            lines = self.spark.read.text(f"{self.checkpoint}/offsets/{batch}").collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return ""
            raise
        return "\n".join(line.value for line in lines)

    def forget_plan(self, batch: int) -> None:
        system, path = self._at(f"_checkpoint/offsets/{batch}")
        system.delete(path, False)

    def query(self) -> str:
        said = self.spark.read.text(f"{self.checkpoint}/metadata").first()
        assert said is not None
        return str(json.loads(said[0])["id"])

    def rooms(self, names: list[str]) -> dict[str, Path]:
        return {}

    def put(self, table: AnyTable, rows: pa.Table, progress: Progress) -> None:
        frame = self.spark.createDataFrame(rows.to_pylist(), ddl(table.columns))
        self.append(table, frame, progress.batch)

    def append(self, table: AnyTable, rows: DataFrame, batch: int) -> str:
        self._check()
        place = f"{self.root}/{table.name}/batch_id={batch}"
        rows.write.mode("overwrite").partitionBy(*table.by).parquet(place)
        if table in self._tables and not self._holds(table.name):  # it was all that is there now
            raise self.lacks_tables([table.name])
        return place

    def show(self, table: AnyTable, written: object, progress: Progress) -> int:
        """`append` has."""
        return 0

    def appended(self, table: AnyTable, progress: Progress) -> DataFrame:
        found = self._read(table.columns, f"{self.root}/{table.name}/batch_id={progress.batch}")
        return self.spark.createDataFrame([], ddl(table.columns)) if found is None else found

    def carried(self, table: Carried, batch: int) -> DataFrame | None:
        noted = self._noted
        if batch < 0 or noted.last(table.name) < 0 and self._is_new(table):
            return None
        batch, slot = self._open_in(table.name, batch)
        found = self._read((*table.columns, *table.memory, BATCH_ID), slot)
        if found is not None:
            rows = found.where(F.col("batch_id") == batch)
            # An earlier version did not note what it left out: rows of another batch show it.
            if noted.sure or found.isEmpty() or not rows.isEmpty():
                return rows.drop("batch_id")
        raise self.home.lacks_open(table.name, batch)

    def _is_new(self, table: Carried) -> bool:
        """Whether no batch wrote it, one of an earlier version that did not note it included."""
        found = self._read((BATCH_ID,), f"{self.root}/_open/{table.name}/slot=*")
        return found is None or found.where(F.col("batch_id") <= self._noted.batch).isEmpty()

    def _open_in(self, name: str, batch: int) -> tuple[int, str]:
        """The batch after which rows of a table are open as they are after `batch`, and where."""
        if self._noted.out(name):
            return self._noted.last(name), self._slot(name, LEFT)
        return batch, self._slot(name, batch)

    def _slot(self, name: str, batch: int | str) -> str:
        """Where the open rows of a table lie after a batch."""
        slot = batch % KEPT if isinstance(batch, int) else batch
        return f"{self.root}/_open/{name}/slot={slot}"

    def carry_on(self, table: Carried, batch: int) -> None:
        rows = self.carried(table, batch - 1)
        self._carry(table, self._nothing_open(table) if rows is None else rows, batch)

    def _nothing_open(self, table: Carried) -> DataFrame:
        return self.spark.createDataFrame([], ddl((*table.columns, *table.memory)))

    def split(self, table: Spanning, rows: DataFrame, progress: Progress) -> None:
        rows = rows.persist()
        closed = rows.where("NOT open").select(*names(table.columns))
        self.append(table, closed, progress.batch)
        self._carry(table, rows.where("open").drop("open"), progress.batch)
        rows.unpersist()

    def fold(self, table: Carried, fold: Fold, progress: Progress) -> None:
        schema = arrow((*table.columns, *table.memory))
        before = self.carried(table, progress.batch - 1)
        rows = before.toArrow().cast(schema) if before is not None else schema.empty_table()
        held = Whole(rows)
        folding = fold(held)
        if len(folding.closed):
            self.append(table, self._frame(folding.closed, table.columns), progress.batch)
        after = held.after(folding)
        self._carry(table, self._frame(after, (*table.columns, *table.memory)), progress.batch)

    def _frame(self, rows: pa.Table, columns: tuple[Column, ...]) -> DataFrame:
        schema = StructType.fromDDL(ddl(columns))
        assert isinstance(schema, StructType)
        return self.spark.createDataFrame(rows, schema)

    def _carry(self, table: Carried, rows: DataFrame, batch: int, slot: str = "") -> None:
        rows = rows.withColumn("batch_id", F.lit(batch).cast("bigint")).coalesce(1)
        rows.write.mode("overwrite").parquet(slot or self._slot(table.name, batch))

    def _read(self, columns: tuple[Column, ...], place: str) -> DataFrame | None:
        return self._found(self.spark.read.schema(ddl(columns)), place)

    def _found(
        self, reader: DataFrameReader, place: str, form: str = "parquet"
    ) -> DataFrame | None:
        try:
            found = reader.format(form).load(place)
            assert found.schema  # Spark Connect looks for the files no sooner
            return found
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise


_PROGRESS: Final = (
    "batch bigint, seq bigint, time string, `group` bigint, since string, rows bigint, "
    "lost bigint, largest bigint, wrote map<string, bigint>, declared string, "
    "closed map<string, double>"
)


def hollow(spark: SparkSession, table: AnyTable, place: str, by: tuple[str, ...]) -> None:
    """Write a file with the columns of a table and no rows, so that a stranger can ask it.

    Spark writes no file where nothing is to be parted by `by`.
    """
    columns = tuple(column for column in table.columns if column.name not in by)
    nothing = spark.createDataFrame([], ddl(columns)).coalesce(1)
    nothing.write.mode("overwrite").parquet("/".join((place, *(f"{name}={NO_DAY}" for name in by))))
