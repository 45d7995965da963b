"""`format("hubbub")`: the journal as a table of Spark, in batch and as a stream.

    spark.read.format("hubbub").load("./hubbub-data")
    spark.readStream.format("hubbub").option("url", "http://hub:8080").load()

Spark makes these objects anew in its planning process and in each worker, so they keep nothing:
a partition is a range of seq, and who reads it looks for the segments then. Only committed rows
exist, and rows never change: the same range always gives the same rows.

An offset is the last seq that was read of each journal, `{"v": 1, "parts": 2, "6f…e1": 1234}`:
the version of this form, into how many tasks a batch is cut (so that a batch which is repeated
is cut the same), and one entry a journal, by its id. `lost` counts the rows that were gone
before they were read. The options are in `options`.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    Filter,
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

from hubbub.errors import JournalError, OffsetError, SettingError
from hubbub.journal.table import Table
from hubbub.schema import COLUMNS
from hubbub.spark import daemon
from hubbub.spark.filters import Bounds, Choice
from hubbub.spark.hub import Hub
from hubbub.spark.options import EARLIEST, LATEST, Access, Options, of_table
from hubbub.spark.remote import Remote
from hubbub.spark.sink import StreamWriter, Target, Writer

log = logging.getLogger("hubbub.spark")
daemon.silence_this()

OFFSET_VERSION: Final = 1
VERSION: Final = "v"
PARTS: Final = "parts"
LOST: Final = "lost"
KEPT: Final = "hubbub"  # in the metadata of the first column: the options of a table
LOG: Final = "0"  # what a journal may be called while there is only one
ROWS_PER_TASK: Final = 20_000  # below this a second task costs more than it saves
ROWS_PER_BATCH: Final = 16_384  # small frames are joined: each costs Spark half a millisecond
BYTES_PER_BATCH: Final = 8 << 20  # Spark and its worker each hold several batches at once

_TYPES: Final[dict[str, DataType]] = {
    "int8": ByteType(),
    "int64": LongType(),
    "bool": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "timestamp[us, UTC]": TimestampType(),
}

Offset = dict[str, int]


class Range(InputPartition):
    """A partition: the rows after < seq <= upto of one journal, known by its id."""

    def __init__(self, place: str, journal: str, after: int, upto: int) -> None:
        self.place = place
        self.journal = journal
        self.after = after
        self.upto = upto


class Span(NamedTuple):
    """Rows of a journal: after < seq <= upto."""

    after: int
    upto: int


def table_at(
    place: str, access: Access, strict: bool = True, journal: str = "", known: bool = False
) -> Table:
    """The journal in a directory, or of the hub at a URL. `journal`: it must have that id."""
    if place.startswith(("http://", "https://")):
        return Table(Remote(Hub(place, access, known), journal), allow_loss=not strict)
    table = Table(place, allow_loss=not strict)
    found = table.shelf.identity()
    if journal and found != journal:
        raise OffsetError(
            f"{place} holds another journal than before ({found or 'none'}, not {journal}): "
            "start with a new checkpoint, or put the old journal back"
        )
    return table


# A worker reads many ranges; what a table learned of the files serves the next one.
_known_table = lru_cache(maxsize=8)(table_at)


class Journal:
    """One journal as both readers see it: positions, and where a range begins."""

    def __init__(self, place: str, options: Options) -> None:
        self.place = place
        self.options = options
        self.table = table_at(place, options.access, options.strict)
        self.lost = 0

    @property
    def id(self) -> str:
        return self.table.shelf.identity()

    @property
    def key(self) -> str:
        """Its name in offsets; the place of one that no hub has begun."""
        return self.id or self.place

    @property
    def shown(self) -> str:
        """Its place as a text may show it: a URL without user and password."""
        return self.table.shelf.name

    def start(self) -> int:
        """The last seq before the first row that is wanted."""
        last = self.table.committed()
        if self.options.since:
            return min(self._before(self.options.since), last)
        return min(self._resolve(self.options.start.of(self.key, self.place, LOG), last), last)

    def end(self) -> int:
        """The last seq that is wanted."""
        last = self.table.committed()
        end = min(self._resolve(self.options.end.of(self.key, self.place, LOG), last), last)
        return min(end, self._before(self.options.until)) if self.options.until else end

    def within(self, bounds: Bounds) -> Span:
        """The rows that are wanted and, as far as seq and time tell, within the bounds."""
        after, upto = max(self.start(), bounds.after), self.end()
        upto = min(upto, bounds.upto) if bounds.upto else upto
        if bounds.since and after < upto:
            after = max(after, self._before(bounds.since))
        if bounds.until and after < upto:
            upto = min(upto, self._before(bounds.until))
        return Span(after, max(after, upto))

    def _before(self, moment: int) -> int:
        return self.table.first_at(moment) - 1

    def _resolve(self, position: int, last: int) -> int:
        if position == EARLIEST:
            return self.oldest()
        return last if position == LATEST else max(position - 1, 0)

    def oldest(self) -> int:
        """The offset from which everything that is left can be read."""
        return max(self.table.first() - 1, 0)

    def begin(self, after: int, upto: int) -> int:
        """`after`, checked: rows gone by retention are an error, or are skipped and counted."""
        if after > upto:
            raise OffsetError(
                f"asked for rows after {after}, but {self.table.shelf.name} ends at {upto}: "
                f"is this the checkpoint of another hub? Start with a new one "
                f"(`hubbub pipeline run` keeps it with its tables: move them away)"
            )
        oldest = min(self.oldest(), upto)
        if after >= oldest:
            return after
        gone = f"rows {after + 1} to {oldest} of {self.table.shelf.name} are gone (retention)"
        if self.options.strict:
            raise OffsetError(
                f"{gone}: set failOnDataLoss=false to go on after them "
                f"(`hubbub pipeline run --skip-lost`)"
            )
        log.warning("%s: %d rows are skipped", gone, oldest - after)
        self.lost += oldest - after
        return oldest


def cut(journal: Journal, span: Span, parts: int) -> list[InputPartition]:
    """The span in at most `parts` ranges of as many rows."""
    rows = span.upto - span.after
    parts = min(parts, rows)
    ends = [span.after + rows * (index + 1) // parts for index in range(parts)]
    starts = [span.after, *ends[:-1]]
    identity = journal.id
    return [
        Range(journal.place, identity, start, end) for start, end in zip(starts, ends, strict=True)
    ]


def planned(spans: Sequence[tuple[Journal, Span]], cores: int, least: int) -> list[InputPartition]:
    """The tasks of a batch: about as many as cores, fewer if there is little, at least `least`."""
    rows = sum(span.upto - span.after for _, span in spans)
    parts = max(min(rows // ROWS_PER_TASK + 1, cores), least)
    return [
        part
        for journal, span in spans
        if span.upto > span.after
        for part in cut(journal, span, max(round(parts * (span.upto - span.after) / rows), 1))
    ]


def read_range(
    options: Options, part: InputPartition, choice: Choice | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition that are wanted."""
    if not isinstance(part, Range):
        return iter(())  # with no partitions Spark still reads one, of its own making
    table = _known_table(part.place, options.access, options.strict, part.journal, True)
    return joined(table.read(part.after, part.upto, choice if choice else None))


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not small."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROWS_PER_BATCH or size >= BYTES_PER_BATCH:
            yield _one(waiting)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class _PushFilters:
    """`pushFilters` of a reader, for sessions that push filters and for those that do not.

    Only if asked for: Spark 4.3 keeps what the last query of a DataFrame made of its reader, and
    reads that for the next one, be its conditions others or none.

    Spark refuses to read at all if a reader has this method and its setting is off. It looks at
    `__func__`; so this looks like the one that every reader inherits.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        self._reader.narrow(filters)
        return filters  # Spark looks at every row itself


class Reader(DataSourceReader):
    """A batch: everything between two offsets, planned once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.choice = Choice(options.kinds, options.topics)
        self.bounds = Bounds()
        if options.pushdown:
            self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def narrow(self, filters: list[Filter]) -> None:
        """Read less: only rows for which all of these hold are asked for."""
        self.bounds = self.bounds.narrowed(filters)
        for condition in filters:
            self.choice.push(condition)

    def partitions(self) -> Sequence[InputPartition]:
        spans = []
        journals = [Journal(place, self.options) for place in self.options.places]
        _check_names(self.options, journals)
        for journal in journals:
            if not journal.id:
                raise JournalError(
                    f"{journal.shown} holds no journal: expected the data directory of a hub "
                    "(`hubbub serve --data DIR`)"
                )
            span = journal.within(self.bounds)
            if span.upto > span.after:
                span = Span(journal.begin(span.after, span.upto), span.upto)
            spans.append((journal, span))
        return planned(spans, self.options.cores, self.options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, partition, self.choice)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: batches of at most maxOffsetsPerTrigger rows, as far as is committed.

    One of these lives in Spark's planning process as long as the query; others, in workers, read.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.choice = Choice(options.kinds, options.topics)
        self._journals = [Journal(place, options) for place in options.places]
        self._targets: dict[str, int] | None = None
        self._planned = -math.inf  # when the last batch was

    def initialOffset(self) -> Offset:
        _check_names(self.options, self._journals)
        return self._offset({one.key: one.start() for one in self._journals}, 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows) if self.options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = {one.place: one.table.committed() for one in self._journals}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        spans = [(one, self._new(one, start)) for one in self._journals]
        lost = sum(one.lost for one in self._journals)
        for one in self._journals:
            one.lost = 0
        if self._too_few(spans):
            return start
        if isinstance(limit, ReadMaxRows):
            spans = _shared(spans, limit.max_rows)
        if self.options.bytes:
            spans = _light(spans, self.options.bytes)
        if not lost and all(span.upto == span.after for _, span in spans):
            return start
        ends = {journal.key: span.upto for journal, span in spans}
        return self._offset(ends, start.get(LOST, 0) + lost)

    def _too_few(self, spans: Sequence[tuple[Journal, Span]]) -> bool:
        """Whether the rows that wait are not worth a batch yet."""
        now = time.monotonic()
        rows = sum(span.upto - span.after for _, span in spans)
        if self._targets is None and 0 < rows < self.options.least:
            if now - self._planned < self.options.delay:
                return True
        self._planned = now if rows else self._planned
        return False

    def _new(self, journal: Journal, start: Offset) -> Span:
        """What a journal has after an offset."""
        after = self._seq(journal, start)
        end = journal.table.committed()
        if self._targets is not None:
            end = min(end, max(self._targets[journal.place], after))
        return Span(journal.begin(after, end), end)

    def reportLatestOffset(self) -> Offset:
        return self._offset({one.key: one.table.committed() for one in self._journals}, 0)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        spans = []
        for journal in self._journals:
            after, upto = self._seq(journal, start), self._seq(journal, end)
            if upto > after:
                after = journal.begin(after, upto)
            spans.append((journal, Span(after, upto)))
        counted = end.get(LOST, 0) - start.get(LOST, 0)  # what `end` says already
        for journal in self._journals:
            counted, journal.lost = max(counted - journal.lost, 0), max(journal.lost - counted, 0)
        return planned(spans, end[PARTS], self.options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, partition, self.choice)

    def _offset(self, seqs: Mapping[str, int], lost: int) -> Offset:
        found = {VERSION: OFFSET_VERSION, PARTS: self.options.cores, **seqs}
        return {**found, LOST: lost} if lost else found

    def _seq(self, journal: Journal, offset: Mapping[str, Any]) -> int:
        """The position that a checkpoint holds for a journal; its beginning if it holds none.

        Raises OffsetError for a form of another version, or if it is about other journals.
        """
        seqs = {name: offset[name] for name in offset if name not in (VERSION, PARTS, LOST)}
        if offset.get(VERSION) != OFFSET_VERSION:
            raise OffsetError(
                f"expected an offset of version {OFFSET_VERSION}, got {json.dumps(dict(offset))}: "
                f"this checkpoint belongs to another version, start with a new one"
            )
        names = {name for one in self._journals for name in (one.key, one.place)}
        strange = sorted(set(seqs) - names)
        if strange:
            raise OffsetError(
                f"this is the checkpoint of another hub: it stands in journal {strange[0]}, and "
                f"{', '.join(f'{one.shown} is {one.key}' for one in self._journals)}. Name the "
                "place of that journal, or start with a new checkpoint (`hubbub pipeline run` "
                "keeps it with its tables: move them away)"
            )
        found = seqs.get(journal.key, seqs.get(journal.place))
        return int(found) if found is not None else journal.oldest()


