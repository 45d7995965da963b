"""The tables as they stand, for a live view: read from the Parquet files alone, without Spark.

Called by the demo, every second or two. A look reads only the files of new batches: files never
change, but they are merged, so one may go while it is looked for. Everything shown stands at one
row of the journal, the last one of the last whole batch; open rows of traffic and calls are those
that this batch carries on, and are marked.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import (
    Console,
    ConsoleOptions,
    Group,
    JustifyMethod,
    RenderableType,
    RenderResult,
)
from rich.table import Table
from rich.text import Text

from hubbub.pipeline.layout import Layout, Part, Progress

HISTORY: Final = 500  # batches whose rows are read at the first look; older ones are only counted
PLACES: Final = 10_000  # topics whose last message, (topic, path) whose last reading is kept
MINUTES: Final = 3  # of traffic
CALLS: Final = 1_000  # closed calls behind the mean latency
TRIES: Final = 5  # of one look, each of which found that a file had gone since it was listed
CELL: Final = 36  # characters
TWO_COLUMNS: Final = 150  # characters a line; below, the tables stand under one another
WIDTHS: Final = {
    "time": 8, "by": 6, "value": 8, "minute": 6, "messages": 8, "bytes": 8, "": 4, "asked": 8,
    "ms": 7, "status": 10,
}  # fmt: skip

Row = dict[str, Any]


class View(NamedTuple):
    """What a screen can show. Rows are dicts by column; those of traffic and calls say `open`.

    `counts` has the rows of each table, and those open under traffic_open and calls_open.
    """

    progress: Progress
    counts: dict[str, int]
    messages: list[Row]  # the last one of each topic, newest first
    readings: list[Row]  # the last one of each (topic, path), sorted by these
    traffic: list[Row]  # of the last MINUTES, newest minute first, then most messages first
    calls: list[Row]  # open ones first, then newest first
    latency_ms: float | None  # mean of the last CALLS answered calls


class Screen:
    """Follows the tables of a data directory; shows at most `rows` calls."""

    def __init__(self, data: str | Path, rows: int = 8) -> None:
        self._layout = Layout(data)
        self._rows = rows
        self._batch = -1
        self._counts = {"messages": 0, "readings": 0, "traffic": 0, "calls": 0}
        self._messages: dict[str, Row] = {}
        self._readings: dict[tuple[str, str], Row] = {}
        self._traffic: list[Row] = []
        self._calls: deque[Row] = deque(maxlen=CALLS)

    def look(self) -> View | None:
        """The tables now, None before the first whole batch, or if they change too fast to be read.
        A few ms for each new batch.
        """
        for _ in range(TRIES):
            try:
                return self._look()
            except FileNotFoundError:
                self._begin_anew()
        return None

    def _begin_anew(self) -> None:
        self.__init__(self._layout.data, self._rows)  # type: ignore[misc]

    def _look(self) -> View | None:
        progress = self._layout.progress()
        if progress is None:
            return None
        for name in self._counts:
            for part in self._layout.files(name, self._batch, progress.batch):
                if part.first <= self._batch:  # merged meanwhile with what was read: begin anew
                    self._begin_anew()
                    return self._look()
                self._read(name, part, progress.batch)
        self._batch = progress.batch
        return self._view(progress)

    def _read(self, name: str, part: Part, newest: int) -> None:
        with pq.ParquetFile(part.file) as parquet:
            self._counts[name] += parquet.metadata.num_rows
            if newest - part.last < HISTORY:
                self._take(name, parquet.read())

    def _take(self, name: str, rows: pa.Table) -> None:
        if name == "messages":
            self._keep_last_of_topics(rows)
        elif name == "readings":
            self._keep_last(rows)
        elif name == "traffic":
            self._traffic = _recent([*self._traffic, *_marked(rows, False)])
        else:
            self._calls.extend(_marked(rows, False))

    def _keep_last_of_topics(self, rows: pa.Table) -> None:
        """The last message of each topic: a busy topic must not push a rare one out."""
        for row in rows.to_pylist():
            self._messages.pop(row["topic"], None)
            self._messages[row["topic"]] = row
        while len(self._messages) > PLACES:
            del self._messages[next(iter(self._messages))]

    def _keep_last(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            place = (row["topic"], row["path"])
            self._readings.pop(place, None)
            self._readings[place] = row
        while len(self._readings) > PLACES:
            del self._readings[next(iter(self._readings))]

    def _carried(self, name: str, batch: int) -> list[Row]:
        files = self._layout.carried(name, batch)
        return [row for file in files for row in _marked(pq.ParquetFile(file).read(), True)]

    def _view(self, progress: Progress) -> View:
        traffic = self._carried("traffic", progress.batch)
        calls = self._carried("calls", progress.batch)
        known = sorted(self._calls, key=lambda row: row["seq"], reverse=True)
        latencies = [row["latency_ms"] for row in known if row["latency_ms"] is not None]
        return View(
            progress,
            {**self._counts, "traffic_open": len(traffic), "calls_open": len(calls)},
            list(reversed(self._messages.values())),
            [self._readings[place] for place in sorted(self._readings, key=_own_first)],
            sorted(_recent([*self._traffic, *traffic]), key=_by_minute),
            [*calls, *known][: self._rows],
            sum(latencies) / len(latencies) if latencies else None,
        )


def _own_first(place: tuple[str, str]) -> tuple[bool, str, str]:
    """By topic and path, what goes through queues after what was published to topics."""
    return place[0].startswith("$"), *place


def _marked(rows: pa.Table, opened: bool) -> list[Row]:
    return [{**row, "open": opened} for row in rows.to_pylist()]


def _recent(rows: list[Row]) -> list[Row]:
    """The rows of the last minutes there are."""
    newest = max((row["minute"] for row in rows), default=None)
    if newest is None:
        return []
    return [row for row in rows if row["minute"] > newest - timedelta(minutes=MINUTES)]


def _by_minute(row: Row) -> tuple[float, int, str]:
    return (-row["minute"].timestamp(), -row["messages"], row["topic"])


def render(view: View, rows: int = 8) -> RenderableType:
    """The view as four tables of at most `rows` rows, for rich."""
    counts = view.counts
    head = Text(
        f"tables up to journal row {view.progress.seq} ({view.progress.time} UTC), "
        f"batch {view.progress.batch}",
        style="bold",
    )
    return Group(
        head,
        _Sheet(
            _messages(view.messages[:rows], counts),
            _readings(view.readings[:rows], counts),
            _traffic(view.traffic[:rows], counts),
            _calls(view, rows),
        ),
    )


class _Sheet:
    """Tables two by two, or below one another where the terminal is narrow."""

    def __init__(self, *tables: Table) -> None:
        self._tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.max_width < TWO_COLUMNS:
            yield from self._tables
            return
        grid = Table.grid(expand=True, padding=(0, 2))
        grid.add_column(ratio=1)
        grid.add_column(ratio=1)
        for left, right in zip(self._tables[::2], self._tables[1::2], strict=True):
            grid.add_row(left, right)
        yield grid


def _table(title: str, *columns: str) -> Table:
    """A table whose columns are left, or right if their name ends with `>`.

    Columns in WIDTHS are never squeezed; names and payloads are, if they must.
    """
    made = Table(title=title, title_justify="left", expand=True, box=None, header_style="dim")
    for column in columns:
        justify: JustifyMethod = "right" if column.endswith(">") else "left"
        name = column.rstrip(">")
        width = WIDTHS.get(name)
        made.add_column(name, justify=justify, no_wrap=width is not None, min_width=width)
    return made


def _messages(rows: list[Row], counts: dict[str, int]) -> Table:
    title = f"messages: {counts['messages']:,} rows, the last of each topic"
    table = _table(title, "time", "by", "topic", "payload")
    for row in rows:
        cells = map(_cell, (row["topic"], row["payload"]))
        table.add_row(_clock(row["time"]), row["protocol"], *cells)
    return table


def _readings(rows: list[Row], counts: dict[str, int]) -> Table:
    title = f"readings: {counts['readings']:,} rows, the last of each"
    table = _table(title, "topic", "path", "value>", "time")
    for row in rows:
        value = row["text"] if row["text"] is not None else _number(row["value"])
        cells = map(_cell, (row["topic"], row["path"], value))
        table.add_row(*cells, _clock(row["time"]))
    return table


def _traffic(rows: list[Row], counts: dict[str, int]) -> Table:
    title = f"traffic by topic and minute: {counts['traffic']:,} rows"
    title += _waiting(counts["traffic_open"], "open until their minute is over")
    table = _table(title, "minute", "topic", "messages>", "bytes>", "")
    for row in rows:
        minute = row["minute"].strftime("%H:%M")
        numbers = (f"{row['messages']:,}", f"{row['bytes']:,}")
        table.add_row(minute, _cell(row["topic"]), *numbers, "open" if row["open"] else "")
    return table


def _calls(view: View, rows: int) -> Table:
    mean = "" if view.latency_ms is None else f", mean {view.latency_ms:.1f} ms"
    title = f"calls: {view.counts['calls']:,} rows{mean}"
    title += _waiting(view.counts["calls_open"], "without an answer yet")
    table = _table(title, "asked", "queue", "caller", "answered by", "ms>", "status")
    for row in view.calls[:rows]:
        latency = "" if row["latency_ms"] is None else f"{row['latency_ms']:.1f}"
        names = map(_cell, (row["queue"], row["caller"], row["responder"] or ""))
        table.add_row(_clock(row["asked"]), *names, latency, row["status"])
    return table


def _waiting(rows: int, what: str) -> str:
    return f", {rows:,} {what}" if rows else ""


def _number(value: float) -> str:
    """Whole numbers, such as bytes, with all their digits."""
    return f"{value:,.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:,.6g}"


def _clock(time: datetime) -> str:
    return time.strftime("%H:%M:%S")


def _cell(value: str | bytes) -> Text:
    """Foreign text on one short line, nothing in it obeyed by a terminal or by rich."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    text = "".join(c if c.isprintable() else "·" for c in text[: CELL + 1])
    text = text if len(text) <= CELL else text[: CELL - 1] + "…"
    return Text(text, no_wrap=True, overflow="ellipsis")
