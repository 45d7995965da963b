"""`format("hubbub")`: the journal as a table of Spark, in batch and as a stream.

    spark.read.format("hubbub").load("./hubbub-data")
    spark.readStream.format("hubbub").option("url", "http://hub:8080").load()

Spark makes these objects anew in its planning process and in each worker, so they keep nothing:
a partition is a range of seq, and who reads it looks for the segments then. Only committed rows
exist, and rows never change: the same range always gives the same rows.

An offset is the last seq that was read of each journal,
`{"v": 1, "parts": 2, "6f…e1": 1234, "lost": 0}`: the version of this form, into how many tasks a
batch is cut (so that a batch which is repeated is cut the same), and one entry a journal, by its
id. Where rows are unlike one another, `cuts` has
the last row of each task (`plan`), and the version is 2. `lost` counts the rows that were gone
before they were read. Which journals are there, and what of those that are not, is in `journals`.
The options are in `options`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

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

from hubbub.errors import JournalError, SettingError
from hubbub.journal.table import SCHEMA, Shares
from hubbub.schema import COLUMNS
from hubbub.spark import daemon
from hubbub.spark.filters import Bounds, Choice
from hubbub.spark.hub import AwayError
from hubbub.spark.journals import (
    CUT_VERSION,
    CUTS,
    LOG,
    LOST,
    OFFSET_VERSION,
    PARTS,
    VERSION,
    Journal,
    Journals,
    check_apart,
    known_table,
    seqs_of,
    table_at,
)
from hubbub.spark.options import Options, check_column, of_table
from hubbub.spark.plan import Ends, Range, Span, Wanted, by_rows, cuts_in, fair, text_of
from hubbub.spark.sink import StreamWriter, Target, Writer

log = logging.getLogger("hubbub.spark")
daemon.silence_this()

SUM: Final = "sum"  # in what is reported: the rows of all journals together …
AWAY: Final = "away"  # … and the places of those that are gone, by their names
KEPT: Final = "hubbub"  # in the metadata of the first column: the options of a table
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

_OURS: Final = {column.name: _TYPES[column.type] for column in COLUMNS}

Offset = dict[str, Any]


def planned(wanted: Sequence[Wanted], ends: Sequence[Ends]) -> list[Range]:
    return [part for one, cut in zip(wanted, ends, strict=True) for part in one.cut(cut)]


def _known(options: Options, spans: Iterable[tuple[Journal, Span]]) -> list[Shares | None]:
    """What the rows of each journal cost; nobody is asked where there is one task anyway."""
    count = max(options.cores, options.partitions)
    return [one.shares(span, count) for one, span in spans]


def read_range(
    options: Options,
    part: InputPartition,
    choice: Choice | None = None,
    shape: pa.Schema = SCHEMA,
) -> Iterator[pa.RecordBatch]:
    """The rows of a partition that are wanted, and of them the columns of `shape`."""
    if not isinstance(part, Range) or not part.place:
        return iter(())  # with no partitions Spark still reads one, of its own making
    table = known_table(part.place, options.access, options.strict, part.journal, True)
    names = () if shape.names == SCHEMA.names else tuple(shape.names)
    found = joined(table.read(part.after, part.upto, choice if choice else None, names))
    if shape.equals(SCHEMA):
        return found
    return (pa.RecordBatch.from_arrays(batch.columns, schema=shape) for batch in found)


def read_what_is_there(
    options: Options, part: InputPartition, choice: Choice, shape: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The same, of a journal that may have gone since the batch was planned."""
    try:
        yield from read_range(options, part, choice, shape)
    except (JournalError, OSError) as error:
        if not isinstance(part, Range) or not _is_gone(options, part, error):
            raise
        log.warning(
            "journal %s is gone (%s): what was not read yet of its rows %d to %d is left out",
            part.journal, error, part.after + 1, part.upto,
        )  # fmt: skip


