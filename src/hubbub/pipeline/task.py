"""What one task of Spark does with its share of a batch: all tables that need nothing but it.

    rows of the journal ─▶ messages ─▶ readings · quarantine · sums of traffic
                        └▶ audit · which of the folded tables it concerns

The worker reads the journal itself, and writes the files itself: rows are Arrow from the frame to
the file, each is looked at once, and Java sees none. Handed from Python to Java and back, column by
column and row by row, a message cost three times as much, and a batch of a few rows was nearly
all plans and code that Spark made for it (docs/decisions/0039-tables-without-java.md).

What becomes of rows is in `tables`; here is only who gets them, and their files. `Batches` calls
`run` and takes the files, which nobody sees before. A task that Spark runs twice leaves files
twice, the first perhaps after the second: only those that `run` returns are taken out of the rooms.
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from hubbub.pipeline.compact import encoding
from hubbub.pipeline.event_time import stamped
from hubbub.pipeline.rules import Reading, Rules
from hubbub.pipeline.tables import TABLES, quarantine, readings, traffic
from hubbub.pipeline.tables.table import AnyTable, Folded, Table, arrow
from hubbub.spark.options import Options
from hubbub.spark.plan import Ends, Range, Span, Wanted
from hubbub.spark.source import read_range

GROUP_BYTES: Final = 32 << 20  # in memory: rows that are written together, see `compact.ROW_GROUP`


class Job(NamedTuple):
    """What all tasks of a batch are told.

    `options`: where the journal is, as `format("hubbub")` takes it; `ranges`: a share each.
    `rooms`: by table an empty place for its files. `folded`: tables that are made later.
    """

    options: dict[str, str]
    ranges: tuple[Range, ...]
    rooms: dict[str, str]
    folded: tuple[str, ...]
    rules: Rules


class Done(NamedTuple):
    """What a share had, or all of them. `concerned`: tables that are made later, of rows it has.

    `failed`: messages that cannot be decoded. `took`: seconds by table. `until`: the time of its
    last row, ISO 8601. `largest`: bytes of its largest payload.
    """

    rows: int = 0
    seq: int = 0
    until: str = ""
    messages: int = 0
    largest: int = 0
    failed: int = 0
    concerned: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    took: dict[str, float] = {}  # noqa: RUF012  # it never changes
    sums: pa.Table = arrow(traffic.COLUMNS).empty_table()


def made_by_tasks(tables: tuple[AnyTable, ...], rules: Rules) -> list[str]:
    """The tables that tasks make. What fits no table of the user is known when that is made."""
    made = [table.name for table in tables if isinstance(table, Table) and table.made is not None]
    return [name for name in made if name != quarantine.TABLE.name or not rules.table]


def shares(place: str, journal: str, span: Span, ends: Ends) -> tuple[Range, ...]:
    """The rows of a journal, known by its id, in shares that end there; one if there are none."""
    cut = Wanted(place, journal, span).cut(ends)
    return tuple(cut) or (Range(place, journal, *span),)


def run(spark: SparkSession, job: Job) -> Done:
    """Have the tasks of a batch done. Their files are taken to `taken_to` of each room."""
    count = len(job.ranges)
    numbers = spark.range(0, count, 1, count)
    rows = numbers.mapInArrow(partial(work, job=job), "number int, said string, sums binary")
    found = sorted(rows.collect())
    parts = [_done(json.loads(row.said), bytes(row.sums)) for row in found]
    done = _together([part for part in parts if part.rows])
    return done._replace(files=tuple(_taken(job, done)))


def taken_to(room: str | Path) -> Path:
    """Where the files of the tasks that count lie, which no other task writes to."""
    return Path(f"{room}.whole")


def _taken(job: Job, done: Done) -> Iterator[str]:
    for room in map(Path, job.rooms.values()):
        place = taken_to(room)
        shutil.rmtree(place, ignore_errors=True)
        for file in map(Path, done.files):
            if file.is_relative_to(room):
                target = place / file.relative_to(room)
                target.parent.mkdir(parents=True, exist_ok=True)
                yield str(file.replace(target))
        shutil.rmtree(room, ignore_errors=True)


def work(batches: Iterable[pa.RecordBatch], job: Job) -> Iterator[pa.RecordBatch]:
    """For each number of a share what was done with it."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            task = Task(job, number)
            for rows in read_range(Options(job.options), job.ranges[number]):
                task.take(rows)
            done = task.done()
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, done.sums.schema) as stream:
                stream.write_table(done.sums)
            said = json.dumps(done._replace(sums=None)._asdict())
            yield pa.record_batch(
                [pa.array([number], pa.int32()), [said], [sink.getvalue().to_pybytes()]],
                names=["number", "said", "sums"],
            )


def _done(said: dict[str, Any], sums: bytes) -> Done:
    told: dict[str, Any] = said | {"sums": pa.ipc.open_stream(sums).read_all()}
    return Done(**told | {name: tuple(told[name]) for name in ("concerned", "files")})


def _together(parts: list[Done]) -> Done:
    if not parts:
        return Done()
    took: dict[str, float] = {}
    for part in parts:
        took |= {name: max(took.get(name, 0.0), one) for name, one in part.took.items()}
    return Done(
        sum(part.rows for part in parts), parts[-1].seq, parts[-1].until,
        sum(part.messages for part in parts), max(part.largest for part in parts),
        sum(part.failed for part in parts),
        tuple({name for part in parts for name in part.concerned}),
        tuple(file for part in parts for file in part.files), took,
        pa.concat_tables([part.sums for part in parts]),
    )  # fmt: skip


