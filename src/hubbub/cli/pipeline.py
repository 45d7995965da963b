"""`hubbub pipeline`: keep the tables up to date, ask them, publish from them, look after them.

Spark is loaded when a command starts it. `sql` and `tables` are in `tables`, what goes over the
whole history (`replay`, `backfill`, `compact`) is in `history`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hubbub.cli import complete, history, tables
from hubbub.cli.infer import infer
from hubbub.cli.options import DATA, Cafile, Data
from hubbub.cli.tables import Master, Remote, need_spark
from hubbub.config.sources import load
from hubbub.errors import SettingError
from hubbub.journal import holds
from hubbub.journal.segments import PROCESSES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hubbub.pipeline.after import Named
    from hubbub.pipeline.metrics import Metrics
    from hubbub.pipeline.publish import Publisher
    from hubbub.pipeline.run import Report, Source
    from hubbub.pipeline.watch import Watch

_SHOWN: Final = 20  # batches that the live view takes its rates from

app = typer.Typer(no_args_is_help=True, add_completion=False)

# The options of `run`.
Once = Annotated[bool, typer.Option("--once", help="Take what the journal has now, then end.")]
Every = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0.1, help="Time between two batches.")
]
Only = Annotated[
    str,
    typer.Option(
        "--tables", metavar="NAMES", help="Only these, comma-separated.",
        autocompletion=complete.tables,
    ),
]
Anew = Annotated[
    str,
    typer.Option(
        metavar="NAMES", help="Begin these tables anew, where they are gone.",
        autocompletion=complete.tables,
    ),
]
SkipLost = Annotated[
    bool, typer.Option("--skip-lost", help="Go on where rows are gone from the journal unread.")
]
RulesFile = Annotated[
    str, typer.Option(metavar="FILE", help="How to decode, event times, alerts (TOML).")
]
OfHub = Annotated[
    str, typer.Option(metavar="URL", help="Read the journal of that hub (URL or profile).")
]
OfDirectory = Annotated[
    str, typer.Option(metavar="DIR", help="Read the journal there; --data has only the tables.")
]
PublishTo = Annotated[
    str, typer.Option(metavar="URL", help="The hub for alerts (URL or profile).")
]
TokenFile = Annotated[str, typer.Option(metavar="FILE", help="A file with the hub's api.token.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="TABLE=DAYS", help="Remove older rows of a table; repeatable."),
]
To = Annotated[
    str, typer.Option(metavar="URL", help="Tables and checkpoint there: s3a://, hdfs://, …")
]
Memory = Annotated[
    str, typer.Option(metavar="SIZE", help="Of Spark's process, or of each executor: 2g.")
]
Conf = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
]
MetricsAt = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Serve /metrics there, for Prometheus.")
]
Catalog = Annotated[
    str, typer.Option(metavar="NAME", help="Tables of Apache Iceberg too: sqlite, or a URL.")
]
Config = Annotated[
    str, typer.Option("--config", "-c", metavar="FILE", help="Read the settings pipeline.* of it.")
]
Hold = Annotated[
    str, typer.Option(metavar="NAME", help="Retention of the journal waits for this reader.")
]


class _Wanted(NamedTuple):
    """What `run` was asked for, checked: nothing of it is wrong once Spark starts.

    `archive`: of the classes of a Spark on this machine. `pipeline`: the rest of what
    `hubbub.pipeline.run.run` takes, as it takes it.
    """

    data: Path
    to: str
    once: bool
    hold: str
    spark: dict[str, str]
    master: str
    remote: str
    counted: Metrics
    archive: Path | None
    pipeline: dict[str, Any]

    def session(self) -> SparkSession:
        from hubbub.pipeline.run import JAVA, settings_for
        from hubbub.spark.archive import writing
        from hubbub.spark.start import session

        if self.remote:
            return session(remote=self.remote, **self.spark)
        ours = settings_for(self.pipeline["rules"], self.to)
        java = (ours[JAVA], writing(self.archive), self.spark.get(JAVA, ""))
        return session(self.master, **ours | self.spark | {JAVA: " ".join(java).strip()})

    def end(self, spark: SparkSession) -> None:
        """Let go of Spark, which may write its classes for the next one first."""
        from hubbub.spark.archive import WRITE_SECONDS, begin, keep, writing
        from hubbub.spark.start import end

        if self.archive is None or not writing(self.archive):
            end(spark)
            return
        print(
            "Writing Spark's classes, from which the next one starts sooner: once, it takes half "
            "a minute …",
            flush=True,
        )
        begin(self.archive)
        keep(self.archive, end(spark, WRITE_SECONDS))


@app.command()
def run(
    data: Data = DATA,
    once: Once = False,
    every: Every = None,
    only: Only = "",
    anew: Anew = "",
    skip_lost: SkipLost = False,
    rules: RulesFile = "",
    hub: OfHub = "",
    journal: OfDirectory = "",
    publish_to: PublishTo = "",
    token_file: TokenFile = "",
    cafile: Cafile = None,
    keep: Keep = None,
    to: To = "",
    memory: Memory = "",
    conf: Conf = None,
    metrics: MetricsAt = "",
    catalog: Catalog = "",
    config: Config = "",
    hold: Hold = "",
    master: Master = "local[*]",
    remote: Remote = "",
) -> None:
    """Keep the tables in DIR/tables up to date with the journal."""
    need_spark()
    from hubbub.pipeline import run as pipeline

    said = history.rules_of(rules)
    names = tables.names(only) if only else pipeline.NAMES
    days = _days(keep or [], tuple(one.name for one in said.table))
    settings = _settings(memory, conf or [])
    named = _named(catalog, config)
    if hub and journal:
        raise SettingError("--hub and --journal both say where the journal is: leave one out")
    there = pipeline.Source(directory=journal)
    source = history.source_at(hub, token_file, cafile) if hub else there
    again = tables.names(anew, tuple(one.name for one in said.table)) if anew else ()
    written = {table.name for table in pipeline.chosen(names, said)}
    if idle := [name for name in again if name not in written]:
        raise SettingError(f"--anew {','.join(idle)}: this run does not write it (--tables)")
    _check(source.here(data), to, hold, days)
    if not to:
        history.need_no_writer(data, pipeline.chosen(names, said), again)
    counted = _counted(metrics, source, data, to)
    if hold:
        _hold(source, data, hold, counted, _reader(data, to))
    publish = _publisher(publish_to or hub, token_file, cafile).alerts if said.alert else None
    more = {
        "every": every, "skip_lost": skip_lost, "rules": said, "publish": publish, "only": names,
        "keep": days, "source": source, "catalog": named, "anew": again,
    }  # fmt: skip
    archive = _archive(master, remote)
    _keep_up(_Wanted(data, to, once, hold, settings, master, remote, counted, archive, more))


def _archive(master: str, remote: str) -> Path | None:
    from hubbub.spark.archive import archive_of
    from hubbub.spark.start import java

    return archive_of(java()) if master.startswith("local") and not remote else None


def _check(here: Path | None, to: str, hold: str, keep: dict[str, float]) -> None:
    """What does not go together, or is not there. SettingError or DirectoryError."""
    if to and keep:
        raise SettingError("--keep does not reach --to: use the lifecycle rules of the storage")
    if hold and here is None:
        raise SettingError("--hold: only for a journal in DIR, not for that of a hub elsewhere")
    if here is not None:
        _need_journal(here)


def _keep_up(wanted: _Wanted) -> None:
    """Spark from its start to its end, however it ends."""
    from hubbub.pipeline.run import PATIENCE
    from hubbub.spark.start import end

    data, to = wanted.data, wanted.to
    _on_signals(signal.default_int_handler)  # there is no batch to wait for
    print(f"Starting Spark; tables go to {to or f'{data}/tables'}. Ctrl-C ends.", flush=True)
    spark = wanted.session()
    stop = threading.Event()
    _on_signals(_patient(stop, PATIENCE))  # Spark has set its own

    def again() -> SparkSession:
        nonlocal spark
        end(spark)
        spark = wanted.session()
        _on_signals(_patient(stop, PATIENCE))
        return spark

    try:
        _follow(wanted, spark, stop, again)
    except KeyboardInterrupt:
        print("Ended in the midst of a batch; the next run begins it again.", flush=True)
        sys.exit(130)
    finally:
        wanted.end(spark)
    stopped = "Stopped; the next run goes on from here."
    print("The tables are up to date." if wanted.once else stopped)


def _follow(
    wanted: _Wanted, spark: SparkSession, stop: threading.Event, again: Callable[[], SparkSession]
) -> None:
    """Batch after batch, each shown. `again` starts another Spark, where this one broke."""
    from hubbub.pipeline import run as pipeline

    data, to, counted = wanted.data, wanted.to, wanted.counted
    ui = "" if wanted.remote else spark.sparkContext.uiWebUrl or ""
    if ui:
        print(f"Spark's own pages: {ui}")
    print("Spark runs; its first batch takes longer than the others.", flush=True)
    here = wanted.pipeline["source"].here(data)
    with (
        _Progress(counted, _holding(here, wanted)) as progress,
        _watch(wanted, here, ui, progress),
    ):
        pipeline.run(
            spark, data, stop, progress.report, once=wanted.once, to=to, notice=progress.notice,
            again=again, **wanted.pipeline,
        )  # fmt: skip


@app.command()
def status(
    data: Data = DATA,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say how far the tables stand, how far behind the journal, and who writes them."""
    from hubbub.journal.table import Table as Journal
    from hubbub.pipeline.layout import Layout, ahead

    layout = Layout(data)
    progress = layout.stands()
    journal = Journal(str(layout.data))
    here = (layout.data / "format").exists()
    said: dict[str, Any] = {
        "tables": str(layout.root),
        "batch": progress.batch,
        "seq": progress.seq,
        "time": progress.time,
        "behind": max(journal.committed() - progress.seq, 0) if here else None,
        "seconds": round(max(_seconds_since(progress.time), 0.0), 1),
        "lost": progress.lost,
        "writer": layout.writer(),
    }
    if as_json:
        print(json.dumps(said, indent=2))
        return
    writer = f"process {said['writer']} writes them" if said["writer"] else "nobody writes them now"
    print(f"{said['tables']}: {writer}")
    print(f"batch {said['batch']}, up to row {said['seq']} of the journal ({said['time']} UTC)")
    span = f": those of the last {said['seconds']:,.0f} s" if said["behind"] else ""
    if here:
        print(f"{said['behind']:,} rows behind the journal{span}")
    if said["lost"]:
        print(f"{said['lost']:,} rows were gone or damaged before they were read (--skip-lost)")
    if astray := ahead(progress.time):
        print(astray)


