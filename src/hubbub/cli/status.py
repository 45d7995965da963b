"""`hubbub status`: asks a running hub what it is doing and shows the answer."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from hubbub.cli.asked import AsJson, Asked
from hubbub.cli.ls import WIDE
from hubbub.cli.options import takes
from hubbub.errors import HubbubError
from hubbub.terminal import for_stream

app = typer.Typer(add_completion=False)

_STAMPS: Final = ("started", "time", "since", "expires")
_SHOWN: Final = 100  # clients, and queues: as many as anybody reads in a terminal
NOTHING: Final[Mapping[str, float]] = MappingProxyType({})
NEEDED: Final = frozenset(
    ("published", "delivered", "bytes_received", "bytes_sent", "dropped", "cpu", "memory")
)
_OF_PROCESSES: Final = (
    "process", "up", "client_count", "messages_in", "messages_out", "lost", "trouble", "attention",
)  # fmt: skip
LATELY: Final = 30.0  # seconds; the hub makes a point every ten


@app.command()
@takes(Asked)
def status(
    hub: Asked,
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, max=1_000, help="At most so many clients, queues.")
    ] = _SHOWN,
    as_json: AsJson = False,
) -> None:
    answer = hub.fetch(f"status?limit={limit}")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    console = Console(markup=False, width=None if sys.stdout.isatty() else WIDE)
    for table in tables(answer, _lately(hub, answer)):
        console.print(table)


def _lately(hub: Asked, answer: dict[str, Any]) -> dict[str, float]:
    """The newest point of the hub's figures, of the last half minute; {} if there is none."""
    try:
        since = int(answer["time"]) - int(LATELY * 1e6)
        figures = hub.fetch(f"figures?since={max(since, 0)}")["figures"]
        found = {name: float(column[-1]) for name, column in figures.items() if column}
        return found if found.keys() >= NEEDED else {}
    except (HubbubError, AttributeError, LookupError, TypeError, ValueError):
        return {}


def tables(answer: dict[str, Any], lately: Mapping[str, float] = NOTHING) -> list[Table]:
    """One table of the single values, then one for each list of things.

    `lately`: rates and times of the last seconds, which come first.
    """
    single = Table("hub", "", show_edge=False, box=None)
    lists = []
    for words, said in RATES:
        if lately:
            single.add_row(words, said(lately))
    for name, value in _flat(answer):
        if not isinstance(value, list):
            single.add_row(words_of(name), _text(name, value))
        elif value:
            total = answer.get(f"{name.removesuffix('s')}_count")
            if name == "processes":
                value = [{key: one.get(key, "") for key in _OF_PROCESSES} for one in value]
            known = name == "pipeline"
            lists.append(_pipelines(value) if known else _list_table(name, value, total))
        else:
            single.add_row(words_of(name), "none")
    return [single, *lists]


def _text(name: str, value: Any) -> str:
    """Stamps are microseconds since 1970; everything else shows as it is, also from no hub."""
    if name in _STAMPS:
        with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(value / 1e6).astimezone().isoformat(" ", "seconds")
    if type(value) in (int, float):
        for pattern, said in _UNITS:
            if re.search(pattern, name):
                return said(value)
    text = f"{value:,}" if type(value) is int else _SPOKEN.get(str(value), str(value))
    return for_stream(text, lines=False)


def words_of(name: str) -> str:
    """A key of the answer as one would say it."""
    words = _WORDS.get(name) or name.replace("_ms_", "_within_").replace(".", ": ")
    words = re.sub(r"within_(\d+)$", r"of_\1_%_within", words).replace("_", " ")
    return _cell(words)


