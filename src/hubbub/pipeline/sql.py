"""The tables by name in Spark SQL, and results as text.

Called by `hubbub pipeline sql`, and by programs with a Spark session. All tables are shown as of
one moment, the last whole batch:

    messages, readings, quarantine, audit, alerts  all rows
    traffic, calls, sessions, deliveries           closed rows: final, they never change
    traffic_open, calls_open, sessions_open, …     rows that a later batch will close

Reads the Parquet files only, never the journal.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final, TextIO

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hubbub.errors import SettingError
from hubbub.pipeline.layout import Layout, Progress, beyond
from hubbub.pipeline.places import BATCH_ID, read_payloads_of
from hubbub.pipeline.tables.table import CARRIED, AnyTable, Carried, ddl, names
from hubbub.pipeline.tables.typed import every
from hubbub.spark.start import heap

TRIES: Final = 3
LIST_HERE: Final = "1000000"  # directories: a task for each costs more than looking into it
_COMPUTED: Final = ("=", "+", "-", "@", "\t", "\r")  # how a formula begins, in one or other program
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_CHANGE: Final = re.compile(
    r"(?>\s|--[^\n]*|/\*.*?\*/)*+(?!create\s+(?:or\s+replace\s+)?(?:global\s+)?temp)"
    r"(?P<verb>alter|create|delete|drop|insert|load|merge|replace|truncate|update)\b",
    re.IGNORECASE | re.DOTALL,
)
RESULT_BYTES: Final = "spark.driver.maxResultSize"
RESULT_PART: Final = 4  # of Java's memory: it holds a result some three times
ROWS: Final = 10_000  # that are written at a time
_TOO_LARGE: Final = ("maxResultSize", "TaskResultLost", "OutOfMemoryError")
CELL: Final = 60  # characters of a cell in the `table` format; csv and json give all


def bound_results(spark: SparkSession) -> None:
    """A result that is too large for Java's memory is an error, and not the end of Java.

    Spark's own bound, 1 GiB, is as much as all the memory that it has by itself. Each answer asks
    for it anew; who has set it has chosen.
    """
    context = spark.sparkContext
    if not context.getConf().contains(RESULT_BYTES):
        conf = context._jsc.sc().conf()
        conf.set(RESULT_BYTES, str(heap(spark) // RESULT_PART))


def views(spark: SparkSession, data: str | Path) -> Progress:
    """Make the tables of a data directory temporary views; return how far they stand.

    Raises DirectoryError if no pipeline ever ran there.
    """
    layout = Layout(data)
    progress = layout.stands()
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", LIST_HERE)
    read_payloads_of(spark, progress.largest)
    tables = every(layout)
    gone = layout.lacking([table.name for table in tables])
    for table in tables:
        if table.name not in gone:  # that there is none is better than that it has no rows
            closed(spark, layout, table, progress).createOrReplaceTempView(table.name)
        if isinstance(table, CARRIED):
            still = opened(spark, layout, table, progress)
            still.createOrReplaceTempView(f"{table.name}_open")
    return progress


def closed(spark: SparkSession, layout: Layout, table: AnyTable, progress: Progress) -> DataFrame:
    place = layout.root / table.name
    if not place.exists():  # no run of this version yet
        return spark.createDataFrame([], ddl((*table.columns, BATCH_ID)))
    rows = spark.read.schema(ddl((*table.columns, BATCH_ID))).parquet(str(place))
    rows = rows.where(F.col("_metadata.file_name") < beyond(progress.batch))
    return rows.select(*names((*table.columns, BATCH_ID)))


def opened(spark: SparkSession, layout: Layout, table: Carried, progress: Progress) -> DataFrame:
    files = [str(file) for file in layout.opened(table.name, progress.batch)]
    if not files:
        return spark.createDataFrame([], ddl(table.columns))
    rows = spark.read.schema(ddl(table.columns)).parquet(*files)
    return rows.where(rows[table.columns[0].name].isNotNull())


def check(query: str) -> None:
    """SettingError for what would change a table: it would be a view of it that changes, for this
    one statement, or a table of Spark's own in the directory where one is.
    """
    found = _CHANGE.match(query)
    if found:
        raise SettingError(
            f"{found['verb'].upper()}: the tables are only asked here, `hubbub pipeline run` alone "
            "writes them (its --keep removes rows); CREATE TEMP VIEW names a query"
        )


def ask(spark: SparkSession, data: str | Path, query: str) -> pa.Table:
    """The result of a query. Asked again if a running pipeline merged files meanwhile.

    Raises SettingError with the first line of what Spark says if the query is wrong.
    """
    check(query)
    for attempt in range(TRIES):
        try:
            return spark.sql(query).toArrow()
        except Py4JJavaError as error:
            if not any(word in str(error) for word in _TOO_LARGE):
                raise
            raise SettingError(
                "the result is more than Spark's memory takes: ask for less (fewer columns, WHERE, "
                "LIMIT), read the Parquet files of DIR/tables, or give Spark more "
                "(spark.driver.memory in spark-defaults.conf where SPARK_CONF_DIR says)"
            ) from None
        except PySparkException as error:
            said = str(error).strip().splitlines()[0]
            if "FILE_NOT_EXIST" not in said or attempt == TRIES - 1:
                raise SettingError(said) from error
            spark.catalog.clearCache()
            views(spark, data)
    raise AssertionError("the loop returns or raises")


def show(result: pa.Table, form: str, out: TextIO) -> None:
    """Write a result as one of FORMATS. Times are UTC; bytes that are no text are 0x…"""
    FORMATS[form](result.column_names, _rows(result), out)


def _rows(result: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Some at a time: as objects of Python they take ten times what they take in the table."""
    for batch in result.to_batches(ROWS):
        columns = [[_plain(cell) for cell in _cells(column)] for column in batch.columns]
        yield from zip(*columns, strict=True)