def _seconds_since(time: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(time).replace(tzinfo=UTC)).total_seconds()


app.command()(tables.sql)
app.command("tables")(tables.listing)
app.command()(history.replay)
app.command()(history.backfill)
app.command()(infer)
app.command()(history.compact)


def _publisher(url: str, token_file: str, cafile: Path | None) -> Publisher:
    from hubbub.pipeline.publish import Publisher

    return Publisher(history.hub_at(history.source_at(url, token_file, cafile)))


def _watch(wanted: _Wanted, here: Path | None, ui: str, shown: _Progress) -> Watch:
    """What the hub shows lies beside its journal, if that is `here`."""
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.watch import Watch, Watched

    layout, to = Layout(wanted.data), wanted.to
    beside = (here or layout.data).absolute()
    of = Watched(beside, to or str(layout.root), not to, ui, wanted.once)
    shown.watch = Watch(of, wanted.counted, shown.say)
    return shown.watch


def _counted(address: str, source: Source, data: Path, to: str) -> Metrics:
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.metrics import PATIENCE, Metrics

    layout = Layout(data)
    progress = layout.progress()
    here = progress.seq if progress is not None else 0
    metrics = Metrics(source.journal(layout.data, PATIENCE), None if to else here)
    if address:
        page = f"http://{address.rpartition(':')[0]}:{metrics.serve(address)}/metrics"
        print(f"Metrics for Prometheus: {page}", flush=True)
    return metrics