def _is_gone(options: Options, part: Range, error: Exception) -> bool:
    """Whether an error came of a journal that is no more where it was."""
    if isinstance(error, AwayError):
        return True
    try:
        hasty = options.access._replace(patience=0)
        return table_at(part.place, hasty).shelf.identity() != part.journal
    except (JournalError, OSError):
        return True


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are not small."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.get_total_buffer_size()  # `nbytes` takes twenty times as long for a small one
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

    def __init__(self, options: Options, shape: pa.Schema = SCHEMA) -> None:
        self.options = options
        self.shape = shape
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
        wanted = []
        journals = [Journal(place, self.options) for place in self.options.places]
        _check_names(self.options, journals)
        check_apart(journals)
        for journal in journals:
            if not journal.id:
                raise JournalError(
                    f"{journal.shown} holds no journal: expected the data directory of a hub "
                    "(`hubbub serve --data DIR`)"
                )
            span = journal.within(self.bounds)
            if span.upto > span.after:
                span = Span(journal.begin(span.after, span.upto), span.upto)
            wanted.append(Wanted(journal.place, journal.id, span))
        return planned(wanted, self._ends(journals, [one.span for one in wanted]))

    def _ends(self, journals: Sequence[Journal], spans: Sequence[Span]) -> list[Ends]:
        cores, least = self.options.cores, self.options.partitions
        known = _known(self.options, zip(journals, spans, strict=True))
        return fair(spans, known, cores, least) or by_rows(spans, cores, least)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.options, partition, self.choice, self.shape)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: batches of at most maxOffsetsPerTrigger rows, as far as is committed.

    One of these lives in Spark's planning process as long as the query; others, in workers, read.
    """

    def __init__(self, options: Options, shape: pa.Schema = SCHEMA) -> None:
        self.options = options
        self.shape = shape
        self.choice = Choice(options.kinds, options.topics)
        self._journals = [Journal(place, options) for place in options.places]
        self._several = Journals(options, self._journals)
        self._skipped: dict[str, int] = {}  # rows of a planned batch whose journal is gone
        self._at_work: dict[str, Span] = {}  # what the last batch has of each journal
        self._targets: dict[str, int] | None = None
        self._planned = -math.inf  # when the last batch was

    def initialOffset(self) -> Offset:
        self._several.look()
        _check_names(self.options, self._journals)
        return self._offset({one.key: one.start() for one in self._journals}, 0)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows) if self.options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        there = self._several.look()
        self._targets = {one.place: one.now.committed for one in there}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        stand = self._several.stand(start)
        self._say_went([one for one, _ in stand.there])
        spans = [(one, self._new(one, after)) for one, after in stand.there]
        lost = sum(one.lost for one in self._journals) + sum(self._skipped.values())
        for one in self._journals:
            one.lost = 0
        if self._too_few(spans):
            return start
        self._skipped = {}
        if isinstance(limit, ReadMaxRows):
            spans = _shared(spans, limit.max_rows)
        if self.options.bytes:
            spans = _light(spans, self.options.bytes)
        if not lost and all(span.upto == span.after for _, span in spans):
            return start
        ends = {journal.key: span.upto for journal, span in spans}
        offset = self._offset({**ends, **stand.gone}, start.get(LOST, 0) + lost)
        return {**offset, **self._cuts(spans)}

    def _say_went(self, journals: Sequence[Journal]) -> None:
        """Log which rows of the last batch are gone, once. Which of them a task had read before
        only that knows, and Spark brings nothing from there to here.
        """
        for one in journals:
            span = self._at_work.pop(one.key, None)
            if span is None or self.options.strict or one.oldest() <= span.after:
                continue
            log.warning(
                "rows %d to %d of %s went (retention) since the batch with them was planned: those "
                "that were not read yet are missing, and the logs of its tasks say which",
                span.after + 1, min(one.oldest(), span.upto), one.shown,
            )  # fmt: skip

    def _cuts(self, spans: Sequence[tuple[Journal, Span]]) -> dict[str, Any]:
        """What the offset says of the tasks of its batch where that is not plain."""
        given = self.options
        rows = [span for _, span in spans]
        cut = fair(rows, _known(given, spans), given.cores, given.partitions)
        if cut is None:
            return {}
        names = [journal.key for journal, _ in spans]
        return {VERSION: CUT_VERSION, CUTS: text_of(dict(zip(names, cut, strict=True)))}

    def _too_few(self, spans: Sequence[tuple[Journal, Span]]) -> bool:
        """Whether the rows that wait are not worth a batch yet."""
        now = time.monotonic()
        rows = sum(span.upto - span.after for _, span in spans)
        if self._targets is None and 0 < rows < self.options.least:
            if now - self._planned < self.options.delay:
                return True
        self._planned = now if rows else self._planned
        return False

    def _new(self, journal: Journal, after: int) -> Span:
        """What a journal has after a row."""
        end = journal.now.committed
        if self._targets is not None:
            end = min(end, max(self._targets.get(journal.place, 0), after))
        return Span(journal.begin(after, end), end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest seq of each journal; of several their sum, and where those were that are gone.

        Of one it is an offset as any other: who compares the two sees that all is read.
        """
        seqs = self._several.newest()
        total = {SUM: sum(seqs.values())} if len(self._journals) > 1 else {}
        away = {AWAY: self._several.places} if self._several.places else {}
        return {**self._offset(seqs, 0), **total, **away}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """In the order of the offset: a batch is cut the same if one of its journals is gone."""
        stand = self._several.stand(end)
        there = {name: one for one, _ in stand.there for name in (one.key, one.place)}
        before, wanted = seqs_of(start), []
        for name, upto in seqs_of(end).items():
            journal = there.get(name)
            if journal is None:
                wanted.append(self._gone(name, Span(before.get(name, 0), upto)))
                continue
            after = before.get(name, before.get(journal.place, upto))
            if upto > after:
                after = journal.begin(after, upto)
            wanted.append(Wanted(journal.place, journal.id, Span(after, upto)))
            self._at_work[journal.key] = wanted[-1].span
        counted = end.get(LOST, 0) - start.get(LOST, 0)  # what `end` says already
        for one in self._journals:
            counted, one.lost = max(counted - one.lost, 0), max(one.lost - counted, 0)
        if CUTS not in end:
            # Who says nothing of what is lost is of a build that said nothing of cuts either.
            least = 0 if LOST in end else self.options.partitions
            return planned(wanted, by_rows([one.span for one in wanted], end[PARTS], least))
        cuts = cuts_in(end[CUTS])
        return planned(wanted, [cuts.get(name, ()) for name in seqs_of(end)])

    def _gone(self, name: str, span: Span) -> Wanted:
        """What a batch that is planned would have of a journal that is gone since."""
        if span.upto > span.after:
            self._skipped[name] = span.upto - span.after
            log.warning(
                "rows %d to %d of journal %s are skipped: it is gone, and a batch ends after them",
                span.after + 1, span.upto, name,
            )  # fmt: skip
        return Wanted("", name, span)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        read = read_what_is_there if self.options.lenient else read_range
        return read(self.options, partition, self.choice, self.shape)

    def _offset(self, seqs: Mapping[str, int], lost: int) -> Offset:
        return {VERSION: OFFSET_VERSION, PARTS: self.options.cores, **seqs, LOST: lost}


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
    waiting = max(sum(span.upto > span.after for _, span in spans), 1)
    return [(one, one.light(span, most // waiting)) for one, span in spans]


def _check_schema(schema: StructType) -> None:
    """Raise SettingError for a schema that is not of columns of the journal."""
    if not schema.fields:
        raise SettingError("the schema is empty: name at least one column")
    for field in schema.fields:
        check_column("schema", field.name)
        if field.dataType != _OURS[field.name]:
            ours = _OURS[field.name].simpleString()
            raise SettingError(
                f"schema: column {field.name} is {ours}, not {field.dataType.simpleString()}: "
                "cast it in the select"
            )


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
        options = self._checked(table or self.options)  # what is misspelt is said where it stands
        chosen = options.columns or tuple(_OURS)
        fields = [StructField(name, _OURS[name], False) for name in chosen]
        if table:
            fields[0].metadata[KEPT] = table
        return StructType(fields)

    def reader(self, schema: StructType) -> Reader:
        return Reader(*self._wanted(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        options, shape = self._wanted(schema)
        if options.ends:
            raise SettingError(
                "endingOffsets and endingTimestamp are of a batch (spark.read): a stream goes on. "
                "trigger(availableNow=True) ends it where the journal ends; else filter its rows"
            )
        return StreamReader(options, shape)

    def writer(self, schema: StructType, overwrite: bool) -> Writer:
        return Writer(Target(self.options, schema), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(Target(self.options, schema))

    def _wanted(self, schema: StructType) -> tuple[Options, pa.Schema]:
        """The options, and the columns with their types: all, those of the option, or those of
        `.schema()`, which is how Spark's own sources are told.
        """
        kept = schema.fields[0].metadata.get(KEPT, {}) if schema.fields else {}
        options = self._checked({**kept, **self.options})
        _check_schema(schema)
        if options.columns and options.columns != tuple(schema.names):
            raise SettingError(
                f"columns: {', '.join(options.columns)} are wanted, and the schema has "
                f"{', '.join(schema.names)}: leave out .schema(); for a table of a catalog, say "
                "columns when it is made"
            )
        if any(field.nullable for field in schema.fields) and not self._says_where():
            # Spark hands on nothing else of a table with columns of its own.
            raise SettingError(
                "path or url has to be said with .schema(). In CREATE TABLE leave out the columns: "
                "OPTIONS (columns 'topic, time') chooses them"
            )
        fields = [SCHEMA.field(one.name).with_nullable(one.nullable) for one in schema.fields]
        return options, pa.schema(fields)

    def _says_where(self) -> bool:
        return bool({"path", "paths", "url"} & {name.lower() for name in self.options})

    def _checked(self, given: Mapping[str, str]) -> Options:
        options = Options(given)
        Choice(options.kinds, options.topics)
        return options
