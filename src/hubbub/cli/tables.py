"""`hubbub pipeline sql` and `tables`: ask the tables, and say what there is to ask."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.status import Status

from hubbub.cli import complete
from hubbub.cli.options import DATA, Data
from hubbub.errors import HubbubError, SettingError
from hubbub.terminal import say, screened

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# One query: compiling its bytecode twice and sweeping in parallel cost more than they save.
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CANCEL_AGAIN: Final = 0.5  # seconds
PROMPT: Final = "hubbub> "
MORE: Final = "      > "

Master = Annotated[str, typer.Option(metavar="URL", help="Spark's master, spark://HOST:PORT.")]
Remote = Annotated[str, typer.Option(metavar="URL", help="A Spark Connect server, sc://HOST:PORT.")]


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"
    parquet = "parquet"


def sql(
    query: Annotated[
        str, typer.Argument(help="What to ask, in Spark SQL; else standard input, or a prompt.")
    ] = "",
    data: Data = DATA,
    given: Annotated[
        Format | None, typer.Option("--format", help="How to write it; else FILE's name says it.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FILE", help="Write it there.")] = "",
    plot: Annotated[
        str, typer.Option(metavar="FILE", help="Draw it over time: a PNG, - for the terminal.")
    ] = "",
    master: Master = "local[*]",
    remote: Remote = "",
) -> None:
    """Ask the tables in SQL: `hubbub pipeline tables` lists them.

    There are messages, readings, quarantine, traffic, calls, sessions, deliveries, audit
    and alerts.

    Their rows are final; rows of traffic, calls, sessions and deliveries that will still change
    are in traffic_open and so on. All stand at the same row of the journal.
    """
    need_spark()
    form = given or _form_of(out)
    for file in (out, plot):
        if not Path(file).absolute().parent.is_dir():
            raise SettingError(f"cannot write {file}: there is no directory {Path(file).parent}")
    if form is Format.parquet and not out:
        raise SettingError("--format parquet needs a file: --out FILE")
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.sql import check
    from hubbub.spark.start import end

    check(query)  # before Spark starts, which takes a while
    Layout(data).stands()
    spark = start(master, remote)
    try:
        if not query and sys.stdin.isatty():
            _prompt(spark, data, form, out, plot)
            return
        for statement in (query,) if query else statements(sys.stdin):
            _put(_ask(spark, data, statement), form, out, plot)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        end(spark)


def _form_of(file: str) -> Format:
    """What the name of a file asks for."""
    suffix = Path(file).suffix.removeprefix(".")
    return Format(suffix) if suffix in Format.__members__ else Format.table


def start(master: str, remote: str) -> SparkSession:
    """Spark for one command, which Ctrl-C ends."""
    from hubbub.pipeline.sql import bound_results
    from hubbub.spark.start import session

    conf = {} if remote else {"spark.driver.extraJavaOptions": SHORT_LIVED}
    with _waiting("Starting Spark"):
        spark = session(master, remote, **conf)
        if not remote:
            bound_results(spark)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Spark sets its own
    return spark


def _waiting(text: str) -> Status:
    """Shown on a terminal only, and gone when it is over."""
    return Console(stderr=True).status(text)


def _ask(spark: SparkSession, data: Path, query: str) -> pa.Table:
    """The result of a query over the tables as they stand now.

    Ctrl-C cancels it in Spark too, and is raised when it is over. Spark is called in a thread of
    its own: who waits for an answer of the JVM cannot ask it to cancel, and where Ctrl-C breaks
    such a wait the connection is lost, in the midst of whatever was said.
    """
    from hubbub.pipeline.sql import ask, views

    def answered() -> pa.Table:
        views(spark, data)
        return ask(spark, data, query)

    with _waiting("Asking the tables"), ThreadPoolExecutor(1) as thread:
        answer = thread.submit(answered)
        try:
            return answer.result()
        except KeyboardInterrupt:
            while not answer.done():  # while it is planned there is nothing to cancel yet
                spark.interruptAll()
                wait((answer,), CANCEL_AGAIN)
            raise


def _put(result: pa.Table, form: Format, out: str, plot: str) -> None:
    from hubbub.pipeline import plot as drawn
    from hubbub.pipeline.sql import show

    if plot == "-":
        print(drawn.dots(drawn.lines_of(result), sys.stdout.isatty()), end="")
    elif plot:
        drawn.png(drawn.lines_of(result), Path(plot))
    elif form is Format.parquet:
        import pyarrow.parquet as pq

        pq.write_table(result, out)
    elif out:
        with open(out, "w", encoding="utf-8", newline="") as file:
            show(result, form.value, file)
    else:
        show(result, form.value, screened(sys.stdout))


def statements(lines: Iterable[str]) -> Iterator[str]:
    """What is asked without a prompt: `;` at the end of a line ends a statement, as there."""
    said = ""
    for line in lines:
        said = f"{said}\n{line}".strip()
        if said.endswith(";"):
            yield said.rstrip("; \n")
            said = ""
    if said:
        yield said


def _prompt(spark: SparkSession, data: Path, form: Format, out: str, plot: str) -> None:
    """Ask until the end of the input. A statement ends with `;`, Ctrl-C drops it."""
    import readline  # noqa: F401  # gives input() a history

    print("SQL over the tables; a statement ends with ;")
    print("\\d lists the tables, \\d NAME the columns of one; \\q or Ctrl-D ends.")
    said = ""
    while True:
        try:
            line = input(MORE if said else PROMPT)
            said = f"{said}\n{line}".strip()
            if said in ("\\q", "exit", "quit"):
                return
            if said.startswith("\\d"):
                name, said = said.removeprefix("\\d").strip("; "), ""
                _describe(name, data)
            elif said.endswith(";"):
                statement, said = said.rstrip("; \n"), ""
                _put(_ask(spark, data, statement), form, out, plot)
        except KeyboardInterrupt:
            said = ""
            print()
        except EOFError:
            print()
            return
        except HubbubError as error:
            say(str(error), stream=sys.stderr)


def _describe(name: str, data: Path) -> None:
    """What there is to ask: all tables with their grain, or the columns of one."""
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.tables.table import CARRIED
    from hubbub.pipeline.tables.typed import every

    if name:
        _columns(name.removesuffix("_open"), data)
        return
    for table in every(Layout(data)):
        opened = f", {table.name}_open" if isinstance(table, CARRIED) else ""
        print(f"{table.name + opened:28}{table.grain}")


def listing(
    name: Annotated[
        str, typer.Argument(help="A table: then its columns.", autocompletion=complete.tables)
    ] = "",
    data: Data = DATA,
) -> None:
    """List the tables with their rows and sizes, or the columns of one with their meaning.

    Open rows are those that a later batch will close.
    """
    need_spark()
    if name:
        _columns(name, data)
        return
    import pyarrow.parquet as pq

    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.tables.table import CARRIED
    from hubbub.pipeline.tables.typed import every

    layout = Layout(data)
    progress = layout.stands()
    print(f"{'table':12}{'rows':>14}{'open':>9}{'files':>8}{'MB':>10}  one row is")
    for table in every(layout):
        files = [part.file for part in layout.files(table.name, -1, progress.batch)]
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        size = sum(file.stat().st_size for file in files) / 1e6
        grain = table.grain.removeprefix("one row ").partition(":")[0]
        opened = ""
        if isinstance(table, CARRIED):
            carried = layout.opened(table.name, progress.batch)
            opened = f"{_rows(carried, table.columns[0].name):,}"
        print(f"{table.name:12}{rows:>14,}{opened:>9}{len(files):>8,}{size:>10,.1f}  {grain}")


def _rows(files: list[Path], column: str) -> int:
    """Rows of the table: where its first column is null, something else is remembered."""
    import pyarrow.parquet as pq

    read = (pq.ParquetFile(file).read([column]).column(0) for file in files)
    return sum(len(cells) - cells.null_count for cells in read)


def _columns(name: str, data: Path) -> None:
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.tables.typed import every

    known = {table.name: table for table in every(Layout(data))}
    table = known[names(name, (*known,))[0]]
    print(f"{table.name}: {table.grain}")
    for column in table.columns:
        unit = f" ({column.unit})" if column.unit else ""
        print(f"  {column.name:14}{column.type:11}{column.meaning}{unit}")


def names(given: str, more: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of tables, comma-separated; SettingError for one that is none, nor of `more`."""
    from hubbub.pipeline.tables import ALL

    known = [*dict.fromkeys((*(table.name for table in ALL), *more))]
    chosen = tuple(part.strip() for part in given.split(",") if part.strip())
    for one in chosen or ("",):
        if one not in known:
            raise SettingError(f"there is no table {one!r}: expected of {', '.join(known)}")
    return chosen


def need_spark() -> None:
    """Before anything is begun: a hub may be installed without (`cli.main` says how to)."""
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