def _reader(data: Path, to: str) -> str:
    """Whose hold it is: where the tables lie, which no two pipelines write."""
    return to or str((data / "tables").resolve())


def _holding(here: Path | None, wanted: _Wanted) -> Callable[[int], None] | None:
    """What moves the hold on; None where there is none."""
    if not wanted.hold or here is None:
        return None
    reader = _reader(wanted.data, wanted.to)
    return lambda seq: holds.hold(here, wanted.hold, seq, reader=reader)


def _hold(source: Source, data: Path, name: str, counted: Metrics, reader: str) -> None:
    """From now on, and not from the first batch: rows may become old while Spark starts.

    Where only Spark knows how far the tables stand, what was said before is as good.
    """
    here = source.here(data)
    seq = counted.numbers(look=False).get("seq")
    assert here is not None, "it was checked"
    known = {one.name: one.seq for one in holds.holds(here)}
    holds.hold(here, name, int(seq) if seq is not None else known.get(name, 0), reader=reader)


def _named(catalog: str, config: str) -> Named:
    """Which catalog the options, the environment and the file say; pyiceberg has to be there."""
    from hubbub.pipeline.after import Named

    said = load(config or None, environment=os.environ).pipeline
    if catalog or said.catalog:
        import pyiceberg  # noqa: F401
    return Named(catalog or said.catalog, said.namespace)