def size(number: float) -> str:
    """Bytes in words: 1.2 MB."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= least:
            return f"{number / least:,.1f} {unit}"
    return f"{number:,.0f} B"


RATES: Final[tuple[tuple[str, Callable[[Mapping[str, float]], str]], ...]] = (
    ("messages", lambda now: f"{now['published']:,.0f}/s in, {now['delivered']:,.0f}/s out"),
    ("network", lambda now: f"{size(now['bytes_received'])}/s in, {size(now['bytes_sent'])}/s out"),
    ("lost", lambda now: f"{now['dropped']:,.1f}/s"),
    ("delivered within", lambda now: _within(now, "delivery")),
    ("committed within", lambda now: _within(now, "commit")),
    ("processor", lambda now: f"{100 * now['cpu']:,.0f} %"),
    ("memory", lambda now: size(now["memory"])),
)  # fmt: skip
_UNITS: Final[tuple[tuple[str, Callable[[float], str]], ...]] = (
    (r"bytes|disk_", size),
    (r"_ms_", lambda number: f"{number:,.2f} ms"),
    (r"_seconds$", lambda number: f"{number:,.1f} s"),
)
_SPOKEN: Final = {"": "none", "True": "yes", "False": "no"}
_WORDS: Final = {
    "client_count": "clients", "queue_count": "queues", "messages_in": "messages in, in all",
    "messages_out": "messages out, in all", "bytes_in": "bytes of messages in",
    "connections": "connections open", "held_back": "publishers held back",
    "journal.keep_bytes": "journal: kept at most", "journal.trouble": "journal: trouble",
    "limits.not_taken": "limits: not taken because", "limits.shared_out": "limits: shared out",
}  # fmt: skip


def _within(now: Mapping[str, float], what: str) -> str:
    half, most = now.get(f"{what}_ms_50", 0.0), now.get(f"{what}_ms_99", 0.0)
    return f"{half:,.2f} ms half of them, {most:,.2f} ms 99 of 100" if most else "–"


def _cell(value: Any) -> str:
    """Numbers may be ids, and stay as they are; what a client lost is a count by reason."""
    if isinstance(value, dict):
        value = ", ".join(f"{reason}: {count}" for reason, count in value.items()) or "none"
    elif isinstance(value, list):
        value = "; ".join(map(str, value))
    elif isinstance(value, bool):
        value = _SPOKEN[str(value)]
    return for_stream(str(value), lines=False)


def _flat(tree: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        inner = isinstance(value, dict)
        pairs += _flat(value, f"{prefix}{name}.") if inner else [(prefix + name, value)]
    return pairs


def _pipelines(items: list[Any]) -> Table:
    """What a person asks of them; all of it, with curves, is for the page and `--json`."""
    table = Table(title=f"pipelines ({len(items):,})", title_justify="left", caption_justify="left")
    table.add_column("tables", overflow="fold")
    for head in ("state", "rows behind", "for", "quarantined"):
        table.add_column(head)
    said = []
    for item in items:
        one = item if isinstance(item, dict) else {}
        shown = [one.get(name) for name in ("behind_rows", "behind_seconds", "quarantined")]
        rows, seconds, bad = ("unknown" if value is None else value for value in shown)
        where, state = _cell(one.get("tables", "")), _cell(one.get("state", ""))
        waits = _text("behind_seconds", seconds)
        table.add_row(where, state, _text("", rows), waits, _text("", bad))
        if isinstance(error := one.get("last_error"), dict):
            said.append(f"{where}: {_cell(error.get('text', ''))}")
    table.caption = "\n".join(said) or None
    return table


def _list_table(name: str, items: list[Any], said: Any) -> Table:
    """`said`: how many there are in all, if that is more."""
    rows = [item if isinstance(item, dict) else {name: item} for item in items]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    more = type(said) is int and said > len(rows)
    count = f"{len(rows):,} of {said:,}" if more else f"{len(rows):,}"
    table = Table(*map(words_of, columns), title=f"{_cell(name)} ({count})", title_justify="left")
    for row in rows:
        table.add_row(*(
            _text(column, row[column]) if row.get(column) and column in _STAMPS
            else _cell(row.get(column, "")) for column in columns
        ))  # fmt: skip
    return table
