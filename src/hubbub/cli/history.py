"""`hubbub pipeline replay`, `backfill`, `compact`: what goes over the whole history."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubbub.cli import profile
from hubbub.cli.options import DATA, Cafile, Data
from hubbub.cli.tables import Master, Remote, need_spark, start
from hubbub.core.past import moment_of
from hubbub.errors import SettingError
from hubbub.terminal import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hubbub.pipeline.rules import Rules
    from hubbub.pipeline.run import Source
    from hubbub.pipeline.tables.table import AnyTable
    from hubbub.spark.hub import Hub


def replay(
    data: Data = DATA,
    topics: Annotated[
        str, typer.Option(metavar="FILTERS", help="MQTT filters, comma-separated; else all.")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="WHEN", help="From then on: 90s, 30m, 1h, 7d, or an ISO time.")
    ] = "",
    until: Annotated[
        str, typer.Option(metavar="WHEN", help="Before then, said in the same way (UTC).")
    ] = "",
    speed: Annotated[
        str, typer.Option(metavar="N", help="1, 10, … times the old rhythm, or max.")
    ] = "1",
    prefix: Annotated[
        str, typer.Option(metavar="TOPIC", help="Goes before each topic: replay/")
    ] = "",
    go: Annotated[bool, typer.Option("--go", help="Publish; without it, only say what.")] = False,
    url: Annotated[
        str, typer.Option(metavar="URL", help="The hub: http(s)://HOST:PORT, or a profile.")
    ] = "",
    token_file: Annotated[
        str, typer.Option(metavar="FILE", help="A file with the hub's api.token.")
    ] = "",
    cafile: Cafile = None,
    master: Master = "local[*]",
    remote: Remote = "",
) -> None:
    """Publish messages of the table `messages` again, in their order and rhythm.

    Without --go it says what it would publish, and how long that takes.
    """
    pace = _pace(speed)
    need_spark()
    from hubbub.pipeline.replay import Choice, chosen, plan, play
    from hubbub.spark.filters import pattern_of
    from hubbub.spark.options import listed

    now = time.time_ns() // 1_000
    choice = Choice(listed(topics), _time("--since", since, now), _time("--until", until, now))
    pattern_of(choice.topics)  # what is wrong with them is said before Spark starts
    with _spark(data, master, remote) as spark:
        from hubbub.pipeline.publish import Publisher

        rows = chosen(spark, choice)
        found = plan(rows)
        if not found.messages:
            print("There are no such messages.")
            return
        seconds = found.seconds(pace)
        takes = "as fast as the hub takes them" if seconds is None else f"in {seconds:,.0f} s"
        where = f", below {prefix}" if prefix else ""
        print(
            f"{found.messages:,} messages of {found.topics:,} topics, {found.bytes:,} bytes, "
            f"from {found.first} to {found.last} UTC: {takes}{where}"
        )
        if not go:
            print("Nothing was published. The same with --go does it.")
            return
        publisher = Publisher(hub_at(source_at(url, token_file, cafile)))
        sent = play(rows.toLocalIterator(True), publisher, pace, prefix)
        print(f"{sent:,} messages published.")


def _pace(speed: str) -> float:
    """How many times the old rhythm; 0 for max."""
    if speed == "max":
        return 0.0
    try:
        pace = float(speed.removesuffix("x").removesuffix("×"))
    except ValueError:
        pace = 0.0
    if pace <= 0:
        raise SettingError(f"--speed: expected a number above 0, or max, got {speed!r}")
    return pace


def _time(option: str, given: str, now: int) -> str:
    """As Spark reads it, if it is given; what may be said is the same as in `hubbub history`."""
    if not given:
        return ""
    try:
        found = moment_of(given, now, option)
    except ValueError as error:
        raise SettingError(str(error)) from None
    return (_EPOCH + timedelta(microseconds=found)).isoformat(" ")


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def backfill(
    table: Annotated[str, typer.Argument(help="readings, quarantine, traffic, or one of FILE.")],
    data: Data = DATA,
    rules: Annotated[
        str, typer.Option(metavar="FILE", help="How to decode, event times (TOML).")
    ] = "",
    discard: Annotated[
        bool, typer.Option("--discard", help="Drop rows whose messages are gone.")
    ] = False,
    master: Master = "local[*]",
    remote: Remote = "",
) -> None:
    """Compute a table anew from all of `messages`, and put it in the place of the old one.

    Rows whose messages are gone, as with --keep messages=DAYS, stay as they are. The pipeline must
    not run meanwhile. Readers find the old table until the new one is whole.
    """
    need_spark()
    from hubbub.pipeline.layout import Layout

    said = rules_of(rules)
    Layout(data).stands()
    need_no_writer(data)
    with _spark(data, master, remote) as spark:
        from hubbub.pipeline.backfill import backfill as make

        made = make(spark, Layout(data), table, said, discard)
        print(f"{table} has {made.rows:,} rows now.")
        if made.kept:
            print(f"{made.kept:,} stayed as they were, as their messages are gone (or --discard).")


def compact(
    data: Data = DATA,
    to: Annotated[
        str, typer.Option(metavar="URL", help="Write a tidy copy there instead: s3a://, …")
    ] = "",
    source: Annotated[
        str, typer.Option("--from", metavar="URL", help="With --to: tables on object storage.")
    ] = "",
    master: Master = "local[*]",
    remote: Remote = "",
) -> None:
    """Merge small files, as a running pipeline does now and then by itself.

    With --to the tables are copied, as of their last whole batch, into a new place.
    """
    need_spark()
    if source and not to:
        raise SettingError("on object storage files cannot be exchanged: say --to NEW-URL as well")
    if to:
        with _spark(None if source else data, master, remote) as spark:
            from hubbub.pipeline.copy import copy

            for name, rows in copy(spark, data, source, to):
                print(f"{name}: {rows:,} rows in {to.rstrip('/')}/{name}")
        return
    from hubbub.pipeline.compact import compact as merge
    from hubbub.pipeline.layout import Layout
    from hubbub.pipeline.run import NAMES

    layout = Layout(data)
    progress = layout.stands()
    layout.prepare(NAMES)
    try:
        for name in NAMES:
            print(f"{name}: {merge(layout, name, progress)} files less")
        layout.sweep()
    finally:
        layout.release()


def rules_of(file: str) -> Rules:
    """What it says, or nothing without one; what is said in vain is shown, and no error: such
    files were always taken.
    """
    from hubbub.pipeline.rules import NO_RULES, read_rules

    said = read_rules(file) if file else NO_RULES
    for doubt in said.doubts():
        say(f"{file}: {doubt}", stream=sys.stderr)
    return said


def need_no_writer(
    data: Path, tables: tuple[AnyTable, ...] = (), anew: tuple[str, ...] = ()
) -> None:
    """Say it before Spark starts, which takes its time. Raises DirectoryError if another one
    writes there, or a table is gone.
    """
    from hubbub.pipeline.layout import Layout

    layout = Layout(data)
    layout.prepare(tuple(table.name for table in tables), anew)
    layout.release()


def source_at(said: str, token_file: str, cafile: Path | None = None) -> Source:
    """A hub by its URL, by the name of a profile, or, with "", as every command finds it."""
    from hubbub.pipeline.run import Source

    if "://" in said:
        return Source(said, token_file, "", str(cafile or ""))
    where = profile.place(profile.HTTP, said)
    trusted = str(cafile or where.trusted() or "")
    return Source(where.url, token_file, "" if token_file else where.token, trusted)


def hub_at(source: Source) -> Hub:
    """Where it is published to."""
    from hubbub.spark.hub import Hub

    return Hub(source.hub, source.access())


@contextmanager
def _spark(data: Path | None, master: str, remote: str) -> Iterator[SparkSession]:
    """Spark with the tables of a data directory as views; Ctrl-C ends it without a traceback."""
    need_spark()
    from hubbub.pipeline import sql
    from hubbub.pipeline.layout import Layout
    from hubbub.spark.start import end

    if data is not None:
        Layout(data).stands()
    spark = start(master, remote)
    try:
        if data is not None:
            sql.views(spark, data)
        yield spark
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    finally:
        end(spark)
