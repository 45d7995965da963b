"""What a pipeline hands over to be drawn: how it did in the last hour, and what its tables say.

    rows a second, how far behind        a point a minute, of the process itself
    messages a minute of three topics    those with most, as the table `traffic` has them

Names and numbers only: a payload is for who may read its topic, and nobody asks that of a table.
`traffic` is read from its files, as far as they are new, without Spark. Called by `watch`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from hubbub.pipeline.layout import Layout

MINUTES: Final = 60
LINES: Final = 3  # topics: as many as the page has colours
KEPT: Final = 100  # topics of a minute, those with most
BATCHES: Final = 500  # whose files are read at the first look
NAME: Final = 60  # characters
_MICRO: Final = 1_000_000
_MINUTE: Final = 60 * _MICRO


class Plots:
    """The plots of one pipeline; of tables that lie elsewhere (None) it knows no files."""

    def __init__(self, layout: Layout | None) -> None:
        self._layout = layout
        self._batch = -1
        self._points: deque[tuple[int, float, float | None]] = deque(maxlen=MINUTES)
        self._traffic: dict[int, Counter[str]] = {}  # by the minute, in microseconds since 1970

    def note(self, now: int, rate: float, behind: float | None) -> None:
        """How it is now: once a minute that is kept, and the tables are looked at."""
        if not self._points or now - self._points[-1][0] >= _MINUTE:
            self._points.append((now, rate, behind))
            self._look(now - MINUTES * _MINUTE)

    def said(self) -> list[dict[str, Any]]:
        """As docs/reference/http-api.md has them, `plots`."""
        times, rates, behind = zip(*self._points, strict=True) if self._points else ((), (), ())
        plots = [
            _plot("Rows a second", "", times, {"rows": rates}),
            _plot("Behind", "s", times, {"the oldest row waits": behind}),
        ]
        lines = self._busiest()
        if lines:
            minutes = sorted(self._traffic)
            plots.append(_plot("Messages a minute", "", minutes, lines))
        return plots

    def _busiest(self) -> dict[str, list[int]]:
        """By topic its messages of each minute that is known."""
        every: Counter[str] = Counter()
        for counts in self._traffic.values():
            every.update(counts)
        return {
            topic: [self._traffic[minute][topic] for minute in sorted(self._traffic)]
            for topic, _ in every.most_common(LINES)
        }

    def _look(self, since: int) -> None:
        progress = self._layout.progress() if self._layout is not None else None
        if progress is not None and self._layout is not None:
            for part in self._layout.files("traffic", self._batch, progress.batch):
                if part.first <= self._batch:  # it was merged with what is known: begin anew
                    self._batch, self._traffic = -1, {}
                    return self._look(since)
                if progress.batch - part.last < BATCHES:
                    self._read(part.file, since)
            self._batch = progress.batch
        for minute in [one for one in self._traffic if one < since]:
            del self._traffic[minute]

    def _read(self, file: Path, since: int) -> None:
        with pq.ParquetFile(file) as parquet:
            rows = parquet.read(columns=["topic", "minute", "messages"])
        begins = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=since)
        found: set[int] = set()
        for row in rows.filter(pc.field("minute") >= begins).to_pylist():
            minute = int(row["minute"].timestamp()) * _MICRO
            counts = self._traffic.setdefault(minute, Counter())
            counts[row["topic"][:NAME]] += row["messages"]
            found.add(minute)
        for minute in found:
            self._traffic[minute] = Counter(dict(self._traffic[minute].most_common(KEPT)))


def _plot(
    title: str, unit: str, times: Sequence[int], lines: dict[str, Any]
) -> dict[str, Any]:
    shown = [{"name": name, "values": list(values)} for name, values in lines.items()]
    return {"title": title, "unit": unit, "time": list(times), "lines": shown}