def _cells(column: pa.Array) -> list[Any]:
    """Python has no year 0 and none after 9999; Arrow can say them."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError) as error:
        if not pa.types.is_timestamp(column.type):
            raise SettingError(f"a result has a time beyond the years 1 to 9999: {error}") from None
        said = column.cast(pa.string()).to_pylist()
        return [cell and cell.replace(" ", "T") for cell in said]


def _plain(cell: Any) -> Any:
    """A value as JSON can say it."""
    if isinstance(cell, bytes):
        return _text(cell)
    if isinstance(cell, datetime):
        utc = cell.astimezone(UTC) if cell.tzinfo else cell
        return utc.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(cell, dict):
        return {str(key): _plain(value) for key, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_plain(value) for value in cell]
    return cell if cell is None or isinstance(cell, bool | int | float | str) else str(cell)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "0x" + raw.hex()


_Rows = Iterable[tuple[Any, ...]]


def _as_csv(names: list[str], rows: _Rows, out: TextIO) -> None:
    line = io.StringIO()
    writer = csv.writer(line)  # ends lines by CR LF, and so it quotes a cell with either of them
    for row in chain((names,), rows):
        writer.writerow("" if cell is None else _no_formula(cell) for cell in row)
        out.write(line.getvalue().removesuffix("\r\n") + "\n")
        line.seek(0)
        line.truncate()


def _no_formula(cell: Any) -> str:
    """A text that a spreadsheet would compute has ' before it; json and parquet give it as it is.

    Topics and payloads are what strangers wrote: `=HYPERLINK(…)` sends a row to somebody.
    """
    word = _word(cell)
    danger = isinstance(cell, str) and word.startswith(_COMPUTED) and not _NUMBER.fullmatch(word)
    return f"'{word}" if danger else word


def _as_json(names: list[str], rows: _Rows, out: TextIO) -> None:
    """An array with one row a line."""
    before = "["
    for row in rows:
        out.write(before + json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False))
        before = ",\n "
    out.write("]\n" if before != "[" else "[]\n")


def _as_table(names: list[str], rows: _Rows, out: TextIO) -> None:
    """Aligned columns, numbers to the right, long cells cut. None: it was no question."""
    if not names:
        out.write("done\n")
        return
    rows = list(rows)
    cells = [[_cut(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [
        all(isinstance(cell, int | float) or cell is None for cell in column)
        for column in zip(*rows, strict=True)
    ]
    _line(names, widths, [False] * len(names), out)
    out.write("  ".join("-" * width for width in widths) + "\n")
    for line in cells:
        _line(line, widths, right, out)
    out.write(f"({len(cells)} row{'' if len(cells) == 1 else 's'})\n")


def _line(cells: list[str], widths: list[int], right: list[bool], out: TextIO) -> None:
    padded = [
        cell.rjust(width) if flush else cell.ljust(width)
        for cell, width, flush in zip(cells, widths, right, strict=True)
    ]
    out.write("  ".join(padded).rstrip() + "\n")


def _cut(cell: Any) -> str:
    """A cell on one line; what a terminal would obey is shown instead."""
    text = "" if cell is None else _word(cell)
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _word(cell: Any) -> str:
    if isinstance(cell, bool | dict | list):
        return json.dumps(cell, ensure_ascii=False)
    return str(cell)


FORMATS: Final[dict[str, Callable[[list[str], _Rows, TextIO], None]]] = {
    "table": _as_table,
    "csv": _as_csv,
    "json": _as_json,
}