def _days(given: list[str], own: tuple[str, ...]) -> dict[str, float]:
    """TABLE=DAYS, checked."""
    days: dict[str, float] = {}
    for one in given:
        name, _, number = one.partition("=")
        if not re.fullmatch(r"\d+(\.\d+)?", number) or not float(number):
            raise SettingError(f"--keep: expected TABLE=DAYS, such as readings=90, got {one!r}")
        days[tables.names(name, own)[0]] = float(number)
    return days


def _settings(memory: str, conf: list[str]) -> dict[str, str]:
    """--memory and --conf as Spark's settings, checked."""
    settings = {}
    if memory:
        if not re.fullmatch(r"\d+[kmgt]", memory, re.IGNORECASE):
            raise SettingError(f"--memory: expected a size such as 2g or 800m, got {memory!r}")
        settings = dict.fromkeys(("spark.driver.memory", "spark.executor.memory"), memory)
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals or not name.startswith("spark."):
            raise SettingError(f"--conf: expected spark.NAME=VALUE, got {one!r}")
        settings[name] = value
    return settings


def _need_journal(directory: Path) -> None:
    """A directory mistyped would otherwise be made, and followed for ever."""
    if (directory / PROCESSES).exists():
        raise SettingError(
            f"{directory} is of a hub of several processes, and a pipeline reads one journal: make "
            f"one for each, with --journal {directory}/1 and tables of its own in --data"
        )
    if not (directory / "format").exists():
        raise SettingError(
            f"there is no journal in {directory}; start a hub there, or name its directory with "
            "--data, or --journal if the tables are to lie elsewhere"
        )
    if "," in str(directory.absolute()):
        raise SettingError(
            f"{directory.absolute()}: to Spark a comma stands between two directories; give it a "
            "name without, or read the journal with --hub URL"
        )


_Handler = Callable[[int, FrameType | None], object]


def _on_signals(handler: _Handler) -> None:
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def _patient(stop: threading.Event, seconds: float) -> _Handler:
    """Lets the batch at work end, the first time."""

    def told(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        print(f"Stopping after this batch ({seconds:.0f} s at most); once more ends now.")

    return told


class _Progress:
    """Shows what the pipeline does: one picture in a terminal, else a line a batch."""

    def __init__(self, metrics: Metrics, hold: Callable[[int], None] | None = None) -> None:
        self._metrics = metrics
        self._hold = hold  # is told the last row of each batch
        self.watch: Watch | None = None
        self._console = Console()
        self._reports: deque[Report] = deque(maxlen=_SHOWN)
        self._live: Live | None = None
        if sys.stdout.isatty():
            self._live = Live(console=self._console, auto_refresh=False)

    def __enter__(self) -> _Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        if self._live is not None:
            self._live.stop()

    def notice(self, said: str) -> None:
        """Something a user should know, above the picture."""
        self._metrics.notice()
        if self.watch is not None:
            self.watch.notice(said)
        self.say(said)

    def say(self, said: str) -> None:
        """The same of what is no trouble, or will be over."""
        self._console.print(said, style="bold", highlight=False, markup=False, soft_wrap=True)

    def report(self, report: Report) -> None:
        self._reports.append(report)
        self._metrics.report(report)
        if self._hold is not None:
            self._hold(report.seq)
        if self.watch is not None:
            self.watch.report(report)
        if self._live is not None:
            self._live.update(picture(list(self._reports)), refresh=True)
            return
        rate = report.rows / report.seconds
        times = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in report.tables.items())
        print(
            f"batch {report.batch}: {report.rows} rows, {report.messages} messages, up to seq "
            f"{report.seq}, {report.behind} behind, {report.seconds:.1f} s ({rate:.0f} rows/s)"
            + (f": {times}" if times else ""),
            flush=True,
        )


def picture(reports: list[Report]) -> Table:
    """The last batches together: the rate, the lag, and where the time goes."""
    last = reports[-1]
    seconds = sum(report.seconds for report in reports)
    rate = sum(report.rows for report in reports) / seconds
    made = Table(
        title=f"batch {last.batch}, up to row {last.seq:,}: {last.behind:,} rows behind, "
        f"{rate:,.0f} rows/s",
        title_justify="left",
        box=None,
    )
    for name in ("table", "seconds, last batch", f"share of {len(reports)} batches"):
        made.add_column(name, justify="left" if name == "table" else "right")
    for name in dict.fromkeys(name for report in reports for name in report.tables):
        took = sum(report.tables.get(name, 0.0) for report in reports)
        now = f"{last.tables[name]:.2f}" if name in last.tables else "-"
        made.add_row(name, now, f"{100 * took / seconds:.0f} %")
    made.add_row("all", f"{last.seconds:.2f}", "")
    return made
