"""`hubbub pipeline`: run the pipeline, ask its tables in SQL. Spark is loaded when it starts."""

from __future__ import annotations

import signal
import sys
import threading
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubbub.errors import SettingError
from hubbub.settings import DEFAULT_DATA

if TYPE_CHECKING:
    from hubbub.pipeline.run import Report

_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

app = typer.Typer(no_args_is_help=True, add_completion=False)

Data = Annotated[str, typer.Option(metavar="DIR", help="The hub's data directory.")]


class Format(StrEnum):
    table = "table"
    csv = "csv"
    json = "json"


@app.command()
def run(
    data: Data = DEFAULT_DATA,
    once: Annotated[
        bool, typer.Option("--once", help="Take what the journal has now, then end.")
    ] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Time between two batches.")
    ] = 2.0,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Go on where rows are gone from the journal unread."),
    ] = False,
    rules: Annotated[
        str, typer.Option(metavar="FILE", help="How to decode, event times, alerts (TOML).")
    ] = "",
) -> None:
    """Keep the tables in DIR/tables up to date with the journal."""
    _need_spark()
    _need_journal(data)
    from hubbub.pipeline.rules import NO_RULES, read_rules

    said = read_rules(rules) if rules else NO_RULES
    stop = threading.Event()
    _stop_on_signals(stop)
    print(f"Starting Spark; tables go to {data}/tables. Ctrl-C ends.", flush=True)
    from hubbub.pipeline import run as pipeline
    from hubbub.spark.start import end, session

    spark = session()
    _stop_on_signals(stop)  # Spark sets its own
    try:
        pipeline.run(
            spark, data, stop, _report, every=every, once=once, skip_lost=skip_lost, rules=said
        )
    finally:
        end(spark)
    print("The tables are up to date." if once else "Stopped; the next run goes on from here.")


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="What to ask, in Spark SQL.")],
    data: Data = DEFAULT_DATA,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.table,
) -> None:
    """Ask the tables: messages, readings, quarantine, traffic, calls, sessions, deliveries, alerts.

    Their rows are final; rows of traffic, calls, sessions and deliveries that will still change
    are in traffic_open and so on. All stand at the same row of the journal.
    """
    _need_spark()
    from pyspark.errors import PySparkException

    from hubbub.pipeline import sql as tables
    from hubbub.pipeline.layout import Layout
    from hubbub.spark.start import end, session

    Layout(data).stands()
    # One query: compiling its bytecode twice and sweeping in parallel cost more than they save.
    spark = session(**{"spark.driver.extraJavaOptions": _SHORT_LIVED})
    try:
        tables.views(spark, data)
        tables.show(spark.sql(query), form.value, sys.stdout)
    except PySparkException as error:
        raise SettingError(str(error).strip().splitlines()[0]) from error
    finally:
        end(spark)


def _need_spark() -> None:
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise SettingError(
            f"the pipeline needs {error.name}: run `pip install 'hubbub[pipeline]'`"
        ) from error


def _need_journal(data: str) -> None:
    """A directory mistyped would otherwise be made, and followed for ever."""
    if not (Path(data) / "format").exists():
        raise SettingError(
            f"there is no journal in {data}; start a hub there, or name its directory with --data"
        )


def _stop_on_signals(stop: threading.Event) -> None:
    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt  # said twice: no patience with the batch at work
        stop.set()
        print("Stopping after this batch; once more ends now.", flush=True)

    signal.signal(signal.SIGINT, told)
    signal.signal(signal.SIGTERM, told)


def _report(report: Report) -> None:
    rate = report.rows / report.seconds
    print(
        f"batch {report.batch}: {report.rows} rows, {report.messages} messages, up to seq "
        f"{report.seq}, {report.behind} behind, {report.seconds:.1f} s ({rate:.0f} rows/s)",
        flush=True,
    )
