"""`format("hubbub")`: the journal as a table of Spark, in batch and as a stream.

    spark.read.format("hubbub").load("./hubbub-data")
    spark.readStream.format("hubbub").option("topics", "sensors/#").load("./hubbub-data")

Spark makes these objects anew in its planning process and in each worker, so they keep nothing:
a partition is a range of seq, and who reads it looks for the segments then. Only committed rows
exist, and rows never change: the same range always gives the same rows.

An offset is the last seq that was read, `{"v": 1, "0": 1234}`: the version of this form, and one
entry a log (log 0 is the only one yet). Options:

    path                  the data directory of a hub, ./hubbub-data if not given
    startingOffsets       earliest (default), latest, a seq, or {"0": seq}: the first row to read;
                          in JSON -2 is earliest, -1 latest. A stream takes it at its first start
    endingOffsets         batch only: latest (default), a seq, or {"0": seq}: the row after the last
    maxOffsetsPerTrigger  rows of one batch of a stream at most; no limit if not given
    minPartitions         at least so many tasks; else about as many as this machine has cores
    failOnDataLoss        true (default): rows that retention removed are an error; false: go on
    topics                MQTT filters, comma-separated: only rows whose topic matches one
    kinds                 kinds of rows, comma-separated (see docs/journal-format.md)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from hubbub.errors import OffsetError, SettingError
from hubbub.journal.table import Table
from hubbub.schema import COLUMNS
from hubbub.spark import filters

DATA: Final = "./hubbub-data"  # the default of every command
OFFSET_VERSION: Final = 1
LOG: Final = "0"
EARLIEST: Final = -2  # Kafka's numbers for these words
LATEST: Final = -1
ROWS_PER_TASK: Final = 20_000  # below this a second task costs more than it saves

_TYPES: Final[dict[str, DataType]] = {
    "int8": ByteType(),
    "int64": LongType(),
    "bool": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp[us, UTC]": TimestampType(),
}
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_TRUTH: Final = {"true": True, "false": False}

Offset = dict[str, int]


class Range(InputPartition):
    """A partition: rows after < seq <= upto."""

    def __init__(self, after: int, upto: int) -> None:
        self.after = after
        self.upto = upto


class Options:
    """The options of a load, checked. Names are those of Spark: their case does not matter."""

    def __init__(self, given: Mapping[str, str]) -> None:
        lower = {name.lower(): value for name, value in given.items()}
        # Workers may have another working directory.
        self.path = os.path.abspath(lower.get("path", DATA))
        self.start = _position("startingOffsets", lower.get("startingoffsets", "earliest"))
        self.end = _position("endingOffsets", lower.get("endingoffsets", "latest"))
        self.rows = _count("maxOffsetsPerTrigger", lower.get("maxoffsetspertrigger", "0"))
        self.partitions = _count("minPartitions", lower.get("minpartitions", "0"))
        self.strict = _flag("failOnDataLoss", lower.get("failondataloss", "true"))
        self.kinds = filters.kinds_of(lower.get("kinds", ""))
        self.pattern = filters.pattern_of(filters.listed(lower.get("topics", "")))
        if self.end == EARLIEST:
            raise SettingError("endingOffsets: expected latest or a seq, got earliest")


def _position(name: str, text: str) -> int:
    """EARLIEST, LATEST, or the seq of a row."""
    if text.strip().lower() in _WORDS:
        return _WORDS[text.strip().lower()]
    try:
        value = json.loads(text)
        position = value if isinstance(value, int) else value[LOG]
        if isinstance(position, int) and position >= EARLIEST:
            return position
    except (ValueError, TypeError, KeyError):
        pass
    raise SettingError(f'{name}: expected earliest, latest, a seq or {{"0": seq}}, got {text!r}')


def _count(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise SettingError(f"{name}: expected a number, got {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in _TRUTH:
        raise SettingError(f"{name}: expected true or false, got {text!r}")
    return _TRUTH[text.lower()]


class Journal:
    """The journal as both readers see it: positions, ranges and their rows."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.table = Table(options.path, allow_loss=not options.strict)

    def resolve(self, position: int, last: int) -> int:
        """The last seq *before* a position: words and seqs as offsets."""
        if position == EARLIEST:
            return self.oldest()
        return last if position == LATEST else max(position - 1, 0)

    def oldest(self) -> int:
        """The offset from which everything that is left can be read."""
        return max(self.table.first() - 1, 0)

    def begin(self, after: int, upto: int) -> int:
        """`after`, checked: rows gone by retention are an error, or are skipped."""
        if after > upto:
            raise OffsetError(
                f"asked for rows after {after}, but {self.options.path} ends at {upto}: "
                f"is this the checkpoint of another hub? Start with a new one "
                f"(`hubbub pipeline run` keeps it with its tables: move them away)"
            )
        oldest = min(self.oldest(), upto)
        if after >= oldest:
            return after
        if self.options.strict:
            raise OffsetError(
                f"rows {after + 1} to {oldest} of {self.options.path} are gone (retention): "
                f"set failOnDataLoss=false to go on after them"
            )
        return oldest

    def ranges(self, after: int, upto: int) -> list[InputPartition]:
        if after >= upto:
            return []
        after = self.begin(after, upto)
        tasks = min((upto - after) // ROWS_PER_TASK + 1, os.cpu_count() or 1)
        parts = max(tasks, self.options.partitions)
        return [Range(*part) for part in self.table.split(after, upto, parts)]

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        options = self.options
        for batch in self.table.read(part.after, part.upto):
            chosen = filters.select(batch, options.kinds, options.pattern)
            if chosen.num_rows:
                yield chosen


class Reader(DataSourceReader):
    """A batch: everything between two offsets, planned once."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        journal = Journal(self.options)
        last = journal.table.committed()
        upto = min(journal.resolve(self.options.end, last), last)
        after = min(journal.resolve(self.options.start, last), upto)
        return journal.ranges(after, upto)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return iter(())  # with no partitions Spark still reads one, of its own making
        return Journal(self.options).read(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: batches of at most maxOffsetsPerTrigger rows, as far as is committed.

    One of these lives in Spark's planning process as long as the query; others, in workers, read.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._journal = Journal(options)
        self._target: int | None = None

    def initialOffset(self) -> Offset:
        last = self._journal.table.committed()
        return _offset(min(self._journal.resolve(self.options.start, last), last))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows) if self.options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._journal.table.committed()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        after = _seq(start)
        end = self._journal.table.committed()
        if self._target is not None:
            end = min(end, max(self._target, after))
        after = self._journal.begin(after, end)
        if isinstance(limit, ReadMaxRows):
            end = min(end, after + limit.max_rows)
        return _offset(end)

    def reportLatestOffset(self) -> Offset:
        return _offset(self._journal.table.committed())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        return self._journal.ranges(_seq(start), _seq(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return self._journal.read(partition)


def _offset(seq: int) -> Offset:
    return {"v": OFFSET_VERSION, LOG: seq}


def _seq(offset: Mapping[str, Any]) -> int:
    """The position that a checkpoint holds. Raises OffsetError for a form of another version."""
    if offset.get("v") != OFFSET_VERSION or not isinstance(offset.get(LOG), int):
        raise OffsetError(
            f"expected an offset of version {OFFSET_VERSION}, got {json.dumps(dict(offset))}: "
            f"this checkpoint belongs to another version, start with a new one"
        )
    return int(offset[LOG])


class HubbubDataSource(DataSource):
    """What Spark asks first: a name, a schema, a reader."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self.checked = Options(options)

    @classmethod
    def name(cls) -> str:
        return "hubbub"

    def schema(self) -> StructType:
        fields = [StructField(column.name, _TYPES[column.type], False) for column in COLUMNS]
        return StructType(fields)

    def reader(self, schema: StructType) -> Reader:
        return Reader(self.checked)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self.checked)