class Task:
    """A share at work: takes rows of the journal in their order."""

    def __init__(self, job: Job, number: int) -> None:
        rules = job.rules
        self._job = job
        self._timed = rules.timed()
        self._reading = Reading(rules)
        named = {table.name: table for table in TABLES if table.name in job.rooms}
        self._files = {name: Files(table, Path(job.rooms[name]), number)
                       for name, table in named.items()}  # fmt: skip
        self._make = {name: table.made(rules) for name, table in named.items()
                      if isinstance(table, Table) and table.made is not None}  # fmt: skip
        self._part = traffic.TABLE.part(rules)
        self._sums: list[pa.RecordBatch] = []
        self._folded = [table for table in TABLES
                        if isinstance(table, Folded) and table.name in job.folded]  # fmt: skip
        self._typed = [(one.name, re.compile(one.pattern(), re.DOTALL)) for one in rules.table]
        self._concerned: list[str] = []
        self._took: dict[str, float] = {}
        self._lap = time.perf_counter()
        self._now = Done()

    def take(self, rows: pa.RecordBatch) -> None:
        """Some rows of the journal, more than none."""
        self._note(rows)
        self._passed("messages")
        found = self._messages(stamped(rows, self._reading, self._timed))
        self._readings(found)
        self._write("audit", rows)
        self._sums += self._part(found)
        self._passed("traffic")

    def done(self) -> Done:
        """Close the files. Nothing can be taken any more."""
        for name, files in self._files.items():
            files.close()
            self._passed(name)
        sums = pa.Table.from_batches(self._sums, Done().sums.schema)
        written = tuple(str(file) for files in self._files.values() for file in files.written)
        return self._now._replace(
            concerned=tuple(self._concerned), files=written, sums=traffic.added(sums),
            took={name: self._took[name] for name, files in self._files.items() if files.written},
        )  # fmt: skip

    def _note(self, rows: pa.RecordBatch) -> None:
        for table in self._folded:
            if table.name not in self._concerned and table.events(rows).num_rows:
                self._concerned.append(table.name)
        now, last = self._now, rows.slice(rows.num_rows - 1)
        largest = pc.max(pc.binary_length(rows["payload"])).as_py()
        until = last["time"][0].as_py().replace(tzinfo=None).isoformat(" ")
        self._now = now._replace(
            rows=now.rows + rows.num_rows, seq=last["seq"][0].as_py(), until=until,
            largest=max(now.largest, largest),
        )  # fmt: skip

    def _messages(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        (found,) = self._make["messages"](rows)
        for name, pattern in self._typed:
            if name not in self._concerned:
                topics = pc.unique(found["topic"]).to_pylist()
                self._concerned += [name] if any(map(pattern.fullmatch, topics)) else []
        self._files["messages"].write(found)
        self._now = self._now._replace(messages=self._now.messages + found.num_rows)
        self._passed("messages")
        return found

    def _readings(self, found: pa.RecordBatch) -> None:
        """What cannot be decoded is quarantine's; where nobody decodes, that looks itself."""
        if "readings" not in self._files:
            self._write("quarantine", found)
            return
        failed: list[int] = []
        for values in readings.values_of(found, self._reading, failed.append):
            self._files["readings"].write(values)
        self._now = self._now._replace(failed=self._now.failed + len(failed))
        self._passed("readings")
        if failed:
            self._write("quarantine", found.take(pa.array(failed, pa.int32())))

    def _write(self, name: str, rows: pa.RecordBatch) -> None:
        if name in self._files:
            for some in self._make[name](rows):
                self._files[name].write(some)
            self._passed(name)

    def _passed(self, name: str) -> None:
        now = time.perf_counter()
        self._took[name] = self._took.get(name, 0.0) + now - self._lap
        self._lap = now


class Files:
    """The files of a table in its room: one a day where it lies by days, in the order of rows."""

    def __init__(self, table: AnyTable, room: Path, number: int) -> None:
        self._schema = arrow(tuple(one for one in table.columns if one.name not in table.by))
        self._by_day = bool(table.by)
        self._room = room
        self._number = number
        self._day = ""
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None
        self.written: list[Path] = []

    def write(self, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        chosen = rows.select(self._schema.names)
        if not self._by_day:
            self._put(chosen)
            return
        days = pc.unique(rows["day"])
        for day in days:
            self._turn(f"day={day}")
            self._put(chosen if len(days) == 1 else chosen.filter(pc.equal(rows["day"], day)))

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _turn(self, day: str) -> None:
        """One file is open at a time: days follow each other."""
        if day != self._day:
            self.close()
            self._day = day

    def _put(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._writer is None:
            self._writer = self._begun()
        rows = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._waiting, self._bytes = [], 0

    def _begun(self) -> pq.ParquetWriter:
        place = self._room / self._day
        place.mkdir(parents=True, exist_ok=True)
        name = f"part-{self._number:04}-{len(self.written):04}-{uuid.uuid4().hex}.parquet"
        self.written.append(place / name)
        return pq.ParquetWriter(
            place / name, self._schema, compression="zstd", **encoding(self._schema)
        )
