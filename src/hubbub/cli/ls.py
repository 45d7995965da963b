"""`hubbub ls`: lists what a running hub has, page by page."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlencode

import typer
from rich.console import Console
from rich.table import Table

from hubbub.cli.asked import AsJson, Asked, silent
from hubbub.cli.options import takes
from hubbub.terminal import for_stream

app = typer.Typer(add_completion=False)

Kind = Literal[
    "sessions", "clients", "away", "senders", "gone", "subscriptions", "topics", "retained",
    "queues", "calls", "delayed", "bridges",
]  # fmt: skip
WIDE = 1_000  # columns of a table that no terminal shows: nothing is cut
_STAMPS = ("expires", "due", "left", "since", "time")
# Of sessions, only as JSON: a terminal has 80 columns.
_MORE = ("in_flight", "left", "since", "dropped")
_SESSIONS = ("sessions", "clients", "away")


@app.command()
@takes(Asked)
def ls(
    hub: Asked,
    kind: Annotated[Kind, typer.Argument(help=f"What: {', '.join(get_args(Kind))}.")],
    search: Annotated[
        str, typer.Argument(help="Only what has this in its name, client id or filter.")
    ] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="At most so many.")
    ] = 100,
    offset: Annotated[
        int, typer.Option(metavar="N", min=0, help="Without the first so many.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    query = urlencode(
        {"search": search, "limit": limit, "offset": offset}, errors="surrogateescape"
    )
    answer = hub.fetch(f"ls/{kind}?{query}")
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    rows: list[dict[str, Any]] = answer[kind]
    if rows:
        marked = any("exact" in row for row in rows)
        rows = [_shown(row, marked) for row in rows]
        names = [name for name in rows[0] if not (kind in _SESSIONS and name in _MORE)]
        table = Table(*names, box=None, show_edge=False)
        for row in rows:
            table.add_row(*(_cell(name, row[name]) for name in names))
        Console(markup=False, width=None if sys.stdout.isatty() else WIDE).print(table)
    first = min(offset + 1, answer["count"])
    told = f"{first:,} to {offset + len(rows):,} of {answer['count']:,}" if rows else "none"
    print(told + silent(answer))


def _shown(row: dict[str, Any], marked: bool) -> dict[str, Any]:
    """A row as it is printed: a name that is no text with %XX, and how `end` is told so."""
    exact = row.pop("exact", None)
    return row | (exact or {}) | ({"": "--exact" if exact else ""} if marked else {})


def _cell(name: str, value: Any) -> str:
    """Stamps are microseconds since 1970, 0 is never; a number is shown as it is."""
    if name in _STAMPS:
        return datetime.fromtimestamp(value / 1e6).isoformat(" ", "seconds") if value else "never"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return for_stream(str(value), lines=False)
