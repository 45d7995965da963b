"""What a running pipeline says of itself to the hub: a file that the hub's status shows.

    DIR/pipelines/<name>.json     one a pipeline; `tables`, or where else its tables go, as a digest

It is written after each batch and each notice, and every EVERY seconds, so that who reads it sees
how far behind the tables are also while a batch takes long, and that a pipeline is gone if it
says nothing more. It never fails a batch: what cannot be written is left. The fields are in
docs/reference/http-api.md. Called by the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple

from pyarrow import ArrowException

from hubbub.pipeline.batches import Report
from hubbub.pipeline.layout import Layout
from hubbub.pipeline.metrics import Metrics
from hubbub.pipeline.plots import Plots

PLACE: Final = "pipelines"
EVERY: Final = 5.0  # seconds
LATE: Final = 60.0  # seconds that the oldest unread row may wait; an idle pipeline lets one wait 20
RECENT: Final = 20  # batches that rates are taken from
COUNTED: Final = 60.0  # seconds after which files are counted again: a year has ten thousand
_MICRO: Final = 1_000_000


class Watched(NamedTuple):
    """Which pipeline it is. `data`: where its file goes, of which the hub there is asked.

    `tables`: a directory, if that is `local`, or a URL. `ui`: Spark's own pages. `once`: it takes
    what is there, however old that is, and ends.
    """

    data: Path
    tables: str
    local: bool
    ui: str = ""
    once: bool = False


class Watch:
    """Writes the file, from `with` on to its end.

    `behind` is told in a line when the tables fall behind: they had caught up, or more rows wait
    than at the start. Who starts with the rows of a week has not fallen behind, and catches up.
    """

    def __init__(self, of: Watched, metrics: Metrics, behind: Callable[[str], None]) -> None:
        self._of = of
        self._metrics = metrics
        self._behind = behind
        self._recent: deque[Report] = deque(maxlen=RECENT)
        self._tables: dict[str, float] = {}  # seconds of the last batch that wrote it
        self._plots = Plots(Layout(Path(of.tables).parent) if of.local else None)
        self._error: dict[str, Any] | None = None
        self._state = "running"
        self._told = False
        self._at_first: float | None = None  # rows that waited, until there were none too old
        self._files: dict[str, dict[str, int]] = {}
        self._counted = -COUNTED
        self._started = _stamp()
        self._news, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self.file = of.data / PLACE / f"{_name(of)}.json"

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: TracebackType | None) -> None:
        failed = isinstance(error, Exception)
        if failed:
            self.notice(str(error))
        self._state = "failed" if failed else "stopped"
        self._over.set()
        self._news.set()
        self._thread.join()
        self._counted = -COUNTED
        self._write()

    def report(self, report: Report) -> None:
        self._recent.append(report)
        self._tables |= report.tables
        self._news.set()

    def notice(self, said: str) -> None:
        self._error = {"time": _stamp(), "text": said[:1000]}
        self._news.set()

    def _follow(self) -> None:
        while not self._over.is_set():
            self._news.wait(EVERY)
            self._news.clear()
            self._write()

    def _write(self) -> None:
        with suppress(OSError):  # the disk is full: the batch says so itself
            self.file.parent.mkdir(exist_ok=True)
            fresh = self.file.with_suffix(".tmp")
            fresh.write_text(json.dumps(self.said()) + "\n")
            fresh.replace(self.file)

    def said(self) -> dict[str, Any]:
        """The file: see docs/reference/http-api.md, `pipeline`."""
        numbers = self._metrics.numbers()
        late = numbers.get("behind_seconds", 0.0) > LATE
        self._tell(numbers, late)
        return {
            "name": self.file.stem,
            "state": "behind" if late and self._state == "running" else self._state,
            "time": _stamp(),
            "started": self._started,
            "process": os.getpid(),
            "tables": self._of.tables,
            "spark": self._of.ui,
            **{name: numbers.get(name) for name in ("seq", "behind_rows", "behind_seconds")},
            **{name: int(numbers[name]) for name in ("batches", "rows", "messages", "quarantined")},
            "lost_rows": int(numbers["lost_rows"]),
            "rows_per_second": round(self._rate(), 1),
            "quarantine_rate": self._quarantine(),
            "last_batch": self._last(),
            "by_table": self._by_table(),
            "last_error": self._error,
            "plots": self._drawn(numbers.get("behind_seconds")),
        }

    def _tell(self, numbers: dict[str, float], late: bool) -> None:
        rows = numbers.get("behind_rows", 0.0)
        if self._at_first is None:
            self._at_first = rows
        if not late:
            self._at_first = 0.0
        # The first batch takes its time.
        falls = late and bool(self._recent) and rows > self._at_first and not self._of.once
        if falls and not self._told:
            self._told = True
            self._behind(_behind(numbers, self._rate()))
        if self._told and not late:
            self._told = False
            self._behind("the tables caught up")

    def _drawn(self, behind: float | None) -> list[dict[str, Any]]:
        """What cannot be read now, while tables are exchanged, is drawn the next time."""
        with suppress(OSError, ArrowException):
            self._plots.note(_stamp(), round(self._rate(), 1), behind)
        return self._plots.said()

    def _rate(self) -> float:
        seconds = sum(report.seconds for report in self._recent)
        return sum(report.rows for report in self._recent) / seconds if seconds else 0.0

    def _quarantine(self) -> float:
        messages = sum(report.messages for report in self._recent)
        bad = sum(report.quarantined for report in self._recent)
        return round(bad / messages, 6) if messages else 0.0

    def _last(self) -> dict[str, Any] | None:
        if not self._recent:
            return None
        last = self._recent[-1]
        ended = int(self._metrics.numbers(look=False)["last_batch_seconds"] * _MICRO)
        return {
            "batch": last.batch, "time": ended, "seconds": round(last.seconds, 3),
            "rows": last.rows, "messages": last.messages,
        }  # fmt: skip

    def _by_table(self) -> list[dict[str, Any]]:
        if self._of.local and time.monotonic() - self._counted >= COUNTED:
            self._counted = time.monotonic()
            self._files = files_in(Path(self._of.tables))
        return [
            {
                "name": name,
                "seconds": round(self._tables[name], 3) if name in self._tables else None,
                **self._files.get(name, {}),
            }
            for name in sorted({*self._tables, *self._files})
        ]


def files_in(root: Path) -> dict[str, dict[str, int]]:
    """By table its `files` and their `bytes`; what goes meanwhile does not count."""
    found: dict[str, dict[str, int]] = {}
    with suppress(OSError):
        for table in root.iterdir():
            if table.name[0] not in "_." and table.is_dir():
                sizes = [*_sizes(table)]
                found[table.name] = {"files": len(sizes), "bytes": sum(sizes)}
    return found


def _sizes(folder: Path) -> list[int]:
    sizes: list[int] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                sizes += _sizes(Path(entry.path))
            elif entry.name.endswith(".parquet"):
                sizes.append(entry.stat().st_size)
    return sizes


def _behind(numbers: dict[str, float], rate: float) -> str:
    return (
        f"the tables fall behind: {numbers['behind_rows']:,.0f} rows wait, the oldest for "
        f"{numbers['behind_seconds']:,.0f} s; batches take {rate:,.0f} rows/s. If that lasts, give "
        "the pipeline more processors or --memory, or fewer --tables"
    )


def _name(of: Watched) -> str:
    if of.tables == str(of.data / "tables"):
        return "tables"
    return hashlib.sha256(of.tables.encode()).hexdigest()[:16]


def _stamp() -> int:
    return time.time_ns() // 1000
