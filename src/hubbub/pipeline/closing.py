"""With how much patience (`Rules.patience`) the minutes and windows of a table were closed.

    tables/_closing.json    {"traffic": 60.0, "climate": 60.0}    seconds; at a URL: in `_progress`

With more of it messages count in minutes that are closed: each of these would be there twice, so a
run that has more refuses to begin. Less closes them sooner, and none twice. What an older version
wrote says nothing, and is taken to be as the rules are now. Called by `places` and `backfill`.
Reads no row and knows no Spark.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from hubbub.errors import SettingError
from hubbub.pipeline.absence import Home
from hubbub.pipeline.layout import Layout, read_json, write_json
from hubbub.pipeline.rules import Rules
from hubbub.pipeline.tables.table import AnyTable, Spanning, Summed

_ADVICE: Final = "remove it, then nobody is told that minutes would be there twice"


def closed_by(tables: Collection[AnyTable], rules: Rules) -> dict[str, float]:
    """What is to be noted of tables that these rules close."""
    return {table.name: rules.patience() for table in tables if _closes(table)}


def need(was: dict[str, float], now: dict[str, float], home: Home) -> None:
    """Raise SettingError if minutes that are closed could be opened again."""
    wrong = sorted(name for name, seconds in now.items() if seconds > was.get(name, seconds))
    if not wrong:
        return
    least, most = min(was[name] for name in wrong), now[wrong[0]]
    again = "; ".join(f"`hubbub pipeline backfill {name} --rules FILE`" for name in wrong)
    ways = [f"{again} makes them by these"] * home.backfills
    raise SettingError(
        f"{', '.join(wrong)}: by the rules so far a message counts at its own time up to {least:g} "
        f"s behind the hub's clock, by these up to {most:g} s, so what is closed would be there "
        "twice: " + "; or ".join(["put event_time and lateness back", *ways, home.all_again()])
    )


def read(layout: Layout) -> dict[str, float]:
    try:
        return {name: float(one) for name, one in read_json(_file(layout), _ADVICE).items()}
    except FileNotFoundError:
        return {}


def note(layout: Layout, tables: Collection[AnyTable], rules: Rules) -> None:
    """These tables are closed by these rules from now on."""
    before = read(layout)
    now = before | closed_by(tables, rules)
    if now != before:
        write_json(_file(layout), now)


def _closes(table: AnyTable) -> bool:
    """Whether its rows are of minutes or windows in which messages count by their own time."""
    return isinstance(table, Summed) or (
        isinstance(table, Spanning) and table.clocked and table.of_messages
    )


def _file(layout: Layout) -> Path:
    return layout.root / "_closing.json"