def _check_names(options: Options, journals: Sequence[Journal]) -> None:
    """Raise SettingError for a position of a journal that is not read."""
    named = {**options.start.by_name, **options.end.by_name}
    if named:
        known = [name for one in journals for name in (one.key, one.place)]
        for name in named:
            if name not in (*known, LOG):
                there = ", ".join(name for one in journals for name in (one.key, one.shown))
                raise SettingError(f"offsets: {name} is none of the journals: {there}")


def _shared(spans: Sequence[tuple[Journal, Span]], most: int) -> list[tuple[Journal, Span]]:
    """The spans made shorter so that they have `most` rows together, each its share."""
    rows = sum(span.upto - span.after for _, span in spans)
    if rows <= most:
        return list(spans)
    return [
        (one, Span(span.after, span.after + -(-most * (span.upto - span.after) // rows)))
        for one, span in spans
    ]


def _light(spans: Sequence[tuple[Journal, Span]], most: int) -> list[tuple[Journal, Span]]:
    """The spans made shorter so that their rows carry about `most` bytes together."""
    waiting = sum(span.upto > span.after for _, span in spans)
    return [
        (one, span._replace(upto=one.table.shelf.within(*span, most // waiting)))
        if span.upto > span.after
        else (one, span)
        for one, span in spans
    ]


class HubbubDataSource(DataSource):
    """What Spark asks first: a name, a schema, a reader, a writer."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))

    @classmethod
    def name(cls) -> str:
        return "hubbub"

    def schema(self) -> StructType:
        """Of a table in Spark's catalog also what it was made with.

        Spark 4.3 hands the options of such a table to nobody who reads it, but its schema.
        """
        table = of_table(self.options)
        self._checked(table or self.options)  # a misspelt option is said where it stands
        fields = [StructField(column.name, _TYPES[column.type], False) for column in COLUMNS]
        if table:
            fields[0].metadata[KEPT] = table
        return StructType(fields)

    def reader(self, schema: StructType) -> Reader:
        return Reader(self._wanted(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._wanted(schema))

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(Target(self.options, schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(Target(self.options, schema))

    def _wanted(self, schema: StructType) -> Options:
        names = [column.name for column in COLUMNS]
        if schema.names != names:
            raise SettingError(
                f"the columns are {', '.join(names)}, and cannot be others: leave them out of "
                "CREATE TABLE or .schema(), and select those that you want"
            )
        return self._checked({**schema.fields[0].metadata.get(KEPT, {}), **self.options})

    def _checked(self, given: Mapping[str, str]) -> Options:
        options = Options(given)
        Choice(options.kinds, options.topics)
        return options
